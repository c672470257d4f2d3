"""One step of an optimiser, and what it does to gradients that are far larger than usual."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import FAMILIES
from bhc.training import Stage, TrainingConfig
from bhc.training.config import Position
from bhc.training.stages import StepScalars
from bhc.training.step import LARGEST, LATEST, SpikeLimit, TrainingStep, gradient_norm, make_step
from tests.training.runs import CPU, Draw, Fit, StopAt, assert_same_bits, multiplied, resumed

LEARN = bhc.Learn(steps=20, kl_weight=0.1, contexts=2, examples=4)
CONSOLIDATE = bhc.Consolidate(steps=20, contexts=2, examples=4)


def copies(network: ConditionalNetwork) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


def state_of(take: TrainingStep) -> list[dict[str, torch.Tensor]]:
    """What Adam remembers of each parameter."""
    return [{name: value.clone() for name, value in state.items()} for state in take.optimizer.state.values()]


def same(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> bool:
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("stage", [LEARN, replace(LEARN, warm_up=0.0), CONSOLIDATE], ids=["warm", "cold", "after"])
@pytest.mark.parametrize("first_step", [0, 8])
def test_a_step_is_that_of_a_plain_optimiser_at_the_warmth_and_the_rates_of_its_place(
    wrap: Fit, draw: Draw, stage: Stage, first_step: int
) -> None:
    first, second = (wrap().network for _ in range(2))
    for network in (first, second):
        stage.prepare_(network)
    take = make_step(stage, first, draw(), first=first_step)
    groups, same_draw = stage.parameter_groups(second), draw()
    base = [group["lr"] for group in groups]
    plain = torch.optim.Adam(groups)
    for step in range(first_step, first_step + 10):
        take()
        for group, rate in zip(plain.param_groups, base, strict=True):
            group["lr"] = rate * stage.rate_factor(step)
        plain.zero_grad()
        stage.loss(second, same_draw, StepScalars(torch.tensor(stage.warmth(step)), torch.zeros(()))).total.backward()
        plain.step()
        second.hypernet.clip_()
    for name, tensor in first.state_dict().items():
        torch.testing.assert_close(tensor, second.state_dict()[name], rtol=1e-4, atol=1e-5, msg=name)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize(("value", "before"), [(float("nan"), 3), (float("inf"), 3), (float("nan"), 0)])
def test_a_step_whose_loss_is_not_finite_changes_nothing_and_is_counted(
    wrap: Fit, draw: Draw, monkeypatch: pytest.MonkeyPatch, family: str, value: float, before: int
) -> None:
    """Also the very first."""
    multiplied(monkeypatch, lambda step: value if before < step <= before + 2 else 1.0)
    network = wrap(family=family).network
    take = make_step(LEARN, network, draw())
    for _ in range(before):
        take()
    known, adam = copies(network), state_of(take)
    for count in (1, 2):
        take()
        assert take.skipped() == (count, count)
    assert same(copies(network), known)
    assert not before or all(same(*pair) for pair in zip(state_of(take), adam, strict=True))
    terms = take()
    assert terms.keys() == {"cross_entropy", "kl"}
    assert not any(term.requires_grad for term in terms.values())
    assert take.skipped() == (2, 0)
    assert not same(copies(network), known)
    assert all(tensor.isfinite().all() for tensor in network.state_dict().values())


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_one_gradient_that_is_not_finite_is_enough(wrap: Fit, draw: Draw, value: float) -> None:
    network = wrap().network
    take = make_step(LEARN, network, draw())
    take()
    before, adam = copies(network), state_of(take)

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        gradient = gradient.clone()
        gradient.view(-1)[3] = value
        return gradient

    handle = network.hypernet.vectors.mean_map.offset.register_hook(spoil)
    take()
    handle.remove()
    assert same(copies(network), before)
    assert all(same(*pair) for pair in zip(state_of(take), adam, strict=True))
    assert take.skipped() == (1, 1)
    take()
    assert take.skipped() == (1, 0)


@pytest.mark.parametrize("capture", [True, False])
def test_without_a_gpu_a_step_is_not_captured(wrap: Fit, draw: Draw, capture: bool) -> None:
    assert type(make_step(LEARN, wrap().network, draw(), TrainingConfig(capture=capture))) is TrainingStep


def test_limits_on_standard_deviations_hold_after_every_step(wrap: Fit, draw: Draw) -> None:
    limit = 0.0111  # a little over where the log-variances start
    network = wrap(std_limits=(limit, None, None)).network
    take = make_step(bhc.Learn(steps=20, logvar_rate=0.1, contexts=2, examples=4), network, draw())
    for _ in range(20):
        take()
    first, second, _ = ((0.5 * head.shared_logvar.offset).exp().max() for head in network.hypernet.weights)
    assert first.item() == pytest.approx(limit, rel=1e-4)
    assert second > 1.05 * limit


def divided(limit: SpikeLimit, *norms: float) -> list[float]:
    given = [torch.tensor(norm) for norm in norms]
    return [float(limit.divisor(norm, norm.isfinite())) for norm in given]


def after(*norms: float) -> SpikeLimit:
    """One that has seen its first steps, over and over these."""
    limit = SpikeLimit(CPU)
    divided(limit, *(norms * LATEST)[:LATEST])
    return limit


def test_the_first_steps_stay_as_they_are_and_tell_what_is_usual() -> None:
    limit = SpikeLimit(CPU)
    assert divided(limit, *[0.1, 1000.0] * (LATEST // 2)) == [1.0] * LATEST
    assert limit.usual == pytest.approx(10.0, rel=1e-4)


@pytest.mark.parametrize(
    ("norms", "expected"),
    [
        ((1.0, 2.0, 0.1, 3.0, 1.0), [1.0] * 5),  # of the usual size: they stay as they are
        ((4e6,), [pytest.approx(4e6 / LARGEST, rel=1e-4)]),  # cut down to so many usual norms
        ((0.0, 0.0), [1.0, 1.0]),
    ],
)
def test_gradients_are_divided_by_what_makes_them_usual(norms: tuple[float, ...], expected: list[float]) -> None:
    limit = after(1.0)
    assert divided(limit, *norms) == expected
    assert limit.usual == pytest.approx(1.0, rel=0.05) or 0.0 in norms  # a spike hardly changes it


def test_gradients_that_have_grown_for_good_become_usual_and_those_that_are_all_zero_can_be_divided() -> None:
    assert divided(after(1.0), *[100.0] * 300)[-1] == 1.0
    assert divided(after(0.0), 0.0, 0.0) == [1.0, 1.0]


def test_a_spike_among_the_first_steps_lets_no_other_through() -> None:
    (divisor,) = divided(after(*[0.6] * 50, 6e8, *[0.6] * 49), 600.0)
    assert 600.0 / divisor < 2 * LARGEST * 0.6


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("seen", [0, 3, LATEST])
def test_what_is_not_finite_tells_nothing_of_what_is_usual(value: float, seen: int) -> None:
    one, other = SpikeLimit(CPU), SpikeLimit(CPU)
    for limit in (one, other):
        divided(limit, *[3.0] * seen)
    assert divided(one, value, value) == [1.0, 1.0]
    assert one.state() == other.state()
    assert divided(one, 50.0, 0.1) == divided(other, 50.0, 0.1)


@pytest.mark.parametrize("seen", [3, LATEST + 3])
def test_it_goes_on_from_what_it_knew(seen: int) -> None:
    first, second = SpikeLimit(CPU), SpikeLimit(CPU)
    divided(first, *([0.3, 7.0, 0.2] * seen)[:seen])
    second.restore_(json.loads(json.dumps(first.state())))
    assert divided(second, 500.0, 0.1) == divided(first, 500.0, 0.1)
    assert second.state() == first.state()


def test_a_new_stage_has_gradients_of_its_own() -> None:
    position = Position(stage=0, stage_step=200, dropped_fraction=0.5, norms=(200.0, -1.0))
    position.enter(1)
    assert position == Position(stage=1)


@pytest.mark.long
def test_a_run_that_cuts_resumes_to_the_same_bits(
    fit: Fit, wrap: Fit, digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a limit so low that every other step is cut."""
    monkeypatch.setattr("bhc.training.step.LATEST", 3)
    monkeypatch.setattr("bhc.training.step.LARGEST", 1.0)
    whole, again = resumed(wrap, digits, tmp_path, StopAt(40, "learning"))
    assert_same_bits(whole, again)
    monkeypatch.setattr("bhc.training.step.LARGEST", 1e9)
    with pytest.raises(AssertionError):
        assert_same_bits(whole, fit())


