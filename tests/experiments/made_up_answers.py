"""Made-up answers in the form that ``ask.py`` writes."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from experiments.report import read_answers
from experiments.report.beyond import Answers

from tests.experiments.synthetic import PAPERS, point, trade_off
from tests.experiments.toys import EXPERIMENTS

CONFIGS, TARGETS = EXPERIMENTS / "configs" / "contexts", EXPERIMENTS / "targets.toml"
Points = list[dict[str, float]]


def write_answer(folder: Path, name: str, answer: dict[str, Any], seed: int = 0, **changes: Any) -> Path:
    """An answer to the configuration of a name."""
    config = tomllib.loads((CONFIGS / f"{name}.toml").read_text())
    result = {
        "experiment": "contexts",
        "question": config["question"],
        "model": config["model"],
        "seed": seed,
        "config": config,
        "commit": "0" * 40,
        "device": "cpu, 2 threads",
        "train_device": "cuda: NVIDIA H200",
        "seconds": 1800.0,
        "answer": answer,
    } | changes
    path = folder / "contexts" / f"{name}-seed{seed}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result))
    return path


def read(folder: Path) -> Answers:
    return read_answers(folder, CONFIGS, TARGETS, list(PAPERS.values()))


def answers_of(folder: Path, name: str, *answers: dict[str, Any]) -> Answers:
    """Answers to one configuration, a seed each."""
    for seed, answer in enumerate(answers):
        write_answer(folder, name, answer, seed)
    return read(folder)


def curves(points: Points) -> dict[str, Points]:
    found = trade_off("", points)
    return {part: found[part] for part in ("validation", "test")}


def line(*pairs: tuple[float, float]) -> dict[str, Points]:
    """Curves through ratios and errors, of contexts that are all alike."""
    return curves([alike(float(place), ratio, error) for place, (ratio, error) in enumerate(pairs)])


def alike(threshold: float, ratio: float, error: float) -> dict[str, float]:
    return point(threshold, ratio, error) | {"ratio_harmonic": ratio}


def subset_row(classes: Sequence[int], ratio: float, wrong: int, seen: bool, images: int = 1000) -> dict[str, Any]:
    return {"classes": list(classes), "ratio": ratio, "wrong": wrong, "images": images, "seen": seen}


def folds(*models: list[dict[str, Any]]) -> dict[str, Any]:
    return {"folds": [{"threshold": -1.5, "validation_error": 0.5, "subsets": list(rows)} for rows in models]}


def dial(*ratios: float) -> dict[str, Any]:
    """Budgets evenly from 0 to 1, errors that rise with the ratio."""
    stops = np.linspace(0, 1, len(ratios)).tolist()
    sweep = [
        {"budget": stop, "ratio": ratio, "validation_error": 1 + ratio / 100, "error": 1 + ratio / 100}
        for stop, ratio in zip(stops, ratios, strict=True)
    ]
    alike = {budget: line((5, 1.0), (50, 2.0)) for budget in ("0", "0.5", "1")}
    return {"threshold": -1.0, "sweep": sweep, "thresholds_at": alike, "alone": alike}


def mask_row(mask: str, error: float, zero_filled: float, ratio: float = 25.0, features: int = 392) -> dict[str, Any]:
    return {
        "mask": mask,
        "features": features,
        "threshold": -2.0,
        "ratio": ratio,
        "validation_error": error,
        "error": error,
        "zero_filled_error": zero_filled,
    }


def promised(classes: Sequence[int], error: float, lower: float, **changes: Any) -> dict[str, Any]:
    return {
        "classes": list(classes),
        "max_error": 2.0,
        "ratio": 100.0,
        "file_bytes": 400,
        "images": 2000,
        "wrong": round(20 * error),
        "error": error,
        "lower_bound": lower,
    } | changes


def told(frequent: int, rare: int, errors: tuple[float, float], sizes: tuple[int, int] = (400, 400)) -> dict[str, Any]:
    return {
        "frequent": frequent,
        "rare": rare,
        "told_bytes": sizes[0],
        "untold_bytes": sizes[1],
        "told_error": errors[0],
        "untold_error": errors[1],
    }
