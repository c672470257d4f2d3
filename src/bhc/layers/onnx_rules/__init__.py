"""Calls of torch's operators as ONNX nodes: a table of rules, one small function for each operator.

The modules are imported for what they add to the table.
"""

from bhc.layers.onnx_rules import (
    gates,
    indexing,
    matrix_products,
    movement,
    normalisation,
    pointwise,
    reductions,
    windows,
)
from bhc.layers.onnx_rules.node_call import write_call

__all__ = [
    "gates",
    "indexing",
    "matrix_products",
    "movement",
    "normalisation",
    "pointwise",
    "reductions",
    "windows",
    "write_call",
]
