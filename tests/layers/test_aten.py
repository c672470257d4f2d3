"""What a call gives, found without data: kept with the module, and shared by calls that are alike."""

from typing import Any

import pytest
import torch

from bhc.layers import aten, call_of
from bhc.layers.aten import AtenCall, Own, Read, traced

SHAPE = (2, 3, 4)


def norm(width: int = 4, eps: float = 1e-5, dtype: torch.dtype = torch.float32) -> AtenCall:
    own = {"own0": torch.ones(width, dtype=dtype)}
    return call_of("aten.layer_norm.default", [Read(0), [width], Own("own0"), None, eps], {}, own)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The calls that were run, without data, since the test began."""
    made: list[str] = []
    forward = AtenCall.forward

    def noted(self: AtenCall, *values: Any) -> Any:
        made.append(self.target)
        return forward(self, *values)

    monkeypatch.setattr(AtenCall, "forward", noted)
    monkeypatch.setattr(aten, "_TRACES", {})
    return made


def test_calls_that_are_alike_are_run_once(runs: list[str]) -> None:
    assert traced(norm(), [SHAPE]).shape == traced(norm(), [SHAPE]).shape == SHAPE
    assert len(runs) == 1


def test_other_arguments_tensors_and_dtypes_are_run_again(runs: list[str]) -> None:
    traced(norm(), [SHAPE])
    traced(norm(eps=1e-3), [SHAPE])
    traced(norm(3), [(2, 4, 3)])
    assert traced(norm(dtype=torch.float64), [SHAPE], [torch.float64]).dtype == torch.float64
    assert len(runs) == 4


def test_what_is_kept_is_bounded(runs: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aten, "MOST_TRACES", 2)
    for count in range(1, 6):
        traced(norm(), [(count, 3, 4)])
    assert len(runs) == 5
    assert len(aten._TRACES) <= 2
