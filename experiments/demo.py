"""The demo over seeds and processors: does it say the same everywhere?

    python experiments/demo.py --seeds 5 --jobs 2

Runs ``bhc demo`` for each seed under each of torch's CPU capabilities that this processor has (``ATEN_CPU_CAPABILITY``:
default, avx2, avx512), one thread each. Then every third of the subsets that training drew, and all that it never drew,
get networks 10 to 250 times smaller, whose test error is taken. Writes ``docs/results/demo.json`` and its table,
``docs/results/demo.md``. A run that is there already is not run again, so it can be stopped and go on.

    python experiments/demo.py --sizes bhc-demo      the second part alone, of one demo
    python experiments/demo.py --rises bhc-demo      whether more bytes ever give more errors, in 1,000 requests
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import numpy
import torch

import bhc
from bhc.cli.demo import SIZES
from bhc.contexts import all_subsets
from bhc.examples import Split
from bhc.files import write_bytes, write_json
from bhc.results import logits

RESULTS = Path(__file__).parents[1] / "docs" / "results"
CAPABILITIES = ("default", "avx2", "avx512")
GROUPS = {"all": "all contexts", "pairs": "the nine pairs", "unseen": "subsets never shown"}
RATIOS = (10, 20, 100, 250)  # times fewer weights
EVERY = 3  # of the subsets that were drawn
BYTES = (350, 30_000)  # of files that are asked for
Run = dict[str, Any]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--runs", type=Path, help="folder for the demos; default: one that is thrown away")
    parser.add_argument("--out", type=Path, default=RESULTS)
    parser.add_argument("--data", default="mnist", help="what that demo was made with (%(default)s)")
    parser.add_argument("--rises", type=Path, metavar="DEMO", help="only ask one demo for ever larger files")
    parser.add_argument("--sizes", type=Path, metavar="DEMO", help="only try the sizes of one demo, in its folder")
    arguments = parser.parse_args()
    if arguments.rises is not None:
        write_json(arguments.out / "rises.json", rises(bhc.load(arguments.rises / "run")))
        return 0
    if arguments.sizes is not None:
        tried = try_sizes(bhc.load(arguments.sizes / "run"), bhc.data.load(arguments.data).test)
        write_json(arguments.sizes / "sizes.json", tried)
        print("\n".join(sizes_lines([tried])))
        return 0
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
    environment = os.environ | {"ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"}
    if not (out / "summary.json").exists():
        print(f"seed {seed}, {capability}", file=sys.stderr, flush=True)
        command = [sys.executable, "-m", "bhc", "demo", "--seed", str(seed), "--out", str(out), "--force"]
        subprocess.run(command, env=environment, check=True, capture_output=True)
    if not (out / "sizes.json").exists():
        subprocess.run([sys.executable, __file__, "--sizes", str(out)], env=environment, check=True)
    summary = json.loads((out / "summary.json").read_text())
    kept = ("seed", "commit", "device", "versions", "seconds", "original_error", "summary", "config")
    sizes = json.loads((out / "sizes.json").read_text())
    return {"capability": capability, **{name: summary[name] for name in kept}, "sizes": sizes}


def try_sizes(model: bhc.Compressor, test: Split) -> Run:
    """Of each ratio and group of subsets: the test error of what is emitted, and of the full network."""
    unseen = {tuple(subset) for subset in model.space.to_dict()["sampler"]["held_out"]}
    subsets = all_subsets(10, SIZES)
    groups = {"shown": [each for each in subsets if each not in unseen][::EVERY], "unseen": sorted(unseen)}
    return {str(ratio): {name: _tried(model, own, ratio, test) for name, own in groups.items()} for ratio in RATIOS}


def rises(model: bhc.Compressor, *, subsets: int = 50, limits: int = 20) -> Run:
    """Random subsets, each with random limits on bytes in rising order: where the validation error rises."""
    rng = numpy.random.default_rng(0)
    everything = list(all_subsets(10, SIZES))
    chosen = [everything[place] for place in rng.permutation(len(everything))[:subsets]]
    jumps = []
    for subset in chosen:
        sizes = numpy.sort(numpy.exp(rng.uniform(*numpy.log(BYTES), limits))).astype(int).tolist()
        errors = [model.compress(classes=subset, max_bytes=size).report.error or 0.0 for size in sizes]
        jumps += numpy.diff(errors).tolist()
    return {
        "command": "python experiments/demo.py --rises",
        "requests": subsets * limits,
        "bytes": BYTES,
        "rises_percent": 100 * sum(jump > 0 for jump in jumps) / len(jumps),
        "largest_rise": max(jumps),
    }


def _tried(model: bhc.Compressor, subsets: Sequence[tuple[int, ...]], ratio: int, test: Split) -> Run:
    wrong = before = images = 0
    worst, left, origins = 0.0, 0, Counter[str]()
    for subset in subsets:
        small = model.compress(classes=subset, max_weights=model.network.num_weights // ratio)
        own = test.restricted_to(subset)
        labels = torch.searchsorted(torch.tensor(subset), own.labels)
        lost = int((small.outputs(own.inputs).argmax(1) != labels).sum())
        full = int((logits(model.network.base_model, own.tensor)[:, list(subset)].argmax(1) != labels).sum())
        wrong, before, images = wrong + lost, before + full, images + len(labels)
        worst = max(worst, 100 * (lost - full) / len(labels))
        left += small.report.weights_after
        origins[small.report.origin] += 1
    return {
        "contexts": len(subsets),
        "ratio_harmonic": len(subsets) * model.network.num_weights / left,
        "error": 100 * wrong / images,
        "original_error": 100 * before / images,
        "lost": 100 * (wrong - before) / images,
        "lost_most": worst,
        "origins": dict(origins),
    }


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
        " mean over runs, and least to most.",
        "",
        "| network | contexts | error | least to most | apart by | full network | worst context | times fewer weights"
        " (harmonic) | file, mean |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for size, groups in result["spread"].items():
        for group, name in GROUPS.items():
            figures = groups[group]
            error = figures["file_error"]
            lines.append(
                f"| {size} | {name} | {error['mean']:.2f} % | {error['min']:.2f} to {error['max']:.2f} |"
                f" {error['max'] - error['min']:.2f} | {figures['original_error']['mean']:.2f} % |"
                f" {figures['error_max']['max']:.2f} % | {figures['pruning_ratio_harmonic']['mean']:.0f} |"
                f" {figures['file_bytes_mean']['mean']:,.0f} bytes |"
            )
    lines += [
        "",
        "What size costs: points of test error over the full network on the same classes, for a limit on weights. Of"
        " the subsets that training drew every third, and all that it never drew.",
        "",
        *sizes_lines([run["sizes"] for run in runs]),
    ]
    sizes = list(result["spread"])
    header = [f"{size}: {name}" for size in sizes for name in GROUPS.values()]
    lines += ["", f"| seed | capability | {' | '.join(header)} |", "|---" * (2 + len(header)) + "|"]
    for run in runs:
        errors = [f"{run['summary'][size][group]['file_error']:.2f}" for size in sizes for group in GROUPS]
        lines.append(f"| {run['seed']} | {run['capability']} | {' | '.join(errors)} |")
    return "\n".join(lines) + "\n"


def sizes_lines(runs: Sequence[Run]) -> list[str]:
    """A table of what size costs."""
    lines = [
        "| times fewer weights | subsets | points lost | least to most | full network | most lost by one subset"
        " | reached (harmonic) |",
        "|---|---|---|---|---|---|---|",
    ]
    for ratio, tried in runs[0].items():
        for group in tried:
            own = [run[ratio][group] for run in runs]
            lost = _range(each["lost"] for each in own)
            lines.append(
                f"| {ratio} | {own[0]['contexts']} {group} | {lost['mean']:.2f} | {lost['min']:.2f} to"
                f" {lost['max']:.2f} | {mean(each['original_error'] for each in own):.2f} % |"
                f" {max(each['lost_most'] for each in own):.2f} | {mean(each['ratio_harmonic'] for each in own):.0f} |"
            )
    return lines


if __name__ == "__main__":
    sys.exit(main())
