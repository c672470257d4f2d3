"""Stages, their losses, and the batches they draw."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import bhc
from bhc.contexts import Context, ContextBatch, ContextSpace, Spectrum
from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.tasks import Classification, distillation
from bhc.training import Silent, Stage, two_stage_budget
from bhc.training.batches import ClassIndex
from bhc.training.optimiser import RISING, USUAL_INPUTS, USUAL_SIZE, rising_steps, slowdown
from bhc.training.stages import blend, negative_elbo, restrict
from bhc.training.step import Schedule
from tests.training.runs import Fit

LEARN = bhc.Learn(steps=25, kl_weight=0.1, contexts=4, examples=8)


def test_the_divergence_warms_up() -> None:
    stage = bhc.Learn(steps=100, warm_up=0.5)
    assert stage.warmth(0) == 0
    assert stage.warmth(25) == pytest.approx(0.5)
    assert stage.warmth(80) == 1
    assert bhc.Learn(warm_up=0).warmth(0) == 1


def test_log_variances_and_maps_have_rates_of_their_own(wrap: Fit) -> None:
    network = wrap().network
    rate, hypernet = rates(bhc.Learn(rate=1e-3, logvar_rate=1e-2, map_slowdown=10), network), network.hypernet
    assert rate[id(hypernet.weights[0].shared_mean.offset)] == 1e-3
    assert rate[id(hypernet.weights[0].shared_logvar.offset)] == 1e-2
    assert rate[id(hypernet.vectors.mean_map.matrix)] == pytest.approx(1e-4)
    assert rate[id(hypernet.vectors.logvar_map.matrix)] == pytest.approx(1e-3)
    assert rate[id(hypernet.embedder[0].weight)] == pytest.approx(1e-4)


@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=2), bhc.Full()], ids=lambda g: g.kind)
def test_stage_two_of_a_budget_leaves_the_network_of_budget_zero_bit_for_bit(
    fit: Fit, generator: bhc.ScalesOnly
) -> None:
    design = {"weight_generator": generator, "std_limits": (0.2, None, None)}
    recipe = two_stage_budget(LEARN, LEARN)
    only, both = (fit(bhc.BinaryBudget(), design=design, recipe=stages) for stages in (recipe[:1], recipe))
    before = only.compress(budget=0, threshold=0.0)
    after = both.compress(budget=0, threshold=0.0)
    for one, other in zip(before.module.state_dict().values(), after.module.state_dict().values(), strict=True):
        assert torch.equal(one, other)
    small = both.compress(budget=1, threshold=0.0)
    assert small.report.weights_after != after.report.weights_after or not torch.equal(
        small.module[-1].weight, after.module[-1].weight
    )


CLASSES, NAN, INFINITY = bhc.ClassSubsets(10), float("nan"), float("inf")


@pytest.mark.parametrize(
    ("stage", "options", "noun"),
    [
        (bhc.Learn, {"rate": -1.0}, "rate must be"),
        (bhc.Learn, {"logvar_rate": INFINITY}, "logvar_rate"),
        (bhc.Learn, {"kl_weight": NAN}, "kl_weight"),
        (bhc.Learn, {"steps": -3}, "steps"),
        (bhc.Learn, {"contexts": 0}, "contexts"),
        (bhc.Learn, {"warm_up": 2.0}, "warm_up"),
        *((bhc.Learn, {"context_weight": weight}, "context_weight") for weight in (-0.1, NAN, INFINITY)),
        (bhc.Narrow, {"final_ratio": 0.5}, "final_ratio"),
        (bhc.Narrow, {"final_ratio": NAN}, "final_ratio"),
        (bhc.Narrow, {"closing": 1.5}, "closing"),
        (bhc.Narrow, {"kl_weight": -1.0}, "kl_weight"),
        *((bhc.Consolidate, {"blended": part}, f"blended.* given {part}") for part in (1.5, -0.1, NAN)),
        (bhc.Consolidate, {"teacher_weight": 1.2}, "teacher_weight.* given 1.2"),
        (bhc.Consolidate, {"thresholds": (1, -1)}, "thresholds must ascend"),
        (bhc.Consolidate, {"ratios": (30, 3)}, "ratios must ascend"),
        (bhc.Consolidate, {"ratios": (0.5, 3)}, "less than 1"),
        (bhc.Consolidate, {"ratios": (3, 30), "thresholds": (-2, 1)}, "given both"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(stage: type[Stage], options: dict[str, Any], noun: str) -> None:
    with pytest.raises(BhcError, match=noun):
        stage(**options)


@pytest.mark.parametrize(
    ("space", "noun"),
    [(CLASSES, "not conditioned"), (bhc.Joint(CLASSES, bhc.BinaryBudget()), "alone"), (bhc.Budgets(), "alone")],
)
def test_the_two_stage_recipe_is_for_a_binary_budget_alone(fit: Fit, space: ContextSpace, noun: str) -> None:
    with pytest.raises(BhcError, match=noun):
        fit(space, recipe=two_stage_budget(LEARN, LEARN))


def chain(layers: int, *, inputs: int = 4, sizes: Sequence[float] = ()) -> ConditionalNetwork:
    """Linear layers of four units, each with weights of one size where that is given."""
    hidden = [part for place in range(layers - 1) for part in (nn.Linear(4 if place else inputs, 4), nn.ReLU())]
    net = nn.Sequential(*hidden, nn.Linear(4, 3))
    for layer, size in zip(net[::2], sizes, strict=False):
        nn.init.constant_(layer.weight, size)
    return bhc.wrap(net, bhc.ClassSubsets(3), example_input=torch.zeros(1, inputs)).network


def rates(stage: Stage, network: ConditionalNetwork) -> dict[int, float]:
    """By the parameter's identity."""
    return {id(p): group["lr"] for group in stage.parameter_groups(network) for p in group["params"]}


