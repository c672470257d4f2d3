"""The slim network computes what the masked one computes, whatever way the network is wired."""

from dataclasses import replace
from pathlib import Path
from typing import Any

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
from bhc.layers import ScatterChannels, Select
from bhc.posterior import LayerDropout, Multiples

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


def multiples_of(model: bhc.Compressor, round_to: Any) -> Multiples | None:
    return Multiples.of(round_to, model.network.layers, model.network.find_masks.outputs)


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
@pytest.mark.parametrize("seed", range(24))
def test_slim_equals_masked_in_networks_drawn_at_random(seed: int, tmp_path: Path) -> None:
    family = FAMILIES[seed % 4]
    net, x = used(lambda: Random(seed), (3, 6, 6))
    model, multiple = wrapped_as(net, x, GENERATORS[seed % 3], family), 2 + seed % 3
    rounded = Cutter(model.network, CONTEXT, multiples=multiples_of(model, multiple))
    for cutter in (rounded, rounded.rounded_to(None)):
        for threshold in THRESHOLDS:
            cut = cutter.cut(threshold)
            expected = masked(model.network, CONTEXT, x, threshold, rounding=cutter.rounding)
            assert_equal(slim_model(model.network, cut)(x), expected)
            sets = [set(layer.layer.writes.tolist()) for layer in cut.layers]
            for layer, own in zip(cut.layers[:-1], sets, strict=False) if cutter is rounded else ():
                written = len(layer.kept_outputs)
                of_several = any(other < own for other in sets)  # some of which may be kept whole
                assert written % multiple == 0 or written == layer.layer.num_outputs or of_several
    small = model.compress(classes=list(CONTEXT.classes), threshold=0.0)
    small.save(tmp_path / "small.bhc")
    assert_equal(bhc.read(tmp_path / "small.bhc").module(x), small.module(x))


@torch.no_grad()
@pytest.mark.parametrize("round_to", [2, 3])
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_slim_equals_masked_with_channels_in_multiples(name: str, family: str, round_to: int) -> None:
    model, x = wrapped(name, bhc.ScalesOnly(), family)
    cutter = Cutter(model.network, CONTEXT, multiples=multiples_of(model, round_to))
    sizes = []
    for threshold in THRESHOLDS:
        cut, plain = cutter.cut(threshold), cutter.rounded_to(None).cut(threshold)
        slim = slim_model(model.network, cut)
        assert_equal(slim(x), masked(model.network, CONTEXT, x, threshold, rounding=cutter.rounding))
        assert count(slim, model.network.input_shape).weights == cut.num_weights
        assert cut.num_weights >= plain.num_weights
        assert torch.equal(cut.alive | plain.alive, cut.alive)
        picked = [step for step in slim.steps if isinstance(step.module, Select | ScatterChannels)]
        assert not picked or (name in ("two-heads", "halves") and {step.reads for step in picked} == {("",)})
        sizes.append(cut.num_weights)
    assert sizes == sorted(sizes)


@torch.no_grad()
@pytest.mark.parametrize("round_to", [3, {"blocks.1.conv2": 4}, {"blocks_0_conv1": 2, "blocks_1_conv1": 4}], ids=str)
@pytest.mark.parametrize("threshold", [-1.0, 1.0])
def test_a_stream_that_several_layers_write_is_rounded_once(threshold: float, round_to: Any, tmp_path: Path) -> None:
    model, x = wrapped("residual", bhc.ScalesOnly(), "io-gnj")
    multiples = multiples_of(model, round_to)
    assert multiples is not None
    small = model.compress(classes=list(CONTEXT.classes), threshold=threshold, round_to=round_to)
    before = model.compress(classes=list(CONTEXT.classes), threshold=threshold)
    widths = {layer.name: (layer.module.weight.shape, layer.num_weights) for layer in small.network.layers}
    streams = (("stem", "blocks_0_conv2"), ("blocks_1_conv2", "blocks_1_shortcut_0", "blocks_2_conv2"))
    for layer in (layer for layer in model.network.layers[:-1] if layer.name in widths):  # others went with a branch
        written = widths[layer.name][0][0]
        alike = next((stream for stream in streams if layer.name in stream), (layer.name,))
        multiple = max(multiples.of_layer(name) for name in alike)
        assert written % multiple == 0 or written == layer.num_outputs
        if multiple > 1:
            there = [name for name in alike if name in widths]
            assert {widths[name][0][0] for name in there} == {written}, "nobody leaves a part of it to others"
    assert small.report.weights_after >= before.report.weights_after
    small.save(tmp_path / "small.bhc").to_onnx(tmp_path / "small.onnx")
    assert_equal(bhc.read(tmp_path / "small.bhc").module(x), small.module(x))
    session = onnxruntime.InferenceSession(str(tmp_path / "small.onnx"))
    (given,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert_equal(torch.from_numpy(given), small.module(x))


@pytest.mark.parametrize("threshold", [-3.0, 0.0])
def test_after_a_flatten_a_linear_layer_reads_every_place_of_the_channels_that_live(threshold: float) -> None:
    model, _ = wrapped("flatten", bhc.ScalesOnly(), "io-gnj")
    small = model.compress(classes=list(CONTEXT.classes), threshold=threshold, round_to=2)
    convolution, first, last = (layer.module.weight for layer in small.network.layers)
    assert convolution.shape[0] in (2, 4, 5)
    assert first.shape[1] == 4 * convolution.shape[0]
    assert first.shape[0] == last.shape[1]
    assert first.shape[0] in (2, 4, 6, 7)


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
