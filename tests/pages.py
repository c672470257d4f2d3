"""Pages of the documentation as tests run them."""

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def blocks(page: str) -> list[str]:
    """The Python of a page, in its order."""
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def executed(page: str) -> dict[str, Any]:
    """The names that the page's code leaves behind."""
    names: dict[str, Any] = {"__name__": "page"}
    for block in blocks(page):
        exec(compile(block, page, "exec"), names)
    return names


def bhc_command(*words: str, plugin: str) -> subprocess.CompletedProcess[str]:
    """The command line with a file of the reader's own imported first, in the working directory."""
    command = [sys.executable, "-m", "bhc", "--import", plugin, *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)
