"""Tables and figures from result files and the paper's printed numbers."""

from .build import build
from .load import read_results
from .paper import read_papers

__all__ = ["build", "read_papers", "read_results"]
