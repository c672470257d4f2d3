"""A short training on the small digits, whole or broken off."""

import os
import sys
import time
from collections.abc import Callable
from copy import copy
from pathlib import Path

import pytest
import torch
from torch import nn

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet
from bhc.posterior import FreshNoise
from bhc.training import Learn, RunFolder, Silent
from bhc.training.batches import BatchSource, ClassIndex, MemorySource
from bhc.training.stages import Loss

CPU = torch.device("cpu")
Fit = Callable[..., bhc.Compressor]
Draw = Callable[[], BatchSource]
RECIPE = (
    bhc.Learn(steps=40, kl_weight=0.1, contexts=4, examples=8),
    bhc.Consolidate(steps=20, contexts=8, examples=8),  # as many as there are images: their teacher is asked once
)
ALONE = (  # for a single context
    bhc.Learn(steps=40, kl_weight=0.1, contexts=1, examples=32),
    bhc.Consolidate(steps=20, contexts=1, examples=32),
)


def wrapped(digits: DataSet, net: nn.Module, space: ContextSpace | None = None, **design: object) -> bhc.Compressor:
    """For class subsets unless a space is given."""
    return bhc.wrap(net, space or bhc.ClassSubsets(10), example_input=digits.train.inputs[:1], **design)  # type: ignore[arg-type]


def train(model: bhc.Compressor, digits: DataSet, **options: object) -> bhc.Compressor:
    options = {"recipe": RECIPE, "progress": Silent()} | options
    return bhc.fit(model, digits.train, digits.validation, **options)  # type: ignore[arg-type]


def fit(
    digits: DataSet,
    net: nn.Module,
    space: ContextSpace | None = None,
    design: dict[str, object] | None = None,
    **options: object,
) -> bhc.Compressor:
    return train(wrapped(digits, net, space, **(design or {})), digits, **options)


def draw_of(digits: DataSet, *, device: torch.device = CPU) -> BatchSource:
    generators = [torch.Generator(device).manual_seed(seed) for seed in (0, 1)]
    index = ClassIndex(digits.train, 10, device=device)
    return MemorySource(digits.train.to(device), index, generators[0], FreshNoise(generators[1]))


def mlp(depth: int = 2, width: int = 12) -> nn.Sequential:
    """For the digits, with weights that are the same every time."""
    hidden = [layer for _ in range(depth - 2) for layer in (nn.Linear(width, width), nn.ReLU())]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return nn.Sequential(
            bhc.models.Normalise(0.0, 16.0),
            nn.Flatten(),
            nn.Linear(64, width),
            nn.ReLU(),
            *hidden,
            nn.Linear(width, 10),
        )


def bits(model: bhc.Compressor) -> dict[str, torch.Tensor]:
    return model.network.state_dict()


def assert_same_bits(one: bhc.Compressor, other: bhc.Compressor) -> None:
    assert bits(one).keys() == bits(other).keys()
    for name, tensor in bits(one).items():
        assert torch.equal(tensor, bits(other)[name]), name


class Stopped(Exception):
    pass


class StopAt:
    """Progress that breaks the run off, in the first stage of a title or a later one."""

    def __init__(self, step: int, title: str, *, stage: int = 1) -> None:
        self.step, self.title, self.left, self.current = step, title, stage, ""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.current = title
        self.left -= title == self.title

    def update(self, done: int, terms: dict[str, float]) -> None:
        if self.current == self.title and self.left == 0 and done >= self.step:
            raise Stopped

    def end(self) -> None:
        return None


def broken_off(digits: DataSet, net: nn.Module, path: Path) -> None:
    with pytest.raises(Stopped):
        fit(digits, net, run=path, checkpoint_every=10, progress=StopAt(40, "learning"))


def resumed(
    make: Callable[[], bhc.Compressor], digits: DataSet, folder: Path, stop: StopAt, **options: object
) -> tuple[bhc.Compressor, bhc.Compressor]:
    """A run that was never broken off and one that was, of which the same must have become."""
    options = {"checkpoint_every": 7} | options
    whole = train(make(), digits, run=folder / "whole", **options)
    with pytest.raises(Stopped):
        train(make(), digits, run=folder / "cut", progress=copy(stop), **options)
    with pytest.raises(bhc.BhcError, match="unfinished"):
        bhc.load(folder / "cut")
    return whole, train(make(), digits, run=folder / "cut", resume=True, **options)


OPTIONS = [
    "train", "--model", "lenet-300-100", "--data", "digits", "--steps", "200", "--consolidation-steps", "10",
    "--kl-weight", "0.1", "--contexts", "2", "--examples", "4", "--checkpoint-every", "20",
]  # fmt: skip
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def command(out: Path, *more: str) -> list[str]:
    """A training in a process of its own."""
    return [sys.executable, "-m", "bhc", *OPTIONS, "--out", str(out), *more]


def wait_until(condition: Callable[[], bool], *, seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it never was so"
        time.sleep(0.02)


def told(run: Path) -> list[dict[str, object]]:
    """What the diary has, but for the clock."""
    return [
        {name: value for name, value in record.items() if name != "seconds"} for record in RunFolder(run).metrics.read()
    ]


def multiplied(monkeypatch: pytest.MonkeyPatch, factor: Callable[[int], float]) -> None:
    """The loss of learning times what is said for each of its steps, counted from one."""
    plain, taken = Learn.loss, 0

    def loss(self: Learn, *given: object) -> Loss:
        nonlocal taken
        taken += 1
        found = plain(self, *given)  # type: ignore[arg-type]
        return Loss(found.total * factor(taken), found.terms)

    monkeypatch.setattr(Learn, "loss", loss)
