"""An emitted network in the user's hands."""

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, nn

from bhc.emission.report import Report
from bhc.errors import BhcError
from bhc.files import write_bytes
from bhc.formats import EmittedNetwork, read_network, to_bytes


@dataclass(frozen=True)
class Prediction:
    """Answers in the original numbering."""

    labels: Tensor  # (N,)
    probabilities: Tensor  # (N, classes), columns in the order of ``classes``
    classes: tuple[int, ...]


@dataclass(frozen=True)
class Compressed:
    """A plain module with what is known about it."""

    module: nn.Sequential
    report: Report
    input_shape: tuple[int, ...]
    temperature: float = 1.0

    @property
    def classes(self) -> tuple[int, ...]:
        """The classes its outputs stand for."""
        return self.report.classes

    @torch.no_grad()
    def predict(self, x: Tensor) -> Prediction:
        """Labels and probabilities; the probabilities are calibrated on validation data where there was any."""
        if tuple(x.shape[1:]) != self.input_shape:
            raise BhcError(
                f"inputs of shape {tuple(x.shape)}",
                hint=f"this network takes a batch of shape (n, {', '.join(map(str, self.input_shape))})",
            )
        logits = self.module(x)
        numbering = torch.tensor(self.classes)
        probabilities = torch.softmax(logits / self.temperature, dim=1)
        return Prediction(numbering[logits.argmax(1)], probabilities, self.classes)

    def save(self, path: str | Path, *, overwrite: bool = False) -> "Compressed":
        """Write a ``.bhc`` file in one step; returns the network with the file's size in its report."""
        path = Path(path)
        if path.exists() and not overwrite:
            raise BhcError(f"{path} exists already", hint="give another name, or overwrite=True (--force)")
        saved = self.measured()
        write_bytes(path, saved.to_bytes())
        return saved

    def measured(self) -> "Compressed":
        """The same network with ``file_bytes`` in its report: the exact size of its file."""
        return replace(self, report=replace(self.report, file_bytes=len(self.to_bytes())))

    def to_bytes(self) -> bytes:
        """The content of the file. Its report leaves the size out: stating it would change it."""
        report = replace(self.report, file_bytes=None).to_dict()
        return to_bytes(EmittedNetwork(self.module, self.input_shape, self.temperature, report))


def read(path: str | Path) -> Compressed:
    """Read a ``.bhc`` file."""
    network = read_network(Path(path))
    try:
        report = Report.from_dict(network.report)
    except (KeyError, TypeError) as error:
        raise BhcError(f"{path} is damaged: its report lacks {error}") from error
    if len(report.classes) != network.num_outputs:
        raise BhcError(f"{path} is damaged: {len(report.classes)} classes for another number of outputs")
    sized = replace(report, file_bytes=Path(path).stat().st_size)
    return Compressed(network.module, sized, network.input_shape, network.temperature)
