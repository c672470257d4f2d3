"""What is switched on for a run is switched off after it."""

import pytest
import torch

from bhc.training import computing

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def settings() -> tuple[bool, bool, bool]:
    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.backends.cudnn.benchmark,
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
            assert settings() == (wanted or repeatable, warn_only and not repeatable, not (wanted or repeatable))
        assert settings() == known
    finally:
        torch.use_deterministic_algorithms(False)
