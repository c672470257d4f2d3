"""Where to cut: a network as a chain of layers, and how the units of one layer feed the next."""

from bhc.graph.describe import describe, rebuild
from bhc.graph.kinds import KINDS, KINDS_BY_NAME, Kind
from bhc.graph.layers import Layer, find_layers
from bhc.graph.select import Select
from bhc.graph.shapes import Shape, chain_shapes, conv_padding, output_shape, pair
from bhc.graph.trace import trace

__all__ = [
    "KINDS",
    "KINDS_BY_NAME",
    "Kind",
    "Layer",
    "Select",
    "Shape",
    "chain_shapes",
    "conv_padding",
    "describe",
    "find_layers",
    "output_shape",
    "pair",
    "rebuild",
    "trace",
]
