"""Tables and figures from result files and the paper's printed numbers."""

from .beyond import read_answers
from .build import build
from .load import read_results
from .paper import read_papers

__all__ = ["build", "read_answers", "read_papers", "read_results"]
