"""What came out, in numbers and in words."""

from collections.abc import Mapping
from copy import copy, deepcopy
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np

from bhc.emission.guarantee import Alarm, Guarantee
from bhc.formats import QuantisedNetwork, c_memory_if_any
from bhc.training import FAR

ALMOST_WHOLE = 1e-9

LONGEST_NAME = 60  # letters, of what an error is called
MOST_GONE = 4  # layers that went, where they are told


@dataclass(frozen=True)
class Sizes:
    """What a network takes."""

    weights: int
    flops: int
    file_bytes: int

    def __str__(self) -> str:
        return f"{self.weights:,} weights, {self.flops:,} FLOPs, {self.file_bytes:,} bytes"


ORIGINS = ("hypernetwork", "curvature")  # where weights come from; files store the number, but for the first
PARTS: dict[str, type[Any]] = {"guarantee": Guarantee, "without_multiples": Sizes}  # of a report, with fields of theirs


@dataclass(frozen=True)
class Report:
    """One emitted network. Errors are validation errors in percent; None where no data was at hand.

    Where classes appear unequally often, they are the errors to be expected under these frequencies.
    """

    context: dict[str, Any]
    classes: tuple[int, ...]
    threshold: float
    scale: float | None  # rounding adds this part of a weight's variance; None: 32-bit floats
    layers: tuple[str, ...]
    architecture_before: tuple[int, ...]
    architecture: tuple[int, ...]
    bits: tuple[int, ...]  # of each layer's weights
    reference_bits: tuple[int, ...] | None  # the same as the published code counts them, for tables
    layer_weights: tuple[int, ...]  # how many of them are left
    weights_before: int
    weights_after: int
    parameter_bytes_before: int  # float32 weights and biases of the original
    flops_before: int
    flops_after: int
    ram_bytes: int | None  # constants and activations of the C form, where it has one
    error_before: float | None
    error: float | None
    validation_images: int
    class_names: tuple[str, ...] | None = None  # of ``classes``, where they are not the numbers
    rescued: tuple[str, ...] = ()  # layers of which one unit was kept although none was under the threshold
    outside: tuple[float, float] | None = None  # the consolidated range, where the threshold lies outside it
    guarantee: Guarantee | None = None  # where a confidence was asked for
    domain_distance: float | None = None  # from the domains of training, where 1 is usual; not kept in files
    latency_ms: float | None = None  # where it was asked for
    emit_ms: float | None = None  # from the context to the bytes of the file
    file_bytes: int | None = None
    ece_before: float | None = None  # expected calibration error, percent; files do not store it
    ece: float | None = None
    flag_outside: float | None = None  # rate of false alarms, where inputs outside the context are flagged
    outside_auroc: float | None = None  # on validation images of classes left out; files do not store it
    whole: tuple[str, ...] = ()  # what cannot get smaller, and why; files do not store it
    gone: tuple[str, ...] = ()  # layers that went with their branches; files do not store it
    heads_before: tuple[int, ...] = ()  # of each attention; files do not store how many there were
    heads: tuple[int, ...] = ()
    parameters_after: int | None = None  # with biases, gains and shifts; reports of before do not know it
    round_to: int | dict[str, int] | None = None  # channels are multiples of it, those that a layer writes of its own
    error_name: str = "error"  # what the task calls it
    higher_is_better: bool = False  # then 100 less the error goes by that name
    has_answers: bool = True  # whether outputs are there to choose one of
    without_multiples: Sizes | None = None  # at the same threshold, with the same steps; files do not store it
    origin: str = ORIGINS[0]  # where its weights come from
    margin: float | None = None  # points of error over the original that it was tested to keep; files do not store it

    @property
    def parameters_before(self) -> int:
        return self.parameter_bytes_before // 4

    @property
    def pruning_ratio(self) -> float:
        """Dense weights of the original over dense weights kept; biases, gains and shifts are not counted."""
        return self.weights_before / self.weights_after

    @property
    def bits_ratio(self) -> float:
        """The same with the bit widths counted."""
        return 32 * self.weights_before / self._stored_bits(self.bits)

    @property
    def reference_bits_ratio(self) -> float | None:
        """The same with the published code's bit widths."""
        bits = self.reference_bits
        return None if bits is None else 32 * self.weights_before / self._stored_bits(bits)

    def _stored_bits(self, bits: tuple[int, ...]) -> int:
        whole = self.weights_after - sum(self.layer_weights)  # of steps that are not rounded
        return 32 * whole + sum(width * count for width, count in zip(bits, self.layer_weights, strict=True))

    @property
    def file_ratio(self) -> float | None:
        """Float32 bytes of the original's weights and biases over the bytes of the file, all of it."""
        return None if not self.file_bytes else self.parameter_bytes_before / self.file_bytes

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the numbers should know."""
        notes = [
            f"no input of {name} had its writer and its reader under the threshold; the least noisy was kept"
            for name in self.rescued
        ]
        notes += [f"stays whole: {text}" for text in self.whole]
        if self.gone:
            shown = ", ".join(self.gone[:MOST_GONE]) + (", ..." if len(self.gone) > MOST_GONE else "")
            one = len(self.gone) == 1
            went = "1 layer went with its branch" if one else f"{len(self.gone)} layers went with their branches"
            notes.append(f"{went}: {shown}")
        if self.has_answers and len(self.classes) == 1:
            notes.append("one class leaves one possible answer, so the error says nothing")
        if "domain" in self.context and self.error is None:
            notes.append("no error is given: the run's labelled sample is not limited to this domain")
        return (*notes, *(note for note in (self.domain_note, self.threshold_note) if note is not None))

    @property
    def domain_note(self) -> str | None:
        """What there is to say where the domain is unlike those of training."""
        if self.domain_distance is None or self.domain_distance <= FAR:
            return None
        return (
            f"the domain lies {self.domain_distance:.1f} times as far from those seen in training as is usual;"
            " expect a higher error"
        )

    @property
    def threshold_note(self) -> str | None:
        """What there is to say where the threshold was not covered by consolidation."""
        if self.outside is None:
            return None
        low, high = self.outside
        return (
            f"threshold {self.threshold:g} lies outside {low:g} to {high:g}, the range this model was"
            " consolidated for; expect a higher error"
        )

    @property
    def _multiples_text(self) -> str:
        by_layer = self.round_to if isinstance(self.round_to, dict) else {"every layer": self.round_to}
        channels = ", ".join(f"{multiple} in {name}" for name, multiple in by_layer.items())
        without = self.without_multiples
        return f"of {channels}" + ("" if without is None else f"; not rounded, this threshold has {without}")

    def shown(self, error: float) -> float:
        """An error in percent as the task names it."""
        return 100 - error if self.higher_is_better else error

    @property
    def _examples(self) -> str:
        return "images" if _named(self) is None else "examples"

    def to_dict(self) -> dict[str, Any]:
        """All fields, ratios and notes as plain data."""
        derived = ("parameters_before", "pruning_ratio", "bits_ratio", "reference_bits_ratio", "file_ratio", "notes")
        stored = {field.name: getattr(self, field.name) for field in fields(self)}
        stored |= {"context": deepcopy(self.context), "round_to": copy(self.round_to)}
        for name in PARTS:
            stored[name] = stored[name] and asdict(stored[name])
        return stored | {name: getattr(self, name) for name in derived}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Report":
        known = {field.name for field in fields(cls)}
        values: dict[str, Any] = {name: value for name, value in data.items() if name in known}
        tuples: dict[str, Any] = {name: tuple(v) for name, v in values.items() if isinstance(v, list)}
        parts = {name: part(**values[name]) for name, part in PARTS.items() if values.get(name)}
        return cls(**(values | tuples | parts))

    def __str__(self) -> str:
        rows = [
            ("context", _context_text(self.context)),
            ("architecture", f"{_dashes(self.architecture_before)} -> {_dashes(self.architecture)}"),
            *([("heads", f"{_dashes(self.heads_before)} -> {_dashes(self.heads)}")] if self.heads_before else []),
            ("weights", f"{self.weights_before:,} -> {self.weights_after:,}  ({self.pruning_ratio:,.1f} x smaller)"),
            ("FLOPs", f"{self.flops_before:,} -> {self.flops_after:,}"),
            ("bits", f"{_dashes(self.bits)}  ({self.bits_ratio:,.0f} x smaller)"),
        ]
        if self.file_bytes and self.file_ratio:
            rows.append(("file", f"{self.file_bytes:,} bytes  ({self.file_ratio:,.0f} x smaller)"))
        if self.round_to is not None:
            rows.append(("multiples", self._multiples_text))
        if self.ram_bytes is not None:
            rows.append(("in C", f"{self.ram_bytes:,} bytes of constants and activations"))
        if self.error is not None:
            before = "" if self.error_before is None else f"{self.shown(self.error_before):.2f} % -> "
            images = f"validation, {self.validation_images:,} {self._examples}"
            rows.append((self.error_name, f"{before}{self.shown(self.error):.2f} %  ({images})"))
        if self.margin is not None:
            rows.append(("margin", f"less than {self.margin:g} points over the original, at 95 % confidence"))
        if self.guarantee is not None:
            rows.append(("guarantee", f"{self.guarantee.promise} ({self.guarantee.images:,} {self._examples})"))
        if self.domain_distance is not None:
            rows.append(("domain", f"{self.domain_distance:.2f} of the usual distance from those seen in training"))
        if self.ece is not None:
            before = "" if self.ece_before is None else f"{self.ece_before:.2f} % -> "
            rows.append(("calibration", f"{before}{self.ece:.2f} %  (expected calibration error, validation)"))
        if self.flag_outside is not None:
            area = self.outside_auroc
            tried = "" if area is None else f"; AUROC {area:.3f} on validation images of classes left out"
            rate = f"{100 * self.flag_outside:g} % false alarms where it was set"
            rows.append(("flags outside", f"at most {rate}{tried}"))
        if self.latency_ms is not None:
            rows.append(("latency", f"{self.latency_ms:.3f} ms  (onnxruntime, one input, one thread)"))
        rows.append(_origin_row(self))
        if self.emit_ms is not None:
            rows.append(("emitted in", f"{self.emit_ms:.1f} ms"))
        rows += [("note", note) for note in self.notes]
        width = max(13, *(len(name) for name, _ in rows))  # a task's error may be called by a longer name
        return "\n".join(f"{name:<{width}} {value}" for name, value in rows)


def _origin_row(report: Report) -> tuple[str, str]:
    scale = "" if report.scale is None else f", scale {report.scale:.2g}"
    if report.origin == ORIGINS[0]:
        return "threshold", f"{report.threshold:g}{scale}"
    return "origin", f"the pretrained network, without what its curvature can spare{scale}"


def to_card(report: Report) -> dict[str, Any]:
    """What a packed file stores of a report: what cannot be counted from the network itself."""
    card: dict[str, Any] = {
        "context": report.context,
        "threshold": report.threshold,
        "scale": report.scale,
        "architecture_before": list(report.architecture_before),
        "weights_before": report.weights_before,
        "parameter_bytes_before": report.parameter_bytes_before,
        "flops_before": report.flops_before,
        "images": report.validation_images or None,
        "wrong_before": _count(report.error_before, report.validation_images),
        "wrong": _count(report.error, report.validation_images),
        "reference_bits": None if report.reference_bits is None else list(report.reference_bits),
        "rescued": [report.layers.index(name) for name in report.rescued] or None,
        "outside": None if report.outside is None else list(report.outside),
        "class_names": None if report.class_names is None else list(report.class_names),
        "guarantee": None if report.guarantee is None else _promise(report.guarantee),
        "round_to": report.round_to,
        "measure": _named(report),
        "origin": ORIGINS.index(report.origin) or None,
    }
    return {name: value for name, value in card.items() if value is not None}


def from_card(network: QuantisedNetwork, *, file_bytes: int | None = None) -> Report:
    """The report of a network that was read; KeyError, TypeError or ValueError if its card is damaged."""
    card, layers = network.card, network.layers
    images = int(card.get("images", 0))
    reference, outside, names = card.get("reference_bits"), card.get("outside"), card.get("class_names")
    alarm = Alarm.of(card)
    before = tuple(_positive(width) for width in card["architecture_before"])
    if len(before) != len(layers) or (reference is not None and len(reference) != len(layers)):
        raise ValueError("its report is about another number of layers")
    if names is not None and (len(names) != len(network.labels) or not all(isinstance(name, str) for name in names)):
        raise ValueError("its report names another number of classes")
    return Report(
        context=dict(card["context"]),
        classes=network.labels,
        threshold=float(card["threshold"]),
        origin=dict(enumerate(ORIGINS))[card.get("origin", 0)],
        scale=None if card.get("scale") is None else float(card["scale"]),
        architecture_before=before,
        reference_bits=None if reference is None else tuple(int(bits) for bits in reference),
        weights_before=_positive(card["weights_before"]),
        parameter_bytes_before=_positive(card["parameter_bytes_before"]),
        flops_before=_positive(card["flops_before"]),
        error_before=_percent(card.get("wrong_before"), images),
        error=_percent(card.get("wrong"), images),
        validation_images=images,
        class_names=None if names is None else tuple(names),
        rescued=tuple(layers[place].name for place in card.get("rescued", ())),
        outside=None if outside is None else (float(outside[0]), float(outside[1])),
        guarantee=_promised(card.get("guarantee")),
        round_to=_multiples(card.get("round_to")),
        **_measure(card.get("measure")),
        file_bytes=file_bytes,
        flag_outside=None if alarm is None else alarm.rate,
        **counts_of(network),
    )


def counts_of(network: QuantisedNetwork) -> dict[str, Any]:
    """The fields that follow from the network alone."""
    layers = network.layers
    return {
        "layers": tuple(layer.name for layer in layers),
        "architecture": tuple(layer.width for layer in layers),
        "bits": tuple(layer.bits for layer in layers),
        "layer_weights": tuple(layer.num_weights for layer in layers),
        "weights_after": network.counts.weights,
        "parameters_after": network.counts.parameters,
        "flops_after": network.counts.flops,
        "ram_bytes": None if (memory := c_memory_if_any(network)) is None else memory.total,
    }


def from_version_1(network: QuantisedNetwork, report: Mapping[str, Any], *, file_bytes: int) -> Report:
    """The report of a file of version 1, which knew less."""
    known = dict(report) | {"scale": None, "reference_bits": None} | counts_of(network)
    return replace(Report.from_dict(known), file_bytes=file_bytes)


def _count(error: float | None, images: int) -> float | None:
    """Wrong answers; where images count for more or less than one, as exact as a float of 32 bits."""
    if error is None:
        return None
    count = error * images / 100
    return round(count) if abs(count - round(count)) < ALMOST_WHOLE else float(np.float32(count))


def _percent(wrong: Any, images: int) -> float | None:
    if wrong is None or not images:
        return None
    count = wrong if isinstance(wrong, float) else int(wrong)
    if not 0 <= count <= images:
        raise ValueError("more wrong answers than images")
    return 100 * count / images


def _promise(guarantee: Guarantee) -> list[float]:
    """Percentages and counts: most often whole numbers, which take a byte or two."""
    percent = 100 * guarantee.confidence
    tidy = round(percent, 6)
    shown = (guarantee.max_error, tidy if tidy / 100 == guarantee.confidence else percent)
    return [*(int(x) if float(x).is_integer() else float(x) for x in shown), guarantee.images, guarantee.wrong]


def _promised(entry: Any) -> Guarantee | None:
    if entry is None:
        return None
    error, percent, images, wrong = entry
    guarantee = Guarantee(float(error), float(percent) / 100, _positive(images), _total(wrong))
    if not (0 < guarantee.max_error <= 100 and 0 < guarantee.confidence < 1 and 0 <= guarantee.wrong < images):
        raise ValueError("its guarantee is none")
    return guarantee


def _total(wrong: Any) -> float:
    if isinstance(wrong, bool) or not isinstance(wrong, int | float):
        raise ValueError("its guarantee is none")
    return wrong


def _named(report: Report) -> list[Any] | None:
    """How its task measures; nothing of a classification."""
    measure = [report.error_name, report.higher_is_better, report.has_answers]
    return None if measure == ["error", False, True] else measure


def _measure(entry: Any) -> dict[str, Any]:
    """What the error of a task is called."""
    match entry:
        case None:
            return {}
        case [str(name), bool(higher), bool(answers)] if name.isprintable() and 0 < len(name) <= LONGEST_NAME:
            return {"error_name": name, "higher_is_better": higher, "has_answers": answers}
    raise ValueError("its measure is none")


def _multiples(entry: Any) -> int | dict[str, int] | None:
    if isinstance(entry, dict):
        return {str(name): _positive(multiple) for name, multiple in entry.items()}
    return None if entry is None else _positive(entry)


def _positive(number: Any) -> int:
    if type(number) is not int or number < 1:
        raise ValueError(f"{str(number)[:60]} in the place of a count")
    return number


def _dashes(numbers: tuple[int, ...]) -> str:
    return "-".join(map(str, numbers))


def _context_text(context: dict[str, Any]) -> str:
    def text(value: Any) -> str:
        return f"{value:.4g}" if isinstance(value, float) else str(value)

    values = ((name, value if isinstance(value, list) else [value]) for name, value in context.items())
    return " + ".join(f"{name} {', '.join(map(text, value))}" for name, value in values) or "no condition"
