"""A user's data set, read while the run goes on: the same examples whoever reads them, and errors that name an item."""

import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.training import Silent, Taking, TrainingSets, find_device
from bhc.training.loading import DatasetExamples, LoadedSource, fetched, seeded

from .runs import ALONE, bits, mlp

RECIPE = (bhc.Learn(steps=12, contexts=4, examples=8), bhc.Consolidate(steps=8, contexts=4, examples=8))


class Digits(Dataset[Any]):
    """Digits as pairs of floats and a number, under noise that a transform draws."""

    def __init__(self, digits: DataSet, *, noise: float = 0.0) -> None:
        self.x, self.y, self.noise = digits.train.tensor.float() / 16, digits.train.known_labels, noise

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        drawn = self.noise * (torch.randn(()) + random.random() + np.random.rand())
        return self.x[place] + drawn, int(self.y[place])


class Broken(Digits):
    """One that goes wrong at an item."""

    def __init__(self, digits: DataSet, break_: Callable[["Digits", int], Any], at: int = 700) -> None:
        super().__init__(digits)
        self.break_, self.at = break_, at

    def __getitem__(self, place: int) -> Any:
        return self.break_(self, place) if place == self.at else super().__getitem__(place)


def plain() -> nn.Module:
    return mlp()[1:]


def wrapped(space: bhc.ContextSpace | None = None) -> bhc.Compressor:
    return bhc.wrap(plain(), space or bhc.ClassSubsets(10), example_input=torch.zeros(2, 1, 8, 8))


def fit(data: Any, validation: Any = None, **options: Any) -> bhc.Compressor:
    options = {"recipe": RECIPE, "progress": Silent()} | options
    return bhc.fit(wrapped(), data, data if validation is None else validation, **options)


def examples_of(data: Any, **options: Any) -> Any:
    return Taking(wrapped().network, Silent(), **options).examples(data, "train_set")


def drawn(data: Any, steps: range, *, workers: int = 0) -> Iterator[tuple[Tensor, Tensor]]:
    network = wrapped().network
    source = LoadedSource(examples_of(data, workers=workers), network, seed=3)
    source.begin(network, RECIPE[0], steps)
    for _ in steps:
        batch = source.next(network, RECIPE[0])
        yield batch.x, batch.targets  # type: ignore[misc]
    source.end()


def test_batches_follow_from_the_step_whoever_reads_them(digits: DataSet) -> None:
    data = Digits(digits, noise=0.1)
    alone, helped = list(drawn(data, range(6))), list(drawn(data, range(6), workers=2))
    late = list(drawn(data, range(4, 6), workers=1))
    for (x, targets), (again, same) in [*zip(alone, helped, strict=True), *zip(alone[4:], late, strict=True)]:
        assert torch.equal(x, again)
        assert torch.equal(targets, same)
    assert not torch.equal(alone[0][0], alone[1][0])


def test_examples_are_of_the_classes_of_their_context(digits: DataSet) -> None:
    network = wrapped(bhc.ClassSubsets(10, bhc.ConsecutivePairs())).network
    source = LoadedSource(examples_of(Digits(digits)), network, seed=0)
    source.begin(network, RECIPE[0], range(3))
    for _ in range(3):
        batch = source.next(network, RECIPE[0])
        allowed = batch.batch.outputs.repeat_interleave(8, 0)
        assert batch.targets is not None
        assert allowed.gather(1, batch.targets[:, None]).all()
        assert torch.equal(digits.train.known_labels[batch.places], batch.targets)
    assert torch.equal(source.index.context_sizes(batch.batch), torch.tensor(
        [float(torch.isin(digits.train.known_labels, own.nonzero().flatten()).sum()) for own in batch.batch.outputs]
    ))  # fmt: skip


def test_transforms_leave_the_randomness_of_the_caller_alone() -> None:
    torch.manual_seed(1)
    random.seed(1)
    before = torch.rand(1), random.random()
    torch.manual_seed(1)
    random.seed(1)
    with seeded(99):
        inside = torch.rand(1), random.random()
    assert (torch.rand(1), random.random()) == before
    with seeded(99):
        assert (torch.rand(1), random.random()) == inside


def test_a_run_that_stops_goes_on_to_the_same_bits(digits: DataSet, tmp_path: Path) -> None:
    class Stops(Silent):
        def update(self, done: int, terms: dict[str, float]) -> None:
            if done == 8 and "distillation" in terms:
                raise KeyboardInterrupt

    data = Digits(digits, noise=0.1)
    whole = fit(data, run=tmp_path / "whole", workers=2, checkpoint_every=5)
    with pytest.raises(KeyboardInterrupt):
        fit(data, run=tmp_path / "cut", checkpoint_every=5, progress=Stops())
    resumed = fit(data, run=tmp_path / "cut", checkpoint_every=5, resume=True)
    assert all(torch.equal(tensor, bits(whole)[name]) for name, tensor in bits(resumed).items())


