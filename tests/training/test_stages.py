from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

import bhc
from bhc.contexts import ContextSpace
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.training import Stage, two_stage_budget
from bhc.training.optimiser import RISING, USUAL_INPUTS, USUAL_SIZE, rising_steps, slowdown
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
