"""Error and size of the networks a model would emit, on labelled data it has not trained on, and for which contexts."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import TypeVar

import torch
from torch import Tensor

from bhc.contexts import Context, ContextBatch, ContextSpace, ProbeRequest, checked_encoding
from bhc.examples import Examples, Inputs, Split, batches, each, together
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import LayerDropout, LayerMean, NetworkMask
from bhc.tasks import checked_errors
from bhc.training.batches import looked_at
from bhc.training.stages import restrict

CHUNK = 4096  # examples in one pass
CONTEXTS = 16  # in one pass, as in training: what they share is computed once

T = TypeVar("T")
Own = TypeVar("Own", bound=Examples)

# How much of the validation sample a curve looks at, in all: a few passes over it. Small networks, which take next to
# no time, look at more, and large samples at less: that many examples tell errors apart well enough.
PASSES, MOST_LOOKS, FREE_FLOPS = 3, 20_000, 2e10


@dataclass(frozen=True)
class Probe:
    """A context to try, and the classes, and sources where they matter, whose examples it is tried on."""

    context: Context
    classes: tuple[int, ...]
    sources: tuple[int, ...] | None = None

    def examples(self, data: Own) -> Own:
        own = data if data.labels is None else data.restricted_to(self.classes)
        return own if self.sources is None else own.from_sources(self.sources)


@dataclass(frozen=True)
class Point:
    """One threshold of a trade-off curve, over all probes."""

    threshold: float
    ratio_mean: float
    ratio_harmonic: float
    ratio_min: float
    error: float  # percent, pooled over pairs of a probe and an example
    error_max: float  # percent, the worst probe

    def to_dict(self) -> dict[str, float]:
        return dict(self.__dict__)


def count_weights(network: ConditionalNetwork, mask: NetworkMask) -> Tensor:  # (K,)
    """Dense weights that stay: kept inputs x kept outputs x kernel, summed over the layers, and what is beside them."""
    beside, _ = network.beside.counts(mask.alive)
    return beside + torch.stack(
        [layer.kept_weights(own.keep_in, own.keep_out) for layer, own in zip(network.layers, mask.layers, strict=True)]
    ).sum(0)


@torch.no_grad()
def pruning_ratios(network: ConditionalNetwork, batch: ContextBatch, threshold: float) -> Tensor:  # (K,)
    """Weights of the original over weights kept, for each context of a batch."""
    return _ratios(network, network.dropouts(batch), batch, threshold)


def _ratios(
    network: ConditionalNetwork, dropouts: Sequence[LayerDropout], batch: ContextBatch, threshold: float
) -> Tensor:  # (K,)
    thresholds = torch.full((len(batch), 1), threshold, device=network.device)
    masks = network.find_masks(dropouts, thresholds, network.outputs_of(batch), batch.inputs)
    return network.num_weights / count_weights(network, masks)


def harmonic(values: Sequence[float]) -> float:
    """Of ratios: that of all contexts together, total before over total after."""
    return len(values) / sum(1 / value for value in values)


@torch.no_grad()
def threshold_for(network: ConditionalNetwork, batch: ContextBatch, ratio: float) -> float:
    """The largest threshold, to a thousandth, that makes the contexts of a batch this many times smaller (harmonic).

    A lower threshold removes more; where none is low enough, the lowest that changes anything.
    """
    dropouts = network.dropouts(batch)
    rates = network.find_masks.noisiest_links(dropouts, network.outputs_of(batch))
    finite = rates[rates.isfinite()]
    low, high = (float(finite.min()), float(finite.max()) + 1) if len(finite) else (0.0, 0.0)
    while high - low > 1e-3:
        middle = (low + high) / 2
        if harmonic(_ratios(network, dropouts, batch, middle).tolist()) >= ratio:
            low = middle
        else:
            high = middle
    return low


def largest_ratio(network: ConditionalNetwork, batch: ContextBatch) -> float:
    """How many times smaller the contexts of a batch can become (harmonic): one unit of everything is left."""
    return harmonic(pruning_ratios(network, batch, torch.finfo(torch.float32).min).tolist())


@dataclass(frozen=True)
class Panel:
    """Probes, each with the examples that it is tried on."""

    probes: tuple[Probe, ...]
    examples: tuple[Split, ...]

    @classmethod
    def of(cls, probes: Sequence[Probe], data: Split, *, most: int | None = None) -> "Panel":
        """With all examples, or at most so many in all: evenly spread, over the probes too where these are more."""
        if most is not None and most < len(probes):
            probes = spread(probes, max(1, most))
        examples = [probe.examples(data) for probe in probes]
        if most is not None:
            each = max(1, most // len(probes))
            examples = [own.at(torch.tensor(spread(range(len(own)), each))) for own in examples]
        return cls(tuple(probes), tuple(examples))

    @property
    def contexts(self) -> tuple[Context, ...]:
        return tuple(probe.context for probe in self.probes)

    @property
    def num_passes(self) -> int:
        """How often a threshold is looked at: once for some contexts together."""
        return -(-len(self.probes) // CONTEXTS)


def looks_for(network: ConditionalNetwork, data: Split) -> int:
    """How many times a curve may have an example of ``data`` go through a network."""
    flops = max(network.counts.flops, 1)
    return max(min(PASSES * len(data), MOST_LOOKS), int(FREE_FLOPS / flops))


def spread(items: Sequence[T], limit: int) -> Sequence[T]:
    """At most ``limit`` of them, evenly spread."""
    if len(items) <= limit:
        return items
    return [items[index * len(items) // limit] for index in range(limit)]


@torch.no_grad()
def trade_off(
    network: ConditionalNetwork,
    panel: Panel,
    thresholds: Sequence[float],
    *,
    on_look: Callable[[], object] = lambda: None,
) -> list[Point]:
    """Error against ratio as the threshold moves; ``on_look`` is called after each look at a threshold."""
    trials: list[list[ThresholdTrial]] = []
    for first in range(0, len(panel.probes), CONTEXTS):
        own = slice(first, first + CONTEXTS)
        trials += try_contexts(network, panel.contexts[own], panel.examples[own], thresholds, on_look=on_look)
    return pooled(thresholds, trials)


@dataclass(frozen=True)
class ThresholdTrial:
    """One context at one threshold."""

    ratio: float
    wrong: float  # errors of all examples together: a count, where each is one or none
    images: int


def pooled(thresholds: Sequence[float], trials: Sequence[Sequence[ThresholdTrial]]) -> list[Point]:
    """A curve from every context's trials at the same thresholds."""
    return [_point(threshold, at) for threshold, at in zip(thresholds, zip(*trials, strict=True), strict=True)]


