"""Made-up answers in the form that ``ask.py`` writes."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.report import read_answers
from experiments.report.beyond import Answers

from tests.experiments.synthetic import PAPERS, point, trade_off
from tests.experiments.toys import EXPERIMENTS

CONFIGS, TARGETS = EXPERIMENTS / "configs" / "contexts", EXPERIMENTS / "targets.toml"
Points = list[dict[str, float]]


def write_answer(folder: Path, name: str, answer: dict[str, Any], seed: int = 0) -> Path:
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
    }
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
