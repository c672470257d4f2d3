"""An emitted network in the user's hands."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from bhc.emission.guarantee import NAME, Alarm, outside_score
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
