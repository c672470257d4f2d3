"""Showing a long run to a person: live bars in a terminal, sparse lines elsewhere, or nothing."""

import sys
import time
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Progress(Protocol):
    """Told where a run is; never asked anything."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        """A piece of work of ``total`` steps starts, ``done`` of them finished earlier."""

    def update(self, done: int, terms: dict[str, float]) -> None:
        """So many steps are done, and these are the numbers worth seeing."""

    def end(self) -> None:
        """The piece of work is over."""


def tell(progress: Progress, text: str) -> None:
    """Show a text, where it can be shown: to who has a method ``tell``."""
    say = getattr(progress, "tell", None)
    if say is not None:
        say(text)


class Silent:
    """Shows nothing."""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        return None

    def update(self, done: int, terms: dict[str, float]) -> None:
        return None

    def end(self) -> None:
        return None


class Lines:
    """One line every few seconds to stderr: for logs and pipes."""

    def __init__(self, *, every_seconds: float = 15.0) -> None:
        self.every_seconds = every_seconds
        self._title = ""
        self._total = self._first = 0
        self._began = self._shown = 0.0

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self._title, self._total, self._first = title, total, done
        self._began = self._shown = time.monotonic()

    def update(self, done: int, terms: dict[str, float]) -> None:
        now = time.monotonic()
        if now - self._shown < self.every_seconds and done < self._total:
            return
        self._shown = now
        rate = (done - self._first) / max(now - self._began, 1e-9)
        left = (self._total - done) / rate if rate else 0.0
        text = f"{self._title}: {done}/{self._total}  {format_terms(terms)}  {left:.0f} s left\n"
        sys.stderr.write(text)
        sys.stderr.flush()

    def end(self) -> None:
        return None

    def tell(self, text: str) -> None:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()


class Bars(AbstractContextManager["Bars"]):
    """A live bar for each piece of work, with loss terms, sparsity and the time left."""

    def __init__(self) -> None:
        from rich import progress
        from rich.console import Console

        # Sized for a terminal of 80 columns.
        self._bars = progress.Progress(
            progress.TextColumn("{task.description:>13}"),
            progress.BarColumn(bar_width=8),
            progress.MofNCompleteColumn(),
            progress.TimeRemainingColumn(compact=True),
            progress.TextColumn("left"),
            progress.TextColumn("{task.fields[terms]}"),
            console=Console(stderr=True),
        )
        self._task: Any = None

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self._bars.start()
        self._task = self._bars.add_task(title, total=total, completed=done, terms="")

    def update(self, done: int, terms: dict[str, float]) -> None:
        self._bars.update(self._task, completed=done, terms=format_terms(terms))

    def end(self) -> None:
        self._bars.stop()

    def tell(self, text: str) -> None:
        self._bars.console.print(text, markup=False, highlight=False)

    def __exit__(self, *exception: object) -> None:
        self._bars.stop()


# What a person watches, in words short enough for one line of a terminal; the diary has everything.
LABELS = {
    "loss": "loss {:.3f}",
    "cross_entropy": "loss {:.3f}",
    "distillation": "loss {:.3f}",
    "kl": "kl {:.1f}",
    "ratio": "{:.1f} x smaller",
    "skipped": "skipped {:.0f}",
}


def format_terms(terms: dict[str, float]) -> str:
    """``loss 0.123  kl 20.1  57.3 x smaller``"""
    return "  ".join(LABELS[name].format(value) for name, value in terms.items() if name in LABELS)


def default_progress() -> Progress:
    """Bars where a person is watching and ``rich`` is there, lines otherwise."""
    if sys.stderr.isatty():
        try:
            return Bars()
        except ImportError:
            pass
    return Lines()
