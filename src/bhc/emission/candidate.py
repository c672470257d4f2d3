"""One network that could be emitted, and what is known of it; costly figures are found when asked for."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, TypeVar

from bhc.emission.cut import Cut, Cutter
from bhc.emission.guarantee import NAME, Alarm, AlarmSamples, Guarantee
from bhc.emission.judge import Judge, Verdict
from bhc.emission.origins import Curved, Generated, Origin
from bhc.emission.report import Report, Sizes, counts_of, to_card
from bhc.emission.weights import SlimLayer, assemble, quantise, reference_bits
from bhc.formats import Codes, QuantisedNetwork, c_memory, onnx_bytes, onnx_latency_ms, pack, packed_size
from bhc.graph import MOST_WHOLE, Graph
from bhc.training import TrainedModel

LONGEST_COUNT = 8  # bytes that a count of errors can take in a file
LONGEST_FRACTION = 0.1  # a weighted count that takes as many bytes as any
CODER_SLACK = 8  # bytes by which a coded stream might fall short of its information


class CandidateFactory:
    """What is generated once for a context and serves every candidate."""

    def __init__(self, model: TrainedModel, cutter: Cutter, samples: AlarmSamples | None = None) -> None:
        self.model, self.cutter, self.samples = model, cutter, samples
        self.judge = Judge.of(model, cutter.context)
        self.latencies: dict[tuple[int, ...], float] = {}  # by the widths of cuts
        self.remembered: dict[tuple[object, ...], Any] = {}  # numbers about candidates, which themselves are let go

    @cached_property
    def generated(self) -> Generated:
        return Generated.of(self.model, self.cutter)

    @cached_property
    def origins(self) -> tuple[Origin, ...]:
        """Where networks of the context come from, the hypernetwork first."""
        curved = Curved.of(self.model, self.cutter)
        return (self.generated,) if curved is None else (self.generated, curved)

    def origin(self, name: str) -> Origin:
        return next(origin for origin in self.origins if origin.name == name)

    def at(self, threshold: float, origin: Origin | None = None) -> "Candidate":
        """The cut of the hypernetwork's network, unless another origin is given."""
        origin = self.generated if origin is None else origin
        return Candidate(self, origin.cutter.cut(threshold), origin)

    def without_multiples(self, origin: Origin) -> "tuple[CandidateFactory, Origin]":
        """The same for channels of any number."""
        twin = copy.copy(self)
        twin.cutter, twin.latencies, twin.remembered = self.cutter.rounded_to(None), {}, {}
        return twin, origin.rounded_to(None)

    def latency_ms(self, candidate: "Candidate", *, anew: bool = False) -> float:
        """In onnxruntime, as floats, which is how ``to_onnx`` writes it and what rounding does not change.

        The slowest that was seen, where it was measured more than once; ``anew`` measures it again.
        """
        widths = candidate.cut.widths
        if anew or widths not in self.latencies:
            network = candidate.floats.network
            measured = onnx_latency_ms(onnx_bytes(network), network.signature)
            self.latencies[widths] = max(measured, self.latencies.get(widths, 0.0))
        return self.latencies[widths]

    def forget(self, candidate: "Candidate") -> None:
        """Have every number found again, on this very network, which may not be the one it was found on first."""
        for key in [key for key in self.remembered if key[1:] == candidate.name]:
            del self.remembered[key]


Found = TypeVar("Found")


def remembered(find: "Callable[[Candidate], Found]") -> "Callable[[Candidate], Found]":
    """A number about a candidate, found once for a context: candidates come and go, and are too large to be kept."""

    def get(candidate: "Candidate") -> Found:
        known, key = candidate.factory.remembered, (find.__name__, *candidate.name)
        if key not in known:
            known[key] = find(candidate)
        return known[key]

    get.__doc__ = find.__doc__
    return get


