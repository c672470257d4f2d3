"""Tables and figures of the questions beyond the paper's, from the answers that ``ask.py`` left."""

from .answers import Answers, read_answers
from .tables import FIGURES, TABLES

__all__ = ["FIGURES", "TABLES", "Answers", "read_answers"]