def _point(threshold: float, trials: Sequence[ThresholdTrial]) -> Point:
    ratios = [trial.ratio for trial in trials]
    return Point(
        threshold=float(threshold),
        ratio_mean=sum(ratios) / len(ratios),
        ratio_harmonic=harmonic(ratios),
        ratio_min=min(ratios),
        error=100 * sum(trial.wrong for trial in trials) / sum(trial.images for trial in trials),
        error_max=100 * max(trial.wrong / trial.images for trial in trials),
    )


def largest_within(points: Sequence[Point], error: float, *, ratio: str = "ratio_harmonic") -> Point:
    """The point with the largest ratio among those within an error; failing that, the most accurate."""
    fitting = [point for point in points if point.error <= error]
    if fitting:
        return max(fitting, key=lambda point: getattr(point, ratio))
    return min(points, key=lambda point: point.error)


def try_thresholds(
    network: ConditionalNetwork, context: Context, examples: Split, thresholds: Sequence[float]
) -> list[ThresholdTrial]:
    """Ratio and wrong answers of one context at each threshold."""
    return try_contexts(network, [context], [examples], thresholds)[0]


@torch.no_grad()
def try_contexts(
    network: ConditionalNetwork,
    contexts: Sequence[Context],
    examples: Sequence[Split],
    thresholds: Sequence[float],
    *,
    on_look: Callable[[], object] = lambda: None,
) -> list[list[ThresholdTrial]]:
    """The same of several contexts, each on its own examples.

    What does not depend on the threshold is generated once, and where none of the contexts loses or gains a unit from
    one threshold to the next, nothing is computed again.
    """
    device = network.device
    batch = ContextBatch.of(contexts, network.num_classes).to(device)
    slots = torch.arange(max(map(len, examples)))
    places = [torch.where(slots < len(own), slots, 0) for own in examples]  # filled up with the first
    padded = [own.at(at) for own, at in zip(examples, places, strict=True)]
    images = together([own.inputs for own in padded], torch.stack)  # (K, B, ...)
    targets = torch.stack([own.wanted for own in padded]).to(device)
    counted = torch.stack([slots < len(own) for own in examples]).to(device)
    dropouts, means = network.dropouts(batch), network.hypernet.means(checked_encoding(network.space, batch))
    outputs = network.outputs_of(batch)
    found: list[list[ThresholdTrial]] = []
    known: NetworkMask | None = None
    for threshold in thresholds:
        limit = torch.full((len(contexts), 1), threshold, device=device)
        masks = network.find_masks(dropouts, limit, outputs, batch.inputs)
        if known is None or not _same(known, masks):
            errors = _errors(network, (images, targets), batch, means, masks)
            wrong = (errors.double() * counted).sum(1).tolist()
            ratios = (network.num_weights / count_weights(network, masks)).tolist()
            counts = [len(own) for own in examples]
            found.append([ThresholdTrial(*row) for row in zip(ratios, wrong, counts, strict=True)])
        else:
            found.append(found[-1])
        known = masks
        on_look()
    return [list(row) for row in zip(*found, strict=True)]


