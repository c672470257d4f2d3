"""What every command shares: data to stdout, everything else to stderr, errors as one line and a hint."""

import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any, TextIO

from bhc.errors import BhcError
from bhc.training import is_rank_zero

WRONG_USE, INTERRUPTED = 2, 130


def show(value: Any, *, as_json: bool) -> None:
    """Print a result: a JSON value, or its text."""
    text = json.dumps(value, indent=2, default=str) if as_json else value
    _write(f"{text}", sys.stdout)


def say(text: str) -> None:
    """A word about what is going on, to stderr; where several processes train together, from the first alone."""
    if is_rank_zero():
        _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Written out at once: a log that both streams go to has everything in its order."""
    stream.write(text + "\n")
    stream.flush()


def program() -> str:
    """How to call this program again: by name where it is on the path, else as it was called."""
    called = Path(sys.argv[0])
    if shutil.which("bhc") or called.name != "bhc":
        return "bhc"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)


def say_error(error: BhcError) -> None:
    """The problem in one line, then the hint. Any process may have one of its own."""
    who = "" if is_rank_zero() else f"process {os.environ.get('RANK')}: "
    _write(f"{who}error: {error.problem}", sys.stderr)
    if error.hint:
        _write(f"{who}hint: {error.hint}", sys.stderr)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns aligned, the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *aligned[1:]]).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])
