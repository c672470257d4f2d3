"""Networks that take several inputs, by place or by name, and inputs of which more than the batch is not fixed."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.graph import capture, find_units

from .nets import seeded
from .test_taken import cut_in_half, near


class Pair(nn.Module):
    """Two pictures, and a convolution for each or one for both."""

    def __init__(self, *, tied: bool = False) -> None:
        super().__init__()
        self.left = nn.Conv2d(3, 8, 3)
        self.right = self.left if tied else nn.Conv2d(3, 8, 3)
        self.end = nn.Linear(16, 4)

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        both = [torch.relu(layer(x)).mean((2, 3)) for layer, x in ((self.left, left), (self.right, right))]
        return self.end(torch.cat(both, 1))


class AnyNumber(Pair):
    """The same, whatever it is given with."""

    def forward(self, *pictures: Tensor) -> Tensor:
        return super().forward(*pictures)


class Half(Pair):
    """An input that nobody reads stays one."""

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        return super().forward(left, left)


class AnyNames(Pair):
    def forward(self, **pictures: Tensor) -> Tensor:
        return super().forward(pictures["left"], pictures["right"])


def pictures(count: int = 3) -> tuple[Tensor, Tensor]:
    return seeded(count, 3, 6, 6), seeded(count, 3, 6, 6).flip(2)


@torch.no_grad()
@pytest.mark.parametrize(
    "build", [Pair, lambda: Pair(tied=True), AnyNumber, Half], ids=["two", "tied", "any", "unread"]
)
def test_it_is_captured_cut_and_computes_the_same(build: Callable[[], nn.Module]) -> None:
    net, x = build().eval(), pictures(5)
    graph = capture(net, pictures(1))
    assert near(graph(*x), net(*x))
    if not isinstance(net, AnyNumber):
        assert graph.input_steps == ("left", "right")
    slim, given, masked, _ = cut_in_half(net, x)
    assert near(given, masked)
    assert slim.input_steps == graph.input_steps


def test_a_forward_pass_without_names_is_refused() -> None:
    left, right = pictures(2)
    with pytest.raises(BhcError, match="parameter"):
        capture(AnyNames(), {"left": left, "right": right})


@torch.no_grad()
def test_names_are_in_the_order_of_the_example() -> None:
    net = Pair().eval()
    left, right = pictures(2)
    graph = capture(net, {"right": right, "left": left})
    assert graph.input_steps == ("right", "left")
    assert near(graph(right, left), net(left, right))


@torch.no_grad()
def test_a_tuple_of_one_is_a_tensor_and_a_dict_of_one_keeps_its_name() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2)).eval()
    x = seeded(2, 4)
    assert capture(net, (x,)).input_steps == ()
    graph = capture(net, {"input": x})
    assert graph.input_steps == ("input",)
    assert near(graph(x), net(x))


def test_channels_of_inputs_are_told_apart_and_stay() -> None:
    graph = capture(Pair(), pictures(1))
    units = find_units(graph, ())
    assert len(set(units.carried["left"])) == 3
    assert units.always[units.carried["left"]].all()


@pytest.mark.parametrize(
    ("example", "problem"),
    [
        ((), "none"),
        ({}, "none"),
        ((torch.zeros(2, 3, 6, 6), None), "NoneType"),
        ({"left": torch.zeros(2, 3, 6, 6), "right": 1.0}, "float"),
        ((torch.zeros(2, 3, 6, 6), torch.zeros(3, 3, 6, 6)), "0: 2, 1: 3"),
        ((torch.zeros(2, 3, 6, 6), torch.tensor(1.0)), r"shape \(\)"),
        ({"left": torch.zeros(2, 3, 6, 6), "wrong": torch.zeros(2, 3, 6, 6)}, "'wrong'"),
        ("a picture", "str"),
    ],
)
def test_examples_that_are_no_batches_are_refused(example: object, problem: str) -> None:
    with pytest.raises(BhcError, match=problem) as caught:
        capture(Pair(), example)
    assert "tuple" in str(caught.value.hint)


class Text(nn.Module):
    """A small transformer over texts of any length, up to a limit."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.places = nn.Parameter(seeded(1, 30, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.norm = nn.LayerNorm(8)
        self.end = nn.Linear(8, 3)

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.places[:, : words.shape[1]]
        return self.end(self.norm(x + self.attention(x, x, x, need_weights=False)[0]).mean(1))