def _errors(
    network: ConditionalNetwork,
    examples: tuple[Inputs, Tensor],  # (K, B, ...) each: inputs and targets
    batch: ContextBatch,
    means: Sequence[LayerMean],
    mask: NetworkMask,
) -> Tensor:  # (K, B)
    parts, (images, targets), outputs = [], examples, network.outputs_of(batch)
    size = max(1, CHUNK // len(batch))
    for first in range(0, targets.shape[1], size):
        own = slice(first, first + size)
        x = each(images, lambda tensor, own=own: tensor[:, own].flatten(0, 1).to(network.device))  # type: ignore[misc]
        x = without_absent(network, x, batch.inputs)
        given = restrict(network.bayesian.masked(x, means, mask), outputs)
        parts.append(checked_errors(network.task, given, targets[:, own].flatten(0, 1)).view(len(batch), -1))
    return torch.cat(parts, dim=1)


def without_absent(network: ConditionalNetwork, x: Inputs, features: Tensor | None) -> Inputs:
    """Inputs without the features that contexts have not; contexts of features have one input."""
    return network.space.presence.zero_absent(x, features) if isinstance(x, Tensor) else x


def _same(one: NetworkMask, other: NetworkMask) -> bool:
    """Whether both leave the same of every layer."""
    kept = attrgetter("keep_in", "keep_out", "keep_weight")
    return all(
        a is b or (a is not None and b is not None and torch.equal(a, b))
        for before, after in zip(one.layers, other.layers, strict=True)
        for a, b in zip(kept(before), kept(after), strict=True)
    )


@torch.no_grad()
def base_error(network: ConditionalNetwork, panel: Panel) -> float:
    """Error of the pretrained network on the same examples, its outputs restricted alike, percent.

    It is given zeros where features are missing, and the unknown word for words.
    """
    wrong, seen = 0.0, 0
    for probe, examples in zip(panel.probes, panel.examples, strict=True):
        batch = ContextBatch.of([probe.context], network.num_classes).to(network.device)
        parts = zip(batches(examples.inputs, CHUNK), examples.wanted.split(CHUNK), strict=True)
        for inputs, targets in parts:
            x = each(without_absent(network, inputs, probe.context.inputs), lambda tensor: tensor.to(network.device))
            outputs = restrict(network.base_model(x), network.outputs_of(batch))
            wrong += float(checked_errors(network.task, outputs, targets.to(network.device)).double().sum())
            seen += len(targets)
    return 100 * wrong / seen


def find_probes(space: ContextSpace, train: Examples, *, num_classes: int, limit: int = 24) -> tuple[Probe, ...]:
    """Contexts spread evenly over those that training can draw, at most ``limit`` of them.

    Where conditions may be left out, one more leaves out all.
    """
    requests = spread(space.probes(num_classes, limit), limit)
    probes = [_probe(space, train, request, num_classes) for request in requests]
    if space.optional:
        probes.append(Probe(space.resolve({}), tuple(range(num_classes))))
    return tuple(probes)


def _probe(space: ContextSpace, train: Examples, request: ProbeRequest, num_classes: int) -> Probe:
    said = {name: value for part in space.parts for name, value in part.resolve_or_default(request.asked).items()}
    context = Context.of(said)
    probe = Probe(context, context.classes or request.classes or tuple(range(num_classes)), request.sources)
    if not space.observes:
        return probe
    # What examples tell is told by those of training, as at use: the examples judged on stay unseen.
    inputs = looked_at(probe.examples(train))
    seen = space.observe(ContextBatch.of([context], num_classes), inputs[None])
    values = {name: rows[0] for name, rows in seen.values.items()}
    if seen.domain is None:
        return replace(probe, context=replace(context, values=values))
    return replace(probe, context=replace(context, domain=seen.domain[0], domain_size=len(inputs), values=values))
