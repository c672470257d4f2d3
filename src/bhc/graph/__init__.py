"""Where to cut: a network as a graph of steps, and which of its channels live and die together."""

from bhc.graph.describe import describe, rebuild
from bhc.graph.graph import INPUT, Graph, Step, bare_copy
from bhc.graph.inputs import find_features
from bhc.graph.kinds import CONVOLUTIONS, KINDS, KINDS_BY_NAME, LAYERS, PRODUCTS, Kind, WeightedModule
from bhc.graph.layers import Layer, find_layers
from bhc.graph.shapes import Passage, Shape, conv_padding, output_shape, pair, passages, sizes
from bhc.graph.steps import Add, Affine, Concat, GlobalMean, Multiply, PadChannels, Place, Select, Subsample
from bhc.graph.tokens import ChannelNorm, Embed, FlattenPlaces, SelfAttention, Shift
from bhc.graph.trace import trace
from bhc.graph.units import Units, find_units
from bhc.models.log_mel import LogMel

__all__ = [
    "CONVOLUTIONS",
    "INPUT",
    "KINDS",
    "KINDS_BY_NAME",
    "LAYERS",
    "PRODUCTS",
    "Add",
    "Affine",
    "ChannelNorm",
    "Concat",
    "Embed",
    "FlattenPlaces",
    "GlobalMean",
    "Graph",
    "Kind",
    "Layer",
    "LogMel",
    "Multiply",
    "PadChannels",
    "Passage",
    "Place",
    "Select",
    "SelfAttention",
    "Shape",
    "Shift",
    "Step",
    "Subsample",
    "Units",
    "WeightedModule",
    "bare_copy",
    "conv_padding",
    "describe",
    "find_features",
    "find_layers",
    "find_units",
    "output_shape",
    "pair",
    "passages",
    "rebuild",
    "sizes",
    "trace",
]
