"""Markdown as text."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; the first column is flush left, the others flush right."""
    lines = [_row(header), _row([":--", *["--:"] * (len(header) - 1)])]
    return "\n".join([*lines, *(_row(row) for row in rows)])


def document(*blocks: str) -> str:
    """Blocks with an empty line between them; empty blocks are left out."""
    return "\n\n".join(block for block in blocks if block) + "\n"


def bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {line}" for line in lines)


def _row(cells: Sequence[str]) -> str:
    # A bar inside a cell would open another column.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"
