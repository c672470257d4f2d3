"""Studies of the small digits that take a moment, and models for them."""

import json
import runpy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from study.config import Study
from study.methods import Case
from study.training import Member

import bhc
from bhc.data import DataSet, Split
from bhc.training import Silent

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
LEARN = {"steps": 20, "kl_weight": 0.3, "logvar_rate": 0.2}
ALONE = (bhc.Learn(steps=40, kl_weight=1.0, contexts=1, examples=32),)
NINE = [(first, first + 1) for first in range(9)]
CONSOLIDATE = {"steps": 10, "thresholds": [-7.0, -4.0]}


def settings(of: str, **changes: Any) -> dict[str, Any]:
    """A study as a dictionary; a change to None takes a key out."""
    wanted = {
        "experiment": "table1",
        "model": "lenet-300-100",
        "data": "digits",
        "method": of,
        "seeds": [0],
        "learn": LEARN,
        "consolidate": CONSOLIDATE,
        "choose": {"error": 20.0, "bits_error": 25.0},
    } | changes
    return {key: value for key, value in wanted.items() if value is not None}


def toml(data: Mapping[str, Any]) -> str:
    """Plain values first, then tables; JSON writes such values as TOML does."""
    plain = [f"{key} = {json.dumps(value)}" for key, value in data.items() if not isinstance(value, dict)]
    tables = [f"[{key}]\n{toml(value)}" for key, value in data.items() if isinstance(value, dict)]
    return "\n".join([*plain, *tables])


def write_study(folder: Path, of: str, **changes: Any) -> Path:
    """A configuration file of the method ``of``, called like it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{of}.toml"
    path.write_text(toml(settings(of, **changes)))
    return path


def fitted(net: torch.nn.Module, digits: DataSet, space: Any, recipe: Any, **options: Any) -> bhc.Compressor:
    """A model of the small digits after a few steps."""
    model = bhc.wrap(net, space, example_input=digits.train.inputs[:1], **options)
    return bhc.fit(model, digits.train, digits.validation, recipe=recipe, progress=Silent())


def numbered(count: int, first: int = 0) -> Split:
    """Images that are told apart by two of their pixels, ten classes in turn."""
    numbers = torch.arange(first, first + count)
    images = torch.zeros(count, 1, 2, 2, dtype=torch.uint8)
    images[:, 0, 0, 0], images[:, 0, 0, 1] = numbers // 256, numbers % 256
    return Split(images, numbers % 10)


def numbers_of(split: Split) -> list[int]:
    """Which images these are."""
    pixels = split.inputs[:, 0, 0].long()
    return (256 * pixels[:, 0] + pixels[:, 1]).tolist()


def numbered_data(train: int = 20, validation: int = 3300, test: int = 3500) -> DataSet:
    parts = numbered(train), numbered(validation, train), numbered(test, train + validation)
    return DataSet("numbered", tuple(map(str, range(10))), *parts)


def garbage(split: Split, seed: int = 0) -> Split:
    """As many images of noise, every label another one than it was."""
    draws = torch.Generator().manual_seed(seed)
    noise = torch.randint(0, 17, split.inputs.shape, generator=draws, dtype=torch.uint8)
    return Split(noise, (split.labels + 1) % 10)


def read(folder: Path, of: str, **changes: Any) -> Study:
    return Study.read(write_study(folder, of, **changes))


def few(member: Member, count: int = 3) -> Member:
    return replace(member, cases=member.cases[:count])


def asked_of(member: Member) -> list[tuple[Member, Case]]:
    return [(member, case) for case in member.cases]


def member_of(model: bhc.Compressor, cases: Sequence[Case]) -> Member:
    model.model.training |= {"seconds": 12.5, "device": "cpu, 1 threads"}
    return Member(model, tuple(cases))


def run_script(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    monkeypatch.syspath_prepend(EXPERIMENTS)
    monkeypatch.setattr("sys.argv", ["tables.py", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(EXPERIMENTS / "tables.py"), run_name="__main__")
    return ended.value.code
