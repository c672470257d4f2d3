"""Whatever users have their data in is taken; what cannot be is refused by name, before anything is trained."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

import bhc
from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.examples import Examples
from bhc.training import Silent, Taking
from bhc.training.loading import DatasetExamples

X = torch.randn(40, 6, generator=torch.Generator().manual_seed(0))
Y = torch.arange(40) % 3


class Pairs(Dataset[Any]):
    def __init__(self, x: Any = X, y: Any = Y, **columns: Any) -> None:
        self.x, self.y = x, y
        vars(self).update(columns)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, place: int) -> Any:
        return self.x[place], self.y[place]


class Named(Pairs):
    """Items as data sets of texts have them: more than the network asks for, and a label."""

    def __getitem__(self, place: int) -> Any:
        return {"row": self.x[place], "label": int(self.y[place]), "text": "as it was", "idx": place}


class Table(Named):
    """One that knows its columns, and can give many items at once."""

    column_names = ("row", "label")

    def __getitem__(self, place: Any) -> Any:
        return self.y.tolist() if place == "label" else super().__getitem__(place)

    def __getitems__(self, places: list[int]) -> list[Any]:
        return [super(Table, self).__getitem__(place) for place in places]


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        yield from zip(X, Y, strict=True)


class Row(nn.Module):
    """Its forward pass has a name for what it takes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))

    def forward(self, row: Tensor) -> Tensor:
        return self.body(row)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left, self.right, self.end = nn.Linear(6, 4), nn.Linear(2, 4), nn.Linear(4, 3)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return self.end(torch.relu(self.left(left) + self.right(right)))


def taking(net: nn.Module | None = None, example: Any = X[:2], task: bhc.Task | None = None, **options: Any) -> Taking:
    model = bhc.wrap(net or Row().body, bhc.ClassSubsets(3), example_input=example, task=task)
    return Taking(model.network, Silent(), **options)


def take(data: Any, labels: Any = None, **options: Any) -> Examples:
    return taking(**options).examples(data, "train_set", labels)


FORMS: dict[str, Any] = {
    "tensors": (X, Y),
    "arrays": (X.numpy(), Y.numpy()),
    "small whole numbers": (X, Y.to(torch.uint8)),
    "doubles": (X.double(), Y.tolist()),
    "a split": Split(X, Y),
    "pairs": Pairs(),
    "pairs in a list": [(x, int(y)) for x, y in zip(X, Y, strict=True)],
    "tensors as a data set": TensorDataset(X, Y),
    "a part": Subset(TensorDataset(torch.cat([X, X]), torch.cat([Y, Y])), list(range(40))),
    "several": ConcatDataset([TensorDataset(X[:20], Y[:20]), TensorDataset(X[20:], Y[20:])]),
    "targets that are said": Pairs(targets=Y.tolist()),
    "labels that are said": Pairs(labels=Y.numpy()),
    "a loader": DataLoader(Pairs(), batch_size=7, shuffle=True),
}


@pytest.mark.parametrize("data", FORMS.values(), ids=FORMS)
def test_data_are_taken_in_any_form(data: Any) -> None:
    taken = take(data)
    whole = taken.loaded()
    assert torch.equal(whole.tensor, X)
    assert torch.equal(whole.wanted, Y)
    assert taken.labels is not None
    assert torch.equal(taken.labels, Y)
    assert whole.tensor.dtype == torch.float32


@pytest.mark.parametrize("data", [Named(), Table()], ids=["items", "a table"])
def test_of_items_with_names_the_network_takes_its_own(data: Any) -> None:
    taken = take(data, net=Row(), example={"row": X[:2]})
    assert torch.equal(taken.loaded().tensor, X)
    assert torch.equal(taken.known_labels, Y)


def test_several_inputs_go_as_a_tuple_or_by_name() -> None:
    right = X[:, :2]
    example = {"left": X[:2], "right": right[:2]}
    for given in ((X, right), {"right": right, "left": X}):
        taken = take((given, Y), net=Two(), example=example).loaded()
        assert torch.equal(taken.inputs[0], X)
        assert torch.equal(taken.inputs[1], right)
    items = [{"left": x, "right": x[:2], "label": int(y)} for x, y in zip(X, Y, strict=True)]
    assert torch.equal(take(items, net=Two(), example=example).loaded().inputs[1], right)


def test_a_loader_is_taken_apart() -> None:
    def collate(items: list[Any]) -> Any:
        return torch.stack([x for x, _ in items]), torch.tensor([int(y) for _, y in items])

    taken = take(DataLoader(Pairs(), collate_fn=collate, num_workers=1))
    assert isinstance(taken, DatasetExamples)
    assert taken.workers == 1
    assert taken.reader.collate is collate


def test_labels_may_be_given_beside() -> None:
    given = (Y + 1) % 3
    assert torch.equal(take((X, Y), given).known_labels, given)
    assert torch.equal(take(Pairs(), given.numpy()).known_labels, given)
    sets = taking().sets({"train_set": (X, Y), "validation_set": (X, Y)}, (given.tolist(), Y.tolist()))
    assert torch.equal(sets.train.known_labels, given)
    assert torch.equal(sets.validation.known_labels, Y)


