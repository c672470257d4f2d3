"""Learning while units go."""

from pathlib import Path

import pytest
import torch
from torch import nn

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.hypernet import FEW_LAYERS, ConditionalNetwork
from bhc.posterior import PooledNoise
from bhc.posterior.scales import LogNormalScales, NormalScales
from bhc.training import RunFolder, Silent, consolidation_after, default_recipe, usual_kl_weight
from bhc.training.evaluation import pruning_ratios, threshold_for

LEARN = bhc.Learn(steps=150, kl_weight=0.1, contexts=4, examples=8)
NARROW = bhc.Narrow(steps=150, kl_weight=0.1, contexts=4, examples=8, final_ratio=5.0)
PAIRS = bhc.ConsecutivePairs()


def fit(digits: DataSet, net: nn.Module, recipe: tuple[bhc.Learn, ...], **options: object) -> bhc.Compressor:
    model = bhc.wrap(net, bhc.ClassSubsets(10, PAIRS), example_input=digits.train.images[:1])
    return bhc.fit(model, digits.train, digits.validation, recipe=recipe, progress=Silent(), **options)  # type: ignore[arg-type]


def pairs(network: ConditionalNetwork) -> ContextBatch:
    return ContextBatch.of([Context(classes=(c, c + 1)) for c in range(9)], network.num_classes)


def network_of(net: nn.Module, digits: DataSet) -> ConditionalNetwork:
    return bhc.wrap(net, bhc.ClassSubsets(10), example_input=digits.train.images[:1]).network


def mlp(depth: int, width: int = 12) -> nn.Sequential:
    hidden = [layer for _ in range(depth - 2) for layer in (nn.Linear(width, width), nn.ReLU())]
    return nn.Sequential(
        bhc.models.Normalise(0.0, 16.0), nn.Flatten(), nn.Linear(64, width), nn.ReLU(), *hidden, nn.Linear(width, 10)
    )


def test_the_ratio_rises_by_equal_factors_and_then_stays() -> None:
    stage = bhc.Narrow(steps=100, final_ratio=16.0, closing=0.8)
    assert [stage.ratio(step) for step in (0, 20, 40, 80, 99)] == pytest.approx([1, 2, 4, 16, 16])
    assert bhc.Narrow(steps=100, final_ratio=3.0, closing=0).ratio(0) == 3
    assert bhc.Learn().ratio(10) is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"final_ratio": 0.5}, "final_ratio is how many times smaller"),
        ({"final_ratio": float("nan")}, "final_ratio"),
        ({"closing": 1.5}, "closing is a fraction"),
        ({"kl_weight": -1.0}, "kl_weight"),
    ],
)
def test_numbers_that_make_no_sense_are_refused(options: dict[str, float], message: str) -> None:
    with pytest.raises(BhcError, match=message):
        bhc.Narrow(**options)  # type: ignore[arg-type]


def test_where_single_weights_go_there_is_nothing_to_narrow(digits: DataSet, pretrained: nn.Module) -> None:
    model = bhc.wrap(pretrained, bhc.SingleContext(), example_input=digits.train.images[:1], family="sparse-vd")
    with pytest.raises(BhcError, match="takes units away"):
        bhc.fit(model, digits.train, digits.validation, recipe=(NARROW,), progress=Silent())
    assert not any(isinstance(stage, bhc.Narrow) for stage in default_recipe(model.network))


def test_scales_that_are_gone_are_zero_and_the_others_as_they_were() -> None:
    keep = torch.tensor([[True, False, True]])
    h, noise = torch.randn(1, 4, 3, 5), torch.randn(1, 4, 3)
    for scales in (
        NormalScales(torch.randn(1, 3), torch.randn(1, 3)),
        LogNormalScales(torch.randn(1, 8), torch.randn(1, 8)),
    ):
        left = scales.where(keep).times(h, noise)
        torch.testing.assert_close(left, scales.times(h, noise) * keep[:, None, :, None])
        assert not left[:, :, 1].any()


@pytest.mark.parametrize("family", ["io-gnj", "gnj", "ghs"])
def test_what_a_unit_that_is_gone_would_say_does_not_matter(
    digits: DataSet, pretrained: nn.Module, family: str
) -> None:
    model = bhc.wrap(pretrained, bhc.SingleContext(), example_input=digits.train.images[:1], family=family)
    bhc.fit(model, digits.train, digits.validation, recipe=(LEARN,), progress=Silent())
    network = model.network
    batch = ContextBatch.of([Context()], 10)
    threshold = threshold_for(network, batch, 2.0)
    dropouts = network.hypernet.dropouts(network.space.encode(batch))
    gone = ~network.find_masks(dropouts, torch.full((1, 1), threshold), batch.outputs).layers[0].keep_out[0]
    assert 0 < gone.sum() < len(gone)
    part = torch.tensor(network.part_over(threshold, batch))

    def logits(left_out: torch.Tensor | None) -> torch.Tensor:
        noise = PooledNoise(0)
        noise.advance(0)
        return network.noisy(digits.test.images[:16], batch, noise=noise, gone=left_out)[0]

    with torch.no_grad():
        before = {left_out: logits(left_out) for left_out in (part, None)}
        for parameter in network.hypernet.weight_heads[0].parameters():
            if parameter.shape[0] == len(gone) or (parameter.dim() > 1 and parameter.shape[1] == len(gone)):
                place = 0 if parameter.shape[0] == len(gone) else 1
                parameter.data.index_fill_(place, gone.nonzero()[:, 0], 3.0)
        assert torch.equal(logits(part), before[part])
        assert not torch.allclose(logits(None), before[None])


