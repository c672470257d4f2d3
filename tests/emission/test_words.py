"""Networks that read words: what is emitted computes what the masked network computes, and has no other rows."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import bhc
from bhc.contexts import ContextSpace, WordsOfTexts
from bhc.data import PADDING, UNKNOWN, Split, Vocabulary
from bhc.emission import Cutter, make_cut, slim_model
from bhc.formats import open_deployed
from bhc.hypernet import GeneratorSpec
from bhc.layers import Embed
from bhc.posterior import FAMILIES, Multiples
from bhc.training import Silent

from .networks import assert_equal, masked, spread_

WORDS, LENGTH, CLASSES = 40, 9, 4
VOCABULARY = Vocabulary(tuple(f"word{number}" for number in range(2, WORDS)), LENGTH)


def texts(count: int = 30, seed: int = 0) -> Tensor:
    return torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(seed)).int()


def wrapped(space: ContextSpace, generator: GeneratorSpec | None = None, family: str = "io-gnj") -> bhc.Compressor:
    rng = torch.Generator().manual_seed(0)
    net = bhc.models.build("text-cnn", image_shape=(LENGTH,), num_classes=CLASSES, full_scale=WORDS - 1, rng=rng)
    return bhc.wrap(net, space, example_input=texts(1), weight_generator=generator, family=family)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=3), bhc.Full()], ids=lambda g: g.kind)
def test_slim_equals_masked(generator: GeneratorSpec, family: str) -> None:
    network = spread_(wrapped(bhc.ClassSubsets(CLASSES), generator, family).network, family)
    context, x = network.space.resolve({"classes": [1, 3]}), texts()
    sizes = set()
    for threshold in (-4.0, -1.0, 1.0, 4.0, 9.0):
        cut = make_cut(network, context, threshold)
        assert_equal(slim_model(network, cut)(x), masked(network, context, x, threshold))
        rounded = Cutter(network, context, multiples=Multiples(8))
        expected = masked(network, context, x, threshold, rounding=rounded.rounding)
        assert_equal(slim_model(network, rounded.cut(threshold))(x), expected)
        sizes.add(cut.num_weights)
    assert len(sizes) > 2


@pytest.mark.parametrize("threshold", [-1.0, 2.0, 100.0])
def test_a_network_for_some_words_has_rows_for_no_others(threshold: float) -> None:
    space = bhc.VocabularySubsets(WORDS)
    network = spread_(wrapped(space).network, "io-gnj")
    some = torch.rand(WORDS, generator=torch.Generator().manual_seed(2)) < 0.3
    context, x = space.resolve({"features": some}), texts()
    slim = slim_model(network, make_cut(network, context, threshold))
    embed = slim.steps[0].module
    assert isinstance(embed, Embed)
    kept = set(embed.words.tolist())
    assert kept <= {UNKNOWN, *some.nonzero().flatten().tolist()} - {PADDING}
    if threshold == 100.0:
        assert UNKNOWN in kept
    assert_equal(slim(space.presence.zero_absent(x, context.inputs)), masked(network, context, x, threshold))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Which of four words a text has is its class; for words and for classes, in a run folder."""
    draws = torch.Generator().manual_seed(3)
    images = torch.randint(6, WORDS, (600, LENGTH), generator=draws).int()
    labels = torch.randint(CLASSES, (600,), generator=draws)
    images[:, 4] = 2 + labels.int()
    images[:, 7:] = PADDING
    space = bhc.Joint(
        bhc.ClassSubsets(CLASSES), bhc.VocabularySubsets((WORDS,), WordsOfTexts.among(images[:500], WORDS))
    )
    run = tmp_path_factory.mktemp("words") / "run"
    recipe = (bhc.Learn(steps=60, kl_weight=0.01), bhc.Consolidate(steps=40))
    train, validation = Split(images[:500], labels[:500]), Split(images[500:], labels[500:])
    bhc.fit(wrapped(space), train, validation, recipe=recipe, run=run, vocabulary=VOCABULARY, progress=Silent())
    return run


