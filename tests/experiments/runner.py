"""Calls of ``experiments/run.py`` on the small digits, and what they leave."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import run

from tests.experiments.toys import CONSOLIDATE, write_study

NAMES = ("bhc-cy", "sparsevd", "per-context")
ONE_WEIGHT_FILE = "lenet-300-100-digits.safetensors"
PASSING = ("seconds", "train_seconds", "emit_ms", "emit_ms_median", "commit")  # what two runs may differ in


@dataclass(frozen=True)
class Place:
    """Where one call finds and leaves its files."""

    folder: Path

    @property
    def runs(self) -> Path:
        return self.folder / "runs"

    @property
    def options(self) -> list[str]:
        return ["--device", "cpu", "--runs", str(self.runs), "--results", str(self.folder / "results")]

    def call(self, *arguments: str | Path) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("sys.argv", ["run.py", *map(str, arguments), *self.options])
            return run.main()

    def target(self, name: str, seed: int = 0) -> Path:
        return self.folder / "results" / "table1" / f"{name}-seed{seed}.json"

    def result(self, name: str, seed: int = 0) -> dict[str, Any]:
        return json.loads(self.target(name, seed).read_text())

    def start_from(self, other: "Place") -> "Place":
        """With the pretrained network of another place, so that it is not made again."""
        self.runs.mkdir(parents=True)
        (self.runs / ONE_WEIGHT_FILE).write_bytes((other.runs / ONE_WEIGHT_FILE).read_bytes())
        return self


def study_file(folder: Path, method: str, **changes: Any) -> Path:
    """A few steps, fewer where nine networks are trained; SparseVD at its published threshold."""
    if method == "sparsevd":
        changes = {"consolidate": None, "choose": {"threshold": 3.0, "bits_error": 25.0}} | changes
    if method == "per-context":
        brief = {"steps": 8, "kl_weight": 0.3, "logvar_rate": 0.5}
        changes = {"learn": brief, "consolidate": CONSOLIDATE | {"steps": 4}} | changes
    return write_study(folder, method, **changes)


def lasting(value: Any) -> Any:
    """A result without what says when it was made."""
    if isinstance(value, dict):
        return {key: lasting(inner) for key, inner in value.items() if key not in PASSING}
    return [lasting(inner) for inner in value] if isinstance(value, list) else value


def stamps(folder: Path) -> dict[Path, tuple[int, bytes]]:
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.rglob("*") if path.is_file()}