def test_a_part_of_the_units_and_a_threshold_say_the_same(digits: DataSet, pretrained: nn.Module) -> None:
    network = fit(digits, pretrained, (LEARN,)).network
    for ratio in (1.5, 4.0, 20.0):
        threshold = threshold_for(network, pairs(network), ratio)
        again = network.threshold_without(network.part_over(threshold, pairs(network)), pairs(network))
        assert torch.equal(*(pruning_ratios(network, pairs(network), limit) for limit in (threshold, again)))
    assert network.threshold_without(0.0, pairs(network)) == float("inf")


@pytest.fixture(scope="module")
def deep(digits: DataSet) -> nn.Module:
    torch.manual_seed(0)
    net = mlp(8, width=40)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(400):
        index = torch.randint(len(digits.train), (64,))
        loss = nn.functional.cross_entropy(net(digits.train.images[index]), digits.train.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net


def test_narrowing_ends_at_the_ratio_and_at_less_error_than_cutting_at_once(digits: DataSet, deep: nn.Module) -> None:
    wrong = {}
    for name, recipe in {"at once": (LEARN, LEARN), "narrowed": (LEARN, NARROW)}.items():
        model = fit(digits, deep, recipe)
        threshold = threshold_for(model.network, pairs(model.network), NARROW.final_ratio)
        ratios = pruning_ratios(model.network, pairs(model.network), threshold)
        assert float(9 / (1 / ratios).sum()) == pytest.approx(NARROW.final_ratio, rel=0.05)
        wrong[name] = 0
        for first in range(9):
            own = digits.validation.restricted_to([first, first + 1])
            small = model.compress(classes=[first, first + 1], threshold=threshold)
            wrong[name] += int((small.predict(own.images).labels != own.labels).sum())
    assert wrong["narrowed"] < 0.5 * wrong["at once"]


def test_without_consolidation_the_curve_is_drawn_around_what_is_left(digits: DataSet, deep: nn.Module) -> None:
    curve = fit(digits, deep, (LEARN, NARROW)).model.training["curves"]["after"]
    ratios = [curve[place]["ratio_harmonic"] for place in (0, -1)]
    assert ratios == pytest.approx([1.25 * NARROW.final_ratio, 0.25 * NARROW.final_ratio], rel=0.1)


def test_the_diary_tells_the_ratio_as_it_rises(digits: DataSet, pretrained: nn.Module, tmp_path: Path) -> None:
    fit(digits, pretrained, (LEARN, NARROW), run=tmp_path / "run")
    found = [r["ratio"] for r in RunFolder(tmp_path / "run").metrics.read() if r["stage"] == "narrow"]
    assert found == sorted(found)
    assert found[-1] == pytest.approx(NARROW.final_ratio, rel=0.2)


class Stopped(Exception):
    pass


class StopNarrowing(Silent):
    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.narrowing = title == bhc.Narrow.title

    def update(self, done: int, terms: dict[str, float]) -> None:
        if self.narrowing and done >= 100:
            raise Stopped


def test_a_run_broken_off_while_narrowing_resumes_to_the_same_bits(
    digits: DataSet, pretrained: nn.Module, tmp_path: Path
) -> None:
    whole = fit(digits, pretrained, (LEARN, NARROW), run=tmp_path / "whole", checkpoint_every=7)
    model = bhc.wrap(pretrained, bhc.ClassSubsets(10, PAIRS), example_input=digits.train.images[:1])
    options = {"recipe": (LEARN, NARROW), "run": tmp_path / "cut", "checkpoint_every": 7}
    with pytest.raises(Stopped):
        bhc.fit(model, digits.train, digits.validation, progress=StopNarrowing(), **options)  # type: ignore[arg-type]
    resumed = fit(digits, pretrained, (LEARN, NARROW), run=tmp_path / "cut", checkpoint_every=7, resume=True)
    one, other = whole.network.state_dict(), resumed.network.state_dict()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_deep_networks_are_narrowed_where_nothing_is_said(digits: DataSet) -> None:
    shallow, deep = (network_of(mlp(depth), digits) for depth in (FEW_LAYERS, FEW_LAYERS + 1))
    assert default_recipe(shallow) == (bhc.Learn(), bhc.Consolidate())
    learn, narrow, consolidate = default_recipe(deep)
    assert isinstance(learn, bhc.Learn)
    assert isinstance(narrow, bhc.Narrow)
    assert learn.kl_weight == narrow.kl_weight == usual_kl_weight(deep)
    assert consolidate == consolidation_after(narrow)
    assert consolidate.ratios == (2.5, 12.5)


def test_many_weights_get_a_small_weight_of_the_divergence(digits: DataSet) -> None:
    small, large = (usual_kl_weight(network_of(mlp(6, width), digits)) for width in (32, 512))
    assert large < small <= bhc.Learn().kl_weight
    assert large == pytest.approx(small * 32 / 512, rel=0.3)
