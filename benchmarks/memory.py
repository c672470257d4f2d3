"""The most memory that work holds at once."""

import gc
from collections.abc import Callable
from pathlib import Path

import torch

MIB = 2**20
STATUS, REFERENCES = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def peak_mib(work: Callable[[], object], device: torch.device) -> float | None:
    """What ``work`` needs beyond what is held already; None where that cannot be known.

    On a GPU as torch counts it, with what is free but kept from being used again. On a CPU the resident memory of this
    process, which Linux alone tells: give the work a process of its own, since memory that other work has freed may
    still be held.
    """
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return (int(torch.cuda.memory_stats(device)["active_bytes.all.peak"]) - before) / MIB
    if not REFERENCES.exists():
        return None
    REFERENCES.write_text("5")  # the peak starts anew
    before = _resident("VmRSS")
    work()
    return _resident("VmHWM") - before


def _resident(name: str) -> float:
    (line,) = (line for line in STATUS.read_text().splitlines() if line.startswith(f"{name}:"))
    return int(line.split()[1]) / 1024
