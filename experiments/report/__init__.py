"""Tables and figures from result files and the paper's printed numbers."""

from .build import build
from .load import read_paper, read_results

__all__ = ["build", "read_paper", "read_results"]
