from dataclasses import replace

import pytest
import torch

import bhc
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import FAMILIES
from bhc.training import Stage, TrainingConfig
from bhc.training.stages import StepScalars
from bhc.training.step import TrainingStep, make_step
from tests.training.runs import Draw, Fit, multiplied

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
