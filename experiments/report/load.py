"""What the tables are built from: result files, and the paper's printed numbers."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from bhc.errors import BhcError
from bhc.files import read_json

MAIN_EXPERIMENT = "table1"  # its runs count where a method was also run in another experiment
PAPER_ROWS = {"bhc-cx-domain": "bhc-cx", "bhc-cx-mixed": "bhc-cx"}  # ours -> the paper's name
TITLES = {
    "sparsevd": "SparseVD",
    "bc-gnj": "BC-GNJ",
    "bc-ghs": "BC-GHS",
    "bc-io-gnj": "BC-IO-GNJ",
    "bhc-cx-domain": "BHC c_x, domain",
    "bhc-cx-mixed": "BHC c_x, mixed",
    "bhc-cy": "BHC c_y",
    "bhc-cw": "BHC c_w",
    "per-context": "per context",
}
METHODS = tuple(TITLES)
TABLE_METHODS = METHODS[:7]  # those with a row in the paper's tables
CONDITIONAL = METHODS[4:]  # those with more than one context


@dataclass(frozen=True)
class Run:
    """One result file."""

    path: Path
    data: Mapping[str, Any]

    @property
    def model(self) -> str:
        return self.data["model"]

    @property
    def method(self) -> str:
        return self.data["method"]

    @property
    def seed(self) -> int:
        return self.data.get("seed", 0)

    @property
    def experiment(self) -> str:
        return self.path.parent.name

    @property
    def contexts(self) -> Sequence[Mapping[str, Any]]:
        return self.data.get("contexts", [])

    def summary(self, key: str) -> float | None:
        return self.data.get("summary", {}).get(key)

    def trade_off(self, name: str) -> Mapping[str, Any] | None:
        """The curves over thresholds under this name, validation and test."""
        return next((curves for curves in self.data.get("trade_offs", []) if curves["name"] == name), None)


@dataclass(frozen=True)
class Results:
    """All runs that count, and why the other files do not."""

    runs: tuple[Run, ...]
    set_aside: tuple[str, ...] = ()
    timings: tuple[Mapping[str, Any], ...] = ()

    def speeds(self, model: str) -> list[Mapping[str, Any]]:
        """How long a new context of a model takes, one entry for each kind of machine it was timed on."""
        return [timing for timing in self.timings if timing["model"] == model]

    def of(self, model: str, method: str) -> list[Run]:
        """The runs of one row, by seed."""
        return [run for run in self.runs if (run.model, run.method) == (model, method)]


@dataclass(frozen=True)
class Paper:
    """The paper's printed numbers and the targets set beside them."""

    data: Mapping[str, Any]

    @property
    def models(self) -> list[str]:
        return [name for name, entry in self.data.items() if "rows" in entry]

    def title(self, model: str) -> str:
        return self.data[model]["title"]

    def row(self, model: str, method: str) -> Mapping[str, Any] | None:
        """The printed row that one of our methods stands beside."""
        return self.data[model]["rows"].get(PAPER_ROWS.get(method, method))

    def target(self, model: str, method: str, column: str) -> dict[str, float]:
        """What to reach in ``pruning`` or ``bits``, by key of a run's summary; empty where nothing was set."""
        given = self.data[model].get("targets", {}).get(method)
        if given is not None:
            return given[column]
        row, baselines = self.row(model, method), self.data["baselines"]
        if row is None or method not in baselines["methods"]:
            return {}
        return {
            f"{column}_ratio_mean": baselines["ratio_factor"] * row[f"{column}_ratio"],
            f"{column}_error": round(row[f"{column}_error"] + baselines["error_margin"], 6),
        }

    def limit(self, name: str) -> float:
        return self.data["limits"][name]


def read_paper(path: Path) -> Paper:
    with path.open("rb") as file:
        return Paper(tomllib.load(file))


def read_results(folder: Path) -> Results:
    """Every ``FOLDER/EXPERIMENT/RUN.json``."""
    runs, set_aside, timings = [], [], []
    for path in sorted(folder.glob("*/*.json")):
        data = read_json(path, limit=256 << 20)
        if isinstance(data, dict) and data.get("experiment") == "speed":
            timings.append(data)
        elif isinstance(data, dict) and {"model", "method", "summary"} <= data.keys():
            runs.append(Run(path, data))
        else:
            set_aside.append(f"{path}: not the result of a run")
    return replace(_choose(runs, set_aside), timings=tuple(timings))


def _choose(runs: list[Run], set_aside: list[str]) -> Results:
    """Keep one experiment for each row: two protocols in one mean would be neither."""
    chosen: dict[tuple[str, str], str] = {}
    for run in sorted(runs, key=lambda run: (run.experiment != MAIN_EXPERIMENT, run.experiment)):
        chosen.setdefault((run.model, run.method), run.experiment)
    kept: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        experiment = chosen[run.model, run.method]
        if run.experiment != experiment:
            set_aside.append(f"{run.path}: {run.method} of {run.model} is read from {experiment}")
            continue
        other = kept.setdefault((run.model, run.method, run.seed), run)
        if other is not run:
            raise BhcError(
                f"{other.path} and {run.path} are both {run.method} of {run.model} with seed {run.seed}",
                hint="keep one of them in this folder, or move one to an experiment of its own",
            )
    return Results(tuple(kept[key] for key in sorted(kept)), tuple(set_aside))
