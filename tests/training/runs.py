"""A short training on the small digits, whole or broken off."""

from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.training import Silent

RECIPE = (
    bhc.Learn(steps=40, kl_weight=0.1, contexts=4, examples=8),
    bhc.Consolidate(steps=20, contexts=8, examples=8),  # as many as there are images: their teacher is asked once
)


def fit(digits: DataSet, net: torch.nn.Module, **options: object) -> bhc.Compressor:
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    options = {"recipe": RECIPE, "progress": Silent()} | options
    return bhc.fit(model, digits.train, digits.validation, **options)  # type: ignore[arg-type]


def bits(model: bhc.Compressor) -> dict[str, torch.Tensor]:
    return model.network.state_dict()


def assert_same_bits(one: bhc.Compressor, other: bhc.Compressor) -> None:
    assert bits(one).keys() == bits(other).keys()
    for name, tensor in bits(one).items():
        assert torch.equal(tensor, bits(other)[name]), name


class Stopped(Exception):
    pass


class StopAt:
    """Progress that breaks the run off."""

    def __init__(self, step: int, title: str) -> None:
        self.step, self.title, self.current = step, title, ""

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self.current = title

    def update(self, done: int, terms: dict[str, float]) -> None:
        if self.current == self.title and done >= self.step:
            raise Stopped

    def end(self) -> None:
        return None


def broken_off(digits: DataSet, net: torch.nn.Module, path: Path) -> None:
    with pytest.raises(Stopped):
        fit(digits, net, run=path, checkpoint_every=10, progress=StopAt(40, "learning"))
