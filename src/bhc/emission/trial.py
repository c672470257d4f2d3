"""One network that could be emitted, and what is known of it; costly figures are found when asked for."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf
from typing import Any, TypeVar

from bhc.emission.alarm import NAME, Alarm
from bhc.emission.guarantee import Guarantee
from bhc.emission.judge import Judge, Verdict
from bhc.emission.plan import Cutter, Plan
from bhc.emission.quantisation import quantise, reference_bits
from bhc.emission.report import Report, counts_of, names_worth_telling, to_card
from bhc.emission.slim import assemble
from bhc.emission.watch import Watch
from bhc.emission.weights import SlimLayer, Slimmer
from bhc.formats import Codes, QuantisedNetwork, c_memory, onnx_bytes, onnx_latency_ms, pack, packed_size
from bhc.graph import MOST_WHOLE, Graph
from bhc.training import TrainedModel

LONGEST_COUNT = 8  # bytes that a count of errors can take in a file
LONGEST_FRACTION = 0.1  # a weighted count that takes as many bytes as any
CODER_SLACK = 8  # bytes by which a coded stream might fall short of its information


class Workshop:
    """What is generated once for a context and serves every trial."""

    def __init__(self, model: TrainedModel, cutter: Cutter, watch: Watch | None = None) -> None:
        self.model, self.cutter, self.watch = model, cutter, watch
        self.slimmer = Slimmer(cutter.generated)
        self.judge = Judge.of(model, cutter.context)
        self.latencies: dict[tuple[int, ...], float] = {}  # by the widths of cuts
        self.remembered: dict[tuple[object, ...], Any] = {}  # numbers about trials, which themselves are let go

    def stock(self, threshold: float) -> "Stock":
        """The network cut at a threshold."""
        return Stock(self, self.cutter.cut(threshold))


@dataclass(frozen=True)
class Stock:
    """A cut network before its weights are rounded."""

    workshop: Workshop
    plan: Plan

    @cached_property
    def layers(self) -> Sequence[SlimLayer]:
        """The weights that stay."""
        return self.workshop.slimmer.layers(self.plan)

    @cached_property
    def graph(self) -> Graph:
        """The network as floats."""
        return assemble(self.workshop.model.network, self.plan, self.layers)

    def trial(self, scale: float | None) -> "Trial":
        """The network with steps of a common ``scale``; None leaves floats."""
        return self.floats if scale is None else Trial(self, scale)

    @cached_property
    def floats(self) -> "Trial":
        """The network before rounding."""
        return Trial(self, None)

    @property
    def latency_ms(self) -> float:
        """In onnxruntime, as floats, which is how ``to_onnx`` writes it and what rounding does not change.

        The slowest that was seen, where it was measured more than once.
        """
        slowest = self.workshop.latencies.get(self.plan.widths)
        return self.measure_latency() if slowest is None else slowest

    def measure_latency(self) -> float:
        """The same, measured anew."""
        network, seen = self.floats.network, self.workshop.latencies
        measured = onnx_latency_ms(onnx_bytes(network), network.signature)
        seen[self.plan.widths] = max(measured, seen.get(self.plan.widths, 0.0))
        return measured

    @cached_property
    def reference_bits(self) -> tuple[int, ...]:
        return reference_bits(self.layers)


Number = TypeVar("Number", bound=float | None)


def remembered(find: "Callable[[Trial], Number]") -> property:
    """A number about a trial, found once for a context: trials come and go, and are too large to be kept."""

    def get(trial: "Trial") -> Number:
        known, key = trial.stock.workshop.remembered, (find.__name__, *trial.name)
        if key not in known:
            known[key] = find(trial)
        return known[key]

    return property(get, doc=find.__doc__)


@dataclass(frozen=True)
class Trial:
    """A cut and rounded network."""

    stock: Stock
    scale: float | None
    guarantee: Guarantee | None = None  # what its file says was proved of it

    @property
    def name(self) -> tuple[object, ...]:
        """What tells it from others of its context."""
        return self.stock.plan.threshold, self.scale, self.guarantee

    @cached_property
    def codes(self) -> tuple[dict[str, Codes], dict[str, Codes]]:
        """Of weights and of biases; none where they stay floats."""
        return ({}, {}) if self.scale is None else quantise(self.stock.layers, self.scale)

    @cached_property
    def network(self) -> QuantisedNetwork:
        plan, model = self.stock.plan, self.stock.workshop.model
        weights, biases = self.codes
        return QuantisedNetwork.build(
            self.stock.graph,
            weights=weights,
            biases=biases,
            input_shape=model.network.input_shape,
            labels=plan.classes,
        )

    @cached_property
    def verdict(self) -> Verdict | None:
        judge = self.stock.workshop.judge
        return None if judge is None else judge.judge(self.network.graph)

    @remembered
    def wrong_on_hard(self) -> float:
        """Wrong answers to the hardest examples: a quick look."""
        judge = self.stock.workshop.judge
        assert judge is not None
        return judge.hard.wrong_of(self.network.graph)

    @remembered
    def error(self) -> float | None:
        """Percent, on the validation sample."""
        judge = self.stock.workshop.judge
        return None if self.verdict is None or judge is None else 100 * self.verdict.wrong / judge.num_images

    @cached_property
    def finished(self) -> QuantisedNetwork:
        """The network as it is saved: calibrated, with its card."""
        judge, verdict = self.stock.workshop.judge, self.verdict
        temperature = 1.0 if judge is None or verdict is None else judge.calibrate(verdict.logits)
        card = to_card(self._told(self.error))
        if self.alarm is not None:
            card[NAME] = self.alarm.to_card()
        return replace(self.network, temperature=temperature, card=card)

    @cached_property
    def _settled(self) -> tuple[Alarm | None, float | None]:
        watch = self.stock.workshop.watch
        return (None, None) if watch is None else watch.settle(self.network.graph)

    @property
    def alarm(self) -> Alarm | None:
        """What flags inputs outside the context, where it was asked for."""
        return self._settled[0]

    @property
    def outside_auroc(self) -> float | None:
        return self._settled[1]

    @property
    def ece_before(self) -> float | None:
        """Expected calibration error of the pretrained network, percent."""
        judge = self.stock.workshop.judge
        return None if judge is None or judge.base_logits is None else judge.calibration_error(judge.base_logits)

    @property
    def ece(self) -> float | None:
        """That of this one, with its temperature."""
        judge, verdict = self.stock.workshop.judge, self.verdict
        if judge is None or verdict is None:
            return None
        return judge.calibration_error(verdict.logits / self.finished.temperature)

    @cached_property
    def content(self) -> bytes:
        """The file."""
        return pack(self.finished)

    @remembered
    def file_bytes(self) -> int:
        """The size of the file."""
        return len(self.content)

    def has_at_most(self, size: int) -> bool:
        """Whether the file fits. Decided, where it can be, without running the network for its errors."""
        if self._information > size + CODER_SLACK:
            return False
        judge = self.stock.workshop.judge
        if judge is None or self.stock.workshop.watch is not None:
            return self.file_bytes <= size
        if self._longest <= size or self._longest - LONGEST_COUNT > size:
            return self._longest <= size
        return self.file_bytes <= size

    @remembered
    def _information(self) -> float:
        """Bytes that the weights take under any code: a file has more."""
        return sum(codes.entropy_bytes for codes in self.codes[0].values())

    @remembered
    def _longest(self) -> int:
        """Bytes of the file if its count of errors took the most: nothing else in it hangs on the answers."""
        judge = self.stock.workshop.judge
        assert judge is not None
        error = 100.0 if judge.weights is None else LONGEST_FRACTION * 100 / judge.num_images
        return packed_size(replace(self.network, card=to_card(self._told(error))))

    def _told(self, error: float | None) -> Report:
        """The report as far as a card tells it: of that, only these differ between roundings of one cut."""
        return replace(self.stock.floats.unjudged, scale=self.scale, error=error, guarantee=self.guarantee)

    @remembered
    def ram_bytes(self) -> int:
        """Constants and activations of the C form."""
        return c_memory(self.network).total

    @remembered
    def num_flops(self) -> int:
        """Counted on the network itself."""
        return self.network.counts.flops

    def forget(self) -> None:
        """Have every number found again, on this very network, which may not be the one it was found on first."""
        known = self.stock.workshop.remembered
        for key in [key for key in known if key[1:] == self.name]:
            del known[key]

    def figure(self, name: str) -> float:
        """What the limit of that name is about, found on the real thing; infinite where nothing is known."""
        match name:
            case "max_bytes":
                return self.file_bytes
            case "max_flops":
                return self.num_flops
            case "max_ram_bytes":
                return self.ram_bytes
            case "max_latency_ms":
                return self.stock.latency_ms
        if self.guarantee is not None:
            return self.guarantee.max_error
        return inf if self.error is None else self.error

    @cached_property
    def report(self) -> Report:
        """All but the size of the file and the times."""
        return replace(self.unjudged, error=self.error, guarantee=self.guarantee)

    @cached_property
    def unjudged(self) -> Report:
        """The report without the error."""
        plan, model, judge = self.stock.plan, self.stock.workshop.model, self.stock.workshop.judge
        layers, counts = model.network.layers, model.network.counts
        before = None if judge is None else judge.wrong_before
        return Report(
            context=plan.context.to_dict(),
            classes=plan.classes,
            threshold=plan.threshold,
            scale=self.scale,
            architecture_before=tuple(layer.width for layer in layers),
            reference_bits=self.stock.reference_bits,
            weights_before=counts.weights,
            parameter_bytes_before=4 * counts.parameters,
            flops_before=counts.flops,
            error_before=None if before is None or judge is None else 100 * before / judge.num_images,
            error=None,
            validation_images=0 if judge is None else judge.num_images,
            class_names=names_worth_telling(model.class_names, plan.classes),
            rescued=tuple(cut.layer.name for cut in plan.layers if cut.rescued),
            whole=tuple(map(str, model.network.whole[:MOST_WHOLE])),
            outside=None if _covers(model.thresholds, plan.threshold) else model.thresholds,
            **counts_of(self.network),
        )


def _covers(thresholds: tuple[float, float] | None, threshold: float) -> bool:
    return thresholds is None or thresholds[0] <= threshold <= thresholds[1]
