"""Timing that holds up on a busy machine: rivals take turns, medians are compared."""

import json
import platform
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

Results = dict[str, Any]


def take_turns(rivals: dict[str, Callable[[], object]], *, rounds: int, calls: int = 1) -> dict[str, float]:
    """Median milliseconds a call, each rival run once a round so that all meet the same disturbances."""
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for turn in range(rounds + 3):
        for name, call in rivals.items():
            began = time.perf_counter()
            for _ in range(calls):
                call()
            if turn >= 3:  # the first rounds warm up caches, allocators and threads
                times[name].append(1e3 * (time.perf_counter() - began) / calls)
    return {name: median(values) for name, values in times.items()}


def environment() -> Results:
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
    }


def write(results: Results, path: Path | None = None) -> None:
    """JSON beside the scripts, or to ``path``; by default the file named as the only argument."""
    if path is None:
        path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(sys.argv[0]).with_suffix(".json")
    path.write_text(json.dumps(results, indent=2) + "\n")
    print(f"wrote {path}")