@pytest.mark.parametrize(("layers", "expected"), [(3, 1.0), (4, 1.0), (16, 8.0), (20, 5**1.5)])
def test_means_of_deep_networks_take_smaller_steps(layers: int, expected: float) -> None:
    network = chain(layers, sizes=[0.5] * layers)
    assert slowdown(network) == pytest.approx(expected)
    groups = bhc.Learn(rate=0.08, logvar_rate=0.5, map_slowdown=1.0).parameter_groups(network)
    slow, scales, fast = (*([0.08] if expected == 1 else []), *sorted(group["lr"] for group in groups))
    assert (slow, scales, fast) == (pytest.approx(0.08 / expected), pytest.approx(0.08 / expected**0.5), 0.5)
    (group,) = bhc.Consolidate(rate=0.04).parameter_groups(network)
    assert group["lr"] == pytest.approx(0.04 / expected)


def test_a_layer_of_zeros_learns_too() -> None:
    network = chain(2, sizes=[0.0])
    assert all(rate > 0 for stage in (bhc.Learn(), bhc.Consolidate()) for rate in rates(stage, network).values())


@pytest.mark.parametrize(
    ("inputs", "sizes", "expected"),
    [
        (4, (USUAL_SIZE / 10, USUAL_SIZE * 10), (0.008, 0.08)),  # small weights in proportion
        (4 * USUAL_INPUTS, (USUAL_SIZE, USUAL_SIZE), (0.04, 0.08)),  # many under one output
    ],
)
def test_small_weights_and_many_under_one_output_take_smaller_steps(
    inputs: int, sizes: tuple[float, ...], expected: tuple[float, ...]
) -> None:
    network = chain(2, inputs=inputs, sizes=sizes)
    for stage in (bhc.Learn(rate=0.08), bhc.Consolidate(rate=0.08)):
        found = [rates(stage, network)[id(head.shared_mean.offset)] for head in network.hypernet.weights]
        assert found == pytest.approx(expected)
    log_variances = network.hypernet.weights[0].shared_logvar.offset
    assert rates(bhc.Learn(), network)[id(log_variances)] == bhc.Learn().logvar_rate


@pytest.mark.parametrize(("layers", "steps"), [(4, 0), (5, RISING)])
def test_rates_rise_in_deep_networks_alone(layers: int, steps: int) -> None:
    assert rising_steps(chain(layers)) == steps
    schedule = Schedule(bhc.Learn(steps=1000), [1.0], torch.device("cpu"), rising=steps)
    factors = [(schedule.advance(), float(schedule.rates))[1] for _ in range(steps + 2)]
    assert factors[0] == pytest.approx(1 / (steps + 1))
    assert factors[-2:] == [1.0, 1.0]


def test_examples_belong_to_their_context_and_carry_their_own_labels(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(3, 4)), Context(classes=(0, 8, 9))], 10)
    labels = digits.train.known_labels[index.draw(batch, 50, rng=torch.Generator().manual_seed(0))]
    assert set(labels[:50].tolist()) == {3, 4}
    assert set(labels[50:].tolist()) == {0, 8, 9}


