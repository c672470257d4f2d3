"""Inputs that networks are given: examples of the validation sample by their numbers, raw values, and texts."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, prod
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.examples import AnyVocabulary, Tokenizer
from bhc.graph import INPUT, Input, Inputs, Signature
from bhc.layers import kind_of
from bhc.studio.drawings import Drawing, ImageRenderer, Renderer, SeveralRenderer, png, renderer_of
from bhc.training import TrainedModel

EXAMPLES = 9  # of each class
LONGEST_TEXT = 20_000  # letters
INPUT_IDS, MASK = "input_ids", "attention_mask"  # what tokenizers call what they give


class ExampleInputs:
    """Inputs of the validation sample to look at and to try, by class where there are labels."""

    def __init__(self, model: TrainedModel) -> None:
        network, sample = model.network, model.validation
        signature = network.signature
        labels: Any = None if sample is None else sample.labels
        self.inputs = signature.zeros(0) if sample is None else _in_order(sample.inputs, signature.names)
        pairs = zip(signature, self.inputs, strict=True)
        self.stored = Signature(tuple(replace(each, dtype=x.dtype) for each, x in pairs))
        self.count = len(self.inputs[0])
        self.renderer = _renderer(model, self.inputs)
        self.by_class = _are_classes(labels, network.num_classes)
        self.groups = [list(range(0, self.count, max(ceil(self.count / EXAMPLES), 1)))]
        if self.by_class:
            places, counts = labels.argsort(stable=True), labels.bincount(minlength=network.num_classes)
            self.groups = [group[:EXAMPLES].tolist() for group in places.split(counts.tolist())]

    def facts(self) -> dict[str, Any]:
        """What ``schemas.InputFacts`` describes."""
        drawn = self.renderer
        image = drawn if isinstance(drawn, ImageRenderer) else None
        return {
            "kind": drawn.kind,
            "reason": drawn.reason,
            "shape": list(self.stored.shape),
            "names": drawn.names and list(drawn.names),
            "takes": self.stored.to_list(),
            "pixels": image is not None and image.are_pixels and image.sample is self.inputs[0],
            "range": list(image.ranges[0]) if image is not None and image.sample.shape[1] == 1 else None,
        }

    def png(self, group: int, number: int) -> bytes | None:
        """A picture of a class, or of the sample as a whole, which is 0; None where there is none."""
        places = self.groups[group] if 0 <= group < len(self.groups) else []
        if not isinstance(self.renderer, ImageRenderer) or not 0 <= number < len(places):
            return None
        return png(self.renderer.pixels(places[number]))

    def draw(self, number: Any) -> Drawing:
        """An input of the sample, by its number."""
        return self.renderer.draw(self._place(number))

    def batch(self, number: Any) -> Inputs:
        """The input itself, as a batch of one."""
        place = self._place(number)
        one = tuple(x[place : place + 1] for x in self.inputs)
        return one[0] if len(one) == 1 else one

    def _place(self, number: Any) -> int:
        if type(number) is not int or not 0 <= number < self.count:
            there = f"has examples 0 to {self.count - 1:,}" if self.count else "is missing: give the values themselves"
            raise BhcError(f"there is no example {number!r:.40}", hint=f"the run's validation sample {there}")
        return number


def _in_order(inputs: Any, names: Sequence[str]) -> tuple[Tensor, ...]:
    """One tensor, several, or several by their names."""
    if isinstance(inputs, Mapping):
        return tuple(inputs[name] for name in names)
    return (inputs,) if isinstance(inputs, Tensor) else tuple(inputs)


def _are_classes(labels: Any, count: int) -> bool:
    """Whether labels are numbers of so many classes, and not something else that tasks have, or missing."""
    plain = isinstance(labels, Tensor) and labels.dtype == torch.int64 and labels.ndim == 1
    return plain and not len(labels[(labels < 0) | (labels >= count)])


def _renderer(model: TrainedModel, inputs: Sequence[Tensor]) -> Renderer:
    """How to draw what a network takes. Of words an embedding says how many there are."""
    graph, names, vocabulary = model.network.base_model, model.network.signature.names, _readable(model.vocabulary)
    picks = [(step.reads, kind_of(step.module).words(step.module)) for step in graph.steps]
    sizes = {reads[0]: words[0] for reads, words in picks if words is not None}
    renderers = {}
    for name, place, x in zip(names, graph.input_steps or (INPUT,), inputs, strict=True):
        own = len(inputs) == 1 or name == INPUT_IDS or (vocabulary and sizes.get(place) == len(vocabulary))
        known = vocabulary if own else None
        renderers[name] = renderer_of(x, words=place in sizes, known=known)
    return SeveralRenderer(renderers) if len(inputs) > 1 else renderers[names[0]]


def _readable(vocabulary: AnyVocabulary | None) -> AnyVocabulary | None:
    """None where the package that a tokenizer needs is missing: numbers are drawn then."""
    with suppress(BhcError):
        return vocabulary if vocabulary is None or len(vocabulary) else None
    return None


def as_input(given: Any, stored: Signature) -> Inputs:
    """Raw values as a batch of one, nested or flat; several inputs as a list of such, or by their names."""
    if len(stored) == 1 and not isinstance(given, Mapping):
        return _as_tensor(given, stored.inputs[0], "the input")
    hint = f"give {', '.join(each.name for each in stored)}: in a list in this order, or by name"
    if isinstance(given, Mapping):
        if set(given) != set(stored.names):
            raise BhcError(f"the input has parts named {', '.join(map(repr, given))[:200] or 'nothing'}", hint=hint)
        given = [given[name] for name in stored.names]
    if not isinstance(given, list | tuple) or len(given) != len(stored):
        raise BhcError(f"the input is no list of {len(stored)}", hint=hint)
    parts = [_as_tensor(part, each, f"the input {each.name}") for part, each in zip(given, stored, strict=True)]
    return tuple(parts) if len(parts) > 1 else parts[0]


def _as_tensor(given: Any, wanted: Input, what: str) -> Tensor:  # (1, ...)
    """Values in the dtype that the network was given when it was trained."""
    sizes = " x ".join("any" if axis in wanted.dynamic else str(size) for axis, size in enumerate(wanted.shape, 1))
    hint = f"give {sizes or 'one'} {_in_words(wanted.dtype)}, as they are stored"
    try:
        values = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BhcError(f"{what} is not an array of numbers: {error}", hint=hint) from None
    if tuple(values.shape) == (prod(wanted.shape),) and not wanted.dynamic:
        values = values.reshape(wanted.shape)
    if not wanted.fits(values[None]):
        raise BhcError(f"{what} has the shape {tuple(values.shape)}", hint=hint)
    if values.is_floating_point() and not values.isfinite().all():
        raise BhcError(f"{what} contains NaN or infinity", hint=hint)
    if wanted.dtype.is_floating_point:
        return values[None].float()
    low, high = _bounds(wanted.dtype)
    broken = values.is_floating_point() and not values.equal(values.round())
    if broken or ((values < low) | (values > high)).any():
        raise BhcError(f"{what} has other values than {_in_words(wanted.dtype)}", hint=hint)
    return values[None].to(wanted.dtype)


def _bounds(dtype: torch.dtype) -> tuple[int, int]:
    return (0, 1) if dtype == torch.bool else (torch.iinfo(dtype).min, torch.iinfo(dtype).max)


def _in_words(dtype: torch.dtype) -> str:
    name = str(dtype).removeprefix("torch.")
    if dtype.is_floating_point:
        return f"numbers ({name})"
    low, high = _bounds(dtype)
    return f"whole numbers ({name})" if high > 1 << 16 else f"whole numbers from {low} to {high} ({name})"


def reads_texts(vocabulary: AnyVocabulary | None, stored: Signature) -> bool:
    """Whether a text says all that a network is given."""
    if vocabulary is None or any(len(each.shape) != 1 for each in stored):
        return False
    return len(stored) == 1 or (isinstance(vocabulary, Tokenizer) and set(stored.names) == {INPUT_IDS, MASK})


def as_words(text: Any, vocabulary: AnyVocabulary | None, stored: Signature) -> Inputs:
    """A text as a batch of one."""
    if vocabulary is None or not reads_texts(vocabulary, stored):
        raise BhcError("this network does not read texts that the run could take apart", hint="give input, or example")
    if not isinstance(text, str) or not text.strip() or len(text) > LONGEST_TEXT:
        raise BhcError("the text is none, or too long", hint=f"give 1 to {LONGEST_TEXT:,} letters")
    encoded = vocabulary.encode(text)
    rows = encoded if isinstance(encoded, Mapping) else {INPUT_IDS: encoded}
    parts = [_filled(rows[MASK if each.name == MASK else INPUT_IDS], each) for each in stored]
    return tuple(parts) if len(parts) > 1 else parts[0]


def _filled(row: Tensor, wanted: Input) -> Tensor:  # (1, T)
    """A text of as many places as the network reads, where it reads so many."""
    length, most = row.shape[1], wanted.shape[0]
    if not length or (length > most and not wanted.dynamic):
        raise BhcError(f"a text of {length:,} tokens, where 1 to {most:,} are read", hint="shorten it, or write more")
    short = 0 if wanted.dynamic else most - length
    return torch.nn.functional.pad(row, (0, short)).to(wanted.dtype)
