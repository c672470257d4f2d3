"""Networks for many contexts at once."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

import bhc
from bhc.contexts import Context, all_subsets
from bhc.data import DataSet
from bhc.emission import ContextScales, Cutter, Slimmer, cut_all, weights
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork, GeneratorSpec
from bhc.posterior import FAMILIES

from .networks import LENETS, lenet

SUBSETS = list(all_subsets(10, (1, 2, 3)))[:40]


def assert_same(one: bhc.Compressed, other: bhc.Compressed) -> None:
    assert one.report.architecture == other.report.architecture
    assert one.report.bits == other.report.bits
    assert one.classes == other.classes
    for name, tensor in one.module.state_dict().items():
        torch.testing.assert_close(tensor, other.module.state_dict()[name], rtol=1e-4, atol=1e-6, msg=name)


def test_many_networks_are_those_that_compress_gives_one_by_one(quick_model: bhc.Compressor) -> None:
    asked = [{"classes": list(classes)} for classes in SUBSETS]
    for one, request in zip(quick_model.compress_many(asked, chunk=7), asked, strict=True):
        assert_same(one, quick_model.compress(**request))


def test_limits_are_each_context_s_own_or_those_of_all(quick_model: bhc.Compressor) -> None:
    asked: list[dict[str, Any]] = [{"classes": [3, 4]}, {"classes": [3, 4], "threshold": 0.0, "quantisation": None}]
    common, own = quick_model.compress_many(asked, threshold=-1.5, quantisation=bhc.Float32())
    assert_same(common, quick_model.compress(classes=[3, 4], threshold=-1.5, quantisation=bhc.Float32()))
    assert_same(own, quick_model.compress(classes=[3, 4], threshold=0.0))
    watched = next(quick_model.compress_many([{"classes": [3, 4], "flag_outside": 0.2}]))
    assert watched.report.flag_outside == quick_model.compress(classes=[3, 4], flag_outside=0.2).report.flag_outside


def test_no_more_than_a_chunk_is_taken_before_its_networks_are_handed_out(quick_model: bhc.Compressor) -> None:
    taken = 0

    def endless() -> Iterator[dict[str, Any]]:
        nonlocal taken
        while True:
            taken += 1
            yield {"classes": [3, 4]}

    networks = quick_model.compress_many(endless(), chunk=3)
    for given in range(1, 8):
        next(networks)
        assert taken == 3 * -(-given // 3)


def test_the_hypernetwork_is_called_once_a_chunk(quick_model: bhc.Compressor) -> None:
    calls = []
    hook = quick_model.network.hypernet.embedder.register_forward_hook(lambda _, x, __: calls.append(len(x[0])))
    try:
        list(quick_model.compress_many([{"classes": list(own)} for own in SUBSETS[:10]], chunk=4))
    finally:
        hook.remove()
    assert [count for count in calls if count > 1] == [4, 4, 2]
    assert 1 not in calls


def test_a_context_without_a_network_is_named(quick_model: bhc.Compressor) -> None:
    asked = [{"classes": [3, 4]}, {"classes": [3, 4], "max_bytes": 3}, {"classes": [77]}, {"classes": [5, 6]}]
    networks = quick_model.compress_many(asked)
    next(networks)
    with pytest.raises(BhcError, match=r"context 2: .* 3 bytes"):
        next(networks)
    first, second, third, fourth = quick_model.try_many(asked)
    assert isinstance(first, bhc.Compressed)
    assert isinstance(second, BhcError)
    assert isinstance(third, BhcError)
    assert "77" in third.problem
    assert isinstance(fourth, bhc.Compressed)
    assert fourth.classes == (5, 6)


def test_nothing_asked_is_nothing_given_and_no_chunk_is_refused(quick_model: bhc.Compressor) -> None:
    assert list(quick_model.compress_many([])) == []
    with pytest.raises(BhcError, match="given 0"):
        list(quick_model.compress_many([{"classes": [3]}], chunk=0))


@pytest.fixture(params=["grouped", "one by one"])
def _groups(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three contexts at a time, whatever they keep; or none together, since they keep too little of the same."""
    monkeypatch.setattr(weights, "GROUP", 3)
    monkeypatch.setattr(weights, "WASTE", 10_000 if request.param == "grouped" else 0)


