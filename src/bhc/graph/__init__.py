"""Where to cut: a network as a graph of steps, and which of its channels live and die together."""

from bhc.graph.capture import capture
from bhc.graph.graph import (
    INPUT,
    Counts,
    Graph,
    Inputs,
    ShapedStep,
    Step,
    count,
    describe,
    output_shape,
    passages,
    rebuild,
)
from bhc.graph.signature import ONE, DynamicAxes, Input, Signature
from bhc.graph.units import Units, find_units
from bhc.graph.weighted import MOST_WHOLE, Layer, Whole, check_outputs, find_features, find_layers, find_whole

__all__ = [
    "INPUT",
    "MOST_WHOLE",
    "ONE",
    "Counts",
    "DynamicAxes",
    "Graph",
    "Input",
    "Inputs",
    "Layer",
    "ShapedStep",
    "Signature",
    "Step",
    "Units",
    "Whole",
    "capture",
    "check_outputs",
    "count",
    "describe",
    "find_features",
    "find_layers",
    "find_units",
    "find_whole",
    "output_shape",
    "passages",
    "rebuild",
]
