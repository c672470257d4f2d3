"""The demo over seeds and processors: does it say the same everywhere?

    python experiments/demo.py --seeds 5 --jobs 2

Runs ``bhc demo`` for each seed under each of torch's CPU capabilities that this processor has (``ATEN_CPU_CAPABILITY``:
default, avx2, avx512), one thread each, and writes ``docs/results/demo.json`` and its table, ``docs/results/demo.md``.
A run that is there already is not run again, so it can be stopped and go on.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

from bhc.files import write_bytes, write_json

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CAPABILITIES = ("default", "avx2", "avx512")
GROUPS = {"all": "all contexts", "pairs": "the nine pairs", "unseen": "subsets never shown"}
Run = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="folder for the demos; default: one that is thrown away")
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as passing:
        folder = arguments.runs or Path(passing)
        cases = list(product(range(arguments.seeds), available()))
        with ThreadPoolExecutor(arguments.jobs) as pool:
            runs = list(pool.map(lambda case: demo(folder, *case), cases))
    result = {"experiment": "demo", "command": "bhc demo --data mnist", "runs": runs, "spread": spread(runs)}
    write_json(arguments.out / "demo.json", result)
    text = table(result)
    write_bytes(arguments.out / "demo.md", text.encode())
    print(text)
    return 0


def available() -> list[str]:
    """The capabilities that this processor has, the plainest first."""
    highest = subprocess.run(
        [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability().lower())"],
        env={name: value for name, value in os.environ.items() if name != "ATEN_CPU_CAPABILITY"},
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    return list(CAPABILITIES[: CAPABILITIES.index(highest) + 1]) if highest in CAPABILITIES else ["default"]


def demo(folder: Path, seed: int, capability: str) -> Run:
    """One demo in a process of its own; what its summary says of the two sizes."""
    out = folder / f"{capability}-{seed}"
    if not (out / "summary.json").exists():
        print(f"seed {seed}, {capability}", file=sys.stderr, flush=True)
        environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "bhc", "demo", "--seed", str(seed), "--out", str(out), "--force"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    summary = json.loads((out / "summary.json").read_text())
    kept = ("seed", "commit", "device", "versions", "seconds", "original_error", "summary", "config")
    return {"capability": capability, **{name: summary[name] for name in kept}}


def spread(runs: list[Run]) -> Run:
    """Of each size and group: mean, least and most over all runs."""
    return {
        ratio: {
            group: {
                figure: _range(run["summary"][ratio][group][figure] for run in runs)
                for figure in (
                    "file_error",
                    "pruning_error",
                    "original_error",
                    "error_max",
                    "pruning_ratio_harmonic",
                    "file_bytes_mean",
                )
            }
            for group in GROUPS
        }
        for ratio in runs[0]["summary"]
    }


def _range(values: Iterable[float]) -> Run:
    known = list(values)
    return {"mean": mean(known), "min": min(known), "max": max(known)}


def table(result: Run) -> str:
    """The page: what holds over all runs, then each run."""
    runs = result["runs"]
    seeds, capabilities = len({run["seed"] for run in runs}), sorted({run["capability"] for run in runs})
    lines = [
        "# The demo, run again",
        "",
        f"`bhc demo` with {seeds} seeds under torch's CPU capabilities {', '.join(capabilities)} ({len(runs)} runs),"
        " LeNet-300-100 on MNIST, made by `python experiments/demo.py`. Test error, pooled over images and contexts;"
        " mean over runs, and least to most. Sizes are reached by a limit, so a network may be smaller than asked.",
        "",
        "| at least | contexts | error | least to most | apart by | full network | worst context | times fewer weights"
        " (harmonic) | file, mean |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for ratio, groups in result["spread"].items():
        for group, name in GROUPS.items():
            figures = groups[group]
            error = figures["file_error"]
            lines.append(
                f"| {ratio} x | {name} | {error['mean']:.2f} % | {error['min']:.2f} to {error['max']:.2f} |"
                f" {error['max'] - error['min']:.2f} | {figures['original_error']['mean']:.2f} % |"
                f" {figures['error_max']['max']:.2f} % | {figures['pruning_ratio_harmonic']['mean']:.0f} |"
                f" {figures['file_bytes_mean']['mean']:,.0f} bytes |"
            )
    sizes = list(result["spread"])
    header = [f"{ratio} x: {name}" for ratio in sizes for name in GROUPS.values()]
    lines += ["", f"| seed | capability | {' | '.join(header)} |", "|---" * (2 + len(header)) + "|"]
    for run in runs:
        errors = [f"{run['summary'][ratio][group]['file_error']:.2f}" for ratio in sizes for group in GROUPS]
        lines.append(f"| {run['seed']} | {run['capability']} | {' | '.join(errors)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
