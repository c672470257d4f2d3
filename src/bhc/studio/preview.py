"""What the page shows of a context: the network layer by layer, the trade-off, the rates it was cut by; and inputs to
try on it: examples of the validation sample by their numbers, raw values, and texts."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import ceil, prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.emission import (
    BranchCut,
    CandidateFactory,
    Compressed,
    Cut,
    Cutter,
    Judge,
    Look,
    find_branch_cuts,
    weights_for,
)
from bhc.errors import BhcError
from bhc.examples import AnyVocabulary, Tokenizer
from bhc.graph import INPUT, Input, Inputs, Signature
from bhc.layers import kind_of
from bhc.posterior import LayerDropout
from bhc.studio.drawings import Drawing, ImageRenderer, Renderer, SeveralRenderer, png, renderer_of
from bhc.training import TrainedModel

POINTS = 13  # of a curve
MOST_PLACES = 4096
BINS = np.linspace(-12.0, 12.0, 49)
CURVE_FLOPS = 1e9  # what all judging for one curve may cost
LEAST_IMAGES = 50
USUAL_SHARE = 10  # of the original's FLOPs cuts have one part of so many


def thresholds_of(model: TrainedModel) -> dict[str, float]:
    """The range that was consolidated, the default, and how far a slider goes."""
    low, high = model.thresholds or (-2.0, 2.0)
    return {"low": low, "high": high, "default": model.default_threshold, "least": low - 1.0, "most": high + 1.0}


class Preview:
    """One context, looked at from all sides."""

    def __init__(self, model: TrainedModel, cutter: Cutter) -> None:
        self.model, self.cutter = model, cutter
        self.factory = CandidateFactory(model, cutter)
        self.curve = list(self._points())

    def show(self, small: Compressed) -> dict[str, Any]:
        """All that the page draws of one network of the context."""
        report = small.report
        origin = self.factory.origin(report.origin)
        cut = origin.cutter.cut(report.threshold)
        generated = origin is self.factory.generated
        threshold = report.threshold if generated else self.model.default_threshold
        return {
            "report": report.to_dict(),
            "layers": list(_layers(cut, report.bits)),
            "blocks": list(map(_block, find_branch_cuts(self.model.network, cut))),
            "curve": self.curve,
            "here": {
                "threshold": report.threshold,
                "ratio": report.pruning_ratio,
                "error": report.error,
                "bytes": report.file_bytes,
                "flops": report.flops_after,
            },
            "histograms": list(self._histograms(threshold)),
            "inputs_kept": self._inputs(cut),
            "threshold": threshold,
            "generated": generated,
            "emit_ms": report.emit_ms,
        }

    def _inputs(self, cut: Cut) -> list[int] | None:
        """The values of an input that are read, where the first layer reads values."""
        first = cut.layers[0]
        values = prod(self.model.network.input_shape)
        whole = not first.layer.has_kernel and first.layer.num_inputs == values
        return _places(first.kept_inputs, values) if whole else None

    def _points(self) -> Iterator[dict[str, Any]]:
        """What each budget gives; else cuts at thresholds across the slider. Judged before rounding."""
        network, factory, judge = self.model.network, self.factory, self.factory.judge
        look = Look.of(factory, examples=_affordable(network.counts.flops // USUAL_SHARE), cuts=POINTS)
        if look is not None:
            for budget in np.linspace(0, 1, POINTS).tolist():
                place = look.best(weights_for(self.model, budget))
                weights = int(look.weights[place])
                sizes = {"ratio": network.num_weights / weights, "weights": weights, "flops": int(look.flops[place])}
                yield {"threshold": None, "budget": budget, "error": float(look.errors[place]), **sizes}
            return
        span = thresholds_of(self.model)
        for threshold in np.linspace(span["most"], span["least"], POINTS).tolist():
            floats = factory.at(threshold)
            cut = floats.cut
            yield {
                "threshold": threshold,
                "budget": None,
                "ratio": self.model.network.num_weights / cut.num_weights,
                "error": None if judge is None else _error(judge, floats.graph, cut),
                "weights": cut.num_weights,
                "flops": cut.num_flops,
            }

    def _histograms(self, threshold: float) -> Iterator[dict[str, Any]]:
        layers = self.cutter.network.layers
        for layer, dropout in zip(layers, self.cutter.scales.dropouts, strict=True):
            for which, rates in rate_groups(dropout):
                values = rates.numpy()
                counts, _ = np.histogram(np.clip(values, BINS[0], BINS[-1]), BINS)
                yield {
                    "layer": layer.name,
                    "which": which,
                    "edges": BINS.tolist(),
                    "counts": counts.tolist(),
                    "kept": int((values < threshold).sum()),
                }


def _affordable(flops: int) -> int:
    """Examples that each point of a curve is judged by."""
    return int(max(LEAST_IMAGES, CURVE_FLOPS / POINTS / max(flops, 1)))


def _error(judge: Judge, graph: Any, cut: Cut) -> float:
    count = _affordable(cut.num_flops)
    verdict = judge.sample(count).judge(graph)
    return 100 * verdict.wrong / min(count, judge.num_images)


def _layers(cut: Cut, bits: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    widths = iter(bits)  # of those that did not go with a branch
    for kept in cut.layers:
        layer, width = kept.layer, None if kept.is_gone else next(widths)
        yield {
            "name": layer.name,
            "kind": "convolution" if layer.has_kernel else "linear",
            "inputs_before": layer.num_inputs,
            "inputs_after": len(kept.kept_inputs),
            "outputs_before": layer.num_outputs,
            "outputs_after": len(kept.kept_outputs),
            "bits": width,
            "weights_before": layer.num_weights,
            "weights_after": kept.num_weights,
            "kept_inputs": _places(kept.kept_inputs, layer.num_inputs),
            "kept_outputs": _places(kept.kept_outputs, layer.num_outputs),
        }


def _block(cut: BranchCut) -> dict[str, Any]:
    """A branch with what stays of it, of each of its heads, and of the stream that it adds to."""
    (units_before, units_after), (stream_before, stream_after) = cut.units, cut.stream
    return {
        "name": cut.name,
        "layers": list(cut.layers),
        "gone": cut.gone,
        "units_before": units_before,
        "units_after": units_after,
        "heads_before": len(cut.heads),
        "heads_after": sum(head.alive for head in cut.heads),
        "heads": [
            {
                "alive": head.alive,
                "query_keys_before": head.query_keys.before,
                "query_keys_after": head.query_keys.after,
                "values_before": head.values.before,
                "values_after": head.values.after,
            }
            for head in cut.heads
        ],
        "stream_before": stream_before,
        "stream_after": stream_after,
    }


def _places(kept: Tensor, count: int) -> list[int] | None:
    return kept.tolist() if count <= MOST_PLACES else None


def rate_groups(dropout: LayerDropout) -> Iterator[tuple[str, Tensor]]:
    """Every group of more than one scale, or single weights where those go, with its rates."""
    for which, rates in (("in", dropout.in_log_dropout), ("out", dropout.out_log_dropout)):
        if rates is not None and rates.shape[1] > 1:
            yield which, rates[0]
    if dropout.weights is not None:
        yield "weight", torch.flatten(dropout.weights[0])


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
