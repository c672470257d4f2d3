"""What the pretrained network can spare: moments of a context, the order in which units go, what makes up for them."""

from dataclasses import replace
from math import log
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.curvature import ContextCurvature, Curvature, eliminated, measure_curvature, measured
from bhc.data import DataSet
from bhc.emission import Cutter, assemble, smallest_ratio
from bhc.emission.origins import WHOLE, Curved
from bhc.errors import BhcError
from bhc.examples import Split
from bhc.hypernet import ConditionalNetwork
from bhc.training import Silent, TrainedModel
from tests.emission.networks import NETWORKS, build
from tests.training.runs import mlp, wrapped

PAIR = (3, 8)


def curved(network: ConditionalNetwork, examples: Split, classes: tuple[int, ...] = PAIR, **options: Any) -> Curved:
    curvature = measure_curvature(network, examples, **options)
    context = network.space.resolve({"classes": classes} if network.space.conditions else {})
    found = Curved.of(TrainedModel(network, curvature=curvature), Cutter(network, context))
    assert found is not None
    return found


def cut_at(origin: Curved, ratio: float) -> nn.Module:
    cut = origin.cutter.cut(-log(ratio))
    return assemble(origin.cutter.network, cut, origin.weights.layers(cut))


def known(network: ConditionalNetwork, digits: DataSet) -> tuple[Curvature, ContextCurvature]:
    curvature = measure_curvature(network, digits.train, per_class=20, graded=5)
    return curvature, ContextCurvature.of(curvature, network, network.space.resolve({"classes": PAIR}))


def test_moments_are_those_of_the_examples_of_a_context(digits: DataSet) -> None:
    curvature, context = known(wrapped(digits, mlp()).network, digits)
    assert sorted(set(curvature.labels.tolist())) == list(range(10))
    assert len(curvature.labels) == 200
    assert len(curvature.graded) == 50
    first, *_ = context.layers.values()
    sample, *_ = curvature.layers.values()
    rows = (sample.inputs.float() * sample.input_size)[:, 0]
    own = rows[torch.isin(curvature.labels, torch.tensor(PAIR))]
    assert first.mean.min() >= own.min()
    assert first.mean.max() <= own.max()
    # Examples near the border between both count more, so it is no plain mean; but it is one of these alone.
    others = rows[~torch.isin(curvature.labels, torch.tensor(PAIR))]
    assert (first.mean - own.mean(0)).norm() < (first.mean - others.mean(0)).norm()


def test_what_moves_all_outputs_alike_changes_nothing(digits: DataSet) -> None:
    """Of the last layer's outputs, of which the derivative is one, the difference of both classes is left."""
    _, context = known(wrapped(digits, mlp()).network, digits)
    *_, last = context.layers.values()
    precision = last.factor.mT @ last.factor
    expected = torch.zeros(10, 10)
    expected[PAIR[0], PAIR[0]] = expected[PAIR[1], PAIR[1]] = 0.5
    expected[PAIR[0], PAIR[1]] = expected[PAIR[1], PAIR[0]] = -0.5
    torch.testing.assert_close(precision, expected, atol=1e-3, rtol=0)


