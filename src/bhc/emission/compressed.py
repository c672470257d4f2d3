"""What is asked for, and what comes out. A request has a context, limits on the network, how exact its weights are, and
which widths suit; an emitted network, in the user's hands, is written in several forms.

Limits never reach the hypernetwork; they choose among what it offers.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from math import inf
from numbers import Real
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bhc.contexts import Context
from bhc.emission.guarantee import NAME, Alarm, AlarmSamples, outside_score
from bhc.emission.report import Report, from_card, from_version_1
from bhc.errors import BhcError
from bhc.files import write_bytes
from bhc.formats import (
    Export,
    NetworkFile,
    Packed,
    QuantisedNetwork,
    WeightForm,
    format_named,
    format_wanted,
    identifier,
    pack,
    parse_network,
    read_network,
)
from bhc.layers import NoForm
from bhc.posterior import Family, Multiples

LARGEST_THRESHOLD = 1_000_000  # no log dropout rate comes near it
WHOLE = {  # limits on counts
    "max_bytes": "bytes",
    "max_weights": "weights",
    "max_flops": "operations",
    "max_ram_bytes": "bytes",
}
# The cheapest to check first.
PROMISES = ("max_weights", "max_flops", "max_ram_bytes", "max_bytes", "max_error", "max_latency_ms")


@dataclass(frozen=True)
class Limits:
    """All None: the smallest network that is as good as the original."""

    threshold: float | None = None  # cut exactly here
    max_bytes: int | None = None  # of the packed file, everything in it
    max_flops: int | None = None  # two a multiply-add, for one input
    max_error: float | None = None  # percent, on the run's validation sample
    max_ram_bytes: int | None = None  # constants and activations of the C form
    max_latency_ms: float | None = None  # onnxruntime here, batch 1, one thread, median
    confidence: float | None = None  # that max_error holds for new data, a part of 1
    max_weights: int | None = None  # dense ones that stay, as pruning ratios count them
    margin: float | None = None  # points of error over the original, where nothing else is asked for

    def __post_init__(self) -> None:
        for each in fields(self):
            value: Any = getattr(self, each.name)
            if value is None:
                continue
            is_number = isinstance(value, Real) and not isinstance(value, bool)
            if not is_number or not -inf < value < inf:
                raise BhcError(f"{each.name} must be a number, given {value!r}")
            if each.name not in ("threshold", "confidence") and value <= 0:
                raise BhcError(
                    f"{each.name} must be more than zero, given {value}",
                    hint="no sample can promise zero errors; ask for a small percentage such as 0.1"
                    if each.name == "max_error"
                    else "leave it out for no such limit",
                )
            if each.name in WHOLE:
                if value != int(value):
                    raise BhcError(
                        f"{each.name} is a whole number of {WHOLE[each.name]}, given {value}",
                        hint=f"{int(value)} is the next lower one",
                    )
                object.__setattr__(self, each.name, int(value))
        if self.threshold is not None and abs(self.threshold) > LARGEST_THRESHOLD:
            raise BhcError(f"the threshold must be a number within {LARGEST_THRESHOLD:,}, given {self.threshold}")
        if self.margin is not None and (self.threshold is not None or self.promised):
            raise BhcError(
                "a margin says what is as good as the original, where no limit says what is wanted",
                hint="leave out the margin, or the limits",
            )
        if self.max_error is not None and self.max_error > 100:
            raise BhcError(f"max_error is in percent, given {self.max_error:g}", hint="1.5 means 1.5 %")
        if self.confidence is not None and not 0 < self.confidence < 1:
            raise BhcError(
                f"confidence must lie between 0 and 1, given {self.confidence:g}", hint="0.95 is the usual one: 95 %"
            )
        if self.confidence is not None and self.max_error is None:
            raise BhcError(
                "confidence is that of an error, and no max_error was given",
                hint="say which error must not be exceeded, such as max_error=1, or leave confidence out",
            )

    @property
    def promised(self) -> dict[str, float]:
        """The limits that a network can break, by name; a threshold is not one, it is where the cut is made."""
        return {name: getattr(self, name) for name in PROMISES if getattr(self, name) is not None}

    def broken_by(self, figures: Mapping[str, float]) -> dict[str, float]:
        """Those of a network's figures, by the names of their limits, that are over them."""
        return {name: figure for name, figure in figures.items() if not figure <= self.promised[name]}

    @property
    def bound_size(self) -> bool:
        """Whether anything but the error is limited."""
        return bool(self.promised.keys() - {"max_error"})

    @property
    def searched(self) -> bool:
        """Whether a threshold has to be looked for."""
        return self.threshold is None and (self.bound_size or self.max_error is not None)


