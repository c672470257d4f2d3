"""A benchmark of this tree and of an earlier commit, by turns in one run: what a change made faster or slower.

    python benchmarks/against.py COMMIT emission [--turns 5] [--figures REGEX] [-- --rounds 20]

Each side runs its own script with its own sources, in a process of its own. Which goes first changes from turn to turn,
so that both meet the same disturbances. Of each figure whose name matches, the medians over the turns and their ratio
are printed; what stands after ``--`` goes to both scripts.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from bhc.files import write_json
from bhc.results import environment

ROOT = Path(__file__).resolve().parent.parent
TIMES = r"(_ms|_seconds|_per_second)\b|/ratios/|ms_(median|a_context|per_network)"


def figures(results: Any, path: str = "") -> Iterator[tuple[str, float]]:
    """All numbers of a result file by their path; rows go by the texts in them, else by their place."""
    if isinstance(results, dict):
        for name, value in results.items():
            yield from figures(value, f"{path}/{name}")
    elif isinstance(results, list):
        for place, row in enumerate(results):
            texts = [value for value in row.values() if isinstance(value, str)] if isinstance(row, dict) else []
            yield from figures(row, f"{path}/{'-'.join(texts) or place}")
    elif isinstance(results, int | float) and not isinstance(results, bool):
        yield path, float(results)


def run(tree: Path, script: str, options: list[str], out: Path) -> dict[str, float]:
    """The figures of a tree's own script, with its own sources."""
    command = [sys.executable, f"benchmarks/{script}.py", *options, "--out", str(out)]
    subprocess.run(command, cwd=tree, env=os.environ | {"PYTHONPATH": str(tree / "src")}, check=True, stdout=sys.stderr)
    return dict(figures(json.loads(out.read_text())))


def compare(before: Path, script: str, options: list[str], turns: int) -> dict[str, dict[str, float]]:
    """Medians over the turns of the figures that both sides have, and now over before."""
    seen: dict[Path, list[dict[str, float]]] = {before: [], ROOT: []}
    with tempfile.TemporaryDirectory() as folder:
        for turn in range(turns):
            for tree in list(seen)[:: 1 if turn % 2 else -1]:
                seen[tree].append(run(tree, script, options, Path(folder) / "out.json"))
    common = [name for name in seen[ROOT][0] if name in seen[before][0]]
    rows = {}
    for name in common:
        old, new = (median(row[name] for row in seen[tree]) for tree in (before, ROOT))
        rows[name] = {"before": old, "now": new, "ratio": new / old if old else float("nan")}
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("script", help="without .py: emission, training_step, serve_load, ...")
    parser.add_argument("--turns", type=int, default=5, help="of each side (%(default)s)")
    parser.add_argument("--figures", default=TIMES, help="a pattern (%(default)s)")
    parser.add_argument("--out", type=Path, help="a result file; without it figures are only printed")
    own, theirs = sys.argv[1:], []
    if "--" in own:
        cut = own.index("--")
        own, theirs = own[:cut], own[cut + 1 :]
    arguments = parser.parse_args(own)
    git = ["git", "-C", str(ROOT)]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "before"
        subprocess.run([*git, "worktree", "add", "--quiet", "--detach", str(tree), arguments.commit], check=True)
        try:
            rows = compare(tree, arguments.script, theirs, arguments.turns)
        finally:
            subprocess.run([*git, "worktree", "remove", "--force", str(tree)], check=True)
    shown = {name: row for name, row in rows.items() if re.search(arguments.figures, name)}
    for name, row in shown.items():
        print(f"{row['ratio']:6.3f}  {row['before']:10.4g} -> {row['now']:10.4g}  {name}")
    if shown:
        print(f"{median(row['ratio'] for row in shown.values()):6.3f}  median of {len(shown)} figures")
    if arguments.out:
        head = {"benchmark": "against", **environment(), "before": arguments.commit, "script": arguments.script}
        write_json(arguments.out, head | {"turns": arguments.turns, "figures": shown})


if __name__ == "__main__":
    main()