def test_classes_are_drawn_at_the_given_rates(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(1, 2), appearance=(1.0, 0.25))], 10)
    labels = digits.train.known_labels[index.draw(batch, 20_000, rng=torch.Generator().manual_seed(0))]
    assert (labels == 1).float().mean().item() == pytest.approx(0.8, abs=0.02)


def test_context_sizes_count_the_training_examples_of_the_classes(digits: DataSet) -> None:
    index = ClassIndex(digits.train, 10)
    batch = ContextBatch.of([Context(classes=(1, 2))], 10)
    expected = ((digits.train.labels == 1) | (digits.train.labels == 2)).sum()
    assert index.context_sizes(batch).item() == expected


def test_a_class_without_examples_is_refused(digits: DataSet) -> None:
    with pytest.raises(BhcError, match="no example of class 0"):
        ClassIndex(digits.train.restricted_to(range(1, 10)), 10)


def test_labels_beyond_the_network_are_refused(digits: DataSet) -> None:
    with pytest.raises(BhcError, match="labels from 0 to 4"):
        ClassIndex(digits.train, 5)
    with pytest.raises(BhcError, match="non-empty"):
        ClassIndex(Split(digits.train.inputs[:0], digits.train.labels[:0]), 10)


def blended(part: float, *, contexts: int = 3, examples: int = 4, seed: int = 0) -> torch.Tensor:
    """Which share (K, B, B) each example has of each of its context; to other contexts it has none."""
    own = torch.eye(contexts * examples)
    (mixed,) = blend((own,), contexts, part=part, rng=torch.Generator().manual_seed(seed))
    shares = mixed.reshape(contexts, examples, contexts, examples)
    for one in range(contexts):
        for other in range(contexts):
            assert one == other or not shares[one, :, other].any()
    return torch.stack([shares[context, :, context] for context in range(contexts)])


def test_a_blend_is_of_two_examples_of_one_context_and_at_most_half_is_the_second() -> None:
    shares = blended(1.0, contexts=5, examples=200)
    torch.testing.assert_close(shares.sum(2), torch.ones(5, 200))
    assert ((shares > 0).sum(2) == 2).all()
    own = shares.diagonal(dim1=1, dim2=2)
    assert 0.5 <= own.min() < 0.51
    assert 0.99 < own.max() < 1
    assert own.mean().item() == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("part", [0.0, 0.3, 1.0])
def test_such_a_part_of_the_examples_is_blended_and_the_others_are_as_they_were(part: float) -> None:
    own = blended(part, contexts=10, examples=200).diagonal(dim1=1, dim2=2)
    assert (own < 1).float().mean().item() == pytest.approx(part, abs=0.04 if 0 < part < 1 else 0)


def test_images_and_targets_are_blended_alike() -> None:
    values = torch.arange(1.0, 9)
    images, targets = values[:, None, None, None].expand(8, 1, 2, 3), torch.stack((values, -values), 1)
    images, targets = blend((images, targets), 2, part=0.7, rng=torch.Generator().manual_seed(0))
    assert images.shape == (8, 1, 2, 3)
    torch.testing.assert_close(targets, torch.stack((images[:, 0, 1, 2], -images[:, 0, 0, 0]), 1))
    assert not torch.equal(targets[:, 0], values)


def test_numbers_that_are_whole_become_parts() -> None:
    images = torch.tensor([[0], [255]], dtype=torch.uint8)
    images, told = blend((images, images > 0), 1, part=1.0, rng=torch.Generator().manual_seed(0))
    torch.testing.assert_close(images, 255 * told)
    assert 0 < told[0].item() < 0.5 < told[1].item() < 1


def test_equal_seeds_give_equal_blends() -> None:
    assert torch.equal(blended(0.5, seed=3), blended(0.5, seed=3))
    assert not torch.equal(blended(0.5, seed=3), blended(0.5, seed=4))


def test_an_example_by_itself_has_nothing_to_be_blended_with() -> None:
    assert torch.equal(blended(1.0, examples=1), torch.ones(3, 1, 1))


# Contexts that are sources: examples of some speakers, of all classes.
SAMPLES = 3_000


