"""Files of networks with several inputs, or sizes that are not fixed, opened as ``bhc evaluate`` opens them."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.formats import open_deployed

from .packed.hostile import check_refused, put

LENGTH, WORDS = 9, 12


class Question(nn.Module):
    """Words under a mask, a few numbers beside them, and one that has no channels which could be told apart."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 6)
        self.numbers = nn.Linear(4, 6)
        self.end = nn.Linear(6, 3)

    def forward(self, words: Tensor, mask: Tensor, numbers: Tensor, scale: Tensor) -> Tensor:
        weights = mask.float().unsqueeze(-1)
        mean = (self.words(words) * weights).sum(1) / weights.sum(1).clamp_min(1)
        return self.end(torch.relu(mean + self.numbers(numbers)) * scale[:, None])


def example(count: int = 3, length: int = LENGTH) -> dict[str, Tensor]:
    draws = torch.Generator().manual_seed(0)
    words = torch.randint(WORDS, (count, length), generator=draws)
    return {
        "numbers": torch.randn(count, 4, generator=draws),  # in another order than the forward pass has
        "words": words,
        "mask": (words > 2).long(),
        "scale": torch.rand(count, generator=draws),
    }


@pytest.fixture(scope="module")
def small() -> bhc.Compressed:
    torch.manual_seed(0)
    model = bhc.wrap(
        Question(),
        bhc.ClassSubsets(3),
        example_input=example(),
        dynamic_axes={"words": (1,), "mask": (1,)},
    )
    return model.compress(classes=[0, 2])


@pytest.mark.parametrize("length", [LENGTH, 4, 20])
@pytest.mark.parametrize("form", ["bhc", "pt2", "onnx"])
def test_files_take_the_inputs_in_their_order_and_of_other_lengths(
    small: bhc.Compressed, form: str, length: int, tmp_path: Path
) -> None:
    path = tmp_path / f"small.{form}"
    {"bhc": small.save, "pt2": small.to_torch, "onnx": small.to_onnx}[form](path)
    deployed = open_deployed(path)
    assert deployed.signature == small.network.signature
    assert deployed.signature.names == ("numbers", "words", "mask", "scale")
    x = tuple(example(5, length).values())
    assert torch.allclose(deployed.logits(x), small.network.graph(*x), atol=1e-5)


def test_the_module_and_predictions_take_a_dict_or_a_tuple(small: bhc.Compressed) -> None:
    x = example(4)
    expected = small.network.graph(*x.values())
    assert torch.equal(small.module(**x), expected)
    assert torch.equal(small.module(*x.values()), expected)
    labels = small.predict(x).labels
    assert set(labels.tolist()) <= {0, 2}
    assert torch.equal(small.predict(tuple(x.values())).labels, labels)


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"words": None}, "named"),
        ({"numbers": torch.zeros(3, 5)}, r"\(3, 5\)"),
        ({"numbers": torch.zeros(2, 4)}, "batches"),
        ({"words": torch.full((3, LENGTH), WORDS)}, "word"),
        ({"words": "three words"}, "str"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(small: bhc.Compressed, changed: dict[str, Any], problem: str) -> None:
    x = {name: value for name, value in {**example(), **changed}.items() if value is not None}
    with pytest.raises(BhcError, match=problem):
        small.predict(x)


def test_too_few_inputs_and_c_are_refused(small: bhc.Compressed, tmp_path: Path) -> None:
    with pytest.raises(BhcError, match="1 inputs") as caught:
        small.predict(torch.zeros(3, 4))
    assert "numbers (batch, 4), words (batch, words_1)" in str(caught.value.hint)
    with pytest.raises(BhcError, match="several inputs"):
        small.to_c(tmp_path / "small.h")


def test_inputs_that_share_a_size_are_dynamic_together() -> None:
    with pytest.raises(BhcError, match="one size") as caught:
        bhc.wrap(Question(), bhc.ClassSubsets(3), example_input=example(), dynamic_axes={"words": (1,)})
    assert "each of them" in str(caught.value.hint)


def test_a_run_folder_keeps_what_it_takes(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = bhc.wrap(Question(), bhc.ClassSubsets(3), example_input=example())
    model.save(tmp_path / "run")
    again = bhc.load(tmp_path / "run")
    assert again.network.signature == model.network.signature
    x = example(4)
    wanted = model.compress(classes=[0, 1]).predict(x)
    assert torch.equal(again.compress(classes=[0, 1]).predict(x).probabilities, wanted.probabilities)


GIVEN = 41
HOSTILE = {
    "the second first": [[GIVEN, "b", 1, [4], "float32", []], [15, 2, [GIVEN, "a", 0, [4], "float32", []]]],
    "one twice": [[GIVEN, "a", 0, [4], "float32", []], [15, 2, [GIVEN, "b", 0, [4], "float32", []]]],
    "an input after a step": [[GIVEN, "a", 0, [4], "float32", []], [2], [15, 3, [GIVEN, "b", 1, [4], "float32", []]]],
    "a step that reads all": [[GIVEN, "a", 0, [4], "float32", []], [15, 2, [2]]],
    "a size of billions": [[GIVEN, "a", 0, [1 << 40], "float32", []]],
    "a size of zero": [[GIVEN, "a", 0, [0], "float32", []]],
    "many axes": [[GIVEN, "a", 0, [1] * 9, "float32", []]],
    "an unknown dtype": [[GIVEN, "a", 0, [4], "Tensor", []]],
    "the batch as an axis": [[GIVEN, "a", 0, [4], "float32", [0]]],
    "an axis that is not there": [[GIVEN, "a", 0, [4], "float32", [2]]],
    "axes out of order": [[GIVEN, "a", 0, [4, 4], "float32", [2, 1]]],
    "a name twice": [[GIVEN, "a", 0, [4], "float32", []], [15, 2, [GIVEN, "a", 1, [4], "float32", []]]],
    "a name that is none": [[GIVEN, "a)", 0, [4], "float32", []]],
    "a word of the language": [[GIVEN, "return", 0, [4], "float32", []]],
    "a name as a number": [[GIVEN, 4, 0, [4], "float32", []]],
    "a text as a place": [[GIVEN, "a", "0", [4], "float32", []]],
    "the hundredth input": [[GIVEN, "a", 99, [4], "float32", []]],
    "an axis as a truth": [[GIVEN, "a", 0, [4], "float32", [True]]],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_inputs_are_refused(small: bhc.Compressed, name: str) -> None:
    check_refused(small.network, put(1, slice(0, 0), HOSTILE[name]), "damaged")
