"""Things many tests need: the small digits, and a model that was trained on them for a moment."""

import copy
from dataclasses import replace

import pytest
import torch

import bhc
from bhc.data import DataSet
from tests import quick_model as kept

# Everything here is small: two threads would mostly wait for each other.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Networks whose weights a test leaves to chance are no others after other tests."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def digits() -> DataSet:
    return bhc.data.load("digits")


@pytest.fixture(scope="session")
def pretrained() -> torch.nn.Module:
    """LeNet-300-100 as it was trained on the digits; tests must not change it."""
    return kept.pretrained()


@pytest.fixture(scope="session")
def quick_model(digits: DataSet) -> bhc.Compressor:
    """A class-subset model after a short training; tests must not change it."""
    return kept.quick_model(digits)


@pytest.fixture(scope="session")
def weighing_model(quick_model: bhc.Compressor) -> bhc.Compressor:
    """The same, and it may be told how often classes appear."""
    network = copy.deepcopy(quick_model.network)
    network.space = replace(quick_model.space, concentration=1.0)  # type: ignore[type-var]
    return bhc.Compressor(replace(quick_model.model, network=network))
