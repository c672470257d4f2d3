"""Everything under ``tables/``, written in one go."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from matplotlib.figure import Figure

from bhc.cli.plots import save_figure
from bhc.files import write_bytes

from . import beyond
from .beyond import Answers
from .budgets import BASELINES, budgets
from .classes import classes
from .contexts import contexts
from .histogram import METHODS, histogram
from .load import BEYOND, Results
from .paper import Paper
from .per_context import per_context
from .pictures import accuracy_figure, dropout_figure
from .short import short
from .table1 import table1
from .table2 import table2

TABLES: dict[str, Callable[[Results, Paper], str]] = {
    "table1.md": table1,
    "table2.md": table2,
    "contexts.md": contexts,
    "budgets.md": budgets,
    "per_context.md": per_context,
    "classes.md": classes,
    "histogram.md": histogram,
    "short.md": short,
}
FIGURES: dict[str, Callable[[Results, Paper], Figure]] = {
    "cw.png": accuracy_figure,
    "log_dropout.png": dropout_figure,
}
Made = TypeVar("Made")
ONLY_WITH = {  # made where a network has one of these rows; all others always
    "budgets.md": ("bhc-cw",),
    "cw.png": ("bhc-cw",),
    "per_context.md": ("per-context",),
    "histogram.md": METHODS,
    "log_dropout.png": BASELINES,
}


def build(results: Results, papers: Sequence[Paper], out: Path, answers: Answers | None = None) -> list[Path]:
    """Write every table and figure, a folder a paper and one of the answers beyond them; the paths written.

    All text is made before the first file is replaced.
    """
    texts, figures = made(TABLES, results, papers), made(FIGURES, results, papers)
    if answers is not None:
        texts |= made_beyond(beyond.TABLES, answers)
        figures |= made_beyond(beyond.FIGURES, answers)
    for place, text in texts.items():
        write_bytes(out / place, text.encode())
    for place, figure in figures.items():
        save_figure(figure, out / place)
    return [out / place for place in (*texts, *figures)]


def made(
    makers: Mapping[str, Callable[[Results, Paper], Made]], results: Results, papers: Sequence[Paper]
) -> dict[Path, Made]:
    """Whatever is called for, by its place under ``tables/``."""
    return {
        Path(paper.name, name): make(results, paper)
        for paper in papers
        for name, make in makers.items()
        if called_for(name, paper)
    }


def made_beyond(makers: Mapping[str, Callable[[Answers], Made]], answers: Answers) -> dict[Path, Made]:
    """The same of the questions beyond the papers."""
    return {Path(BEYOND, name): make(answers) for name, make in makers.items()}


def called_for(name: str, paper: Paper) -> bool:
    """Whether a paper has the rows that a table or figure is about."""
    return name not in ONLY_WITH or bool(paper.models_with(*ONLY_WITH[name]))
