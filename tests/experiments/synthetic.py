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
WIDTHS = {LENET: [20, 8, 4], CAFFE: [4, 5, 30, 6], VGG: list(range(16, 0, -1)), RESNET: [3] * 20}
CONDITIONAL = ("bhc-cx-domain", "bhc-cx-mixed", "bhc-cy", "bhc-cw", "per-context")


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


def context(label: str, model: str, **changes: Any) -> dict[str, Any]:
    return {
        "context": {"classes": [0, 1]},
        "label": label,
        "threshold": -1.5,
        "scale": 0.03,
        "architecture": WIDTHS[model],
        "bits": [4] * len(WIDTHS[model]),
        "reference_bits": [9] * len(WIDTHS[model]),
        "reference_bits_ratio": 4000.0,
        "weights_after": 224,
        "pruning_ratio": 1200.0,
        "pruning_ratio_ten_outputs": 1000.0,
        "bits_ratio": 9600.0,
        "file_bytes": 251,
        "file_ratio": 4200.0,
        "original_error": 0.31,
        "pruning_error": 0.81,
        "bits_error": 0.82,
        "file_error": 0.83,
        "test_images": 2000,
        "emit_ms": 2.0,
    } | changes


def run(model: str, method: str, *, seed: int = 0, summary: dict[str, Any] | None = None, **changes: Any):
    return {
        "experiment": next(paper.experiment for paper in PAPERS.values() if model in paper.models),
        "model": model,
        "method": method,
        "trained_on": "nine consecutive pairs" if method in CONDITIONAL else "all ten classes",
        "seed": seed,
        "config": {},
        "commit": "0" * 40,
        "device": "cuda: NVIDIA H200",
        "train_device": "cuda: NVIDIA H200",
        "emit_device": "cpu, 2 threads",
        "versions": {},
        "seconds": 120.0,
        "train_seconds": 90.0,
        "original_error": 0.4,
        "choice": {"rule": "the largest ratio within 0.1 points", "threshold": -1.5, "scale": 0.03},
        "summary": {
            "pruning_ratio_mean": 1400.0,
            "pruning_ratio_harmonic": 800.0,
            "pruning_ratio_min": 300.0,
            "pruning_ratio_ten_outputs_mean": 1100.0,
            "pruning_error": 0.9,
            "bits_ratio_mean": 11000.0,
            "bits_ratio_harmonic": 7000.0,
            "bits_error": 0.95,
            "file_bytes_mean": 260.0,
            "file_bytes_max": 320,
            "file_ratio_mean": 4100.0,
            "file_error": 0.96,
            "error_max": 1.9,
            "emit_ms_median": 2.0,
        }
        | (summary or {}),
        "contexts": [context("0, 1", model)],
        "trade_offs": [],
        "per_class": [],
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
