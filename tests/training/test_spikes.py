"""Gradients that are far larger than usual."""

import math
from dataclasses import replace

import pytest
import torch

from bhc.data import DataSet
from bhc.training import Learn
from bhc.training.spikes import LARGEST, LATEST, SpikeLimit, gradient_norm
from bhc.training.stages import Dials, Draw, Loss
from bhc.training.step import make_step
from tests.training.test_step import LEARN, draw_of, network_of

CPU = torch.device("cpu")


def divided(limit: SpikeLimit, *norms: float) -> list[float]:
    return [float(limit.divisor(torch.tensor(norm))) for norm in norms]


def after(*norms: float) -> SpikeLimit:
    """One that has seen its first steps, over and over these."""
    limit = SpikeLimit(CPU)
    divided(limit, *(norms * LATEST)[:LATEST])
    return limit


def test_the_first_steps_stay_as_they_are() -> None:
    norms = [10.0 ** (step % 7) for step in range(LATEST)]
    limit = SpikeLimit(CPU)
    assert divided(limit, *norms) == [1.0] * LATEST
    assert limit.usual() == pytest.approx(sum(norms) / LATEST)


def test_gradients_of_the_usual_size_stay_as_they_are() -> None:
    assert divided(after(1.0), 1.0, 2.0, 0.1, 3.0, 1.0) == [1.0] * 5


def test_a_spike_is_cut_down_to_so_many_usual_norms() -> None:
    (divisor,) = divided(after(2.0), 4e6)
    assert 4e6 / divisor == pytest.approx(LARGEST * 2.0)


def test_a_spike_hardly_changes_what_is_usual() -> None:
    limit = after(1.0)
    divided(limit, 1e9)
    assert limit.usual() == pytest.approx(1.0, rel=0.05)


def test_gradients_that_have_grown_for_good_become_usual() -> None:
    assert divided(after(1.0), *[100.0] * 300)[-1] == 1.0


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_tells_nothing_of_what_is_usual(value: float) -> None:
    limit = after(3.0)
    assert divided(limit, value) == [1.0]
    assert limit.usual() == pytest.approx(3.0)
    first = SpikeLimit(CPU)
    assert divided(first, value) == [1.0]
    assert first.usual() == 0.0


@pytest.mark.parametrize("steps", [3, LATEST + 3])
def test_it_goes_on_from_what_was_usual_before(steps: int) -> None:
    first, second = SpikeLimit(CPU), SpikeLimit(CPU, taken=steps)
    divided(first, *([0.3, 7.0, 0.2] * steps)[:steps])
    second.expect(first.usual())
    assert divided(second, 50.0, 0.1) == divided(first, 50.0, 0.1)
    assert second.usual() == first.usual()


def test_it_finds_out_anew_where_nobody_kept_what_was_usual() -> None:
    limit = SpikeLimit(CPU, taken=5000)
    limit.expect(0.0)
    assert divided(limit, *[2.0] * LATEST, 3.0) == [1.0] * (LATEST + 1)
    assert divided(limit, 1e6)[0] > 1e4


def test_the_norm_is_that_of_all_gradients_and_finite_where_they_are() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(count)) for count in (3, 2, 1)]
    optimizer = torch.optim.Adam([{"params": parameters[:2]}, {"params": parameters[2:]}])
    parameters[0].grad, parameters[2].grad = torch.full((3,), 2.0), torch.full((1,), 2.0)
    assert gradient_norm(optimizer).item() == 4.0
    parameters[2].grad = torch.full((1,), 1e30)
    assert gradient_norm(optimizer).item() == pytest.approx(1e30)
    parameters[2].grad = torch.full((1,), torch.nan)
    assert gradient_norm(optimizer).isnan()


def test_a_step_with_a_spike_moves_the_optimiser_by_no_more_than_its_part(
    digits: DataSet, pretrained: torch.nn.Module, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A million times the loss once: after it Adam's second moments are those of gradients that were cut."""
    plain_loss, factor = Learn.loss, 1.0

    def sometimes_large(self: Learn, network: object, draw: Draw, dials: Dials) -> Loss:
        loss = plain_loss(self, network, draw, dials)  # type: ignore[arg-type]
        return Loss(loss.total * factor, loss.terms)

    monkeypatch.setattr(Learn, "loss", sometimes_large)
    take = make_step(replace(LEARN, steps=2 * LATEST), network_of(digits, pretrained), draw_of(digits), first=LATEST)
    take.limit.expect(0.5)
    for _ in range(4):
        take()
    usual = take.limit.usual()
    before = second_moments(take.optimizer)
    factor = 1e6
    take()
    # v = 0.999 v + 0.001 g^2, summed over all parameters
    added = second_moments(take.optimizer) - 0.999 * before
    assert added == pytest.approx(0.001 * (LARGEST * usual) ** 2, rel=1e-3)


def second_moments(optimizer: torch.optim.Optimizer) -> float:
    return sum(float(state["exp_avg_sq"].double().sum()) for state in optimizer.state.values())