@torch.no_grad()
@pytest.mark.parametrize("length", [1, 5, 10, 30])
def test_texts_of_other_lengths_than_the_example(length: int) -> None:
    net = Text().eval()
    graph = capture(net, torch.ones(1, 10, dtype=torch.long), dynamic_axes=(1,))
    words = torch.randint(20, (4, length), generator=torch.Generator().manual_seed(0))
    assert near(graph(words), net(words))


def test_pictures_of_other_sizes_are_cut_alike() -> None:
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.ReLU(),
        nn.Conv2d(8, 6, 3, stride=2),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(6, 2),
    )
    model = bhc.wrap(net.eval(), bhc.ClassSubsets(2), example_input=seeded(1, 3, 12, 12), dynamic_axes=(2, 3))
    small = model.compress(classes=[0, 1])
    assert small.predict(seeded(2, 3, 16, 9)).labels.shape == (2,)
    with pytest.raises(BhcError, match="shape"):
        small.predict(seeded(2, 4, 12, 12))


def test_a_size_that_the_code_fixes_is_refused() -> None:
    with pytest.raises(BhcError, match="one size"):
        capture(nn.Linear(10, 2), seeded(2, 10), dynamic_axes=(1,))


@pytest.mark.parametrize(
    ("axes", "problem"),
    [((0,), "axes"), ((2,), "axes"), ((-1,), "axes"), ({"y": (1,)}, "of 'y'")],
)
def test_axes_that_are_none_are_refused(axes: object, problem: str) -> None:
    with pytest.raises(BhcError, match=problem):
        capture(Text(), torch.ones(1, 10, dtype=torch.long), dynamic_axes=axes)  # type: ignore[arg-type]


def test_data_of_one_tensor_does_not_fit_a_network_of_two() -> None:
    model = bhc.wrap(Pair(), bhc.ClassSubsets(4), example_input=pictures(1))
    data = (torch.zeros(8, 3, 6, 6, dtype=torch.uint8), torch.arange(8) % 4)
    with pytest.raises(BhcError, match="right"):
        bhc.fit(model, data, data)


def test_contexts_of_features_need_one_input() -> None:
    with pytest.raises(BhcError, match="2 inputs"):
        bhc.wrap(Pair(), bhc.FeatureSubsets((3,)), example_input=pictures(1))


class Places(nn.Module):
    """Rows for places of words that are fixed numbers, and kinds of words that are picked by them, as BERT has them."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places, self.kinds = nn.Embedding(20, 8), nn.Embedding(30, 8), nn.Embedding(2, 8)
        self.norm, self.end = nn.LayerNorm(8), nn.Linear(8, 4)
        self.register_buffer("numbers", torch.arange(30)[None])
        self.register_buffer("kind", torch.arange(30)[None] % 2)

    def forward(self, words: Tensor) -> Tensor:
        numbers = self.numbers[:, : words.shape[1]]
        kinds = torch.gather(self.kind.expand(numbers.shape[0], -1), 1, numbers).expand(*words.shape)
        x = self.words(words) + self.kinds(kinds) + self.places(numbers)
        return self.end(self.norm(x).mean(1))


def test_rows_for_places_of_texts_of_any_length_are_cut_with_the_words() -> None:
    net = Places().eval()
    words = torch.randint(20, (4, 17), generator=torch.Generator().manual_seed(0))
    model = bhc.wrap(net, bhc.ClassSubsets(4), example_input=words[:, :10], dynamic_axes=(1,))
    assert not model.network.whole
    with torch.no_grad():
        assert near(model.network.base_model(words), net(words))
        small = model.compress(classes=[0, 1, 2, 3], threshold=1e6, quantisation=bhc.Float32())
        assert near(small.module(words), net(words))


def test_without_half_of_its_units_it_computes_what_the_masks_say() -> None:
    words = torch.randint(20, (4, 10), generator=torch.Generator().manual_seed(0))
    _, slim, masked, ratio = cut_in_half(Places().eval(), words, dynamic_axes=(1,))
    assert near(slim, masked)
    assert ratio > 1.2