@pytest.mark.usefixtures("_groups")
@pytest.mark.parametrize(
    ("name", "generator", "family"),
    [
        *(
            (name, generator, "io-gnj")
            for name in LENETS
            for generator in (bhc.ScalesOnly(), bhc.LowRank(rank=2), bhc.Full())
        ),
        *(("lenet-300-100", bhc.LowRank(rank=2), family) for family in FAMILIES if family != "io-gnj"),
    ],
)
def test_cuts_and_weights_of_a_batch_are_those_of_each_alone(name: str, generator: GeneratorSpec, family: str) -> None:
    contexts = [Context(classes=classes) for classes in SUBSETS[5:25]]
    assert_batch_is_each_alone(lenet(name, generator, family=family), contexts, threshold=0.0)


def test_groups_are_as_large_as_memory_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    network = lenet("lenet-300-100", bhc.Full())
    together = ContextScales.of(network, [Context(classes=(3, 4))] * 5)
    slimmer, cuts = Slimmer(together), cut_all(together, 0.0)
    asked: list[int] = []
    patch = slimmer._patch

    def noting(index: int, own: Any, rows: torch.Tensor, columns: torch.Tensor) -> weights.Patch:
        asked.append(len(rows))
        return patch(index, own, rows, columns)

    monkeypatch.setattr(slimmer, "_patch", noting)
    numbers = together.embedding.shape[1] * max(layer.num_weights for layer in cuts[0].layers)
    for room, groups in ((5, [5]), (2, [2, 2, 1]), (0, [1] * 5)):
        monkeypatch.setattr(weights, "LARGEST", room * numbers)
        assert len(slimmer.layers_of_all(cuts)) == 5
        assert asked == [count for count in groups for _ in range(3)]
        asked.clear()


@pytest.mark.usefixtures("_groups")
def test_contexts_that_leave_different_parts_out_go_together(digits: DataSet, pretrained: torch.nn.Module) -> None:
    shape = (1, 8, 8)
    kinds = (bhc.InputDomains(shape, full_scale=16.0), bhc.FeatureSubsets(shape), bhc.Budgets())
    space = bhc.Joint(bhc.ClassSubsets(10), *kinds)
    model = bhc.wrap(pretrained, space, example_input=digits.train.inputs[:1])
    with torch.no_grad():
        for parameter in model.network.hypernet.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(0)))
    left = torch.zeros(shape, dtype=torch.bool)
    left[..., :4] = True
    asked = [
        {"classes": [3, 4]},
        {"domain": digits.train.inputs[:20]},
        {"features": left, "budget": 0.3},
        {},
        {"classes": [1, 2, 5], "features": left, "budget": 1.0},
    ]
    contexts = [space.resolve(request) for request in asked]
    assert_batch_is_each_alone(model.network, contexts, threshold=-3.0)


def assert_batch_is_each_alone(network: ConditionalNetwork, contexts: list[Context], *, threshold: float) -> None:
    together = ContextScales.of(network, contexts)
    cuts = cut_all(together, threshold)
    layers = Slimmer(together).layers_of_all(cuts)
    for place, (context, cut, own) in enumerate(zip(contexts, cuts, layers, strict=True)):
        for cutter in (Cutter(network, context), Cutter(network, context, together.alone(place))):
            alone = cutter.cut(threshold)
            assert alone.classes == cut.classes
            assert torch.equal(alone.alive, cut.alive)
            expected = Slimmer(cutter.scales).layers(alone)
            for one, other in zip(own, expected, strict=True):
                assert torch.equal(one.cut.kept_inputs, other.cut.kept_inputs)
                assert torch.equal(one.cut.kept_outputs, other.cut.kept_outputs)
                assert one.cut.rescued == other.cut.rescued
                torch.testing.assert_close(one.weight, other.weight, rtol=1e-4, atol=1e-6)
                torch.testing.assert_close(one.variance, other.variance, rtol=1e-3, atol=1e-9)
                if other.bias is not None:
                    torch.testing.assert_close(one.bias, other.bias, rtol=1e-4, atol=1e-6)
