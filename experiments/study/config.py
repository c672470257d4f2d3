"""A study as its configuration file describes it."""

import tomllib
from dataclasses import dataclass, field
from operator import index
from pathlib import Path
from typing import Any

import bhc
from bhc import models
from bhc.hypernet import GeneratorSpec, generator_from_dict
from bhc.training import Recipe
from study.methods import METHODS, Method
from study.stages import after_learning


@dataclass(frozen=True)
class Choice:
    """How a threshold and the steps of the weights are chosen, on validation data alone.

    ``error``: of the thresholds with at most this error (percent, pooled over contexts) the one with the largest mean
    ratio; with several groups of contexts, one number for each. ``threshold`` instead fixes it. ``bits_error``: the
    coarsest steps with at most this error. With ``above_best`` both are points over the smallest error of any
    threshold: where that differs from seed to seed, or is flattered, no one number suits all.
    """

    error: tuple[float, ...] = ()
    threshold: float | None = None
    bits_error: tuple[float, ...] = ()
    above_best: bool = False

    @classmethod
    def of(
        cls, bits_error: Any, error: Any = None, threshold: float | None = None, above_best: bool = False
    ) -> "Choice":
        """From one number or a list of them."""
        return cls(_tuple(error), None if threshold is None else float(threshold), _tuple(bits_error), above_best)

    def limits(self, group: int, smallest: float) -> tuple[float | None, float]:
        """The largest errors of a group, cut and then rounded, given the smallest of its curve."""
        base = smallest if self.above_best else 0.0
        return (base + self.error[group] if self.error else None), base + self.bits_error[group]

    def check(self, groups: int) -> None:
        """Raise unless every group of contexts has its limits."""
        if self.threshold is not None and self.error:
            raise bhc.BhcError("threshold and error exclude each other")
        named = {"bits_error": self.bits_error} | ({"error": self.error} if self.threshold is None else {})
        for name, limits in named.items():
            if len(limits) != groups:
                raise bhc.BhcError(f"{len(limits)} limits for {name}, but the method has {groups} groups of contexts")

    @property
    def rule(self) -> str:
        """The rule in words."""
        limits = " and ".join(f"{limit:g}" for limit in self.error)
        most = f"{limits} points over its smallest error" if self.above_best else f"{limits} % error"
        cut = (
            f"threshold {self.threshold:g}, as published"
            if self.threshold is not None
            else f"the largest mean ratio with at most {most} on validation data"
        )
        steps = " and ".join(f"{limit:g}" for limit in self.bits_error)
        return f"{cut}; the coarsest steps with at most {steps} {'points over it' if self.above_best else '% there'}"


WEIGHTS = ("own", "public")  # pretrained here, or taken from a public checkpoint


@dataclass(frozen=True)
class Study:
    """One method on one network: what is trained, with which seeds, and how its networks are chosen."""

    name: str
    experiment: str
    model: str
    data: str
    weights: str  # one of WEIGHTS: where the pretrained network comes from
    method: Method
    seeds: tuple[int, ...]
    weight_generator: GeneratorSpec
    learn: dict[str, Any]
    learn_high: dict[str, Any]  # the second stage of a budget
    narrow: dict[str, Any] | None
    consolidate: dict[str, Any] | None
    choice: Choice
    augment: bool  # whether what is learned from is altered: images cropped and mirrored
    bf16: bool  # whether products are done in bfloat16
    settings: dict[str, Any] = field(repr=False)  # the file as it was read

    @classmethod
    def read(cls, path: Path) -> "Study":
        """The study that a TOML file describes."""
        try:
            data = tomllib.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise bhc.BhcError(f"{path} cannot be read as a study: {error}") from error
        try:
            study = cls._of(path.stem, data)
            study.check()
        except KeyError as error:
            raise bhc.BhcError(f"{path} lacks {error}, or names what does not exist") from error
        except (TypeError, ValueError, bhc.BhcError) as error:
            raise bhc.BhcError(f"{path} has a setting that cannot be: {error}") from error
        return study

    @classmethod
    def _of(cls, name: str, data: dict[str, Any]) -> "Study":
        return cls(
            name=name,
            experiment=data["experiment"],
            model=data["model"],
            data=data["data"],
            weights=data.get("weights", "own"),
            method=METHODS[data["method"]],
            seeds=tuple(index(seed) for seed in data["seeds"]),
            weight_generator=generator_from_dict(data.get("generator", {"kind": "scales-only"})),
            learn=data["learn"],
            learn_high=data.get("learn_high", {}),
            narrow=data.get("narrow"),
            consolidate=data.get("consolidate"),
            choice=Choice.of(**data["choose"]),
            augment=bool(data.get("augment", False)),
            bf16=bool(data.get("bf16", False)),
            settings=data,
        )

    def check(self) -> None:
        """Raise if something in it cannot be."""
        models.check(self.model)
        if self.weights not in WEIGHTS:
            raise bhc.BhcError(f"unknown weights {self.weights!r}", hint=f"choose one of: {', '.join(WEIGHTS)}")
        self.choice.check(self.method.groups)
        if not self.seeds:
            raise bhc.BhcError("there are no seeds")
        if not self.recipe:  # a stage that does not take what it is given says so
            raise bhc.BhcError("there is nothing to train")

    @property
    def recipe(self) -> Recipe:
        """The stages of training."""
        size = {"contexts": self.method.contexts, "examples": self.method.examples}
        if self.method.name != "bhc-cw":
            return (bhc.Learn(**size, **self.learn), *self._after(self.learn, size))
        low, high = self.learn, self.learn | self.learn_high
        two = bhc.two_stage_budget(bhc.Learn(**size, **low), bhc.Learn(**size, **high))
        return (*two, *self._after(high, size | {"budget": 1.0}))  # the network of budget 0 is frozen by then

    def _after(self, learned: dict[str, Any], common: dict[str, Any]) -> Recipe:
        return after_learning(common, learned, narrow=self.narrow, consolidate=self.consolidate)


def _tuple(value: Any) -> tuple[float, ...]:
    if value is None:
        return ()
    return tuple(float(number) for number in (value if isinstance(value, list) else [value]))
