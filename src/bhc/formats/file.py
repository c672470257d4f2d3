"""The ``.bhc`` file: written in the newest version, read in all of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.files import read_bytes
from bhc.formats.deployed import LARGEST_FILE, Deployed, appearance_in
from bhc.formats.format import Export, Format
from bhc.formats.packed import MAGIC, VERSION, Part, pack, unpack
from bhc.formats.quantised import QuantisedNetwork
from bhc.formats.version1 import read_version_1
from bhc.graph import Inputs

SHORTEST = 16


@dataclass(frozen=True)
class NetworkFile:
    """What a file holds."""

    network: QuantisedNetwork
    version: int
    size: int
    parts: tuple[Part, ...]  # what its bytes are for; not known of version 1
    old_report: dict[str, Any] | None = None  # version 1 stores one as it was printed


def read_network(path: Path) -> NetworkFile:
    """Read a file; what that takes in memory is bounded by what the file has on disk."""
    if not path.exists():
        raise BhcError(f"{path} does not exist")
    if path.is_dir():
        raise BhcError(f"{path} is a folder, not a .bhc file", hint="a run folder goes to: bhc compress, bhc inspect")
    return parse_network(read_bytes(path, limit=LARGEST_FILE), path)


def parse_network(content: bytes, path: Path) -> NetworkFile:
    """The same for the content of a file; ``path`` is its name in messages."""
    if not content.startswith(MAGIC):
        network, report = read_version_1(content, path)
        return NetworkFile(network, 1, len(content), (), report)
    if len(content) < SHORTEST:
        raise BhcError(f"{path} is damaged: it is cut off", hint="copy or make it again")
    if content[len(MAGIC)] != VERSION:
        raise BhcError(
            f"{path} has version {content[len(MAGIC)]}, this program reads 1 and {VERSION}", hint="update bhc"
        )
    try:
        network, parts = unpack(content)
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError, MemoryError, BhcError) as error:
        raise BhcError(f"{path} is damaged: {str(error)[:200]}", hint="copy or make it again") from error
    return NetworkFile(network, VERSION, len(content), parts)


class Packed(Format):
    """The smallest: range-coded integers, specified in ``docs/format.md``."""

    name, label, suffix = "bhc", ".bhc", ".bhc"

    def write(self, network: QuantisedNetwork, export: Export) -> bytes:
        return pack(network)

    def open(self, path: Path) -> Deployed:
        file = read_network(path)
        network = file.network

        def logits(x: Inputs) -> Tensor:
            with torch.no_grad():
                return network.graph(*network.signature.cast(x))

        return Deployed(
            network.labels,
            network.signature,
            "torch",
            file.size,
            logits,
            temperature=network.temperature,
            alarm=network.card.get("alarm"),
            appearance=appearance_in(path, network.card.get("context"), len(network.labels)),
        )
