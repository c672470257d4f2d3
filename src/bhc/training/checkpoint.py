"""Everything a run needs to go on to the same bits, in one file that is replaced whole."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from bhc.errors import BhcError
from bhc.files import read_tensors, write_tensors
from bhc.hypernet import ConditionalNetwork
from bhc.training.run import RunFolder, load_network_


@dataclass
class Position:
    """Where a run is: steps in all, the stage at work and its steps, steps skipped, curves and seconds so far, the part
    of the units that a stage has let go, and how large its gradients are as a rule (``SpikeLimit.state``)."""

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    skipped: int = 0
    curves: dict[str, Any] | None = None
    seconds: float = 0.0
    dropped_fraction: float | None = None
    norms: Sequence[float] = (0.0, 0.0)

    def enter(self, stage: int) -> None:
        """Begin a stage: what belongs to the one before is over."""
        self.stage, self.stage_step, self.dropped_fraction, self.norms = stage, 0, None, (0.0, 0.0)


@dataclass(frozen=True)
class Header:
    """What a checkpoint says beside its tensors."""

    position: Position
    gates: bool  # whether they were frozen
    processes: int = 1  # that trained together


def save_checkpoint(
    folder: RunFolder,
    network: ConditionalNetwork,
    optimizer: Optimizer,
    states: Sequence[dict[str, Tensor]],  # of each process's generators
    header: Header,
    *,
    settings: dict[str, Any],
) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in _optimizer_tensors(optimizer, network).items()}
    for rank, own in enumerate(states):
        tensors |= {_generators_of(rank) + name: state for name, state in own.items()}
    write_tensors(folder.checkpoint, tensors, asdict(header) | {"settings": settings})


def read_checkpoint(folder: RunFolder, *, settings: dict[str, Any]) -> tuple[dict[str, Tensor], Header]:
    tensors, header = read_tensors(folder.checkpoint)
    saved, wanted = header.get("settings", {}), json.loads(json.dumps(settings))
    different = [name for name in wanted if saved.get(name) != wanted[name]]
    if different:
        raise BhcError(
            f"{folder.checkpoint} belongs to a run with another {', another '.join(different)}",
            hint="resume with the options of the first call, or choose another folder",
        )
    try:
        told = dict(header["position"])
        if "gone" in told:  # as it was called before
            told["dropped_fraction"] = told.pop("gone")
        position = Position(**told)
        return tensors, Header(position, bool(header["gates"]), int(header.get("processes", 1)))
    except (KeyError, TypeError, ValueError) as error:
        raise BhcError(f"{folder.checkpoint} is damaged: {error!r}") from error


def restore_network_(
    network: ConditionalNetwork, tensors: dict[str, Tensor], *, gates: bool, folder: RunFolder
) -> None:
    hint = "use the model, generator and context it was made with"
    load_network_(network, _part(tensors, "network."), gates=gates, source=folder.checkpoint, hint=hint)


def restore_optimizer_(optimizer: Optimizer, tensors: dict[str, Tensor], network: ConditionalNetwork) -> None:
    """Put moments and step counts back, parameter by parameter."""
    parameters = dict(network.named_parameters())
    for key, value in _part(tensors, "optimizer.").items():
        name, _, part = key.rpartition(":")
        if name not in parameters:
            raise BhcError(
                f"the checkpoint has an optimiser's {key!r}, which belongs to nothing here",
                hint="it was written by another version; start again with overwrite=True",
            )
        optimizer.state[parameters[name]][part] = value.to(parameters[name].device)


def restore_generators_(generators: dict[str, Generator], tensors: dict[str, Tensor], *, rank: int = 0) -> None:
    """Those of one process; where it had no part in the run before, they stay as they are."""
    for name, state in _part(tensors, _generators_of(rank)).items():
        if name in generators:
            generators[name].set_state(state)


def _generators_of(rank: int) -> str:
    return f"generator.{rank}." if rank else "generator."


def _optimizer_tensors(optimizer: Optimizer, network: ConditionalNetwork) -> dict[str, Tensor]:
    """By the names of parameters: their order among the optimiser's groups follows from their rates."""
    return {
        f"{name}:{part}": torch.as_tensor(value)
        for name, parameter in network.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