def test_a_single_context_reads_a_data_set_too(digits: DataSet) -> None:
    model = bhc.fit(wrapped(bhc.SingleContext()), Digits(digits), Digits(digits), recipe=ALONE, progress=Silent())
    assert model.compress().report.error is not None


def kill(data: Digits, place: int) -> Any:
    os.kill(os.getpid(), signal.SIGKILL)


def raises(data: Digits, place: int) -> Any:
    raise OSError("truncated file")


def labelled(data: Broken) -> Broken:
    data.targets = data.y  # type: ignore[attr-defined]
    return data


BROKEN: dict[str, tuple[Callable[[Digits, int], Any], str]] = {
    "an item that cannot be read": (raises, "item 700 .*OSError: truncated"),
    "an item that is not there": (lambda data, place: data.x[10**9], "item 700 .*IndexError"),
    "a shape of its own": (lambda data, place: (torch.zeros(1, 4, 4), 3), r"item 700 .*\(1, 4, 4\)"),
    "not a number": (lambda data, place: (data.x[place] * torch.nan, 3), "item 700 .*NaN"),
    "three parts": (lambda data, place: (data.x[place], 1, 2), "item 700"),
}


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize(("break_", "message"), BROKEN.values(), ids=BROKEN)
def test_what_is_wrong_with_an_item_is_said_with_its_number(
    digits: DataSet, break_: Callable[[Digits, int], Any], message: str, workers: int
) -> None:
    examples = examples_of(labelled(Broken(digits, break_)), workers=workers)
    assert isinstance(examples, DatasetExamples)
    with pytest.raises(BhcError, match=message):
        list(fetched(examples.reader, iter([[0, 1, 2, 700]]), workers=workers))


def test_a_worker_that_dies_ends_the_run_with_what_to_do(digits: DataSet) -> None:
    reader = examples_of(labelled(Broken(digits, kill))).reader
    with pytest.raises(BhcError, match="has died") as error:
        list(fetched(reader, iter([[0, 700]]), workers=1))
    assert "resume" in error.value.hint


def test_a_data_set_that_has_become_shorter_is_refused(digits: DataSet) -> None:
    data, network = Digits(digits), wrapped().network
    source = LoadedSource(examples_of(data), network, seed=0)
    data.x = data.x[:100]
    with pytest.raises(BhcError, match="100 items now"):
        source.begin(network, RECIPE[0], range(2))


@pytest.mark.parametrize("batch", [1, 3])
def test_whoever_collates_may_give_arrays(digits: DataSet, batch: int) -> None:
    def stacked(items: list[Any]) -> Any:
        return np.stack([x.numpy() for x, _ in items]), [label for _, label in items]

    reader = examples_of(Digits(digits), collate=stacked).reader
    x, targets = reader.read(range(batch))
    assert x.shape == (batch, 1, 8, 8)
    assert targets.tolist() == digits.train.known_labels[:batch].tolist()


def test_a_collation_that_loses_examples_is_refused(digits: DataSet) -> None:
    with pytest.raises(BhcError, match="collating 2 items"):
        examples_of(Digits(digits), collate=lambda items: (items[0][0][None], torch.tensor([items[0][1]])))


def test_what_is_kept_of_a_data_set_is_a_part_of_each_class(digits: DataSet, tmp_path: Path) -> None:
    model = fit(labelled(Broken(digits, raises, at=-1)), run=tmp_path / "run")
    kept = bhc.load(tmp_path / "run").model.validation
    assert kept is not None
    assert kept.present == tuple(range(10))
    assert kept.tensor.dtype == torch.float32
    assert torch.equal(kept.tensor, model.model.validation.tensor)  # type: ignore[union-attr]


def test_a_set_of_trainings_is_what_a_run_takes(digits: DataSet) -> None:
    taking = Taking(wrapped().network, Silent())
    pairs = (digits.train.tensor.float(), digits.train.known_labels)
    sets = taking.sets({"train_set": Digits(digits), "validation_set": pairs, "calibration_set": Digits(digits)}, None)
    assert isinstance(sets, TrainingSets)
    assert isinstance(sets.train, DatasetExamples)
    assert sets.calibration is not None
    assert sets.calibration.tensor.shape == (len(digits.train), 1, 8, 8)
    assert find_device("cpu").type == "cpu"
