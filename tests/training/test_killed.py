"""A run that is killed for real goes on to the same bits."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from bhc.training import RunFolder, load_run

OPTIONS = [
    "train", "--model", "lenet-300-100", "--data", "digits", "--steps", "150", "--consolidation-steps", "60",
    "--kl-weight", "0.1", "--contexts", "4", "--examples", "8", "--checkpoint-every", "20",
]  # fmt: skip
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def command(out: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "bhc", *OPTIONS, "--out", str(out), *more]


def run(out: Path, *more: str) -> None:
    subprocess.run(command(out, *more), env=ENVIRONMENT, check=True, capture_output=True, timeout=300)


@pytest.mark.long
def test_a_run_killed_with_kill_9_resumes_to_the_same_bits(tmp_path: Path) -> None:
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    victim = subprocess.Popen(command(cut), env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    while not RunFolder(cut).checkpoint.exists():
        assert victim.poll() is None, "the run ended before it could be killed"
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.02)
    time.sleep(0.15)  # into the middle of the next steps
    victim.send_signal(signal.SIGKILL)
    assert victim.wait() == -signal.SIGKILL
    assert not RunFolder(cut).description.exists()

    run(cut, "--resume")
    run(whole)
    one, other = (load_run(path).network.state_dict() for path in (whole, cut))
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)
