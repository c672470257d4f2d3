"""Where to cut: a network as a graph of steps, and which of its channels live and die together."""

from bhc.graph.capture import capture
from bhc.graph.examples import DynamicAxes
from bhc.graph.graph import INPUT, Graph, Inputs, Step, describe, rebuild
from bhc.graph.layers import MOST_WHOLE, Layer, Whole, check_outputs, find_features, find_layers, find_whole
from bhc.graph.shapes import Counts, ShapedStep, count, output_shape, passages
from bhc.graph.signature import ONE, Input, Signature
from bhc.graph.units import Units, find_units

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
