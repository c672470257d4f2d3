"""The frame that all pages have: a section a configuration, then how to read it."""

from collections.abc import Callable, Sequence

from ..markdown import bullets, document
from .answers import Case

SEEDS = "With several seeds numbers are means over them, ± half the range where it is shown; one seed has no spread."


def page(
    title: str, cases: Sequence[Case], section: Callable[[Case], str], rules: Sequence[str], picture: str = ""
) -> str:
    sections = [
        document(f"## {case.title}", *((case.provenance, section(case)) if case.answers else (case.not_run,))).rstrip()
        for case in cases
    ]
    image = f"![{title}]({picture})" if picture else ""
    return document(f"# {title}", image, *sections, "## How to read it", bullets((*rules, SEEDS)))
