"""What the tables are built from: result files."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bhc.errors import BhcError
from bhc.files import read_json

from .paper import Paper

BEYOND = "contexts"  # the experiment of the questions beyond the paper, whose files have a form and tables of their own


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

    def counts_for(self, paper: Paper) -> bool:
        """Whether a table has this row, from this experiment: two protocols in one mean would be neither."""
        return (
            self.experiment == paper.experiment
            and self.model in paper.models
            and self.method in paper.methods(self.model)
        )


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


def read_results(folder: Path, papers: Sequence[Paper]) -> Results:
    """Every ``FOLDER/EXPERIMENT/RUN.json`` that one of the papers has a row for."""
    runs, set_aside, timings = [], [], []
    for path in sorted(folder.glob("*/*.json")):
        if path.parent.name == BEYOND:
            continue
        data = read_json(path, limit=256 << 20)
        if isinstance(data, dict) and data.get("experiment") == "speed":
            timings.append(data)
        elif isinstance(data, dict) and {"model", "method", "summary"} <= data.keys():
            runs.append(Run(path, data))
        else:
            set_aside.append(f"{path}: not the result of a run")
    wanted = [run for run in runs if any(run.counts_for(paper) for paper in papers)]
    others = [run for run in runs if run not in wanted]
    set_aside += [f"{run.path}: no table has {run.method} of {run.model} from {run.experiment}" for run in others]
    return Results(_by_seed(wanted), tuple(set_aside), tuple(timings))


def _by_seed(runs: Sequence[Run]) -> tuple[Run, ...]:
    kept: dict[tuple[str, str, int], Run] = {}
    for run in runs:
        other = kept.setdefault((run.model, run.method, run.seed), run)
        if other is not run:
            raise BhcError(
                f"{other.path} and {run.path} are both {run.method} of {run.model} with seed {run.seed}",
                hint="keep one of them in this folder, or move one to an experiment of its own",
            )
    return tuple(kept[key] for key in sorted(kept))
