"""Transposed convolutions against torch's own: captured, cut, and in every format."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.formats import load_program, onnx_bytes, open_session, parse_network, torch_bytes
from bhc.graph import capture
from bhc.layers import kind_of
from bhc.layers.convolution import TransposedConvolution

from ..graph.nets import net_of, seeded
from ..graph.test_goes import can_go
from ..graph.test_taken import cut_in_half, near

LINE, PLANE, SPACE = (3, 3, 5), (3, 3, 5, 4), (3, 3, 3, 2, 4)
MAKES: dict[str, tuple[nn.Module, tuple[int, ...]]] = {
    "plain": (nn.ConvTranspose2d(8, 6, 3), PLANE),
    "stride": (nn.ConvTranspose2d(8, 6, (3, 2), stride=(2, 1), bias=False), PLANE),
    "padding": (nn.ConvTranspose2d(8, 6, 3, stride=2, padding=1, output_padding=1), PLANE),
    "dilation": (nn.ConvTranspose2d(8, 6, 2, padding=(0, 1), dilation=(1, 2), output_padding=(0, 1)), PLANE),
    "1-d": (nn.ConvTranspose1d(8, 6, 4, stride=2, padding=1), LINE),
    "3-d": (nn.ConvTranspose3d(8, 6, (1, 2, 2), stride=(1, 2, 1)), SPACE),
}


def net_with(transposed: nn.Module, shape: tuple[int, ...]) -> nn.Module:
    """The layer between a convolution and a linear layer."""
    directions = len(shape) - 2
    convolution = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[directions - 1]

    def run(net: Any, x: Tensor) -> Tensor:
        return net.e(torch.relu(net.t(torch.relu(net.a(x)))).mean(tuple(range(2, 2 + directions))))

    torch.manual_seed(0)
    return net_of(run, a=convolution(3, 8, 1), t=transposed, e=nn.Linear(6, 4)).eval()


@torch.no_grad()
@pytest.mark.parametrize("name", MAKES)
def test_it_is_captured_with_its_weights_turned_and_goes(name: str) -> None:
    transposed, shape = MAKES[name]
    net, x = net_with(transposed, shape), seeded(*shape)
    graph = capture(net, x)
    (layer,) = [step.module for step in graph.steps if isinstance(step.module, TransposedConvolution)]
    assert torch.equal(layer.weight, transposed.weight.transpose(0, 1))
    assert near(graph(x), net(x))
    assert can_go(net, x) > 0.9
    _, given, masked, _ = cut_in_half(net, x)
    assert near(given, masked)


@torch.no_grad()
@pytest.mark.parametrize("name", MAKES)
def test_every_format_but_c_holds_the_small_one(name: str) -> None:
    transposed, shape = MAKES[name]
    net, x = net_with(transposed, shape), seeded(*shape)
    small = bhc.wrap(net, bhc.ClassSubsets(4), example_input=x).compress(classes=[0, 1, 2, 3], threshold=0.0)
    expected = small.module(x)
    read = parse_network(small.to_bytes(), Path("it.bhc")).network
    assert near(read.graph(x), expected)
    program, _ = load_program(torch_bytes(read))
    assert near(program(x), expected)
    session = open_session(onnx_bytes(read))
    (answer,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
    assert near(torch.from_numpy(answer), expected)


def test_c_code_refuses_it_by_name(tmp_path: Path) -> None:
    net = net_with(nn.ConvTranspose2d(8, 6, 3), PLANE)
    model = bhc.wrap(net, bhc.ClassSubsets(4), example_input=seeded(*PLANE))
    with pytest.raises(BhcError, match="TransposedConvolution"):
        model.compress(classes=[0, 1]).to_c(tmp_path / "small.h")


@torch.no_grad()
def test_one_of_several_groups_stays_whole() -> None:
    net = net_with(nn.ConvTranspose2d(8, 6, 2, groups=2), PLANE)
    graph = capture(net, seeded(*PLANE))
    assert not any(isinstance(step.module, TransposedConvolution) for step in graph.steps)
    assert near(graph(seeded(*PLANE)), net(seeded(*PLANE)))


def test_only_places_that_arrive_cost_operations() -> None:
    module = TransposedConvolution(8, 6, (2, 2), (2, 2), (0, 0), (0, 0), (1, 1))
    assert kind_of(module).num_flops(module, [(1, 8, 5, 4)], (1, 6, 10, 8)) == 2 * 8 * 6 * 4 * 20
