"""The specification's own reader against the library's."""

from typing import Any

import numpy as np
import pytest
import torch
from tools.fuzz.sources import make_sources
from torch import nn

import bhc
from bhc.formats import QuantisedNetwork, pack
from bhc.graph import INPUT, shaped_steps
from bhc.layers import Embed, ScatterChannels, Select, is_weighted
from bhc.layers.aten import AtenCall

from . import reference
from .toys import parse, zoo

ZOO = zoo()


def agree(content: bytes, network: QuantisedNetwork) -> None:
    file = reference.read(content)
    assert tuple(file.input_shape) == network.input_shape
    assert tuple(file.labels) == network.labels
    assert file.temperature == network.temperature
    assert file.card == network.card
    steps = network.graph.steps
    assert file.shapes == [shaped.leaving[1:] for shaped in shaped_steps(network.graph, network.input_shape)]
    places = {INPUT: -1} | {step.name: place for place, step in enumerate(steps)}
    assert file.reads == [[places[name] for name in step.reads] for step in steps]
    owners = network.graph.owners  # of layers that are called again
    own = [step for step in steps if owners.get(step.name, step.name) == step.name]
    selects = [step.module for step in own if isinstance(step.module, Select | ScatterChannels | Embed)]
    meant = [step.words if isinstance(step, Embed) else step.index for step in selects]
    assert [np.flatnonzero(mask).tolist() for mask in file.masks] == [places.tolist() for places in meant]
    layers = [step for step in own if _numbers(step.module)]
    for read, layer in zip(file.layers, layers, strict=True):
        if not is_weighted(layer.module):
            assert read.name == ""
            floats = torch.cat([numbers.flatten().float() for numbers in _numbers(layer.module)])
            assert torch.equal(torch.tensor(read.floats + read.bias_floats), floats)
            continue
        assert read.name == layer.name
        agree_on_layer(read, layer.module)
        if layer.name in network.weights:
            assert read.codes == network.weights[layer.name].codes.ravel().tolist()


def _numbers(module: nn.Module) -> list[torch.Tensor]:
    """Of a call also those that were never learned."""
    return [*module.parameters(), *(module.buffers() if isinstance(module, AtenCall) else ())]


def agree_on_layer(read: reference.Layer, module: Any) -> None:
    agree_on_numbers(read.shape, read.step, read.codes, read.floats, module.weight)
    if module.bias is None:
        assert read.bias_step is None
        assert not read.bias_codes + read.bias_floats
    else:
        agree_on_numbers((len(module.bias),), read.bias_step, read.bias_codes, read.bias_floats, module.bias)


def agree_on_numbers(
    shape: tuple[int, ...], step: float | None, codes: list[int], floats: list[float], expected: torch.Tensor
) -> None:
    values = np.array(codes if step is not None else floats, dtype=np.float32) * np.float32(step or 1)
    assert torch.equal(torch.from_numpy(values.reshape(shape)), expected)


@pytest.mark.parametrize("name", ZOO)
def test_both_read_the_same(name: str) -> None:
    content = pack(ZOO[name])
    agree(content, ZOO[name])
    agree(content, parse(content))


def test_both_read_files_that_begin_others() -> None:
    for content in make_sources()[:-1]:  # the last is of version 1
        agree(content, parse(content))


@pytest.mark.filterwarnings("ignore:threshold")
@pytest.mark.parametrize(
    ("threshold", "quantisation"),
    [(-3.0, bhc.VarianceBits(scale=1.0)), (-1.0, bhc.VarianceBits(scale=0.25)), (0.0, bhc.Float32())],
    ids=str,
)
def test_both_read_an_emitted_network(quick_model: bhc.Compressor, threshold: float, quantisation: Any) -> None:
    small = quick_model.compress(classes=[3, 4], threshold=threshold, quantisation=quantisation)
    agree(small.to_bytes(), small.network)
