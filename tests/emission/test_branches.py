"""The slim network computes what the masked one computes, whatever way the network is wired."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.contexts import Context
from bhc.emission import ContextScales, Cutter, cut_all, slim_model
from bhc.graph import count
from bhc.hypernet import GeneratorSpec
from bhc.posterior import LayerDropout

from .networks import NETWORKS, Random, assert_equal, build, masked, spread_, used

GENERATORS = (bhc.ScalesOnly(), bhc.LowRank(2), bhc.Full())
FAMILIES = ("io-gnj", "gnj", "ghs", "sparse-vd")
NOTHING, EVERYTHING = -1e6, 1e6
CONTEXT = Context(classes=(1, 4, 7))
THRESHOLDS = (NOTHING, -3.0, -1.0, 0.0, 2.0, EVERYTHING)


def wrapped(name: str, generator: GeneratorSpec, family: str) -> tuple[bhc.Compressor, Tensor]:
    net, x = build(name)
    return wrapped_as(net, x, generator, family), x


def wrapped_as(net: nn.Module, x: Tensor, generator: GeneratorSpec, family: str) -> bhc.Compressor:
    """A model whose dropout rates are spread."""
    initial = None if family == "ghs" else bhc.Initial()
    model = bhc.wrap(
        net, bhc.ClassSubsets(10), example_input=x, weight_generator=generator, family=family, initial=initial
    )
    spread_(model.network, family)
    model.network.eval()
    return model


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("generator", GENERATORS, ids=lambda generator: generator.kind)
@pytest.mark.parametrize("name", NETWORKS)
def test_slim_equals_masked(name: str, generator: GeneratorSpec, family: str) -> None:
    model, x = wrapped(name, generator, family)
    cutter = Cutter(model.network, CONTEXT)
    sizes = []
    for threshold in THRESHOLDS:
        cut = cutter.cut(threshold)
        slim = slim_model(model.network, cut)
        assert_equal(slim(x), masked(model.network, CONTEXT, x, threshold))
        assert_equal(slim.plain()(x), slim(x))
        assert count(slim, model.network.input_shape).weights == cut.num_weights
        lost = {name for branch in model.network.branches for name in (*branch.inner, *[e.layer for e in branch.ends])}
        there = [layer for layer in cut.layers if layer.layer.name not in lost]
        assert all(len(layer.kept_outputs) and len(layer.kept_inputs) for layer in there)
        sizes.append(cut.num_weights)
    assert sizes == sorted(sizes)
    assert len(set(sizes)) > 2


@torch.no_grad()
@pytest.mark.parametrize("seed", range(16))
def test_slim_equals_masked_in_networks_drawn_at_random(seed: int, tmp_path: Path) -> None:
    family = FAMILIES[seed % 4]
    net, x = used(lambda: Random(seed), (3, 6, 6))
    model = wrapped_as(net, x, GENERATORS[seed % 3], family)
    for threshold in THRESHOLDS:
        cut = Cutter(model.network, CONTEXT).cut(threshold)
        assert_equal(slim_model(model.network, cut)(x), masked(model.network, CONTEXT, x, threshold))
    small = model.compress(classes=list(CONTEXT.classes), threshold=0.0)
    small.save(tmp_path / "small.bhc")
    assert_equal(bhc.read(tmp_path / "small.bhc").module(x), small.module(x))


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_the_whole_network_is_the_original_where_nothing_is_cut(name: str) -> None:
    net, x = build(name)
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=x, initial=bhc.Initial.exact())
    everything = Context(classes=tuple(range(10)))
    cut = Cutter(model.network, everything).cut(EVERYTHING)
    assert cut.num_weights == model.network.num_weights
    torch.testing.assert_close(slim_model(model.network, cut)(x), net(x), rtol=1e-2, atol=1e-2)


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_one_unit_of_everything_survives_any_threshold(name: str) -> None:
    """What layers write together has one unit left, or a group of them, but for branches beside a shortcut."""
    model, _ = wrapped(name, bhc.ScalesOnly(), "io-gnj")
    cut = Cutter(model.network, CONTEXT).cut(NOTHING)
    units, outputs = model.network.units, set(model.network.find_masks.outputs.tolist())
    free = ~units.always
    free[list(outputs)] = False
    free[[unit for branch in model.network.branches for unit in branch.units]] = False
    alive = cut.alive.numpy() & free
    for layer in model.network.layers:
        written = np.unique(layer.writes.numpy())
        if free[written].all():
            assert alive[written].any()
    assert alive.sum() < free.sum()
    assert any(layer.rescued for layer in cut.layers)


@torch.no_grad()
@pytest.mark.parametrize("threshold", [NOTHING, 0.0, EVERYTHING])
@pytest.mark.parametrize("family", ["io-gnj", "sparse-vd"])
@pytest.mark.parametrize("name", NETWORKS)
def test_what_was_emitted_survives_files_and_runtimes(name: str, family: str, threshold: float, tmp_path: Path) -> None:
    model, x = wrapped(name, bhc.ScalesOnly(), family)
    small = model.compress(classes=list(CONTEXT.classes), threshold=threshold)
    expected = small.module(x)
    small.save(tmp_path / "small.bhc")
    assert_equal(bhc.read(tmp_path / "small.bhc").module(x), expected)
    small.to_onnx(tmp_path / "small.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    (given,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_equal(torch.from_numpy(given), expected)


@torch.no_grad()
@pytest.mark.parametrize("kept", ["blocks_0_conv1", "stem", "end"])
def test_a_layer_that_is_kept_stays_whole(kept: str) -> None:
    net, x = build("residual")
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=x, keep=[kept])
    spread_(model.network, "io-gnj")
    for threshold in (NOTHING, 0.0):
        cut = Cutter(model.network, CONTEXT).cut(threshold)
        own = next(layer for layer in cut.layers if layer.layer.name == kept)
        whole = own.layer.num_outputs if kept != "end" else len(CONTEXT.classes)
        assert len(own.kept_outputs) == whole
        if own.layer.has_kernel:
            assert len(own.kept_inputs) == own.layer.num_inputs
        assert_equal(slim_model(model.network, cut)(x), masked(model.network, CONTEXT, x, threshold))


BRANCHES = {"residual": 3, "pre-activation": 1, "transformer": 2}  # how many there are beside shortcuts


@torch.no_grad()
@pytest.mark.parametrize("name", BRANCHES)
def test_branches_of_which_nothing_is_left_go_and_leave_a_constant(name: str) -> None:
    model, x = wrapped(name, bhc.ScalesOnly(), "io-gnj")
    network = model.network
    assert len(network.branches) == BRANCHES[name]
    cut = Cutter(network, CONTEXT).cut(NOTHING)
    assert not any(cut.alive[branch.units].any() for branch in network.branches)
    slim = slim_model(network, cut)
    left = {step.name for step in slim.steps}
    for branch in network.branches:
        assert not left & {*branch.inner, *[end.layer for end in branch.ends]}
    assert_equal(slim(x), masked(network, CONTEXT, x, NOTHING))
    small = model.compress(classes=list(CONTEXT.classes), threshold=NOTHING)
    assert set(small.report.gone) == {layer.layer.name for layer in cut.layers if layer.is_gone}
    assert len(small.report.architecture) == len(small.report.architecture_before) < len(network.layers)


@torch.no_grad()
@pytest.mark.parametrize("place", range(2))
def test_one_branch_goes_alone_where_what_it_writes_is_noise(place: int) -> None:
    model, _ = wrapped("transformer", bhc.ScalesOnly(), "io-gnj")
    network = model.network
    branch = network.branches[place]
    ends = {end.layer for end in branch.ends}
    scales = ContextScales.of(network, [CONTEXT])
    rates = tuple(
        LayerDropout(torch.zeros_like(own.in_log_dropout), torch.full_like(own.out_log_dropout, 2.0 * (name in ends)))
        for name, own in zip([layer.name for layer in network.layers], scales.dropouts, strict=True)
    )
    (cut,) = cut_all(replace(scales, dropouts=rates), 1.0)
    gone = [not cut.alive[each.units].any() for each in network.branches]
    assert gone == [each is branch for each in network.branches]
    assert {layer.layer.name for layer in cut.layers if layer.is_gone} == {*branch.inner, *ends}
