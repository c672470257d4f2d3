"""How far a domain lies from those of training, and what is said where that is far."""

from pathlib import Path

import pytest
import torch
from torch import nn

import bhc
from bhc.contexts import Context
from bhc.data import DataSet
from bhc.emission import DomainWarning
from bhc.training import FAR, SeenDomains
from tests.training.runs import fit


def test_the_distance_is_that_to_the_nearest_over_what_is_usual() -> None:
    flat = [torch.full((2, 1, 1, 2), level) + torch.tensor([[-1.0], [1.0]]).reshape(2, 1, 1, 1) for level in (0.0, 3.0)]
    seen = SeenDomains.among(flat)
    assert seen.gap == pytest.approx(3 * 2**0.5)
    assert seen.spread == pytest.approx(4.0)  # a variance of 2 in each of two values
    context = Context(domain=torch.full((1, 1, 2), 5.0), domain_size=2)
    space = bhc.InputDomains((1, 1, 2))
    expected = 2 * 2**0.5 / (seen.gap**2 + 4.0 / 2) ** 0.5
    assert seen.distance(context, space) == pytest.approx(expected)
    assert seen.distance(Context(), space) is None


def test_features_that_are_missing_do_not_count() -> None:
    seen = SeenDomains.among([torch.zeros(2, 1, 1, 2), torch.ones(2, 1, 1, 2)])
    space = bhc.Joint(bhc.InputDomains((1, 1, 2)), bhc.FeatureSubsets((1, 1, 2)))
    domain = torch.tensor([1.0, 0.0]).reshape(1, 1, 2)
    only_first = Context(domain=domain, domain_size=16, features=torch.tensor([True, False]))
    assert seen.distance(only_first, space) == 0
    assert seen.distance(Context(domain=domain, domain_size=16), space) > 0


@pytest.fixture(scope="module")
def domain_model(digits: DataSet, pretrained: nn.Sequential) -> bhc.Compressor:
    space = bhc.InputDomains(digits.image_shape, full_scale=digits.full_scale)
    recipe = (bhc.Learn(steps=4, contexts=4, examples=4), bhc.Consolidate(steps=2, contexts=4, examples=4))
    return fit(digits, pretrained, space, recipe=recipe)


def test_a_domain_of_training_is_near_and_its_opposite_far(domain_model: bhc.Compressor, digits: DataSet) -> None:
    own = digits.validation.restricted_to((3, 4)).inputs
    near = domain_model.compress(domain=own).report  # any warning would be an error
    assert near.domain_distance is not None
    assert near.domain_distance < 1
    assert "of the usual distance" in str(near)
    with pytest.warns(DomainWarning, match="times as far from those seen in training"):
        far = domain_model.compress(domain=digits.full_scale - own.float()).report
    assert far.domain_distance is not None
    assert far.domain_distance > FAR
    assert far.domain_note in far.notes


def test_a_run_remembers_its_domains(domain_model: bhc.Compressor, digits: DataSet, tmp_path: Path) -> None:
    domain_model.save(tmp_path / "run")
    seen, again = domain_model.model.domains, bhc.load(tmp_path / "run").model.domains
    assert seen is not None
    assert again is not None
    assert torch.equal(seen.means, again.means)
    assert (seen.gap, seen.spread) == (again.gap, again.spread)


@pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")
def test_other_models_have_no_domains(quick_model: bhc.Compressor) -> None:
    assert quick_model.model.domains is None
    assert quick_model.compress(classes=[3, 4]).report.domain_distance is None


def test_beside_classes_the_domains_are_those_of_the_drawn_classes(digits: DataSet) -> None:
    drawn = bhc.ListedSubsets([(0, 6), (1, 8)])
    space = bhc.Joint(bhc.ClassSubsets(10, drawn), bhc.InputDomains(digits.image_shape, full_scale=digits.full_scale))
    seen = SeenDomains.of(space, digits.train, 10)
    assert seen is not None
    expected = [digits.train.restricted_to(pair).inputs.float().mean(0) for pair in ((0, 6), (1, 8))]
    assert torch.equal(seen.means, torch.stack(expected))
    assert "drawn classes" in space.describe()["domain"]
