"""What these tables are built from: the configurations, and the answers that there are to each."""

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from questions.bench import Config

from bhc.errors import BhcError
from bhc.files import read_json

from ..load import BEYOND
from ..numbers import NOT_RUN
from ..paper import Paper
from .forms import FORMS, check

NEEDED = {
    "question": str,
    "model": str,
    "seed": float,
    "train_device": str,
    "seconds": float,
    "config": {},
    "answer": {},
}


@dataclass(frozen=True)
class Answer:
    """One result file."""

    path: Path
    data: Mapping[str, Any]

    @property
    def seed(self) -> int:
        return self.data["seed"]

    @property
    def value(self) -> Mapping[str, Any]:
        """What the question itself wrote."""
        return self.data["answer"]


@dataclass(frozen=True)
class Case:
    """One configuration: a question about one network, its targets, and its answers by seed."""

    config: Config
    network: str  # as the papers call it
    targets: Mapping[str, Any]
    answers: tuple[Answer, ...] = ()

    @property
    def title(self) -> str:
        """The network, and what its configuration's name has beyond network and question."""
        usual = f"{self.config.model}-{self.config.question}"
        more = self.config.name.removeprefix(usual).strip("-").replace("-", " ")
        return f"{self.network}, {more}" if more else self.network

    @property
    def values(self) -> list[Mapping[str, Any]]:
        """What each seed answered."""
        return [answer.value for answer in self.answers]

    @property
    def not_run(self) -> str:
        return f"{NOT_RUN}: `configs/contexts/{self.config.name}.toml`"

    @property
    def provenance(self) -> str:
        """Which seeds, where and how long."""
        seeds = ", ".join(str(answer.seed) for answer in self.answers)
        devices = " and ".join(dict.fromkeys(answer.data["train_device"] for answer in self.answers))
        many = len(self.answers)
        return f"`{self.config.name}`: {many} seed{'s' * (many > 1)} ({seeds}), trained on {devices}."


@dataclass(frozen=True)
class Answers:
    """All configurations with what was answered, and why other files do not count."""

    cases: tuple[Case, ...]
    set_aside: tuple[str, ...] = ()

    def of(self, question: str) -> list[Case]:
        return [case for case in self.cases if case.config.question == question]


def read_answers(results: Path, configs: Path, targets: Path, papers: Sequence[Paper]) -> Answers:
    """The answers in ``RESULTS/contexts`` to the configurations of a folder; networks are called as in the papers."""
    wanted = tomllib.loads(targets.read_text())
    titles = {model: paper.title(model) for paper in papers for model in paper.models}
    cases = {
        config.name: Case(config, titles.get(config.model, config.model), _targets(wanted, config))
        for config in map(Config.read, sorted(configs.glob("*.toml"), key=lambda path: path.stem))
    }
    found: dict[str, list[Answer]] = {name: [] for name in cases}
    set_aside = []
    for path in sorted((results / BEYOND).glob("*.json")):
        name = path.stem.rsplit("-seed", 1)[0]
        if name in cases:
            found[name].append(_read(path, cases[name].config))
        else:
            set_aside.append(f"{path}: no configuration is called {name}")
    answered = [
        replace(case, answers=tuple(sorted(found[name], key=lambda answer: answer.seed)))
        for name, case in cases.items()
    ]
    return Answers(tuple(answered), tuple(set_aside))


def _targets(wanted: Mapping[str, Any], config: Config) -> dict[str, Any]:
    """Those of the question, and those of the question for this network."""
    own = wanted.get(config.question, {})
    return {key: value for key, value in own.items() if not isinstance(value, Mapping)} | own.get(config.model, {})


def _read(path: Path, config: Config) -> Answer:
    data = read_json(path, limit=256 << 20)
    check(data, NEEDED, str(path))
    if data["question"] != config.question:
        raise BhcError(f"{path} answers {data['question']}, not {config.question}", hint="it has another file's name")
    check(data["answer"], FORMS[config.question], f"{path}: answer")
    return Answer(path, data)
