"""Calls of torch's operators in packed files: written, read, and refused where they are not what they should be."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.formats import QuantisedNetwork, load_program, onnx_bytes, open_session, pack, torch_bytes
from bhc.graph import INPUT, Graph, Step, capture
from bhc.layers import call_of
from bhc.layers.aten import Dtype, Own, Read, SizeOf, operator
from bhc.layers.calls import NUMBERS, OPERATORS

from ...graph.cases import CASES
from ...graph.nets import seeded
from ...graph.test_taken import TAKEN, near
from .hostile import check_refused, put
from .test_reference import agree
from .toys import parse


def network_of(name: str) -> tuple[QuantisedNetwork, torch.Tensor]:
    build, shape = CASES[name]
    x = seeded(*shape)
    graph = capture(build(), x)
    return QuantisedNetwork(graph, shape[1:], tuple(range(graph(x).shape[1])), card={"context": {}}), x


@pytest.mark.parametrize("name", TAKEN)
def test_whatever_is_captured_is_packed_and_read_also_by_the_reference(name: str) -> None:
    network, x = network_of(name)
    content = pack(network)
    agree(content, network)
    read = parse(content)
    assert near(read.graph(x), network.graph(x))
    assert pack(read) == content


# ONNX has no groups whose number depends on the batch.
NOT_IN_ONNX = {"weights that depend on the input": "exporter"}


@pytest.mark.long
@pytest.mark.parametrize("name", TAKEN)
def test_whatever_is_captured_becomes_a_program_and_onnx(name: str) -> None:
    network, x = network_of(name)
    program, _ = load_program(torch_bytes(network))
    assert near(program(x), network.graph(x))
    if name in NOT_IN_ONNX:
        with pytest.raises(BhcError, match=NOT_IN_ONNX[name]):
            onnx_bytes(network)
        return
    (answer,) = open_session(onnx_bytes(network)).run(None, {"input": x.numpy()})
    assert near(torch.from_numpy(answer), network.graph(x))


def network_with(*steps: Step) -> QuantisedNetwork:
    return QuantisedNetwork(Graph(steps).eval().requires_grad_(False), (4,), (0, 1), card={"context": {}})


def called(target: str, arguments: list[Any], own: dict[str, torch.Tensor] | None = None) -> QuantisedNetwork:
    """A network with one call before its layer."""
    call = call_of(target, arguments, {}, own or {}, None, {})
    return network_with(Step("call", call, (INPUT,)), Step("end", nn.Linear(4, 2), ("call",)))


OWN = {"own0": torch.tensor([True, False, True, True]), "own1": torch.tensor(-2.5)}
ATTENTION, MASK = "aten.scaled_dot_product_attention.default", torch.tensor([[True, False], [True, True]])
SURVIVING = {
    "numbers of its own": called("aten.masked_fill.Tensor", [Read(0), Own("own0"), Own("own1")], OWN),
    "attention under a mask of truths": network_with(
        Step("apart", call_of("aten.reshape.default", [Read(0), [-1, 2, 2]]), (INPUT,)),
        Step("call", call_of(ATTENTION, [Read(0), Read(0), Read(0), Own("own0")], {}, {"own0": MASK}), ("apart",)),
        Step("flat", nn.Flatten(), ("call",)),
        Step("end", nn.Linear(4, 2), ("flat",)),
    ),
    "sizes and dtypes": network_with(
        Step("apart", call_of("aten.reshape.default", [Read(0), [SizeOf(((0, 0),)), 2, 2]]), (INPUT,)),
        Step("cast", call_of("aten._to_copy.default", [Read(0)], {"dtype": Dtype("float32")}), ("apart",)),
        Step("flat", nn.Flatten(), ("cast",)),
        Step("end", nn.Linear(4, 2), ("flat",)),
    ),
}


@pytest.mark.parametrize("network", SURVIVING.values(), ids=SURVIVING)
def test_what_a_call_is_given_survives_a_file(network: QuantisedNetwork) -> None:
    read = parse(pack(network))
    for count in (1, 3):
        x = seeded(count, 4)
        assert torch.equal(read.graph(x), network.graph(x))


def test_an_operator_that_is_not_in_the_list_is_refused_by_name_when_it_is_saved() -> None:
    with pytest.raises(BhcError, match="digamma") as caught:
        pack(called("aten.digamma.default", [Read(0)]))
    assert ".pt2" in str(caught.value.hint)


def test_values_of_a_dtype_without_a_number_are_refused_by_name() -> None:
    network = called("aten.abs.default", [Read(0)])
    network.graph.call.dtypes = {0: "complex64"}  # type: ignore[union-attr, assignment]
    with pytest.raises(BhcError, match="complex64"):
        pack(network)


def called_instead(target: str, arguments: list[Any]) -> Any:
    """More numbers than a reader takes."""
    return put(1, 0, slice(1, 3), [NUMBERS[target], arguments])


HOSTILE = {
    "an operator beyond the list": put(1, 0, 1, len(OPERATORS)),
    "an operator as text": put(1, 0, 1, "aten.add.Tensor"),
    "arguments that are none": put(1, 0, 2, {"read": 0}),
    "a value that is not read": put(1, 0, 2, [{0: 5}, 1.5]),
    "a marker that is none": put(1, 0, 2, [{9: 0}, 1.5]),
    "a tensor that is not there": put(1, 0, 2, [{1: 0}, 1.5]),
    "a size of nothing": put(1, 0, 2, [{0: 0}, {2: [[[0, 9]], 1, 1]}]),
    "a size over zero": put(1, 0, 2, [{0: 0}, {2: [[[0, 0]], 1, 0]}]),
    "too few arguments": put(1, 0, 2, []),
    "too many arguments": put(1, 0, 2, [{0: 0}, 1.5, 2, 3, 4, 5]),
    "an argument of another kind": put(1, 0, 2, [{0: 0}, [[["x"]]]]),
    "an unknown rest": put(1, 0, 3, {7: 1}),
    "a rest that is a list": put(1, 0, 3, []),
    "a result that is none": put(1, 0, 3, {2: 99}),
    "named arguments without names": put(1, 0, 3, {0: {5: 1}}),
    "own tensors without a shape": put(1, 0, 3, {1: [[None, 0, True]]}),
    "own tensors of an unknown dtype": put(1, 0, 3, {1: [[[4], 99, True]]}),
    "own tensors larger than the file": put(1, 0, 3, {1: [[[1 << 20], 0, True]]}),
    "a dtype of no value": put(1, 0, 3, {3: [[-1, 0]]}),
    "numbers up to a trillion": called_instead("aten.arange.default", [10**12]),
    "zeros without end": called_instead("aten.zeros.default", [[1 << 20, 1 << 20]]),
    "a value again and again": called_instead("aten.repeat.default", [{0: 0}, [1 << 20, 1 << 10]]),
    "a value spread wide": called_instead("aten.expand.default", [{0: 0}, [1 << 40, 4]]),
    "a diagonal of a million": called_instead("aten.eye.default", [1 << 20]),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_call_that_is_none_or_asks_for_too_much_is_refused(name: str) -> None:
    check_refused(called("aten.add.Tensor", [Read(0), 1.5]), HOSTILE[name], "damaged")


def test_the_document_lists_every_operator() -> None:
    text = (Path(__file__).parents[3] / "docs" / "operators.md").read_text()
    for number, name in enumerate(OPERATORS):
        assert f"| {number} | `{name}` |" in text
    assert text.count("| `aten.") == len(OPERATORS) == len(set(OPERATORS))


def test_the_list_holds_nothing_that_draws_or_writes() -> None:
    for name in OPERATORS:
        assert not operator(name)._schema.is_mutable  # type: ignore[attr-defined]
