"""Run studies of the paper's experiments: train, choose on validation data, measure on test data, write the result.

    python experiments/run.py experiments/configs/lenet-300-100-bhc-cy.toml [...]

Each configuration and seed gives one file, ``experiments/results/<experiment>/<configuration>-seed<n>.json``. What is
there already is left alone; a training that was interrupted goes on from its last checkpoint. Trained runs are kept
in ``--runs``; the pretrained networks that all start from are made there first, but for public ones: those are to be
put there with ``bhc pretrain --public``.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
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
    parser.add_argument("--jobs", type=int, default=1, help="studies at once, each a process; they share a GPU well")
    parser.add_argument("--force", action="store_true", help="measure again what has a result already")
    arguments = parser.parse_args()
    try:
        tasks = [task for path in arguments.configs for task in tasks_of(path, arguments)]
        if arguments.jobs > 1 and len(tasks) > 1:
            return run_apart(tasks, arguments)
        for task in tasks:
            run(task, arguments)
    except bhc.BhcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


@dataclass(frozen=True)
class Task:
    """One seed of a study."""

    config: Path
    study: Study
    seed: int
    target: Path


def tasks_of(config: Path, arguments: argparse.Namespace) -> list[Task]:
    """Every seed of a study that has no result yet."""
    study = Study.read(config)
    folder = arguments.results / study.experiment
    tasks = [Task(config, study, seed, folder / f"{study.name}-seed{seed}.json") for seed in study.seeds]
    wanted = [task for task in tasks if arguments.seeds is None or task.seed in arguments.seeds]
    if not wanted:
        print(f"{config} has none of these seeds, its own are {list(study.seeds)}", file=sys.stderr)
    return [task for task in wanted if arguments.force or not task.target.exists()]


def run(task: Task, arguments: argparse.Namespace) -> None:
    """Train and measure, and write the result in one step."""
    study, seed = task.study, task.seed
    print(f"{study.name}, seed {seed}", file=sys.stderr, flush=True)
    dataset = bhc.data.load(study.data, data_dir=arguments.data_dir)
    bench = Bench(dataset, arguments.runs, arguments.device, default_progress())
    result = measure(study, seed, bench.train(study, seed), device=arguments.device)
    task.target.parent.mkdir(parents=True, exist_ok=True)
    write_json(task.target, result)
    print(f"{task.target}: {described(result['summary'])}", flush=True)


def run_apart(tasks: Sequence[Task], arguments: argparse.Namespace) -> int:
    """Each task in a process of its own, some at a time; what they start from is made first."""
    studies = {(task.study.model, task.study.data, task.study.weights): task.study for task in tasks}
    # Public weights first: where they are missing, nothing is trained in vain.
    for study in sorted(studies.values(), key=lambda study: study.weights != "public"):
        dataset = bhc.data.load(study.data, data_dir=arguments.data_dir)
        Bench(dataset, arguments.runs, arguments.device, default_progress()).weights(study)
    with ThreadPoolExecutor(arguments.jobs) as pool:
        codes = list(pool.map(lambda task: subprocess.run(command(task, arguments), check=False).returncode, tasks))
    failed = [task for task, code in zip(tasks, codes, strict=True) if code]
    for task in failed:
        print(f"failed: {task.study.name}, seed {task.seed}", file=sys.stderr)
    return 1 if failed else 0


def command(task: Task, arguments: argparse.Namespace) -> list[str]:
    """This program for one task."""
    options = {"--seeds": task.seed, "--device": arguments.device, "--runs": arguments.runs}
    options |= {"--results": arguments.results}
    if arguments.data_dir is not None:
        options["--data-dir"] = arguments.data_dir
    flags = ["--force"] if arguments.force else []
    pairs = [part for name, value in options.items() for part in (name, str(value))]
    return [sys.executable, __file__, str(task.config), *pairs, *flags]


def described(summary: dict[str, float]) -> str:
    return (
        f"{summary['pruning_ratio_mean']:.0f} x (harmonic {summary['pruning_ratio_harmonic']:.0f}) at"
        f" {summary['pruning_error']:.2f} %, {summary['bits_ratio_mean']:.0f} x with bits at"
        f" {summary['bits_error']:.2f} %, files of {summary['file_bytes_mean']:.0f} bytes"
    )


if __name__ == "__main__":
    raise SystemExit(main())
