"""An emitted network in the user's hands."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bhc.emission.alarm import NAME, Alarm, outside_score
from bhc.emission.report import Report, from_card, from_version_1
from bhc.errors import BhcError
from bhc.files import write_bytes
from bhc.formats import (
    NetworkFile,
    Part,
    QuantisedNetwork,
    WeightForm,
    c_text,
    identifier,
    onnx_bytes,
    pack,
    packed_parts,
    parse_network,
    read_network,
    torch_bytes,
)
from bhc.graph import INPUT, Inputs
from bhc.layers import check_words, kind_of


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
        """The classes its outputs stand for."""
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
    def predict(self, x: Tensor | Sequence[Tensor] | Mapping[str, Tensor]) -> Prediction:
        """Labels and probabilities; the probabilities are calibrated on validation data where there was any.

        Where the network takes several inputs, ``x`` is a tuple of them or a dict by name. Each example also gets a
        score for lying outside the context, and with ``flag_outside`` a verdict.
        """
        given = self.network.signature.taken(x)
        self._check_words(given)
        logits = self.network.graph.run(given)
        numbering = torch.tensor(self.classes)
        probabilities = torch.softmax(logits / self.temperature, dim=1)
        labels = numbering[logits.argmax(1)]
        if self.alarm is None:
            return Prediction(labels, probabilities, self.classes, outside_score(logits))
        scores, flags = self.alarm.score(logits), self.alarm.flags(logits)
        return Prediction(labels, probabilities, self.classes, scores, flags)

    def _check_words(self, x: Inputs) -> None:
        graph = self.network.graph
        values = dict(zip(graph.given or (INPUT,), (x,) if isinstance(x, Tensor) else x, strict=True))
        for step in graph.steps:
            words = kind_of(step.module).words(step.module)
            if words is not None and step.reads[0] in values:
                check_words(values[step.reads[0]], words[0])

    def save(self, path: str | Path, *, overwrite: bool = False) -> "Compressed":
        """Write a packed ``.bhc`` file in one step, once it was found to read back."""
        content = self.to_bytes()
        parse_network(content, Path(path))
        _write(Path(path), content, overwrite=overwrite)
        return self

    def to_bytes(self) -> bytes:
        """The content of the ``.bhc`` file."""
        return pack(self.network) if self.packed is None else self.packed

    def parts(self) -> tuple[Part, ...]:
        """What the bytes of the ``.bhc`` file are for."""
        return packed_parts(self.network)

    def to_onnx(
        self, path: str | Path, *, weights: WeightForm = WeightForm.FLOATS, overwrite: bool = False
    ) -> "Compressed":
        """Write an ONNX model: float32 inputs as stored, logits out, any batch size."""
        _write(Path(path), self.onnx_content(weights=weights), overwrite=overwrite)
        return self

    def onnx_content(self, *, weights: WeightForm = WeightForm.FLOATS) -> bytes:
        """The content of the ``.onnx`` file."""
        self._check_form(weights)
        return onnx_bytes(self.network, weights=weights, metadata=self.metadata())

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
        content = self.c_content(name or identifier(Path(path).stem), weights=weights)
        _write(Path(path), content, overwrite=overwrite)
        return self

    def c_content(self, name: str, *, weights: WeightForm | None = None) -> bytes:
        """The content of the C header."""
        weights = weights or (WeightForm.INTEGERS if self.network.weights else WeightForm.FLOATS)
        self._check_form(weights)
        about = {"context": _one_line(self.report.context), "validation error": _error_text(self.report)}
        return c_text(self.network, name, weights=weights, about=about).encode()

    def to_torch(self, path: str | Path, *, overwrite: bool = False) -> "Compressed":
        """Write a torch ``ExportedProgram`` (``.pt2``), which loads without bhc."""
        _write(Path(path), self.torch_content(), overwrite=overwrite)
        return self

    def torch_content(self) -> bytes:
        """The content of the ``.pt2`` file."""
        return torch_bytes(self.network, metadata=self.metadata())

    def _check_form(self, weights: WeightForm) -> None:
        if not isinstance(weights, WeightForm):
            raise BhcError(
                f"weights={weights!r} is not a form", hint="give bhc.WeightForm.FLOATS, INTEGERS or BIT_PACKED"
            )
        if weights is not WeightForm.FLOATS and not self.network.weights:
            raise BhcError(
                f"this network has 32-bit weights and cannot be written with {weights.value}",
                hint="emit it with bit widths (without Float32() or --float32), or choose floats",
            )

    def metadata(self) -> dict[str, Any]:
        """What exported files carry beside the network."""
        names = self.report.class_names or tuple(map(str, self.classes))
        alarm = {} if self.alarm is None else {NAME: self.alarm.to_card()}
        return {
            "context": self.report.context,
            "input_shape": list(self.input_shape),
            **({"inputs": self.network.signature.to_list()} if self.network.graph.given else {}),
            "classes": list(self.classes),
            "class_names": list(names),
            "temperature": self.temperature,
            "report": self.report.to_dict(),
            **alarm,
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


def _one_line(context: dict[str, Any]) -> str:
    return "; ".join(f"{name} {value}" for name, value in context.items()) or "none"


def _error_text(report: Report) -> str:
    return "unknown" if report.error is None else f"{report.error:.2f} %"
