"""What an answer to each question must hold, so that a broken file is named before any table is made."""

from collections.abc import Callable, Mapping
from typing import Any

from bhc.errors import BhcError

EACH = "*"  # every entry of a mapping
CURVE = [{"threshold": float, "ratio_mean": float, "ratio_harmonic": float, "error": float}]
CURVES = {"validation": CURVE, "test": CURVE}


def _guaranteed(row: Any) -> Any:
    known = {"classes": list, "max_error": float}
    if isinstance(row, Mapping) and "refused" in row:
        return known
    return known | dict.fromkeys(("ratio", "file_bytes", "images", "wrong", "error", "lower_bound"), float)


FORMS: dict[str, Any] = {
    "subsets": {
        "folds": [
            {
                "threshold": float,
                "subsets": [{"classes": list, "ratio": float, "wrong": float, "images": float, "seen": bool}],
            }
        ]
    },
    "joint": {
        "budgets": [{"budget": float, "joint": CURVES, "alone": CURVES}],
        "nothing_said": {"joint": CURVES, "alone": CURVES},
    },
    "budgets": {
        "threshold": float,
        "sweep": [{"budget": float, "ratio": float, "error": float}],
        "thresholds_at": {EACH: CURVES},
        "alone": {EACH: CURVES},
    },
    "features": {
        "masks": [{"mask": str, "features": float, "ratio": float, "error": float, "zero_filled_error": float}]
    },
    "guarantee": {"contexts": [_guaranteed]},
    "appearance": {
        "pairs": [
            {"frequent": float, "rare": float}
            | dict.fromkeys(("told_bytes", "untold_bytes", "told_error", "untold_error"), float)
        ]
    },
    "pairs": {
        "full_error": float,
        "pairs": [
            {"classes": list, "architecture": list}
            | dict.fromkeys(("images", "ratio", "wrong", "full_wrong", "file_bytes", "file_wrong"), float)
        ],
    },
    "speakers": {
        "speakers": [
            {
                "speaker": str,
                "draws": [
                    dict.fromkeys(("images", "ratio", "wrong", "untold_ratio", "untold_wrong", "uncut_wrong"), float)
                ],
            }
        ]
    },
    "vocabulary": {
        "full_error": float,
        "contexts": [
            dict.fromkeys(
                (
                    "words",
                    "images",
                    "rows",
                    "embedding_bytes_before",
                    "embedding_bytes",
                    "embedding_bytes_in_file",
                    "wrong",
                    "file_wrong",
                    "full_wrong",
                ),
                float,
            )
        ],
    },
    "ablations": {"variants": {EACH: CURVES | {"seconds": float}}},
}


def check(value: Any, form: Any, place: str) -> None:
    """Refuse what has not this form, with the place where it differs."""
    if isinstance(form, dict):
        _check_mapping(value, form, place)
    elif isinstance(form, list):
        _need(isinstance(value, list) and len(value) > 0, place, "a list that is not empty")
        for number, entry in enumerate(value):
            check(entry, form[0], f"{place}[{number}]")
    elif isinstance(form, type):
        _need(_is_a(value, form), place, {float: "a number", list: "a list", bool: "true or false", str: "text"}[form])
    else:
        own: Callable[[Any], Any] = form
        check(value, own(value), place)


def _check_mapping(value: Any, form: Mapping[str, Any], place: str) -> None:
    _need(isinstance(value, Mapping) and len(value) > 0, place, "an object with entries")
    for key, inner in form.items():
        if key != EACH:
            _need(key in value, f"{place}.{key}", "there")
        for found in value if key == EACH else (key,):
            check(value[found], inner, f"{place}.{found}")


def _is_a(value: Any, kind: type) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) if kind is float else isinstance(value, kind)


def _need(holds: bool, place: str, wanted: str) -> None:
    if not holds:
        raise BhcError(f"{place} is not {wanted}", hint="move the file away and run experiments/ask.py again")
