"""Where to cut: a network as a chain of layers, and how the units of one layer feed the next."""

from bhc.graph.describe import describe, rebuild
from bhc.graph.layers import Layer, find_layers
from bhc.graph.select import Select
from bhc.graph.trace import trace

__all__ = ["Layer", "Select", "describe", "find_layers", "rebuild", "trace"]
