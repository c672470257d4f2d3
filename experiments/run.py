"""Run studies of the paper's experiments: train, choose on validation data, measure on test data, write the result.

    python experiments/run.py experiments/configs/lenet-300-100-bhc-cy.toml [...]

Each configuration and seed gives one file, ``experiments/results/<experiment>/<configuration>-seed<n>.json``. What is
there already is left alone; a training that was interrupted goes on from its last checkpoint. Trained runs are kept
in ``--runs``; the pretrained networks that all start from are made there first.
"""

import argparse
import sys
from pathlib import Path

import torch

import bhc
from bhc.files import write_json
from bhc.training import default_progress

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from study.config import Study  # noqa: E402
from study.measuring import measure  # noqa: E402
from study.training import Bench  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("configs", nargs="+", type=Path, help="configuration files")
    parser.add_argument("--seeds", nargs="*", type=int, help="only these of a configuration's seeds")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--runs", type=Path, default=HERE / "runs", help="folder of trained runs")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder of result files")
    parser.add_argument("--data-dir", type=Path, help="folder with one folder a data set")
    parser.add_argument("--force", action="store_true", help="measure again what has a result already")
    arguments = parser.parse_args()
    try:
        for path in arguments.configs:
            run(Study.read(path), arguments)
    except bhc.BhcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def run(study: Study, arguments: argparse.Namespace) -> None:
    """Every seed of a study that has no result yet."""
    for seed in study.seeds:
        target = arguments.results / study.experiment / f"{study.name}-seed{seed}.json"
        if (arguments.seeds is not None and seed not in arguments.seeds) or (target.exists() and not arguments.force):
            continue
        print(f"{study.name}, seed {seed}", file=sys.stderr, flush=True)
        dataset = bhc.data.load(study.data, data_dir=arguments.data_dir)
        bench = Bench(dataset, arguments.runs, arguments.device, default_progress())
        result = measure(study, seed, bench.train(study, seed), device=arguments.device)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_json(target, result)
        print(f"{target}: {described(result['summary'])}", flush=True)


def described(summary: dict[str, float]) -> str:
    return (
        f"{summary['pruning_ratio_mean']:.0f} x (harmonic {summary['pruning_ratio_harmonic']:.0f}) at"
        f" {summary['pruning_error']:.2f} %, {summary['bits_ratio_mean']:.0f} x with bits at"
        f" {summary['bits_error']:.2f} %, files of {summary['file_bytes_mean']:.0f} bytes"
    )


if __name__ == "__main__":
    raise SystemExit(main())
