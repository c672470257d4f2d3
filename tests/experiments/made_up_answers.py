"""Made-up answers in the form that ``ask.py`` writes."""

import json
import tomllib
from collections.abc import Sequence
from itertools import combinations
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


def write_every_answer(folder: Path, seeds: int = 1) -> None:
    """Every configuration, with numbers such as training could leave."""
    for path in sorted(CONFIGS.glob("*.toml")):
        config = tomllib.loads(path.read_text())
        for seed in range(seeds):
            draws = np.random.default_rng(seed)
            far = 4.0 if config["model"] == "lenet-5-caffe" else 1.0
            write_answer(folder, path.stem, REALISTIC[config["question"]](draws, far, config["asked"]), seed)


def _curves(draws: np.random.Generator, largest: float, error: float) -> dict[str, Points]:
    """Twenty-five thresholds: ratios fall as they rise, and errors do."""
    steps = np.linspace(0, 1, 25)
    ratios = largest * (largest / 30) ** -steps
    errors = error + 20 * (1 - steps) ** 7 + 0.25 * (1 - steps)
    parts = {}
    for part in ("validation", "test"):
        noisy = np.abs(errors + draws.normal(0, 0.02, 25))
        parts[part] = [alike(3 * s - 3, r, e) for s, r, e in zip(steps, ratios, noisy, strict=True)]
    return parts


def _subsets(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    every = [subset for size in asked["sizes"] for subset in combinations(range(10), size)]
    places = draws.permutation(len(every)) % 5
    base = {subset: draws.lognormal(0, 0.2) for subset in every}
    models = []
    for fold in range(5):
        rows = []
        for subset, place in zip(every, places, strict=True):
            seen, images = bool(place != fold), 1000 * len(subset)
            ratio = far * 260 / len(subset) * base[subset] * draws.lognormal(0 if seen else -0.02, 0.08)
            rate = (0.3 + 0.22 * len(subset)) / far**0.6 * base[subset] * (1 if seen else 1.06)
            rows.append(subset_row(subset, ratio, int(draws.binomial(images, rate / 100)), seen, images))
        models.append(rows)
    return folds(*models)


def _joint(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    groups = [
        {
            "budget": budget,
            "joint": _curves(draws, far * 200 * (1 + budget), (0.45 + 0.15 * budget) / far**0.3),
            "alone": _curves(draws, far * 210 * (1 + budget), (0.45 + 0.14 * budget) / far**0.3),
        }
        for budget in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    return {
        "budgets": groups,
        "nothing_said": {"joint": _curves(draws, far * 40, 1.5), "alone": _curves(draws, far * 45, 1.4)},
    }


def _budgets(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    answer = dial(*(far * 8 * 12 ** (step / 20) for step in range(21)))
    for stop in answer["sweep"]:
        stop["error"] = (1.35 + 0.5 * stop["budget"] ** 2) / far**0.3 + draws.normal(0, 0.02)
    for kind, extra in (("thresholds_at", 0.05), ("alone", 0.0)):
        answer[kind] = {
            f"{budget:g}": _curves(draws, far * 60 * (1 + budget), (1.35 + extra + 0.35 * budget) / far**0.3)
            for budget in (0.0, 0.5, 1.0)
        }
    return answer


def _features(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    rows = [
        mask_row("left half", 5.2, 41.3, 24.1),
        mask_row("every second column", 2.3, 12.9, 21.7),
        mask_row("random 30 %", 3.1, 30.2, 22.8, 240),
    ]
    for number in range(0 if asked["known"] else 20):
        there = int(draws.integers(40, 700))
        rows.append(
            mask_row(
                f"drawn {number}", 1.6 + 900 / there, min(88.0, 2 + 20000 / there * draws.uniform(0.5, 1)), 23.0, there
            )
        )
    return {"masks": rows}


def _guarantee(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    limit, rows = asked["max_error"], []
    for number in range(100):
        error = float(draws.uniform(0.2, 1.03) * limit)
        row = promised([number % 10, (number + 3) % 10], error, 0.7 * error, max_error=limit, ratio=far * 80.0)
        rows.append({"classes": [1, 2], "max_error": limit, "refused": "too few"} if number % 33 == 5 else row)
    return {"contexts": rows, "refused": 0, "exceeded": 0, "surely_exceeded": 0}


def _appearance(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    rows = []
    for frequent in range(10):
        for rare in range(10):
            if frequent != rare:
                untold = float(draws.uniform(0.1, 1.2))
                sizes = (int(draws.integers(380, 420)), int(draws.integers(390, 430)))
                rows.append(told(frequent, rare, (untold * float(draws.uniform(0.6, 1.1)), untold), sizes))
    return {"pairs": rows}


def _ablations(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    return {
        "variants": {
            name: _curves(draws, far * (220 - 15 * place), 0.6 + 0.06 * place) | {"seconds": 300.0 + 20 * place}
            for place, name in enumerate(asked["variants"])
        }
    }


def _pairs(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    rows = [
        {
            "classes": [number, number + 1],
            "images": 60,
            "ratio": far * float(draws.uniform(100, 300)),
            "wrong": number % 2,
            "full_wrong": 0,
            "architecture": [7, 2, 11, 2],
            "file_bytes": 320,
            "file_wrong": number % 2,
        }
        for number in range(9)
    ]
    return {"threshold": -3.0, "validation_error": 0.2, "full_error": 0.7, "pairs": rows}


def _speakers(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    draw = {"images": 480, "ratio": 12.0, "wrong": 20, "untold_ratio": 11.9, "untold_wrong": 24, "uncut_wrong": 15}
    return {"speakers": [{"speaker": name, "draws": [draw | {"distance": 1.1}] * 5} for name in asked["speakers"]]}


def _vocabulary(draws: np.random.Generator, far: float, asked: dict[str, Any]) -> dict[str, Any]:
    row = {
        "words": 330,
        "images": 120,
        "ratio": 15.0,
        "rows": 300,
        "embedding_bytes_before": 800_000,
        "embedding_bytes": 60_000,
        "embedding_bytes_in_file": 5_000.5,
        "wrong": 9,
        "file_wrong": 10,
        "full_wrong": 9,
        "file_bytes": 7_000,
    }
    return {"words": 3_298, "threshold": 0.0, "validation_error": 9.0, "full_error": 10.0, "contexts": [row] * 20}


REALISTIC = {
    "subsets": _subsets,
    "joint": _joint,
    "budgets": _budgets,
    "features": _features,
    "guarantee": _guarantee,
    "appearance": _appearance,
    "ablations": _ablations,
    "pairs": _pairs,
    "speakers": _speakers,
    "vocabulary": _vocabulary,
}