# Powers of two: a step 1.4 times as coarse each, and two bytes in a file. Finer ones cost bytes and gained nothing on
# validation data.
SCALES = tuple(2.0**power for power in range(-6, 4))

# For weights that go one by one: those that stay may be far more uncertain than they are large. Of groups hardly any
# are; finer steps are tried where the finest of the usual ones does harm.
FINER_SCALES = tuple(2.0**power for power in range(-12, -6))


def scales_for(family: Family) -> tuple[float, ...]:
    """The scales to try first on networks of a family, in ascending order."""
    return (*FINER_SCALES, *SCALES) if family.cuts_weights else SCALES


@dataclass(frozen=True)
class Float32:
    """32-bit floats: pruning alone."""


@dataclass(frozen=True)
class VarianceBits:
    """Steps from the posterior's variance; ``scale`` None has their common scale searched on validation data."""

    scale: float | None = None

    def __post_init__(self) -> None:
        if self.scale is not None and not 1e-6 <= self.scale <= 1e6:
            raise BhcError(f"the scale of the steps must lie between 1e-6 and 1e6, given {self.scale}")


Quantisation = Float32 | VarianceBits


@dataclass(frozen=True)
class Request:
    context: Context
    limits: Limits = field(default_factory=Limits)
    quantisation: Quantisation = field(default_factory=VarianceBits)
    alarm_samples: AlarmSamples | None = None  # inputs outside the context are flagged by what these say
    multiples: Multiples | None = None  # of which the channels of layers are


@dataclass(frozen=True)
class Prediction:
    """Answers in the original numbering."""

    labels: Tensor  # (N,)
    probabilities: Tensor  # (N, classes), columns in the order of ``classes``
    classes: tuple[int, ...]
    outside_score: Tensor  # (N,), larger means more likely outside the context
    outside: Tensor | None = None  # (N,), bool: flagged as outside; None if the network was not made to


