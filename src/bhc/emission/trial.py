"""One network that could be emitted, and what is known of it; costly figures are found when asked for."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from bhc.emission.alarm import NAME, Alarm
from bhc.emission.guarantee import Guarantee
from bhc.emission.judge import Judge, Verdict
from bhc.emission.plan import Cutter, Plan
from bhc.emission.quantise import quantise
from bhc.emission.reference_bits import reference_bits
from bhc.emission.report import Report, counts_of, names_worth_telling, to_card
from bhc.emission.slim import assemble
from bhc.emission.watch import Watch
from bhc.emission.weights import SlimLayer, Slimmer
from bhc.formats import QuantisedNetwork, c_memory, onnx_bytes, onnx_latency_ms, pack
from bhc.graph import Graph
from bhc.training import TrainedModel

LONGEST_COUNT = 8  # bytes that a count of errors can take in a file
LONGEST_FRACTION = 0.1  # a weighted count that takes as many bytes as any


class Workshop:
    """What is generated once for a context and serves every trial."""

    def __init__(self, model: TrainedModel, cutter: Cutter, watch: Watch | None = None) -> None:
        self.model, self.cutter, self.watch = model, cutter, watch
        self.slimmer = Slimmer(cutter.generated)
        self.judge = Judge.of(model, cutter.context)

    def stock(self, threshold: float) -> "Stock":
        """The weights that stay at a threshold."""
        plan = self.cutter.cut(threshold)
        return Stock(self, plan, self.slimmer.layers(plan))


@dataclass(frozen=True)
class Stock:
    """A cut network before its weights are rounded."""

    workshop: Workshop
    plan: Plan
    layers: Sequence[SlimLayer]

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

    @cached_property
    def latency_ms(self) -> float:
        """In onnxruntime, as floats: what rounding does not change."""
        network = self.trial(None).network
        return onnx_latency_ms(onnx_bytes(network), network.input_shape)

    @cached_property
    def reference_bits(self) -> tuple[int, ...]:
        return reference_bits(self.layers)


@dataclass(frozen=True)
class Trial:
    """A cut and rounded network."""

    stock: Stock
    scale: float | None
    guarantee: Guarantee | None = None  # what its file says was proved of it

    @cached_property
    def network(self) -> QuantisedNetwork:
        plan, model = self.stock.plan, self.stock.workshop.model
        weights, biases = ({}, {}) if self.scale is None else quantise(self.stock.layers, self.scale)
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

    @cached_property
    def wrong_on_hard(self) -> float:
        """Wrong answers to the hardest examples: a quick look."""
        judge = self.stock.workshop.judge
        assert judge is not None
        return judge.hard.wrong_of(self.network.graph)

    @property
    def error(self) -> float | None:
        """Percent, on the validation sample."""
        judge = self.stock.workshop.judge
        return None if self.verdict is None or judge is None else 100 * self.verdict.wrong / judge.num_images

    @cached_property
    def finished(self) -> QuantisedNetwork:
        """The network as it is saved: calibrated, with its card."""
        judge, verdict = self.stock.workshop.judge, self.verdict
        temperature = 1.0 if judge is None or verdict is None else judge.calibrate(verdict.logits)
        card = to_card(self.report)
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

    @property
    def file_bytes(self) -> int:
        return len(self.content)

    def has_at_most(self, size: int) -> bool:
        """Whether the file fits. Decided, where it can be, without running the network for its errors."""
        judge = self.stock.workshop.judge
        if judge is None or self.stock.workshop.watch is not None:
            return self.file_bytes <= size
        # Of what a card says, only the scale and the count of errors differ between roundings of one cut.
        error = 100.0 if judge.weights is None else LONGEST_FRACTION * 100 / judge.num_images
        floats = self.stock.trial(None).unjudged
        report = replace(floats, scale=self.scale, error=error, guarantee=self.guarantee)
        longest = len(pack(replace(self.network, card=to_card(report))))
        if longest <= size or longest - LONGEST_COUNT > size:
            return longest <= size
        return self.file_bytes <= size

    @cached_property
    def ram_bytes(self) -> int:
        return c_memory(self.network).total

    @cached_property
    def report(self) -> Report:
        """All but the size of the file and the times."""
        return replace(self.unjudged, error=self.error, guarantee=self.guarantee)

    @cached_property
    def unjudged(self) -> Report:
        """The report without the error."""
        plan, model, judge = self.stock.plan, self.stock.workshop.model, self.stock.workshop.judge
        layers = model.network.layers
        biases = sum(layer.num_outputs for layer in layers if layer.module.bias is not None)
        before = None if judge is None else judge.wrong_before
        return Report(
            context=plan.context.to_dict(),
            classes=plan.classes,
            threshold=plan.threshold,
            scale=self.scale,
            architecture_before=tuple(layer.width for layer in layers),
            reference_bits=self.stock.reference_bits,
            weights_before=model.network.num_weights,
            parameter_bytes_before=4 * (model.network.num_weights + biases),
            flops_before=sum(layer.num_flops for layer in layers),
            error_before=None if before is None or judge is None else 100 * before / judge.num_images,
            error=None,
            validation_images=0 if judge is None else judge.num_images,
            class_names=names_worth_telling(model.class_names, plan.classes),
            rescued=tuple(cut.layer.name for cut in plan.layers if cut.rescued),
            outside=None if _covers(model.thresholds, plan.threshold) else model.thresholds,
            **counts_of(self.network),
        )


def _covers(thresholds: tuple[float, float] | None, threshold: float) -> bool:
    return thresholds is None or thresholds[0] <= threshold <= thresholds[1]
