"""The paper's printed numbers for one data set, and the targets set beside them."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .methods import METHODS, PAPER_ROWS


@dataclass(frozen=True)
class Paper:
    """What one file says: networks, which methods are their rows, printed numbers, targets."""

    name: str
    data: Mapping[str, Any]

    @property
    def dataset(self) -> str:
        """The data set's title."""
        return self.data["title"]

    @property
    def experiment(self) -> str:
        """The folder of the results that count."""
        return self.data["experiment"]

    @property
    def models(self) -> list[str]:
        return list(self.data["models"])

    def model(self, model: str) -> Mapping[str, Any]:
        """Everything about one network."""
        return self.data["models"][model]

    def title(self, model: str) -> str:
        return self.model(model)["title"]

    def methods(self, model: str, among: Sequence[str] = METHODS) -> list[str]:
        """Which of these methods are rows of a network."""
        return [method for method in among if method in self.model(model)["methods"]]

    def models_with(self, *methods: str) -> list[str]:
        """The networks with one of these rows at least."""
        return [model for model in self.models if self.methods(model, methods)]

    def row(self, model: str, method: str) -> Mapping[str, Any] | None:
        """The printed row that one of our methods stands beside."""
        return self.model(model).get("rows", {}).get(PAPER_ROWS.get(method, method))

    def target(self, model: str, method: str, column: str) -> dict[str, float]:
        """What to reach in ``pruning`` or ``bits``, by key of a run's summary; empty where nothing was set."""
        given = self.model(model).get("targets", {}).get(method)
        if given is not None:
            return given.get(column, {})
        row, baselines = self.row(model, method), self.data["baselines"]
        if row is None or method not in baselines["methods"]:
            return {}
        return {
            f"{column}_ratio_mean": baselines["ratio_factor"] * row[f"{column}_ratio"],
            f"{column}_error": round(row[f"{column}_error"] + baselines["error_margin"], 6),
        }

    def limit(self, name: str) -> float:
        return self.data["limits"][name]

    def notes(self, table: str) -> list[str]:
        """What is to be known about a table of these networks only."""
        return self.data["notes"][table]


def read_papers(folder: Path) -> list[Paper]:
    """Every ``FOLDER/NAME.toml``."""
    return [Paper(path.stem, tomllib.loads(path.read_text())) for path in sorted(folder.glob("*.toml"))]
