"""The run folder: what a trained model is on disk.

``run.json``                 version, shapes, recipe, trade-off curves; written last
``model.safetensors``        base network and hypernetwork
``validation.safetensors``   a capped sample of the validation set, uint8
``metrics.jsonl``            the diary
``checkpoint.safetensors``   while training: everything needed to go on to the same bits
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.data import Split
from bhc.errors import BhcError
from bhc.files import read_json, write_json
from bhc.hypernet import ConditionalNetwork
from bhc.tensors import read_tensors, write_tensors
from bhc.training.metrics import MetricsFile

VERSION = 1
VALIDATION_PER_CLASS = 500


@dataclass(frozen=True)
class RunFolder:
    """Paths and readers of one run."""

    path: Path

    @property
    def description(self) -> Path:
        return self.path / "run.json"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def validation(self) -> Path:
        return self.path / "validation.safetensors"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def metrics(self) -> MetricsFile:
        return MetricsFile(self.path / "metrics.jsonl")


@dataclass
class TrainedModel:
    """A network with what was learned about using it."""

    network: ConditionalNetwork
    validation: Split | None = None
    class_names: tuple[str, ...] | None = None
    thresholds: tuple[float, float] | None = None  # the range consolidation covered
    default_threshold: float = 0.0
    training: dict[str, Any] = field(default_factory=dict)  # recipe, seed, curves: for people and plots


def save_run(folder: RunFolder, model: TrainedModel) -> None:
    """Write a finished run; ``run.json`` comes last and makes it one."""
    write_tensors(folder.model, network_tensors(model.network), {"gates": model.network.hypernet.gates is not None})
    if model.validation is not None:
        tensors = {"images": model.validation.images, "labels": model.validation.labels}
        write_tensors(folder.validation, tensors, {})
    write_json(
        folder.description,
        {
            "format": "bhc-run",
            "version": VERSION,
            **model.network.to_dict(),
            "class_names": None if model.class_names is None else list(model.class_names),
            "thresholds": None if model.thresholds is None else list(model.thresholds),
            "default_threshold": model.default_threshold,
            "training": model.training,
        },
    )


def load_run(path: Path) -> TrainedModel:
    """Read a finished run."""
    folder = RunFolder(path)
    if not folder.description.exists():
        if folder.checkpoint.exists():
            raise BhcError(f"{path} holds an unfinished run", hint="finish it: bhc train ... --resume")
        raise BhcError(
            f"{path} is not a run folder: it has no run.json", hint="make one with: bhc train ... --out RUN/"
        )
    data = read_json(folder.description)
    if not isinstance(data, dict) or data.get("format") != "bhc-run":
        raise BhcError(f"{folder.description} is not the description of a run")
    if data.get("version") != VERSION:
        raise BhcError(
            f"{path} is a run of version {data.get('version')}, this program reads version {VERSION}",
            hint="use the release of bhc that wrote it, or train again",
        )
    try:
        network = ConditionalNetwork.from_dict(data)
        names, limits = data["class_names"], data["thresholds"]
        default, training = float(data["default_threshold"]), data["training"]
    except (KeyError, TypeError, ValueError) as error:
        raise BhcError(f"{folder.description} is damaged: {error!r}") from error
    tensors, header = read_tensors(folder.model)
    load_network_(network, tensors, gates=bool(header.get("gates")), source=folder.model)
    return TrainedModel(
        network,
        validation=_read_validation(folder),
        class_names=None if names is None else tuple(names),
        thresholds=None if limits is None else (float(limits[0]), float(limits[1])),
        default_threshold=default,
        training=training,
    )


def network_tensors(network: ConditionalNetwork) -> dict[str, Tensor]:
    """Everything with a value in it, by name."""
    return dict(network.state_dict())


def load_network_(network: ConditionalNetwork, tensors: dict[str, Tensor], *, gates: bool, source: Path) -> None:
    """Fill ``network`` in place, or say how the file differs from it."""
    if gates:
        network.hypernet.freeze_gates_()
    expected = network.state_dict()
    for name, tensor in expected.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            given = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise BhcError(
                f"{source} belongs to another model: {name} is {given} there, {tuple(tensor.shape)} here",
                hint="use the model, generator and context it was made with",
            )
    network.load_state_dict({name: tensors[name] for name in expected})


def cap_per_class(split: Split, *, limit: int = VALIDATION_PER_CLASS) -> Split:
    """The first ``limit`` examples of each class, in their order."""
    kept = torch.zeros(len(split), dtype=torch.bool)
    for label in split.labels.unique():
        kept[(split.labels == label).nonzero().flatten()[:limit]] = True
    return Split(split.images[kept], split.labels[kept])


def _read_validation(folder: RunFolder) -> Split | None:
    if not folder.validation.exists():
        return None
    tensors, _ = read_tensors(folder.validation)
    return Split(tensors["images"], tensors["labels"])
