"""Answer questions beyond the paper's tables: train, choose on validation data, measure on test data, write the result.

    python experiments/ask.py experiments/configs/contexts/lenet-300-100-subsets.toml [...]

Each configuration and seed gives one file, ``experiments/results/contexts/<configuration>-seed<n>.json``. What is there
already is left alone; a training that was interrupted goes on from its last checkpoint. The pretrained network is the
one that ``experiments/run.py`` makes in ``--runs``; it is made where there is none.
"""

import argparse
import sys
import time
import warnings
from pathlib import Path
from types import ModuleType

import torch

import bhc
from bhc.emission import ThresholdWarning
from bhc.files import write_json
from bhc.results import environment
from bhc.training import default_progress, describe_device

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from questions import (  # noqa: E402
    ablations,
    appearance,
    budgets,
    features,
    guarantee,
    joint,
    pairs,
    speakers,
    subsets,
    vocabulary,
)
from questions.bench import Bench, Config  # noqa: E402

QUESTIONS: dict[str, ModuleType] = {
    "ablations": ablations,
    "appearance": appearance,
    "budgets": budgets,
    "features": features,
    "guarantee": guarantee,
    "joint": joint,
    "pairs": pairs,
    "speakers": speakers,
    "subsets": subsets,
    "vocabulary": vocabulary,
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", type=Path, help="configuration files")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=Path, default=HERE / "runs", help="folder of trained runs")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of result files")
    parser.add_argument("--data-dir", type=Path, help="folder with one folder a data set")
    arguments = parser.parse_args()
    try:
        for path in arguments.configs:
            config = Config.read(path)
            if config.question not in QUESTIONS:
                raise bhc.BhcError(f"unknown question {config.question!r}", hint=f"one of: {', '.join(QUESTIONS)}")
            for seed in config.seeds:
                target = arguments.results / "contexts" / f"{config.name}-seed{seed}.json"
                if not target.exists():
                    ask(config, seed, target, arguments)
    except bhc.BhcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def ask(config: Config, seed: int, target: Path, arguments: argparse.Namespace) -> None:
    """Answer one question with one seed, and write the result in one step."""
    print(f"{config.name}, seed {seed}", file=sys.stderr, flush=True)
    dataset = bhc.data.load(config.data, data_dir=arguments.data_dir)
    began = time.perf_counter()
    bench = Bench(config, seed, dataset, arguments.runs, arguments.device, default_progress())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThresholdWarning)  # limits are tried wherever they lead
        answer = QUESTIONS[config.question].answer(bench)
    target.parent.mkdir(parents=True, exist_ok=True)
    result = {
        "experiment": "contexts",
        "question": config.question,
        "model": config.model,
        "seed": seed,
        "config": config.settings,
        **environment(),
        "train_device": describe_device(torch.device(arguments.device)),
        "seconds": time.perf_counter() - began,
        "answer": answer,
    }
    write_json(target, result)
    print(target, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