def test_the_norm_is_that_of_all_gradients() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(count)) for count in (3, 2, 1)]
    optimizer = torch.optim.Adam([{"params": parameters[:2]}, {"params": parameters[2:]}])
    parameters[0].grad, parameters[2].grad = torch.full((3,), 2.0), torch.full((1,), 2.0)
    assert gradient_norm(optimizer).item() == 4.0
    parameters[0].grad = torch.full((3,), 1e15)
    assert gradient_norm(optimizer).item() == pytest.approx(3**0.5 * 1e15)
    parameters[0].grad, parameters[2].grad = torch.ones(3), torch.full((1,), 1e30)
    assert gradient_norm(optimizer).item() == pytest.approx(1e30)
    for value in (torch.nan, torch.inf):
        parameters[2].grad = torch.full((1,), value)
        assert not gradient_norm(optimizer).isfinite()


def test_a_step_with_a_spike_moves_the_optimiser_by_no_more_than_its_part(
    wrap: Fit, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million times the loss once: after it Adam's second moments are those of gradients that were cut."""
    multiplied(monkeypatch, lambda step: 1e6 if step == 5 else 1.0)
    take = make_step(LEARN, wrap().network, draw())
    for _ in range(4):
        take()
    take.limit.restore_((LATEST, math.log(0.5)))
    usual = take.limit.usual
    before = second_moments(take.optimizer)
    take()
    # v = 0.999 v + 0.001 g^2, summed over all parameters
    added = second_moments(take.optimizer) - 0.999 * before
    assert added == pytest.approx(0.001 * (LARGEST * usual) ** 2, rel=1e-3)


@pytest.mark.parametrize(("stage", "cut"), [(LEARN, True), (CONSOLIDATE, False)], ids=["learn", "consolidate"])
def test_gradients_are_cut_where_there_is_noise(
    stage: Stage, cut: bool, wrap: Fit, draw: Draw, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for largest in (1e-6, 1e9):
        monkeypatch.setattr("bhc.training.step.LARGEST", largest)
        network = wrap().network
        stage.prepare_(network)
        take = make_step(stage, network, draw())
        take.limit.restore_((LATEST, 0.0))
        take()
        ends.append(second_moments(take.optimizer))
    assert (ends[0] < ends[1]) == cut
    assert (ends[0] == ends[1]) != cut


def second_moments(optimizer: torch.optim.Optimizer) -> float:
    return sum(float(state["exp_avg_sq"].double().sum()) for state in optimizer.state.values())
