"""Where to cut: a network as a graph of steps, and which of its channels live and die together."""

from bhc.graph.branches import Branch, BranchEnd, find_branches
from bhc.graph.capture import capture
from bhc.graph.graph import (
    INPUT,
    Counts,
    Graph,
    Inputs,
    ShapedStep,
    Step,
    calls_of_layers,
    count,
    describe,
    needed_steps,
    output_dtype,
    output_shape,
    rebuild,
    shaped_steps,
)
from bhc.graph.heads import Heads
from bhc.graph.signature import DynamicAxes, Input, Signature
from bhc.graph.units import Units, find_units
from bhc.graph.weighted import MOST_WHOLE, Beside, Layer, check_outputs, find_features, find_layers, find_whole
