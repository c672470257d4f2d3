"""The ``.bhc`` file, version 1: a chain's description and its float32 tensors. Read, no longer written."""

from pathlib import Path
from typing import Any

import torch

from bhc.errors import BhcError
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import chain_shapes, rebuild
from bhc.tensors import parse_tensors

VERSION = 1


def read_version_1(content: bytes, path: Path) -> tuple[QuantisedNetwork, dict[str, Any]]:
    """The network, all floats, and the report that lies beside it."""
    tensors, header = parse_tensors(content, path)
    if header.get("format") != "bhc":
        raise BhcError(f"{path} is not a .bhc file", hint="make one with: bhc compress RUN/ ... --out small.bhc")
    if header.get("version") != VERSION:
        raise BhcError(f"{path} has version {header.get('version')}, this program reads 1 and 2", hint="update bhc")
    try:
        with torch.device("meta"):
            chain = rebuild(header["network"])
        chain.load_state_dict(tensors, assign=True)
        if any(parameter.dtype != torch.float32 for parameter in chain.parameters()):
            raise ValueError("its weights are not 32-bit floats")
        shape, report = tuple(header["input_shape"]), dict(header["report"])
        *_, (_, _, _, outputs) = chain_shapes(chain, shape)  # layers that do not fit together fail here
        labels = tuple(int(label) for label in report["classes"])
        if outputs != (len(labels),):
            raise ValueError(f"{len(labels)} classes for outputs of shape {outputs}")
        chain = chain.eval().requires_grad_(False)
        return QuantisedNetwork(chain, shape, labels, temperature=float(header["temperature"])), report
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError) as error:
        raise BhcError(f"{path} is damaged: {error}") from error
