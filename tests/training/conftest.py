"""Trainings of the pretrained network on the digits."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch

from bhc.data import DataSet
from tests.training import runs


@pytest.fixture
def fit(digits: DataSet, pretrained: torch.nn.Module) -> runs.Fit:
    return partial(runs.fit, digits, pretrained)


@pytest.fixture
def wrap(digits: DataSet, pretrained: torch.nn.Module) -> runs.Fit:
    """As ``fit`` takes it, but untrained."""
    return partial(runs.wrapped, digits, pretrained)


@pytest.fixture
def draw(digits: DataSet) -> runs.Draw:
    return partial(runs.draw_of, digits)


@pytest.fixture
def broken_off(digits: DataSet, pretrained: torch.nn.Module) -> Callable[[Path], None]:
    return partial(runs.broken_off, digits, pretrained)
