"""Rivals stop when they are no worse, or at their limit, and give networks of the context's classes."""

import sys

import pytest
import torch
from rivals import Attempt, Effort, Task, bc_io_gnj, from_scratch, pruned_by_taylor, weights_of
from torch import nn

import bhc
from bhc.data import DataSet

CLASSES, WEIGHTS = (3, 7), 400
SHORT = Effort(limit=50, every=25, between=2, batch=32)
NEVER, ALWAYS = -1.0, 100.0  # errors that no network and every network comes up to


def task(digits: DataSet, error: float) -> Task:
    return Task.of(digits, CLASSES, weights=WEIGHTS, error=error, device=torch.device("cpu"))


def small() -> nn.Module:
    return nn.Sequential(bhc.models.Normalise(0.0, 16.0), nn.Flatten(), nn.Linear(64, 4), nn.ReLU(), nn.Linear(4, 2))


def attempt(seconds: float, error: float, *, reached: bool) -> Attempt:
    return Attempt(nn.Identity(), seconds, 1, error, reached)


def test_a_task_numbers_its_classes_by_their_place(digits: DataSet) -> None:
    asked = task(digits, ALWAYS)
    wanted = digits.test.restricted_to(CLASSES).labels
    assert torch.equal(torch.tensor(CLASSES)[asked.test.labels], wanted)


def test_training_stops_where_the_error_is_reached_or_at_its_limit_and_says_so(digits: DataSet) -> None:
    found = from_scratch(small(), task(digits, ALWAYS), SHORT)
    assert (found.steps, found.reached, found.seconds) == (0, True, 0.0)
    found = from_scratch(small(), task(digits, NEVER), SHORT)
    assert (found.steps, found.reached) == (50, False)
    assert found.seconds > 0
    found = from_scratch(small(), task(digits, 5.0), Effort(limit=1000, batch=32))
    assert found.reached
    assert found.error <= 5
    assert 0 < found.steps < 1000


def test_the_quickest_of_those_that_got_there_counts_or_else_the_nearest() -> None:
    slow, quick = attempt(2.0, 1.0, reached=True), attempt(1.0, 1.0, reached=True)
    near, far = attempt(9.0, 2.0, reached=False), attempt(0.1, 8.0, reached=False)
    assert min(slow, quick, near, far) is quick
    assert min(far, near) is near


def test_taylor_pruning_ends_near_our_weights_with_pixels_cut_too(digits: DataSet, pretrained: nn.Sequential) -> None:
    pytest.importorskip("torch_pruning")
    found = pruned_by_taylor(pretrained, task(digits, NEVER), SHORT)
    first = next(module for module in found.net.modules() if isinstance(module, nn.Linear))
    assert weights_of(found.net) == pytest.approx(WEIGHTS, rel=0.1)
    assert first.in_features < 64
    assert found.net(digits.test.inputs[:3]).shape == (3, 2)


def test_without_torch_pruning_it_is_said_how_to_get_it(
    digits: DataSet, pretrained: nn.Sequential, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch_pruning", None)
    with pytest.raises(bhc.BhcError, match="torch-pruning") as raised:
        pruned_by_taylor(pretrained, task(digits, ALWAYS), SHORT)
    assert "pip install" in str(raised.value)


def test_bayesian_compression_is_cut_to_our_ratio(digits: DataSet, quick_model: bhc.Compressor) -> None:
    found = bc_io_gnj(quick_model, digits.train, task(digits, NEVER), Effort(limit=20, batch=32, kl_weight=0.1))
    assert (found.steps, found.reached) == (20, False)
    assert weights_of(found.net) <= WEIGHTS
    assert found.net(digits.test.inputs[:3]).shape == (3, 2)
