"""How long a new context takes: emission from a trained hypernetwork against training for that context alone.

    python experiments/speed.py lenet-300-100 [lenet-5-caffe]

Trains nothing: a step of each stage of the two configurations (``bhc-cy`` and ``per-context``) is timed, and multiplied
by the steps that the configuration takes. Emission is from the trained run of ``bhc-cy``, its first seed, over the nine
pairs: to the pruned network, and to the bytes of the packed file. Run it on a machine that does nothing else.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet
from bhc.files import write_json
from bhc.results import environment
from bhc.training import Silent, describe_device
from bhc.training.batches import BatchSource
from bhc.training.stages import Stage
from bhc.training.step import make_step

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from study.choosing import emit  # noqa: E402
from study.config import Study  # noqa: E402
from study.training import Bench, Member  # noqa: E402

WARM_UP = 10
BLOCKS = 5
REPEATS = 5


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="+")
    parser.add_argument("--device", default="cpu", help="where training is timed; emission is always on a CPU")
    parser.add_argument("--steps", type=int, default=10, help="training steps in each of five blocks")
    parser.add_argument("--runs", type=Path, default=HERE / "runs")
    parser.add_argument("--results", type=Path, default=HERE / "results")
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    for model in arguments.models:
        try:
            result = measure(model, arguments)
        except bhc.BhcError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
        kind = torch.device(arguments.device).type
        target = arguments.results / "speed" / f"{model}-{kind}.json"
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, result)
        print(f"{target}: {described(result)}", flush=True)
    return 0


def measure(model: str, arguments: argparse.Namespace) -> dict[str, Any]:
    together, alone = (Study.read(HERE / "configs" / f"{model}-{kind}.toml") for kind in ("bhc-cy", "per-context"))
    dataset = bhc.data.load(together.data, data_dir=arguments.data_dir)
    bench = Bench(dataset, arguments.runs, arguments.device, Silent())
    folder = bench.folder(together, together.seeds[0])
    if not (folder / "run.json").exists():
        raise bhc.BhcError(f"{folder} does not exist", hint=f"train it first: experiments/run.py {together.name}.toml")
    (member,) = bench.train(together, together.seeds[0])
    emission = emission_ms(member)
    timed = {
        "bhc_train_seconds": training_seconds(bench, together, together.method.space(dataset), arguments.steps),
        "context_train_seconds": training_seconds(bench, alone, bhc.SingleContext((3, 4)), arguments.steps),
    }
    return {
        "experiment": "speed",
        "model": model,
        **environment(),
        "train_device": describe_device(torch.device(arguments.device)),
        "emit_device": describe_device(torch.device("cpu")),
        **timed,
        **emission,
        "times_less": 1e3 * timed["context_train_seconds"] / emission["emit_network_ms"],
        "times_less_with_file": 1e3 * timed["context_train_seconds"] / emission["emit_file_ms"],
        "break_even_contexts": timed["bhc_train_seconds"] / timed["context_train_seconds"],
    }


def emission_ms(member: Member) -> dict[str, float]:
    """Median milliseconds from a context to a pruned network, and to a packed file."""
    threshold = member.model.model.default_threshold
    precisions = {"emit_network_ms": bhc.Float32(), "emit_file_ms": bhc.VarianceBits(2.0**-4)}
    found = {}
    for name, precision in precisions.items():
        times = []
        for _ in range(REPEATS):
            for case in member.cases:
                began = time.perf_counter()
                small = emit(member, case.test, threshold, precision)
                if name == "emit_file_ms":
                    small.to_bytes()
                times.append(1e3 * (time.perf_counter() - began))
        found[name] = median(times[len(member.cases) :])  # the first round also looks at the pretrained network
    return found


def training_seconds(bench: Bench, study: Study, space: ContextSpace, steps: int) -> float:
    """Steps of every stage times the median of what one takes, evaluation not counted."""
    model = bench.untrained(study, space, seed=0)
    network = model.network.to(bench.device)
    total = 0.0
    for stage in study.recipe:
        stage.prepare_(network)
        total += stage.steps * step_seconds(stage, model, bench.dataset, steps)
    return total


def step_seconds(stage: Stage, model: bhc.Compressor, dataset: DataSet, steps: int) -> float:
    device = model.network.device
    take = make_step(stage, model.network, BatchSource.of(dataset.train, dataset.num_classes, device=device, seed=0))
    blocks = [_timed(take, count, device) / count for count in (WARM_UP, *[steps] * BLOCKS)]
    return median(blocks[1:])


def _timed(take: Any, steps: int, device: torch.device) -> float:
    began = time.perf_counter()
    for _ in range(steps):
        take()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter() - began


def described(result: dict[str, Any]) -> str:
    return (
        f"a new context takes {result['emit_network_ms']:.1f} ms, {result['emit_file_ms']:.1f} ms to its file;"
        f" training for it {result['context_train_seconds']:.1f} s, {result['times_less']:,.0f} times as long"
        f" ({result['times_less_with_file']:,.0f} times with the file);"
        f" the hypernetwork's {result['bhc_train_seconds']:.1f} s are those of"
        f" {result['break_even_contexts']:.1f} contexts"
    )


if __name__ == "__main__":
    raise SystemExit(main())
