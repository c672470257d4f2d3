"""From any module to a graph of steps, by way of ``torch.export``."""

from typing import Any

import torch
from torch import nn

from bhc.graph.checks import check_batches, check_runs_alike
from bhc.graph.examples import DynamicAxes
from bhc.graph.exported import in_double_precision
from bhc.graph.exporting import export
from bhc.graph.folding import tidy
from bhc.graph.graph import INPUT, Graph, Step
from bhc.graph.reading import Reader
from bhc.layers import call_of
from bhc.layers.aten import AtenCall, Dtype, Read


def capture(
    net: nn.Module, example_input: Any, *, output: str | int | None = None, dynamic_axes: DynamicAxes = ()
) -> Graph:
    """The graph that computes what ``net`` computes in eval mode; ``net`` itself is left alone.

    Several inputs are a tuple of tensors, or a dict of them by name. Of several results ``output`` is the one that
    counts: its place, or its name. Along ``dynamic_axes`` inputs may have another size than the example.
    """
    exported = export(net, example_input, output=output, dynamic_axes=dynamic_axes)
    reader = Reader(exported)
    graph = _ready(_graph(reader))
    check_runs_alike(exported, graph, lambda: in_double_precision(_graph(Reader(exported))))
    whole = () if reader.maker.examples_come_first else check_batches(graph, exported)
    if whole:  # their examples do not come one after the other, so that no context's can be told apart
        graph = _ready(_graph(Reader(exported, whole=whole)))
    graph.original = exported.count()
    return graph


def _ready(graph: Graph) -> Graph:
    return graph.float().eval().requires_grad_(False)


def _graph(reader: Reader) -> Graph:
    steps, examples = reader.steps(), reader.exported.examples
    if examples.is_plain:
        steps = _as_numbers(steps, examples.tensors[0].dtype)
    return tidy(Graph(steps), reader.maker.shapes)


def _as_numbers(steps: list[Step], dtype: torch.dtype) -> list[Step]:
    """Words come as numbers of any dtype; who computes with them gets whole ones, as the network does."""
    readers = [step.name for step in steps if INPUT in step.reads and isinstance(step.module, AtenCall)]
    if dtype.is_floating_point or not readers:
        return steps
    name = str(dtype).removeprefix("torch.")
    cast = call_of("aten._to_copy.default", [Read(0)], {"dtype": Dtype(name)})
    first = "numbers"
    while any(step.name == first for step in steps):
        first += "_"
    rewired = [
        Step(step.name, step.module, tuple(first if read == INPUT else read for read in step.reads))
        if step.name in readers
        else step
        for step in steps
    ]
    return [Step(first, cast, (INPUT,)), *rewired]
