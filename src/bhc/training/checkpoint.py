"""Everything a run needs to go on to the same bits, in one file that is replaced whole."""

import json
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.tensors import read_tensors, write_tensors
from bhc.training.run import RunFolder, load_network_, network_tensors


@dataclass
class Position:
    """Where a run is: steps in all, the stage at work and its steps, steps skipped, curves and seconds so far, and the
    part of the units that a stage has let go."""

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    skipped: int = 0
    curves: dict[str, Any] | None = None
    seconds: float = 0.0
    gone: float | None = None


def save_checkpoint(
    folder: RunFolder,
    network: ConditionalNetwork,
    optimizer: Optimizer,
    generators: dict[str, Generator],
    position: Position,
    *,
    settings: dict[str, Any],
) -> None:
    """Replace the folder's checkpoint."""
    tensors = {f"network.{name}": tensor for name, tensor in network_tensors(network).items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in _optimizer_tensors(optimizer, network).items()}
    tensors |= {f"generator.{name}": generator.get_state() for name, generator in generators.items()}
    header = {
        "position": position.__dict__,
        "gates": network.hypernet.gates is not None,
        "settings": settings,
    }
    write_tensors(folder.checkpoint, tensors, header)


def read_checkpoint(folder: RunFolder, *, settings: dict[str, Any]) -> tuple[dict[str, Tensor], Position, bool]:
    """The tensors, the position and whether the gates were frozen."""
    tensors, header = read_tensors(folder.checkpoint)
    saved, wanted = header.get("settings", {}), json.loads(json.dumps(settings))
    different = [name for name in wanted if saved.get(name) != wanted[name]]
    if different:
        raise BhcError(
            f"{folder.checkpoint} belongs to a run with another {', another '.join(different)}",
            hint="resume with the options of the first call, or choose another folder",
        )
    try:
        return tensors, Position(**header["position"]), bool(header["gates"])
    except (KeyError, TypeError) as error:
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


def restore_generators_(generators: dict[str, Generator], tensors: dict[str, Tensor]) -> None:
    for name, state in _part(tensors, "generator.").items():
        if name in generators:
            generators[name].set_state(state)


def _optimizer_tensors(optimizer: Optimizer, network: ConditionalNetwork) -> dict[str, Tensor]:
    """By the names of parameters: their order among the optimiser's groups follows from their rates."""
    return {
        f"{name}:{part}": torch.as_tensor(value)
        for name, parameter in network.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}
