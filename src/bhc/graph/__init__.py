"""Where to cut: a network as a graph of steps, and which of its channels live and die together."""

from bhc.graph.counts import Counts, count
from bhc.graph.describe import describe, rebuild
from bhc.graph.graph import INPUT, Graph, Step
from bhc.graph.inputs import find_features
from bhc.graph.layers import Layer, find_layers
from bhc.graph.shapes import Passage, output_shape, passages
from bhc.graph.trace import trace
from bhc.graph.units import Units, find_units

__all__ = [
    "INPUT",
    "Counts",
    "Graph",
    "Layer",
    "Passage",
    "Step",
    "Units",
    "count",
    "describe",
    "find_features",
    "find_layers",
    "find_units",
    "output_shape",
    "passages",
    "rebuild",
    "trace",
]