def split(count: int = 120, classes: int = 3, sources: int = 2) -> Split:
    """A hum for each class, twice as loud for the second speaker."""
    labels, speakers = torch.arange(count) % classes, (torch.arange(count) // classes) % sources
    times = torch.arange(SAMPLES) / 8_000
    pitch = (300 * (1 + labels))[:, None]
    hum = 4_000 * (1 + speakers)[:, None] * torch.sin(2 * torch.pi * pitch * times)
    noise = 200 * torch.randn(count, SAMPLES, generator=torch.Generator().manual_seed(0))
    return Split((hum + noise).to(torch.int16).unsqueeze(1), labels, speakers)


def test_examples_are_drawn_of_the_sources_and_classes_that_are_asked_for() -> None:
    data = split()
    index = ClassIndex(data, 3)
    batch = ContextBatch.unconditioned(2, 3)
    rates = torch.tensor([[0.0, 1.0], [0.5, 0.5]])
    classes = torch.tensor([[0.5, 0.5, 0.0], [0.0, 0.0, 1.0]])
    batch = replace(batch, source_rates=rates, class_rates=classes)
    places = index.draw(batch, 200, rng=torch.Generator().manual_seed(0))
    labels = data.known_labels[places]
    loud = data.inputs[places].float().abs().amax((1, 2)) > 6_000
    assert loud[:200].all()
    assert 70 < int(loud[200:].sum()) < 130
    assert set(labels[:200].tolist()) == {0, 1}
    assert set(labels[200:].tolist()) == {2}
    assert index.context_sizes(batch).tolist() == [40.0, 40.0]


def test_sources_that_are_not_known_are_refused() -> None:
    data = split()
    batch = replace(ContextBatch.unconditioned(1, 3), source_rates=torch.ones(1, 1))
    with pytest.raises(BhcError, match="where its examples are from"):
        ClassIndex(Split(data.inputs, data.labels), 3).draw(batch, 4, rng=torch.Generator().manual_seed(0))


def test_a_model_for_speakers_is_trained_saved_and_asked(tmp_path: Path) -> None:
    data = split()
    net = bhc.models.build("speech-cnn", image_shape=(1, SAMPLES), num_classes=3, rng=torch.Generator().manual_seed(0))
    space = bhc.InputDomains((1, SAMPLES), bhc.RandomSubsets((1, 2)), 32_768.0, summary=Spectrum(), num_sources=2)
    model = bhc.wrap(net, space, example_input=data.inputs[:1])
    recipe = (bhc.Learn(steps=3, contexts=2, examples=8), bhc.Consolidate(steps=2, contexts=2, examples=8))
    bhc.fit(model, data, data, recipe=recipe, run=tmp_path / "run", progress=Silent())
    model = bhc.load(tmp_path / "run")
    assert model.model.validation is not None
    assert model.model.validation.sources is not None
    assert model.model.validation.inputs.dtype == torch.int16
    small = model.compress(domain=data.from_sources([1]).inputs[:20], threshold=0.0)
    assert small.report.domain_distance is not None
    assert small.report.domain_distance < 1.25
    assert small.predict(data.inputs[:4]).probabilities.shape == (4, 3)


def test_restricted_cross_entropy_equals_that_of_the_smaller_output() -> None:
    logits = torch.randn(5, 4)
    labels = torch.tensor([1, 3, 3, 1, 1])
    outputs = torch.tensor([[False, True, False, True]])
    expected = F.cross_entropy(logits[:, [1, 3]], (labels == 3).long())
    torch.testing.assert_close(F.cross_entropy(restrict(logits, outputs), labels), expected)


def test_elbo_weighs_each_context_by_its_own_data_and_weight() -> None:
    total = negative_elbo(
        torch.tensor(0.5),
        torch.tensor([10.0, 40.0]),
        num_data=torch.tensor([10.0, 20.0]),
        kl_weight=torch.tensor([1.0, 0.1]),
    )
    assert total.item() == pytest.approx(0.5 + (1.0 + 0.2) / 2)


def test_distillation_is_cross_entropy_without_a_teacher_and_zero_divergence_from_itself() -> None:
    logits, labels = torch.randn(6, 3), torch.randint(0, 3, (6,))
    plain = distillation(Classification(), logits, labels, logits, teacher_weight=0.0, temperature=2.0)
    torch.testing.assert_close(plain, F.cross_entropy(logits, labels, reduction="none"))
    copy = distillation(Classification(), logits, labels, logits, teacher_weight=1.0, temperature=2.0)
    torch.testing.assert_close(copy, torch.zeros(6))