class Repeated(nn.Module):
    """Each hidden unit is there twice: half of them can go, and nothing is lost."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = bhc.models.Normalise(0.0, 16.0)
        self.flatten = nn.Flatten()
        self.first, self.relu, self.last = nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10)
        with torch.no_grad():
            self.first.weight[8:] = self.first.weight[:8]
            self.first.bias[8:] = self.first.bias[:8]

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.relu(self.first(self.flatten(self.normalise(x)))))  # type: ignore[no-any-return]


def test_a_unit_that_another_repeats_goes_for_nothing(digits: DataSet) -> None:
    network = wrapped(digits, Repeated()).network
    origin = curved(network, digits.train)
    images = digits.validation.restricted_to(PAIR).inputs
    full = network.base_model(images)[:, list(PAIR)]
    cuts = (origin.cutter.cut(-log(ratio)) for ratio in torch.linspace(1.1, 4, 60).tolist())
    cut = next(cut for cut in cuts if len(cut.layers[0].kept_outputs) <= 8)
    assert {unit % 8 for unit in cut.layers[0].kept_outputs.tolist()} == set(range(len(cut.layers[0].kept_outputs)))
    small = assemble(network, cut, origin.weights.layers(cut))
    apart = (small(images) - full).abs().max() / (full[:, :1] - full[:, 1:]).abs().mean()
    assert apart < 0.2
    without = assemble(network, cut, [replace(own, weight=network.layers[place].module.weight[
        cut.layers[place].kept_outputs][:, cut.layers[place].kept_inputs]) for place, own in
        enumerate(origin.weights.layers(cut))])  # fmt: skip
    assert (without(images) - full).abs().max() > 3 * (small(images) - full).abs().max()


def test_inputs_that_never_change_go_first(digits: DataSet) -> None:
    origin = curved(wrapped(digits, mlp()).network, digits.train)
    variance = next(iter(origin.weights.known.layers.values())).variance  # type: ignore[attr-defined]
    still = variance == 0
    assert still.any()
    kept = origin.cutter.cut(-log(1.01)).layers[0].kept_inputs
    assert not still[kept].any()


@pytest.mark.parametrize("name", ["all-convolutional", "residual", "two-heads", "pre-activation", "flatten"])
def test_thresholds_are_ratios_in_networks_of_every_form(name: str) -> None:
    net, x = build(name)
    network = bhc.wrap(net, bhc.ClassSubsets(10), example_input=x).network
    many, labels = torch.randn(60, *x.shape[1:]), torch.arange(60) % 10
    origin = curved(network, Split(many, labels), (0, 1), per_class=15, graded=5)
    whole = origin.cutter.cut(WHOLE)
    same = assemble(network, whole, origin.weights.layers(whole))
    torch.testing.assert_close(same(many), network.base_model(many)[:, :2], atol=1e-4, rtol=1e-4)
    sizes = [origin.cutter.cut(-log(ratio)).num_weights for ratio in (1.0, 1.5, 2.0, 4.0, 8.0)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > sizes[-1]
    assert cut_at(origin, 2.0)(many).shape == (60, 2)
    assert cut_at(origin, 2.0)(many).isfinite().all()


def test_networks_are_as_many_times_smaller_as_their_threshold_says(digits: DataSet) -> None:
    network = wrapped(digits, mlp(3, 24)).network
    origin = curved(network, digits.train)
    for ratio in (2.0, 3.0, 5.0, 8.0):
        reached = network.num_weights / origin.cutter.cut(-log(ratio)).num_weights
        assert ratio * 0.9 <= reached <= ratio * 1.4


def test_it_is_the_same_again_and_from_its_tensors(digits: DataSet) -> None:
    network = wrapped(digits, mlp()).network
    first, second = (measure_curvature(network, digits.train, seed=3) for _ in range(2))
    stored = first.tensors()
    assert all(torch.equal(tensor, second.tensors()[name]) for name, tensor in stored.items())
    read = Curvature.from_tensors(stored, network.layers)
    context = network.space.resolve({"classes": PAIR})
    outputs = network.outputs_of(ContextBatch.of([context], 10))[0]
    rates = [eliminated(network, ContextCurvature.of(one, network, context), outputs) for one in (first, read)]
    for one, other in zip(*rates, strict=True):
        assert torch.equal(one.out_log_dropout, other.out_log_dropout)  # type: ignore[arg-type]
    name = next(name for name in stored if name.startswith("inputs."))
    with pytest.raises(ValueError, match="curvature"):
        Curvature.from_tensors(stored | {name: stored[name][:, :, 1:]}, network.layers)


def test_layers_that_are_no_plain_products_are_left_out() -> None:
    for name in NETWORKS:
        net, x = build(name)
        network = bhc.wrap(net, bhc.SingleContext(), example_input=x).network
        for layer in measured(network):
            assert layer.groups == 1
            assert isinstance(layer.module, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)


@pytest.mark.parametrize("options", [{"per_class": 0}, {"per_class": 4, "graded": 8}, {"graded": 0}, {"steps": 3}])
def test_numbers_that_make_no_sense(options: dict[str, int]) -> None:
    with pytest.raises(BhcError, match="curvature"):
        bhc.MeasureCurvature(**options)


def test_a_network_that_knows_nothing_has_no_curvature(digits: DataSet) -> None:
    model = wrapped(digits, mlp(), pretrained=False)
    with pytest.raises(BhcError, match="curvature"):
        bhc.fit(model, digits.train, digits.validation, recipe=(bhc.MeasureCurvature(),), progress=Silent())


def test_contexts_of_domains_have_none(digits: DataSet) -> None:
    network = wrapped(digits, mlp()).network
    curvature = measure_curvature(network, digits.train)
    model = TrainedModel(network, curvature=curvature)
    plain = Cutter(network, Context(classes=PAIR))
    assert Curved.of(model, plain) is not None
    for missing in (TrainedModel(network), replace(model, curvature=None)):
        assert Curved.of(missing, plain) is None
    assert smallest_ratio(model) >= 256
