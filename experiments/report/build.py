"""Everything under ``tables/``, written in one go."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from bhc.cli.plots import save_figure
from bhc.files import write_bytes

from .budgets import budgets
from .classes import classes
from .contexts import contexts
from .histogram import histogram
from .load import Paper, Results
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


def build(results: Results, paper: Paper, out: Path) -> list[Path]:
    """Write every table and figure; the paths written. All text is made before the first file is replaced."""
    texts = {name: make(results, paper) for name, make in TABLES.items()}
    figures = {name: make(results, paper) for name, make in FIGURES.items()}
    for name, text in texts.items():
        write_bytes(out / name, text.encode())
    for name, figure in figures.items():
        save_figure(figure, out / name)
    return [out / name for name in (*texts, *figures)]
