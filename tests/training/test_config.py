"""What is switched on for a run is switched off after it."""

import subprocess
import sys

import pytest
import torch

from bhc.training import computing

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def settings() -> tuple[bool, bool, bool, str]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
        torch.get_float32_matmul_precision(),
    )


@pytest.mark.parametrize("before", [(False, False), (True, False), (True, True)])
@pytest.mark.parametrize("repeatable", [False, True])
def test_everything_is_put_back(before: tuple[bool, bool], repeatable: bool) -> None:
    wanted, warn_only = before
    torch.use_deterministic_algorithms(wanted, warn_only=warn_only)
    try:
        known = settings()
        with computing(CPU, repeatable=repeatable):
            assert settings() == known
        with computing(CUDA, repeatable=repeatable):
            exact = wanted or repeatable
            assert settings() == (exact, warn_only and not repeatable, not exact, "high")
        assert settings() == known
    finally:
        torch.use_deterministic_algorithms(False)


def test_products_are_not_made_more_exact_than_they_were_wanted() -> None:
    torch.set_float32_matmul_precision("medium")
    try:
        with computing(CUDA, repeatable=False):
            assert torch.get_float32_matmul_precision() == "medium"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


TOLD_ANEW = """
import torch
from bhc.training import computing
torch.backends.cuda.matmul.fp32_precision = "tf32"
with computing(torch.device("cuda"), repeatable=False):
    print(torch.backends.cuda.matmul.fp32_precision)
print(torch.backends.cuda.matmul.fp32_precision)
"""


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="this torch has one way only")
def test_products_may_have_been_spoken_of_in_torch_s_newer_way() -> None:
    told = subprocess.run([sys.executable, "-c", TOLD_ANEW], capture_output=True, text=True, check=True).stdout
    assert told.split() == ["tf32", "tf32"]


COUNT_FAULTS = """
import resource, torch
from bhc.training import configure_process
configure_process()
def step():
    return sum(float(torch.ones(1 << 22)[0]) for _ in [torch.ones(1 << 22) for _ in range(8)])
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
step(); step()
before = faults(); step(); after = faults()
print(after - before, float(torch.tensor(1e-39) * 1.0))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told to keep memory")
def test_a_settled_process_keeps_its_memory_and_has_no_denormal_numbers() -> None:
    told = subprocess.run([sys.executable, "-c", COUNT_FAULTS], capture_output=True, text=True, check=True).stdout
    faults, denormal = told.split()
    # Sixteen tensors of 16 MiB are 65,536 pages of 4 KiB; one of them may be asked for anew.
    assert int(faults) < 10_000
    assert float(denormal) == 0.0
