"""The programs in ``experiments`` find their own packages beside them; so must their tests."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.emission import SCALES

sys.path.insert(0, str(Path(__file__).parents[2] / "experiments"))

from experiments.report.paper import Paper
from study import choosing, training
from study.methods import METHODS, class_pairs
from study.training import Member

from tests.experiments.runner import NAMES, Place, study_file
from tests.experiments.synthetic import PAPERS
from tests.experiments.toys import ALONE, fitted, member_of


@pytest.fixture(scope="module")
def paper() -> Paper:
    """The paper's numbers for MNIST."""
    return PAPERS["mnist"]


@pytest.fixture(scope="module")
def cifar() -> Paper:
    return PAPERS["cifar10"]


@pytest.fixture(scope="module")
def pairs_member(digits: DataSet, quick_model: bhc.Compressor) -> Member:
    return member_of(quick_model, class_pairs(digits))


@pytest.fixture(scope="module")
def sparse_member(digits: DataSet, pretrained: torch.nn.Module) -> Member:
    model = fitted(pretrained, digits, bhc.SingleContext(), ALONE, family="sparse-vd")
    return member_of(model, METHODS["sparsevd"].cases(digits))


@pytest.fixture(scope="module")
def few_tries() -> Iterator[None]:
    """Most of the time of such small studies is in the many thresholds and steps that are tried."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "CURVE_POINTS", 13)
        patch.setattr(choosing, "scales_for", lambda family: SCALES[::4])
        yield


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, few_tries: None) -> Place:
    """Three studies, run in one call."""
    place = Place(tmp_path_factory.mktemp("place"))
    configs = [study_file(place.folder, method) for method in NAMES]
    assert place.call(*configs) == 0
    return place


@pytest.fixture
def no_training(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("something was trained")

    monkeypatch.setattr(bhc, "fit", refuse)
    monkeypatch.setattr(training, "pretrain", refuse)