def test_without_labels_the_network_says_what_they_are() -> None:
    net = Row().body
    for data in (X, X.numpy(), (X, Y), TensorDataset(X), Pairs()):
        taken = take(data, net=net, task=bhc.Imitation())
        with torch.no_grad():
            assert torch.equal(taken.known_labels, net(X).argmax(1))


def test_targets_go_by_another_name_where_that_is_said() -> None:
    items = [{"row": x, "kind": int(y), "label": 9} for x, y in zip(X, Y, strict=True)]
    taken = taking(Row(), {"row": X[:2]}, target="kind").examples(items, "train_set")
    assert torch.equal(taken.known_labels, Y)


WRONG: dict[str, tuple[Any, str]] = {
    "a stream": (Stream(), "IterableDataset"),
    "a loader of a stream": (DataLoader(Stream()), "IterableDataset"),
    "a number": (3, "int is no data"),
    "three parts": ((X, Y, Y), "3 parts"),
    "no targets": (X, "no targets"),
    "nothing": ([], "empty"),
    "classes that are not there": ((X, Y + 1), "example 2 is of class 3"),
    "classes below zero": ((X, Y - 1), "example 0 is of class -1"),
    "shares of classes": ((X, torch.rand(40, 3)), "one class number an example"),
    "too few targets": ((X, Y[:30]), "40 inputs cannot have 30"),
    "another shape": ((X[:, :5], Y), r"\(40, 5\)"),
    "NaN": ((X.clone().index_fill_(0, torch.tensor([7]), torch.nan), Y), "example 7 contain NaN"),
    "pixels for floats": (((X * 255).to(torch.uint8), Y), "uint8"),
    "items without a label": ([{"input": x} for x in X], "no 'label'"),
    "items with other names": ([{"a": x, "b": x, "label": 0} for x in X], "a, b"),
    "items alone": (TensorDataset(X), "not pairs"),
}


@pytest.mark.parametrize(("data", "noun"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_taken_is_refused_with_a_way_out(data: Any, noun: str) -> None:
    with pytest.raises(BhcError, match=noun) as error:
        take(data)
    assert error.value.problem.count("train_set: ") == 1


@pytest.mark.parametrize(
    ("labels", "noun"), [(Y[:20], "20 labels"), (Y.float(), "float32"), (Y[:, None], r"\(40, 1\)"), (Y + 7, "class 7")]
)
def test_labels_that_are_none_are_refused(labels: Tensor, noun: str) -> None:
    with pytest.raises(BhcError, match=noun):
        take((X, Y), labels)


def test_a_class_without_an_example_is_named_when_training_begins(digits: DataSet) -> None:
    model = bhc.wrap(Row().body, bhc.ClassSubsets(3), example_input=X[:2])
    with pytest.raises(BhcError, match="no example of class 2"):
        bhc.fit(model, (X, Y % 2), (X, Y), progress=Silent())


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32])
def test_a_validation_sample_is_kept_in_its_own_dtype(dtype: torch.dtype, tmp_path: Any) -> None:
    whole = (X * 20).round().clamp(0, 100).to(dtype)
    net = nn.Sequential(bhc.models.Normalise(0.0, 20.0), *Row().body)
    model = bhc.wrap(net, bhc.ClassSubsets(3), example_input=whole[:2])
    recipe = (bhc.Learn(steps=2, contexts=2, examples=2),)
    bhc.fit(model, (whole, Y), (whole, Y), recipe=recipe, run=tmp_path, progress=Silent())
    kept = bhc.load(tmp_path).model.validation
    assert kept is not None
    assert torch.equal(kept.tensor, whole)
    assert kept.tensor.dtype == dtype


def test_floats_are_halved_only_where_every_answer_stays(tmp_path: Any) -> None:
    near = torch.nextafter(torch.tensor(0.5), torch.tensor(1.0)).expand(30, 2) * torch.tensor([0.99999, 1.0])
    net = nn.Linear(2, 3, bias=False)
    with torch.no_grad():
        net.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    for inputs, halved in ((near, False), (X[:30, :2], True)):
        model = bhc.wrap(nn.Sequential(net), bhc.ClassSubsets(3), example_input=inputs[:2])
        model = bhc.fit(
            model,
            (inputs, Y[:30]),
            (inputs, Y[:30]),
            recipe=(bhc.Learn(steps=1, contexts=2, examples=2),),
            progress=Silent(),
        )
        kept = model.model.validation
        assert kept is not None
        assert torch.equal(kept.tensor, kept.tensor.half().float()) == halved
        assert torch.equal(kept.tensor, inputs) != halved


def test_a_numpy_array_is_read_without_being_written_to() -> None:
    array = X.numpy().copy()
    take((array, np.asarray(Y)))
    assert np.array_equal(array, X.numpy())
