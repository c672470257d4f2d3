"""A run on disk, the service on it, and one that serves it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.studio.service import Service
from tests.studio.serving import Serving, serving
from tests.vision import vision_model


@pytest.fixture(scope="session")
def run(quick_model: bhc.Compressor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    quick_model.save(folder)
    return folder


@pytest.fixture(scope="session")
def service(quick_model: bhc.Compressor) -> Service:
    return Service(quick_model, "digits")


@pytest.fixture(scope="session")
def server(run: Path) -> Iterator[Serving]:
    """One for all tests that leave it as it is."""
    with serving(run, "--workers", "2", "--max-body", "65536", "--max-upload", "262144") as started:
        yield started


@pytest.fixture(scope="session")
def domain_model(digits: DataSet, pretrained: torch.nn.Sequential) -> bhc.Compressor:
    """For domains, and for classes beside them; never trained."""
    space = bhc.Joint(bhc.ClassSubsets(10), bhc.InputDomains((1, 8, 8), full_scale=16.0))
    return bhc.wrap(pretrained, space, example_input=digits.train.inputs[:1])


@pytest.fixture(scope="session")
def vision(digits: DataSet) -> Service:
    """On a small vision transformer."""
    return Service(vision_model(digits), "vision")
