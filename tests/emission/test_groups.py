"""Convolutions in groups: the slim network computes what the masked one computes, in memory and from files."""

from pathlib import Path
from typing import Any

import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.emission import Cutter, slim_model
from bhc.emission.cut import LayerCut
from bhc.formats import load_program
from bhc.graph import count, find_layers, find_units

from ..formats.graphs import in_a_row
from ..graph.grouped import GROUPED, SHAPE
from .networks import assert_equal, masked, used
from .test_branches import CONTEXT, EVERYTHING, FAMILIES, GENERATORS, NOTHING, multiples_of, wrapped_as

THRESHOLDS = (NOTHING, -3.0, -1.0, 0.0, 0.5, 1.0, 1.5, 2.0, EVERYTHING)


def wrapped(name: str, generator: Any = GENERATORS[0], family: str = FAMILIES[0]) -> tuple[bhc.Compressor, Tensor]:
    net, x = used(GROUPED[name][0], SHAPE)
    return wrapped_as(net, x, generator, family), x


@torch.no_grad()
@pytest.mark.parametrize("place", range(4))
@pytest.mark.parametrize("name", GROUPED)
def test_slim_equals_masked(name: str, place: int) -> None:
    """All families, and the generators by turns."""
    model, x = wrapped(name, GENERATORS[place % 3], FAMILIES[place])
    cutter, sizes = Cutter(model.network, CONTEXT), []
    for threshold in THRESHOLDS:
        cut = cutter.cut(threshold)
        slim = slim_model(model.network, cut)
        assert_equal(slim(x), masked(model.network, CONTEXT, x, threshold))
        assert count(slim, SHAPE).weights == cut.num_weights
        sizes.append(cut.num_weights)
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


@torch.no_grad()
@pytest.mark.parametrize("round_to", [2, 3])
@pytest.mark.parametrize("name", GROUPED)
def test_channels_come_in_multiples_in_groups_too(name: str, round_to: int) -> None:
    model, x = wrapped(name)
    cutter = Cutter(model.network, CONTEXT, multiples=multiples_of(model, round_to))
    for threshold in THRESHOLDS:
        cut, plain = cutter.cut(threshold), cutter.rounded_to(None).cut(threshold)
        expected = masked(model.network, CONTEXT, x, threshold, rounding=cutter.rounding)
        assert_equal(slim_model(model.network, cut)(x), expected)
        assert torch.equal(cut.alive | plain.alive, cut.alive)
        for layer in cut.layers[:-1]:
            written = len(layer.kept_outputs)
            assert written % round_to == 0 or written == layer.layer.num_outputs


@torch.no_grad()
@pytest.mark.parametrize("threshold", [NOTHING, 0.0])
@pytest.mark.parametrize("name", GROUPED)
def test_groups_survive_files_and_runtimes(name: str, threshold: float, tmp_path: Path) -> None:
    model, x = wrapped(name)
    small = model.compress(classes=list(CONTEXT.classes), threshold=threshold)
    expected = small.module(x)
    small.save(tmp_path / "small.bhc").to_onnx(tmp_path / "small.onnx").to_torch(tmp_path / "small.pt2")
    assert_equal(bhc.read(tmp_path / "small.bhc").module(x), expected)
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    (given,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_equal(torch.from_numpy(given), expected)
    program, _ = load_program((tmp_path / "small.pt2").read_bytes())
    assert_equal(program(x), expected)


def test_of_a_resnext_whole_groups_go_and_channels_of_those_that_stay() -> None:
    model, _ = wrapped("alone")
    network = model.network
    (heads,) = network.units.heads
    sizes = set()
    for threshold in torch.linspace(-6, 6, 40).tolist():
        cut = Cutter(network, CONTEXT).cut(threshold)
        grouped = next(layer for layer in cut.layers if layer.layer.groups > 1)
        alive = cut.alive[torch.from_numpy(heads.rows)]
        sizes.add((int(alive.sum()), len(grouped.kept_inputs), len(grouped.kept_outputs)))
    assert min(sizes) == (1, 1, 1)
    assert max(sizes) == (4, 8, 12)
    groups = {count for count, _, _ in sizes}
    assert len(groups) > 2
    assert any(read < 2 * count or given < 3 * count for count, read, given in sizes if count > 1)


@torch.no_grad()
def test_each_group_keeps_places_of_its_own() -> None:
    """Of four groups three stay, with two of three inputs and one of two outputs each: beside torch itself."""
    graph = in_a_row(nn.Conv2d(12, 8, 3, groups=4, bias=False), nn.Conv2d(8, 2, 1))
    whole = graph.get_submodule("0")
    (layer, _) = find_layers(graph, (12, 5, 5), find_units(graph, (12, 5, 5)))
    cut = LayerCut(layer, torch.tensor([0, 2, 4, 5, 9, 10]), torch.tensor([1, 2, 7]), rescued=False)
    assert (cut.columns.tolist(), cut.num_weights) == ([0, 1, 2], 3 * 2 * 9)
    own = cut.at_columns(whole.weight[cut.kept_outputs][:, cut.columns])
    small = layer.kind.smaller(whole, own, None, cut.kept_inputs)
    x = torch.randn(1, 12, 5, 5)
    alone = torch.zeros_like(x)
    alone[:, cut.kept_inputs] = x[:, cut.kept_inputs]
    assert_equal(small(x[:, cut.kept_inputs]), whole(alone)[:, cut.kept_outputs])


def test_groups_are_no_heads_in_a_report() -> None:
    model, _ = wrapped("residual")
    assert model.compress(classes=list(CONTEXT.classes), threshold=EVERYTHING).report.heads_before == ()
