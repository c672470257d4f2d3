"""Things many tests need: the small digits, and a model trained on them for a moment."""

import copy
from dataclasses import replace

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.training import Pretraining, Silent, pretrain

# Everything here is small: two threads would mostly wait for each other.
torch.set_num_threads(1)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Networks whose weights a test leaves to chance are no others after other tests."""
    torch.manual_seed(0)


QUICK = (
    bhc.Learn(steps=60, kl_weight=0.1, contexts=8, examples=8),
    bhc.Consolidate(steps=30, contexts=8, examples=8),
)


@pytest.fixture(scope="session")
def digits() -> DataSet:
    return bhc.data.load("digits")


@pytest.fixture(scope="session")
def pretrained(digits: DataSet) -> torch.nn.Sequential:
    return pretrain("lenet-300-100", digits, Pretraining(epochs=12, batch=64, rate=5e-3))


@pytest.fixture(scope="session")
def quick_model(digits: DataSet, pretrained: torch.nn.Sequential) -> bhc.Compressor:
    """A class-subset model after a short training; tests must not change it."""
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.images[:1])
    return bhc.fit(model, digits.train, digits.validation, recipe=QUICK, progress=Silent())


@pytest.fixture(scope="session")
def weighing_model(quick_model: bhc.Compressor) -> bhc.Compressor:
    """The same, and it may be told how often classes appear."""
    network = copy.deepcopy(quick_model.network)
    network.space = replace(quick_model.space, concentration=1.0)  # type: ignore[type-var]
    return bhc.Compressor(replace(quick_model.model, network=network))
