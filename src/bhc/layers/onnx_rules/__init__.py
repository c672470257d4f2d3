"""Calls of torch's operators as ONNX nodes: a table of rules, one small function for each operator.

The modules are imported for what they add to the table.
"""

from bhc.layers.onnx_rules import matrix_products, movement, pointwise, reductions, windows
from bhc.layers.onnx_rules.node_call import write_call

__all__ = ["matrix_products", "movement", "pointwise", "reductions", "windows", "write_call"]