def test_a_run_keeps_its_vocabulary_and_is_asked_in_words(trained: Path) -> None:
    model = bhc.load(trained)
    assert model.vocabulary == VOCABULARY
    words = [f"word{number}" for number in range(2, 12)]
    small = model.compress(features=words, threshold=1.0)
    assert small.report.context["features"] == f"12 of {WORDS}"
    x = VOCABULARY.restricted_to(VOCABULARY.numbers_of(words)).encode(["word2 word30 word9", "word3"])
    assert x[0].tolist()[:3] == [2, UNKNOWN, 9]
    assert len(small.predict(x).labels) == 2
    with pytest.raises(bhc.BhcError, match="'wird'"):
        model.compress(features=["word2", "wird"])


def written(small: bhc.Compressed, folder: Path) -> tuple[str, ...]:
    small.to_onnx(folder / "floats.onnx").to_torch(folder / "small.pt2")
    small.to_onnx(folder / "integers.onnx", weights=bhc.WeightForm.INTEGERS)
    return "floats.onnx", "integers.onnx", "small.pt2"


def test_every_form_of_an_emitted_network_answers_alike(trained: Path, tmp_path: Path) -> None:
    small = bhc.load(trained).compress(classes=[0, 2], features=list(range(2, 30)), threshold=1.0)
    x = texts(50)
    expected = small.network.graph(x)
    small.save(tmp_path / "small.bhc")
    assert torch.equal(bhc.read(tmp_path / "small.bhc").network.graph(x), expected)
    for name in written(small, tmp_path):
        given = open_deployed(tmp_path / name).logits(x)
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-4 * float(expected.detach().abs().max()))
    with pytest.raises(bhc.BhcError, match="reads words"):
        small.to_c(tmp_path / "small.h")


@pytest.mark.parametrize("number", [-1, -WORDS, WORDS])
def test_nothing_answers_for_a_number_that_stands_for_no_word(trained: Path, tmp_path: Path, number: int) -> None:
    small = bhc.load(trained).compress(classes=[0, 2], threshold=1.0)
    x = texts(2)
    x[0, 0] = number
    with pytest.raises(bhc.BhcError, match=f"{number} stands for"):
        small.predict(x)
    for name in written(small, tmp_path):
        with pytest.raises(Exception, match=r"out of (data bounds|bounds|range)"):
            open_deployed(tmp_path / name).logits(x)


GOOD, LEARN = Split(texts(), torch.arange(30) % CLASSES), (bhc.Learn(steps=1),)


def bad(number: int) -> Split:
    inputs = texts()
    inputs[3, 2] = number
    return Split(inputs, GOOD.labels)


@pytest.mark.parametrize(
    ("splits", "options", "noun"),
    [
        *(((GOOD, bad(number)), {"recipe": LEARN}, f"{number} stands for") for number in (-1, WORDS)),
        *(((bad(number), GOOD), {"recipe": LEARN}, f"{number} stands for") for number in (-1, WORDS)),
        ((GOOD, GOOD), {"recipe": LEARN, "vocabulary": Vocabulary(("a", "b"), LENGTH)}, "vocabulary of 4 words"),
        ((GOOD, GOOD), {"recipe": (*LEARN, bhc.Consolidate(steps=1, blended=0.5))}, "blended"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(
    splits: tuple[Split, Split], options: dict[str, Any], noun: str
) -> None:
    with pytest.raises(bhc.BhcError, match=noun):
        bhc.fit(wrapped(bhc.ClassSubsets(CLASSES)), *splits, progress=Silent(), **options)


def test_words_without_a_vocabulary_are_refused() -> None:
    with pytest.raises(bhc.BhcError, match="no vocabulary"):
        wrapped(bhc.VocabularySubsets((WORDS,))).compress(features=["word2"])
