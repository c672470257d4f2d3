"""Every registered kind of layer answers every question, and its answers agree with its module."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from bhc.formats import QuantisedNetwork, onnx_bytes, open_session, pack, parse_network
from bhc.graph import INPUT, Graph, Step, describe, find_units, rebuild
from bhc.layers import EXAMPLES, LayerKind, Weighted, kinds

CASES = [
    pytest.param(kind, module, shapes, id=f"{kind.name}-{place}")
    for kind in kinds()
    for place, (module, shapes) in enumerate(kind.examples())
]


def values(kind: LayerKind, shapes: tuple[tuple[int, ...], ...]) -> list[Tensor]:
    rng = torch.Generator().manual_seed(0)
    if kind.name == "embedding":
        return [torch.randint(4, shapes[0], generator=rng).float()]
    return [torch.randn(shape, generator=rng) for shape in shapes]


def network_of(kind: LayerKind, module: nn.Module, shapes: tuple[tuple[int, ...], ...], *before: Step) -> Graph:
    """A network around one step, which reads the input or a step before; it ends in two classes."""
    source = before[-1].name if before else INPUT
    size = int(np.prod(kind.output_shape(module, *shapes)[1:]))
    end = [Step("flat", nn.Flatten(), ("step",)), Step("end", nn.Linear(size, 2), ("flat",))]
    return Graph([*before, Step("step", module, (source,) * len(shapes)), *end]).eval().requires_grad_(False)


@pytest.mark.parametrize(("kind", "module", "shapes"), CASES)
def test_shapes_are_those_of_the_values_and_what_is_described_can_be_built(
    kind: LayerKind, module: nn.Module, shapes: tuple
) -> None:
    x = values(kind, shapes)
    assert all(shape[0] == EXAMPLES for shape in shapes)
    assert tuple(module.eval()(*x).shape) == kind.output_shape(module, *shapes)
    twin = kind.build(kind.describe(module))
    twin.load_state_dict(module.state_dict())
    assert torch.equal(twin.eval()(*x), module(*x))
    assert set(kind.weights) <= {name for name, _ in module.named_parameters()}


ALONE = [case for case in CASES if len(set(case.values[2])) == 1]


@pytest.mark.parametrize(("kind", "module", "shapes"), ALONE)
def test_units_are_found_for_every_number(kind: LayerKind, module: nn.Module, shapes: tuple) -> None:
    graph = network_of(kind, module, shapes)
    units = find_units(graph, shapes[0][1:])
    leaving = kind.output_shape(module, *shapes)
    assert units.carried["step"].shape == tuple(leaving[axis] for axis in units.axes["step"])
    if isinstance(kind, Weighted):
        assert len(units.writes["step"]) == len(module.weight)  # type: ignore[arg-type]


@pytest.mark.parametrize(("kind", "module", "shapes"), ALONE)
def test_it_is_packed_read_described_and_exported(
    kind: LayerKind, module: nn.Module, shapes: tuple, tmp_path: Path
) -> None:
    graph, shape = network_of(kind, module, shapes), shapes[0][1:]
    (x,) = values(kind, shapes[:1])
    expected = graph(x)
    network = QuantisedNetwork(graph, shape, (0, 1), card={"context": {}})
    content = pack(network)
    read = parse_network(content, tmp_path / "it.bhc").network
    assert torch.allclose(read.graph(x), expected, atol=1e-6)
    assert pack(read) == content
    again = rebuild(describe(graph))
    again.load_state_dict(graph.state_dict())
    assert torch.equal(again.eval()(x), expected)
    session = open_session(onnx_bytes(network))
    (answer,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert np.allclose(answer, expected.numpy(), atol=1e-4)


# What mixes channels, reads words, or stands before the first layer is not cut.
NOT_CUT = ("self-attention", "log-mel", "embedding", "given")


@pytest.mark.parametrize(("kind", "module", "shapes"), ALONE)
def test_what_stays_computes_what_it_did(kind: LayerKind, module: nn.Module, shapes: tuple) -> None:
    """Every second channel of a layer before it goes; what is left gives what the step gave at the same places."""
    if isinstance(kind, Weighted) or len(shapes) > 1 or kind.name in NOT_CUT:
        return  # cut by their weights; tried with networks that branch
    shape = shapes[0]
    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    before = layers[len(shape) - 2](shape[1], shape[1], *([] if len(shape) == 2 else [1]))
    units = find_units(network_of(kind, module, shapes, Step("before", before, (INPUT,))), shape[1:])
    alive = units.always | (np.arange(units.count) % 2 == 0)
    arriving, leaving = (units.kept(name, alive) for name in ("before", "step"))
    (x,) = values(kind, shapes)
    smaller = kind.narrowed(module, [arriving], leaving).eval()
    part = x.index_select(arriving.axis, torch.from_numpy(arriving.index))
    there = torch.from_numpy(arriving.mask).reshape([-1 if axis == arriving.axis else 1 for axis in range(x.dim())])
    masked = kind.masked(module.eval(), [there], x)
    kept = masked.index_select(leaving.axis, torch.from_numpy(leaving.index))
    assert torch.allclose(smaller(part), kept, atol=1e-6)