@dataclass(frozen=True)
class Candidate:
    """A cut network, its weights as floats or rounded."""

    factory: CandidateFactory
    cut: Cut
    origin: Origin
    scale: float | None = None  # of the steps; None: floats
    guarantee: Guarantee | None = None  # what its file says was proved of it
    unrounded: "Candidate | None" = None  # the same cut as floats; None: this is it
    margin: float | None = None  # that it was found to keep, where nothing was asked for

    @property
    def floats(self) -> "Candidate":
        """The network before rounding."""
        return self.unrounded or self

    def rounded(self, scale: float | None, guarantee: Guarantee | None = None) -> "Candidate":
        """The same cut with steps of a common ``scale``, None leaves floats; and with a guarantee."""
        if scale is None and guarantee is None:
            return self.floats
        return Candidate(self.factory, self.cut, self.origin, scale, guarantee, self.floats)

    @property
    def name(self) -> tuple[object, ...]:
        """What tells it from others of its context."""
        return self.origin.name, self.cut.threshold, self.scale, self.guarantee

    @cached_property
    def layers(self) -> Sequence[SlimLayer]:
        """The weights that stay, before rounding."""
        return self.origin.weights.layers(self.cut) if self.floats is self else self.floats.layers

    @cached_property
    def graph(self) -> Graph:
        floats = self.floats
        return assemble(self.factory.model.network, self.cut, self.layers) if floats is self else floats.graph

    @cached_property
    def codes(self) -> tuple[dict[str, Codes], dict[str, Codes]]:
        """Of weights and of biases; none where they stay floats."""
        return ({}, {}) if self.scale is None else quantise(self.layers, self.scale)

    @cached_property
    def network(self) -> QuantisedNetwork:
        weights, biases = self.codes
        shape = self.factory.model.network.input_shape
        return QuantisedNetwork.build(
            self.graph, weights=weights, biases=biases, input_shape=shape, labels=self.cut.classes
        )

    @cached_property
    def verdict(self) -> Verdict | None:
        judge = self.factory.judge
        return None if judge is None else judge.judge(self.network.graph)

    @property
    @remembered
    def wrong_on_hard(self) -> float:
        """Wrong answers to the hardest examples: a quick look."""
        judge = self.factory.judge
        assert judge is not None
        return judge.hard.wrong_of(self.network.graph)

    @property
    @remembered
    def error(self) -> float | None:
        """Percent, on the validation sample."""
        judge = self.factory.judge
        return None if self.verdict is None or judge is None else 100 * self.verdict.wrong / judge.num_images

    @cached_property
    def alarm(self) -> tuple[Alarm | None, float | None]:
        """What flags inputs outside the context, where it was asked for, and its AUROC."""
        samples = self.factory.samples
        return (None, None) if samples is None else samples.tune(self.network.graph)

    @cached_property
    def finished(self) -> QuantisedNetwork:
        """The network as it is saved: calibrated, with its card."""
        judge, verdict, (alarm, _) = self.factory.judge, self.verdict, self.alarm
        temperature = 1.0 if judge is None or verdict is None else judge.calibrate(verdict.logits)
        card = to_card(_as_carded(self, self.error)) | ({} if alarm is None else {NAME: alarm.to_card()})
        return replace(self.network, temperature=temperature, card=card)

    @cached_property
    def content(self) -> bytes:
        return pack(self.finished)

    @property
    @remembered
    def file_bytes(self) -> int:
        return len(self.content)

    def figure(self, name: str) -> float:
        """What the limit of that name is about, found on the real thing; infinite where nothing is known."""
        match name:
            case "max_bytes":
                return self.file_bytes
            case "max_weights":
                return self.cut.num_weights
            case "max_flops":
                return _num_flops(self)
            case "max_ram_bytes":
                return _ram_bytes(self)
            case "max_latency_ms":
                return self.factory.latency_ms(self)
        if self.guarantee is not None:
            return self.guarantee.max_error
        return inf if self.error is None else self.error


def has_at_most(candidate: Candidate, size: int) -> bool:
    """Whether the file fits. Decided, where it can be, without running the network for its errors."""
    if _information(candidate) > size + CODER_SLACK:
        return False
    if candidate.factory.judge is None or candidate.factory.samples is not None:
        return candidate.file_bytes <= size
    longest = _longest(candidate)
    if longest <= size or longest - LONGEST_COUNT > size:
        return longest <= size
    return candidate.file_bytes <= size


@remembered
def _information(candidate: Candidate) -> float:
    """Bytes that the weights take under any code: a file has more."""
    return sum(codes.entropy_bytes for codes in candidate.codes[0].values())


