"""The ``.bhc`` file, version 1: a chain's description and its float32 tensors, checksummed, no code inside."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import describe, rebuild
from bhc.tensors import read_tensors, tensors_to_bytes

VERSION = 1
LARGEST_FILE = 1 << 30


@dataclass(frozen=True)
class EmittedNetwork:
    """What a format writes: it knows nothing of contexts or training."""

    module: nn.Sequential
    input_shape: tuple[int, ...]
    temperature: float
    report: dict[str, Any]

    @property
    def num_outputs(self) -> int:
        return self.module(torch.zeros(1, *self.input_shape)).shape[1]


def to_bytes(network: EmittedNetwork) -> bytes:
    """The file's content."""
    header = {
        "format": "bhc",
        "version": VERSION,
        "network": describe(network.module),
        "input_shape": list(network.input_shape),
        "temperature": network.temperature,
        "report": network.report,
    }
    return tensors_to_bytes(dict(network.module.state_dict()), header)


def read_network(path: Path) -> EmittedNetwork:
    """Read a file back; what it needs in memory is bounded by what it has on disk."""
    tensors, header = read_tensors(path, limit=LARGEST_FILE)
    if header.get("format") != "bhc":
        raise BhcError(f"{path} is not a .bhc file", hint="make one with: bhc compress RUN/ ... --out small.bhc")
    if header.get("version") != VERSION:
        raise BhcError(
            f"{path} has version {header.get('version')}, this program reads version {VERSION}",
            hint="update bhc",
        )
    try:
        with torch.device("meta"):
            module = rebuild(header["network"])
        module.load_state_dict(tensors, assign=True)
        shape, temperature = tuple(header["input_shape"]), float(header["temperature"])
        module = module.eval().requires_grad_(False)
        module(torch.zeros(1, *shape))  # layers that do not fit together fail here and not in use
        return EmittedNetwork(module, shape, temperature, header["report"])
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError) as error:
        raise BhcError(f"{path} is damaged: {error}") from error
