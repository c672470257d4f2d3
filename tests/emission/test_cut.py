"""What is said of branches is what their layers keep."""

import pytest
import torch

import bhc
from bhc.contexts import Context
from bhc.emission import BranchCut, Cutter, find_branch_cuts, in_order, streams
from bhc.hypernet import ConditionalNetwork
from tests.graph.transformers import CLASSES, INPUTS, PLACES, transformer

from .networks import build, spread_

CONTEXT = Context(classes=(1, 4))
THRESHOLDS = (-1e6, -3.0, -1.0, 0.0, 2.0, 1e6)


def wrapped(name: str) -> ConditionalNetwork:
    example = torch.randn(2, PLACES, INPUTS)
    return spread_(bhc.wrap(transformer(name), bhc.ClassSubsets(CLASSES), example_input=example).network, "io-gnj")


def residual() -> ConditionalNetwork:
    net, x = build("residual")
    return spread_(bhc.wrap(net, bhc.ClassSubsets(10), example_input=x).network, "io-gnj")


@pytest.mark.parametrize("threshold", THRESHOLDS)
@pytest.mark.parametrize("name", ["three layers", "a norm of each head", "keys that heads share"])
def test_heads_keep_what_their_layers_write(name: str, threshold: float) -> None:
    network = wrapped(name)
    cut = Cutter(network, CONTEXT).cut(threshold)
    kept = {layer.layer.name: layer for layer in cut.layers}
    branches = find_branch_cuts(network, cut)
    attentions = [branch for branch in branches if branch.heads]
    assert tuple(sum(head.alive for head in branch.heads) for branch in attentions) == tuple(
        cut.count_heads(network.units.heads)
    )
    for place, branch in enumerate(attentions):
        before = f"blocks_{place}_attention_"
        assert sum(head.query_keys.after for head in branch.heads) == len(kept[f"{before}key"].kept_outputs)
        assert sum(head.values.after for head in branch.heads) == len(kept[f"{before}value"].kept_outputs)
        assert sum(head.query_keys.before for head in branch.heads) == kept[f"{before}key"].layer.num_outputs
        assert branch.units.after == sum(head.query_keys.after + head.values.after for head in branch.heads)
        for head in branch.heads:
            assert head.alive == (head.query_keys.after > 0) == (head.values.after > 0)


@pytest.mark.parametrize("threshold", THRESHOLDS)
def test_branches_run_in_order_and_go_with_their_layers(threshold: float) -> None:
    network = wrapped("three layers")
    cut = Cutter(network, CONTEXT).cut(threshold)
    kept = {layer.layer.name: layer for layer in cut.layers}
    branches = find_branch_cuts(network, cut)
    assert [branch.name for branch in branches] == [
        f"blocks_{place}_{end}" for place in range(2) for end in ("attention_out", "narrow")
    ]
    gone = {name for branch in branches if branch.gone for name in branch.layers}
    assert gone == {name for name, layer in kept.items() if layer.is_gone}
    for branch in (branch for branch in branches if not branch.heads):
        assert branch.units == (24, len(kept[branch.name].kept_inputs))
    assert {branch.stream for branch in branches} == {(12, len(_live_channels(cut.layers, network)))}
    assert streams(network) == (12,)


def _live_channels(layers: object, network: ConditionalNetwork) -> set[int]:
    """Channels of the stream that some layer still writes: what the first and the ends of all branches keep."""
    ends = {"embed", *(end.layer for branch in network.branches for end in branch.ends)}
    own = [layer for layer in layers if layer.layer.name in ends]  # type: ignore[attr-defined]
    return {place for layer in own for place in layer.kept_outputs.tolist()}


def test_stages_of_a_residual_network_have_streams_of_their_own() -> None:
    network = residual()
    whole = find_branch_cuts(network, Cutter(network, CONTEXT).cut(1e6))
    assert [branch.name for branch in whole] == [f"blocks_{place}_conv2" for place in range(3)]
    assert streams(network) == (4, 8)
    assert [branch.stream.before for branch in whole] == [4, 8, 8]
    assert all(branch.heads == () and branch.units.before == branch.units.after for branch in whole)
    nothing: tuple[BranchCut, ...] = find_branch_cuts(network, Cutter(network, CONTEXT).cut(-1e6))
    assert all(branch.gone and branch.units.after == 0 < branch.stream.after for branch in nothing)
    assert len(in_order(network)) == len(nothing)
