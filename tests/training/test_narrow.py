"""Learning while units go."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

import bhc
from bhc.contexts import Context, ContextBatch, ContextSpace
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.hypernet import FEW_LAYERS, ConditionalNetwork
from bhc.posterior import PooledNoise
from bhc.training import RunFolder, default_recipe, measuring, usual_kl_weight
from bhc.training.evaluation import harmonic, largest_ratio, pruning_ratios, threshold_for
from bhc.training.recipes import RATE_AFTER
from tests.emission.networks import build
from tests.training import runs
from tests.training.runs import Fit, mlp, wrapped

LEARN = bhc.Learn(steps=150, kl_weight=0.1, contexts=4, examples=8)
NARROW = bhc.Narrow(steps=150, kl_weight=0.1, contexts=4, examples=8, final_ratio=5.0)
PAIRS, DOMAINS = bhc.ClassSubsets(10, bhc.ConsecutivePairs()), bhc.InputDomains((1, 8, 8), full_scale=16.0)


def pairs(network: ConditionalNetwork) -> ContextBatch:
    return ContextBatch.of([Context(classes=(c, c + 1)) for c in range(9)], network.num_classes)


def test_the_ratio_rises_by_equal_factors_and_then_stays() -> None:
    stage = bhc.Narrow(steps=100, final_ratio=16.0, closing=0.8)
    assert [stage.ratio(step) for step in (0, 20, 40, 80, 99)] == pytest.approx([1, 2, 4, 16, 16])
    assert bhc.Narrow(steps=100, final_ratio=3.0, closing=0).ratio(0) == 3
    assert bhc.Learn().ratio(10) is None


def test_where_single_weights_go_there_is_nothing_to_narrow(fit: Fit, wrap: Fit) -> None:
    single, design = bhc.SingleContext(), {"family": "sparse-vd"}
    with pytest.raises(BhcError, match="takes units away"):
        fit(single, design, recipe=(NARROW,))
    assert not any(isinstance(stage, bhc.Narrow) for stage in default_recipe(wrap(single, **design).network))


NETWORKS, FAMILIES = ("two-heads", "flatten", "pre-activation", "residual"), ("io-gnj", "gnj", "ghs")


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_without_noise_narrowed_is_the_masked_one(name: str, family: str) -> None:
    torch.manual_seed(1)
    net, x = build(name)
    network = bhc.wrap(net, bhc.SingleContext(), example_input=x[:1], family=family).network
    with torch.no_grad():
        offset = network.hypernet.vectors.logvar_map.offset
        offset.add_(torch.randn_like(offset))  # so that units differ
    batch = ContextBatch.of([Context()], 10)
    threshold = threshold_for(network, batch, 2.0)
    part = torch.tensor(network.fraction_above(threshold, batch))
    assert 0 < part < 1

    class Still:
        """Noise that is none."""

        rng = None

        def normal(self, shape: torch.Size, *, like: torch.Tensor) -> torch.Tensor:
            return torch.zeros(shape, dtype=like.dtype)

    with torch.no_grad():
        sample, _ = network.noisy(x, batch, noise=Still(), dropped_fraction=part)
        masked = network.masked(x, batch, threshold=torch.full((1, 1), threshold))
        whole, _ = network.noisy(x, batch, noise=Still())
    if family == "ghs":  # its scales are skewed: without noise they are not their means
        assert not torch.allclose(sample, whole, atol=1e-3)
        return
    torch.testing.assert_close(sample, masked, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(whole, masked, atol=1e-3)


@pytest.mark.parametrize("family", ["io-gnj", "gnj", "ghs"])
def test_variances_are_learned_while_units_are_gone(digits: DataSet, wrap: Fit, family: str) -> None:
    network = wrap(bhc.SingleContext(), family=family).network
    noise = PooledNoise(0)
    noise.advance(0)
    batch = ContextBatch.of([Context()], 10)
    sample, _ = network.noisy(digits.test.inputs[:8], batch, noise=noise, dropped_fraction=torch.tensor(0.3))
    sample.square().sum().backward()
    gradient = network.hypernet.vectors.logvar_map.offset.grad
    assert gradient is not None
    assert gradient.count_nonzero() > 0


def test_a_part_of_the_units_and_a_threshold_say_the_same(fit: Fit) -> None:
    network = fit(PAIRS, recipe=(LEARN,)).network
    for ratio in [1 + step / 4 for step in range(1, 60)]:
        threshold = threshold_for(network, pairs(network), ratio)
        again = network.threshold_without(network.fraction_above(threshold, pairs(network)), pairs(network))
        one, other = (harmonic(pruning_ratios(network, pairs(network), limit).tolist()) for limit in (threshold, again))
        assert one == pytest.approx(other, rel=0.03)  # linear layers also skip units that others read
    assert network.threshold_without(0.0, pairs(network)) == float("inf")
    everything = pruning_ratios(network, pairs(network), network.threshold_without(1.0, pairs(network)))
    assert harmonic(everything.tolist()) == pytest.approx(largest_ratio(network, pairs(network)))


@pytest.mark.parametrize("stage", [bhc.Narrow(steps=20, final_ratio=1e6), bhc.Consolidate(steps=20, ratios=(2, 1e6))])
def test_ratios_out_of_reach_are_refused_before_the_first_step(fit: Fit, stage: bhc.Narrow) -> None:
    with pytest.raises(BhcError, match=r"1e\+06 times smaller"):
        fit(PAIRS, recipe=(LEARN, stage))


@pytest.mark.parametrize(("steps", "closing"), [(7, 0.7), (60, 1.0), (150, 0.7)])
def test_however_short_it_is_narrowing_ends_at_the_ratio(
    fit: Fit, monkeypatch: pytest.MonkeyPatch, steps: int, closing: float
) -> None:
    asked = []
    monkeypatch.setattr(measuring, "threshold_for", lambda *given: asked.append(given[-1]) or threshold_for(*given))
    fit(PAIRS, recipe=(replace(NARROW, steps=steps, closing=closing),))
    assert asked[0] > 1
    assert max(asked) == NARROW.final_ratio


def test_where_the_budget_is_fixed_its_networks_are_narrowed(fit: Fit) -> None:
    recipe = (*bhc.two_stage_budget(LEARN, LEARN), replace(NARROW, budget=1.0))
    recipe += (bhc.Consolidate(steps=5, ratios=(4.0, 6.0), budget=1.0),)
    model = fit(bhc.BinaryBudget(), recipe=recipe)
    assert model.model.thresholds is not None
    high = ContextBatch.of([Context(budget=1.0)], 10)
    ratios = [float(pruning_ratios(model.network, high, threshold)) for threshold in model.model.thresholds]
    assert ratios == pytest.approx([6, 4], rel=0.1)


@pytest.fixture(scope="module")
def deep(digits: DataSet) -> nn.Module:
    torch.manual_seed(0)
    net = mlp(8, width=40)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(400):
        index = torch.randint(len(digits.train), (64,))
        loss = nn.functional.cross_entropy(net(digits.train.inputs[index]), digits.train.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def test_narrowing_ends_at_the_ratio_and_at_less_error_than_cutting_at_once(digits: DataSet, deep: nn.Module) -> None:
    wrong, far = {}, replace(NARROW, final_ratio=20.0)
    for name, recipe in {"at once": (LEARN, LEARN), "narrowed": (LEARN, far)}.items():
        model = runs.fit(digits, deep, PAIRS, recipe=recipe)
        threshold = threshold_for(model.network, pairs(model.network), far.final_ratio)
        ratios = pruning_ratios(model.network, pairs(model.network), threshold)
        assert float(9 / (1 / ratios).sum()) == pytest.approx(far.final_ratio, rel=0.05)
        wrong[name] = 0
        for first in range(9):
            own = digits.validation.restricted_to([first, first + 1])
            small = model.compress(classes=[first, first + 1], threshold=threshold)
            wrong[name] += int((small.predict(own.inputs).labels != own.labels).sum())
    assert wrong["narrowed"] < 0.5 * wrong["at once"]


@pytest.mark.parametrize(
    "space", [DOMAINS, bhc.BinaryBudget(), bhc.Joint(PAIRS, DOMAINS, bhc.Budgets())], ids=["domain", "budget", "joint"]
)
@pytest.mark.parametrize("generator", [bhc.LowRank(rank=2), bhc.Full()], ids=lambda spec: spec.kind)
def test_every_kind_of_context_and_generator_is_narrowed(fit: Fit, space: ContextSpace, generator: bhc.LowRank) -> None:
    recipe = (replace(LEARN, steps=20), replace(NARROW, steps=20), bhc.Consolidate(steps=5, ratios=(4.0, 6.0)))
    model = fit(space, {"weight_generator": generator}, recipe=recipe, autocast=torch.bfloat16)
    curve = model.model.training["curves"]["after"]
    assert curve[0]["ratio_harmonic"] == pytest.approx(6, rel=0.1)
    assert curve[-1]["ratio_harmonic"] == pytest.approx(4, rel=0.1)


def test_without_consolidation_the_curve_is_drawn_around_what_is_left(digits: DataSet, deep: nn.Module) -> None:
    model = runs.fit(digits, deep, PAIRS, recipe=(LEARN, NARROW)).model
    curve = model.training["curves"]["after"]
    assert model.thresholds == pytest.approx((curve[0]["threshold"], curve[-1]["threshold"]))
    ratios = [curve[place]["ratio_harmonic"] for place in (0, -1)]
    assert ratios == pytest.approx([1.25 * NARROW.final_ratio, 0.5 * NARROW.final_ratio], rel=0.1)


def test_the_diary_tells_the_ratio_as_it_rises(fit: Fit, tmp_path: Path) -> None:
    fit(PAIRS, recipe=(LEARN, NARROW), run=tmp_path / "run")
    found = [r["ratio"] for r in RunFolder(tmp_path / "run").metrics.read() if r["stage"] == "narrow"]
    near = pytest.approx(NARROW.final_ratio, rel=0.01)
    rising = [ratio for ratio in found if ratio != near]
    assert rising == sorted(rising)
    assert rising == found[: len(rising)]
    assert len(rising) < len(found)  # the ratio is reached, and held from there on


def test_deep_networks_are_narrowed_where_nothing_is_said(digits: DataSet) -> None:
    shallow, deep = (wrapped(digits, mlp(depth)).network for depth in (FEW_LAYERS, FEW_LAYERS + 1))
    curvature = bhc.MeasureCurvature()
    assert default_recipe(shallow) == (curvature, bhc.Learn(), bhc.Consolidate())
    learn, narrow, consolidate = default_recipe(deep)
    assert isinstance(learn, bhc.Learn)
    assert isinstance(narrow, bhc.Narrow)
    assert learn.kl_weight == narrow.kl_weight == usual_kl_weight(deep)
    assert consolidate == bhc.Consolidate(ratios=(5.0, 12.5), rate=RATE_AFTER)
    assert default_recipe(deep, ratio=1.0, kl_weight=0.3) == (bhc.Learn(kl_weight=0.3), bhc.Consolidate())
    assert default_recipe(shallow, ratio=40.0)[2] == bhc.Narrow(kl_weight=2.0, final_ratio=40.0)


def test_many_weights_get_a_small_weight_of_the_divergence(digits: DataSet) -> None:
    small, large = (usual_kl_weight(wrapped(digits, mlp(6, width)).network) for width in (32, 512))
    assert large < small <= bhc.Learn().kl_weight
    assert large == pytest.approx(small * 32 / 512, rel=0.3)
