"""Made-up result files in the form that the runner writes."""

import json
from pathlib import Path
from typing import Any

from experiments.report import read_papers, read_results
from experiments.report.load import Results

from tests.experiments.toys import EXPERIMENTS

PAPERS = {paper.name: paper for paper in read_papers(EXPERIMENTS / "paper")}
PNG = b"\x89PNG\r\n\x1a\n"
LENET, CAFFE, VGG, RESNET = "lenet-300-100", "lenet-5-caffe", "vgg", "resnet-20"


def point(threshold: float, ratio: float, error: float) -> dict[str, float]:
    return {
        "threshold": threshold,
        "ratio_mean": ratio,
        "ratio_harmonic": 0.5 * ratio,
        "ratio_min": 0.25 * ratio,
        "error": error,
        "error_max": 2 * error,
    }


def trade_off(name: str, points: list[dict[str, float]], validation: list[dict[str, float]] | None = None):
    return {"name": name, "validation": points if validation is None else validation, "test": points}


def run(model: str, method: str, *, seed: int = 0, summary: dict[str, Any] | None = None, **changes: Any):
    """What the tables cannot do without; the rest is not recorded."""
    return {
        "experiment": next(paper.experiment for paper in PAPERS.values() if model in paper.models),
        "model": model,
        "method": method,
        "seed": seed,
        "original_error": 0.4,
        "summary": {"pruning_ratio_mean": 1400.0, "pruning_ratio_harmonic": 800.0, "pruning_error": 0.9}
        | (summary or {}),
    } | changes


def write(folder: Path, result: dict[str, Any], experiment: str | None = None) -> Path:
    """Into the experiment that it says, unless told otherwise."""
    name = f"{result['model']}-{result['method']}-seed{result['seed']}.json"
    path = folder / (experiment or result["experiment"]) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return path


def read_all(folder: Path) -> Results:
    """What all the tables together read."""
    return read_results(folder, list(PAPERS.values()))


def results_of(folder: Path, *runs: dict[str, Any]) -> Results:
    for result in runs:
        write(folder, result)
    return read_all(folder)


def section(text: str, title: str) -> str:
    """The part under a heading, without the parts after it."""
    return text.split(f"## {title}", 1)[1].split("\n## ", 1)[0]


def rows_of(text: str, first: str) -> list[list[str]]:
    """The cells of every table row whose first cell is ``first``."""
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [row for row in rows if row[0] == first]