@dataclass(frozen=True)
class Compressed:
    """A plain module with what is known about it, ready to be written in several forms."""

    network: QuantisedNetwork
    report: Report
    packed: bytes | None = field(default=None, repr=False, compare=False)  # the file, where it was made already

    @cached_property
    def module(self) -> nn.Module:
        """A plain ``nn.Module``, the caller's own: what is done to it changes neither this nor the model."""
        return self.network.module()

    @property
    def classes(self) -> tuple[int, ...]:
        """What its outputs stand for, in their order: classes, or with a task of one's own the original's outputs."""
        return self.network.labels

    @property
    def input_shape(self) -> tuple[int, ...]:
        return self.network.input_shape

    @property
    def temperature(self) -> float:
        """Logits are divided by it before the softmax; chosen on validation data where there was any."""
        return self.network.temperature

    @cached_property
    def alarm(self) -> Alarm | None:
        """What flags inputs outside the context; None unless it was asked for with ``flag_outside``."""
        return Alarm.of(self.network.card)

    @torch.no_grad()
    def outputs(self, x: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Tensor:  # (n, outputs, ...)
        """What the network gives for inputs that fit it: the outputs of ``classes``, in that order."""
        given = self.network.signature.taken(x)
        try:
            return self.network.graph.run(given)
        except RuntimeError as error:
            if not any(each.dynamic for each in self.network.signature):
                raise
            raise BhcError(
                f"the network does not run on inputs of these sizes: {str(error).splitlines()[0][:200]}",
                hint="inputs that belong together, such as words and their mask, must have the same length",
            ) from error

    @torch.no_grad()
    def predict(self, x: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Prediction:
        """Labels and probabilities; the probabilities are calibrated on validation data where there was any.

        Where the network takes several inputs, ``x`` is a tuple of them or a dict by name. Each example also gets a
        score for lying outside the context, and with ``flag_outside`` a verdict.
        """
        if not self.report.has_answers:
            raise BhcError(
                f"this network has no answers to choose among: its task measures {self.report.error_name!r}",
                hint="outputs(x) gives what it says",
            )
        logits = self.outputs(x)
        numbering = torch.tensor(self.classes)
        probabilities = torch.softmax(logits / self.temperature, dim=1)
        labels = numbering[logits.argmax(1)]
        if self.alarm is None:
            return Prediction(labels, probabilities, self.classes, outside_score(logits))
        scores, flags = self.alarm.score(logits), self.alarm.flags(logits)
        return Prediction(labels, probabilities, self.classes, scores, flags)

    def save(self, path: str | Path, *, overwrite: bool = False) -> "Compressed":
        """Write a packed ``.bhc`` file in one step, once it was found to read back."""
        content = self.to_bytes()
        parse_network(content, Path(path))
        _write(Path(path), content, overwrite=overwrite)
        return self

    def to_bytes(self) -> bytes:
        """The content of the ``.bhc`` file."""
        return pack(self.network) if self.packed is None else self.packed

    def content(self, format: str, *, weights: WeightForm | None = None, name: str = "network") -> bytes:
        """The content of a file in one of the registered formats, by its name.

        ``weights`` are held as the format usually does, or as 32-bit floats where the network has no others.
        """
        chosen = format_named(format)
        form = chosen.weights_for(self.network, weights)
        if self.packed is not None and chosen.name == Packed.name:
            return self.packed
        try:
            return chosen.write(self.network, Export(form, name, self.metadata()))
        except NoForm as problem:
            raise BhcError(f"this network cannot be written as {chosen.name}: {problem}") from problem

    def export(
        self,
        path: str | Path,
        format: str | None = None,
        *,
        weights: WeightForm | None = None,
        name: str | None = None,
        overwrite: bool = False,
    ) -> "Compressed":
        """Write a file in any format: the one that ``path`` ends in, or the one that is named.

        ``name`` is that of the function, in formats that are code; by default the file's.
        """
        target = Path(path)
        chosen = format_wanted(target, format)
        content = self.content(chosen.name, weights=weights, name=name or identifier(target.stem))
        _write(target, content, overwrite=overwrite)
        return self

    def to_onnx(
        self, path: str | Path, *, weights: WeightForm = WeightForm.FLOATS, overwrite: bool = False
    ) -> "Compressed":
        """Write an ONNX model: inputs as stored, logits out, any batch size."""
        return self.export(path, "onnx", weights=weights, overwrite=overwrite)

    def to_c(
        self,
        path: str | Path,
        *,
        name: str | None = None,
        weights: WeightForm | None = None,
        overwrite: bool = False,
    ) -> "Compressed":
        """Write a C99 header with ``int <name>_predict(const float *input, float *scores)``.

        ``weights`` are whole-byte integers by default, or floats where the network has no others.
        """
        return self.export(path, "c", weights=weights, name=name, overwrite=overwrite)

    def to_torch(self, path: str | Path, *, overwrite: bool = False) -> "Compressed":
        """Write a torch ``ExportedProgram`` (``.pt2``), which loads without bhc."""
        return self.export(path, "pt2", overwrite=overwrite)

    def metadata(self) -> dict[str, Any]:
        """What exported files carry beside the network."""
        return {
            "context": self.report.context,
            "input_shape": list(self.input_shape),
            **({"inputs": self.network.signature.to_list()} if self.network.graph.input_steps else {}),
            "classes": list(self.classes),
            "class_names": list(self.report.class_names or map(str, self.classes)),
            "temperature": self.temperature,
            "report": self.report.to_dict(),
            **({} if self.alarm is None else {NAME: self.alarm.to_card()}),
        }


def read(path: str | Path) -> Compressed:
    """Read a ``.bhc`` file."""
    return from_file(read_network(Path(path)), Path(path))


def from_file(file: NetworkFile, path: Path) -> Compressed:
    """The network of a file that was read, with its report."""
    try:
        if file.old_report is not None:
            report = from_version_1(file.network, file.old_report, file_bytes=file.size)
        else:
            report = from_card(file.network, file_bytes=file.size)
    except (KeyError, TypeError, ValueError, IndexError, OverflowError) as error:
        raise BhcError(f"{path} is damaged: its report is not one ({error})", hint="copy or make it again") from error
    return Compressed(file.network, report)


def _write(path: Path, content: bytes, *, overwrite: bool) -> None:
    if os.path.exists(path) and not overwrite:  # Path.exists raises for a name that is too long
        raise BhcError(f"{path} exists already", hint="give another name, or overwrite=True (--force)")
    write_bytes(path, content)