@remembered
def _longest(candidate: Candidate) -> int:
    """Bytes of the file if its count of errors took the most: nothing else in it hangs on the answers."""
    judge = candidate.factory.judge
    assert judge is not None
    error = 100.0 if judge.weights is None else LONGEST_FRACTION * 100 / judge.num_images
    return packed_size(replace(candidate.network, card=to_card(_as_carded(candidate, error))))


@remembered
def _ram_bytes(candidate: Candidate) -> int:
    """Constants and activations of the C form."""
    return c_memory(candidate.network).total


@remembered
def _num_flops(candidate: Candidate) -> int:
    return candidate.network.counts.flops


def _as_carded(candidate: Candidate, error: float | None) -> Report:
    """The report as far as a card tells it: of that, only these differ between roundings of one cut."""
    return replace(_cut_report(candidate.floats), scale=candidate.scale, error=error, guarantee=candidate.guarantee)


def report_of(candidate: Candidate) -> Report:
    """All but the times, with whether its probabilities mean what they say."""
    judge, verdict, (alarm, area) = candidate.factory.judge, candidate.verdict, candidate.alarm
    report = replace(
        _as_carded(candidate, candidate.error),
        file_bytes=candidate.file_bytes,
        flag_outside=None if alarm is None else alarm.rate,
        outside_auroc=area,
        margin=candidate.margin,
        **counts_of(candidate.network),
    )
    if judge is None or verdict is None:
        return report
    before = None if judge.base_logits is None else judge.calibration_error(judge.base_logits)
    after = judge.calibration_error(verdict.logits / candidate.finished.temperature)
    return replace(report, ece_before=before, ece=after)


def sizes_without_multiples(candidate: Candidate) -> Sizes | None:
    """What the same threshold, with the same steps, takes where channels are not rounded to multiples, as here."""
    factory = candidate.factory
    if factory.cutter.multiples is None:
        return None
    twin_factory, origin = factory.without_multiples(candidate.origin)
    floats = twin_factory.at(candidate.cut.threshold, origin)
    twin = floats.rounded(candidate.scale, candidate.guarantee)
    return Sizes(twin.network.counts.weights, twin.network.counts.flops, twin.file_bytes)


@remembered
def _cut_report(floats: Candidate) -> Report:
    """What is the same for every rounding of a cut, and the counts of floats."""
    cut, model, judge = floats.cut, floats.factory.model, floats.factory.judge
    counts, multiples = model.network.counts, floats.factory.cutter.multiples
    low_high = model.thresholds if floats.origin.name == Generated.name else None
    before, task = None if judge is None else judge.wrong_before, model.network.task
    return Report(
        context=cut.context.to_dict(),
        classes=cut.classes,
        threshold=cut.threshold,
        origin=floats.origin.name,
        scale=None,
        architecture_before=tuple(layer.layer.width for layer in cut.layers if not layer.is_gone),
        reference_bits=reference_bits(floats.layers),
        weights_before=counts.weights,
        parameter_bytes_before=4 * counts.parameters,
        flops_before=counts.flops,
        error_before=None if before is None or judge is None else 100 * before / judge.num_images,
        error=None,
        validation_images=0 if judge is None else judge.num_images,
        class_names=names_worth_telling(model.class_names if task.has_answers else None, cut.classes),
        error_name=task.error_name,
        higher_is_better=task.higher_is_better,
        has_answers=task.has_answers,
        rescued=tuple(layer.layer.name for layer in cut.layers if layer.rescued),
        whole=tuple(map(str, model.network.whole[:MOST_WHOLE])),
        gone=tuple(layer.layer.name for layer in cut.layers if layer.is_gone),
        heads_before=tuple(len(heads.rows) for heads in model.network.units.attention),
        heads=cut.count_heads(model.network.units.attention),
        round_to=None if multiples is None else multiples.given,
        outside=None if low_high is None or low_high[0] <= cut.threshold <= low_high[1] else low_high,
        **counts_of(floats.network),
    )


def names_worth_telling(names: Sequence[str] | None, classes: Sequence[int]) -> tuple[str, ...] | None:
    """The names of these classes, unless they are the numbers anyway; none where outputs are not classes."""
    if names is not None and max(classes, default=0) >= len(names):
        return None
    own = None if names is None else tuple(names[label] for label in classes)
    return None if own == tuple(map(str, classes)) else own
