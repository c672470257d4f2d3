"""What all benchmarks share: rivals that take turns, the options of a script, the head of its file."""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

import bhc
from bhc.files import write_json
from bhc.results import environment
from bhc.training import describe_device

Results = dict[str, Any]
CPU = torch.device("cpu")
NO_GPU = 2  # what a script that needs one ends with


def take_turns(
    rivals: dict[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int = 1,
    warm_up: int = 3,
    device: torch.device = CPU,
) -> dict[str, float]:
    """Median milliseconds a call, each rival run once a round so that all meet the same disturbances."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + warm_up):
        for name, call in rivals.items():
            began = time.perf_counter()
            for _ in range(calls):
                call()
            wait_for(device)
            if turn >= warm_up:  # the first rounds warm up caches, allocators and threads
                times[name].append(1e3 * (time.perf_counter() - began) / calls)
    return {name: median(values) for name, values in times.items()}


def wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def options(
    script: str, about: str | None, *, rounds: int | None = None, device: bool = False
) -> argparse.ArgumentParser:
    """Arguments that every benchmark takes; ``rounds`` where its rivals take that many turns.

    With ``device`` it runs on a CPU or on a GPU, and what it finds on a GPU goes into a file of its own.
    """
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    path = Path(script).with_suffix(".json")
    parser.add_argument("--out", type=Path, help=f"default: {path.name} beside the script")
    parser.add_argument("--quick", action="store_true", help="a moment only, to see that it runs; no result")
    parser.set_defaults(path=path)
    if rounds is not None:
        parser.add_argument("--rounds", type=int, default=rounds, help="turns that are timed (%(default)s)")
    if device:
        parser.add_argument("--device", default="cpu", help="cpu or cuda (%(default)s)")
    return parser


def pairs(model: bhc.Compressor, arguments: argparse.Namespace) -> list[list[int]]:
    """Two classes that are neighbours, all such; the first of them in a quick run."""
    count = 1 if arguments.quick else model.network.num_classes - 1
    return [[first, first + 1] for first in range(count)]


def write(arguments: argparse.Namespace, results: Results, *, device: torch.device = CPU) -> None:
    """The results with their head. What a quick run says is no result, and never lands where one is."""
    path: Path = arguments.path
    if device.type == "cuda" and "device" in arguments:
        path = path.with_stem(f"{path.stem}_gpu")
    head = {"benchmark": path.stem.replace("_", "-"), **environment(), "device": describe_device(device)}
    if arguments.quick:
        head["quick"] = True
    target = arguments.out or (path.with_suffix(".quick.json") if arguments.quick else path)
    write_json(target, head | results)
    print(f"wrote {target}")
