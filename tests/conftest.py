"""Things many tests need: the small digits, and a model that was trained on them for a moment."""

import copy
import os
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bhc
from bhc import layers, tasks
from bhc.contexts import registry as contexts
from bhc.data import DataSet
from bhc.formats import format
from tests import quick_model as kept

# Everything here is small: two threads would mostly wait for each other (make test-machines tries both).
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))

VARIANTS = 4  # of a test with many parameters that the quick run keeps
NUMERIC = {"contexts", "emission", "formats", "graph", "hypernet", "models", "posterior", "tools", "training"}


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--shuffle", type=int, metavar="SEED", help="run modules, and the tests in each, in a random order"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Long are all but a few variants of a grid, evenly spread; numeric is what hangs on how a processor rounds."""
    grids: dict[tuple[object, str], list[pytest.Item]] = {}
    for item in items:
        room = item.path.relative_to(Path(__file__).parent).parts[0]
        if room in NUMERIC:
            item.add_marker("numeric")
        grids.setdefault((item.parent, getattr(item, "originalname", item.name)), []).append(item)
    for grid in grids.values():
        kept = {len(grid) * place // VARIANTS for place in range(VARIANTS)}
        for place, item in enumerate(grid):
            if len(grid) > VARIANTS and place not in kept:
                item.add_marker("long")
    seed = config.getoption("shuffle")
    if seed is not None:
        random.Random(seed).shuffle(items)
        order = {path: place for place, path in enumerate(dict.fromkeys(item.path for item in items))}
        items.sort(key=lambda item: order[item.path])


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Networks whose weights a test leaves to chance are no others after other tests."""
    torch.manual_seed(0)


@pytest.fixture
def forgetful() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    tables = (layers._BY_MODULE, layers._BY_NAME, layers._BY_TAG, contexts._KINDS, format._FORMATS, tasks._TASKS)
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)  # type: ignore[attr-defined]


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
