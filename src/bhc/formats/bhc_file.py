"""The ``.bhc`` file: written in the newest version (``bhc_content``), read in all of them.

Version 1, which is no longer written, is a chain's description and its float32 tensors.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError, NotRegisteredError
from bhc.files import parse_tensors, read_bytes
from bhc.formats.bhc_content import (
    FROM,
    LARGEST_ACTIVATION,
    LARGEST_ACTIVATIONS,
    LARGEST_LABEL,
    MAGIC,
    MOST_STEPS,
    STEPS,
    VERSION,
    Content,
    Part,
    most_numbers,
    take_apart,
)
from bhc.formats.bhc_reader import unpack
from bhc.formats.coding import loads
from bhc.formats.format import LARGEST_FILE, Deployed, Export, Format, appearance_in, register_format, said_in
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import Graph, Inputs, rebuild, shaped_steps
from bhc.layers import EXAMPLES, Select, Shape, kinds
from bhc.layers.arguments import expect

SHORTEST = 16
# Of version 1:
_KNOWN = {kind.name for kind in kinds() if kind.number is not None and kind.number < FROM}  # when it was written
_LATER = ("reads", "channels")  # words of a description that came after it

# What a report must hold to be shown, and what it may hold. The rest is counted from the network.
_COUNTS = ("weights_before", "parameter_bytes_before", "flops_before")
_NUMBERS = ("threshold", "validation_images")
_NUMBERS_OR_NONE = ("error_before", "error", "emit_ms")
_REPORT = (*_COUNTS, *_NUMBERS, *_NUMBERS_OR_NONE, "context", "classes", "architecture_before")


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
        network, report = _read_version_1(content, path)
        return NetworkFile(network, 1, len(content), (), report)
    if len(content) < SHORTEST:
        raise BhcError(f"{path} is damaged: it is cut off", hint="copy or make it again")
    if content[len(MAGIC)] != VERSION:
        raise BhcError(
            f"{path} has version {content[len(MAGIC)]}, this program reads 1 and {VERSION}", hint="update bhc"
        )
    try:
        network, parts = unpack(content)
    except NotRegisteredError:
        raise
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RuntimeError, MemoryError, BhcError) as error:
        raise BhcError(f"{path} is damaged: {str(error)[:200]}", hint="copy or make it again") from error
    return NetworkFile(network, VERSION, len(content), parts)


def pack(network: QuantisedNetwork) -> bytes:
    """The bytes of the network's file; the same on every machine."""
    content = take_apart(network)
    packed = content.to_bytes()
    _check_limits(content, len(packed))
    _check_activations(network)
    return packed


def packed_size(network: QuantisedNetwork) -> int:
    """How many bytes that would be; whether a reader would take them is not asked."""
    return len(take_apart(network).to_bytes())


def packed_parts(network: QuantisedNetwork) -> tuple[Part, ...]:
    """What these bytes are for."""
    return tuple(take_apart(network).parts())


def _check_limits(content: Content, size: int) -> None:
    """What a reader would take for damage must not be written."""
    try:
        loads(content.header_bytes)
    except ValueError as error:
        raise BhcError(f"what is known about the network does not fit into a .bhc file: {error}") from error
    if len(content.header[STEPS]) > MOST_STEPS:
        raise BhcError(f"a network of {len(content.header[STEPS])} steps, a .bhc file holds at most {MOST_STEPS}")
    if content.numbers > most_numbers(size):
        raise BhcError(
            f"{content.numbers:,} weights, codes and inputs in {size:,} bytes, which no reader would believe",
            hint="layers this large with next to nothing in them should be pruned first",
        )


def _check_activations(network: QuantisedNetwork) -> None:
    sizes = [prod(each.leaving) // EXAMPLES for each in shaped_steps(network.graph, network.input_shape)]
    if max(sizes, default=0) > LARGEST_ACTIVATION or sum(sizes) > LARGEST_ACTIVATIONS:
        raise BhcError(
            f"steps that give up to {max(sizes):,} numbers, {sum(sizes):,} in all;"
            f" a .bhc file holds at most {LARGEST_ACTIVATION:,} and {LARGEST_ACTIVATIONS:,}",
            hint="smaller inputs make them fewer",
        )


@register_format
class Packed(Format):
    """The smallest: range-coded integers, specified in ``docs/format.md``."""

    name, label, suffix = "bhc", ".bhc", ".bhc"
    rank = 0

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
            **said_in(path, network.card, network.labels, network.card.get("measure")),
        )


def _read_version_1(content: bytes, path: Path) -> tuple[QuantisedNetwork, dict[str, Any]]:
    """The network, all floats, and the report that lies beside it."""
    tensors, header = parse_tensors(content, path)
    if not isinstance(header, dict) or header.get("format") != "bhc":
        raise BhcError(f"{path} is not a .bhc file", hint="make one with: bhc compress RUN/ ... --out small.bhc")
    if header.get("version") != 1:
        raise BhcError(
            f"{path} has version {str(header.get('version'))[:20]}, this program reads 1 and 2", hint="update bhc"
        )
    try:
        return _network(header, tensors), _report(header["report"])
    except (KeyError, TypeError, ValueError, RuntimeError, IndexError, AttributeError, OverflowError) as error:
        raise BhcError(f"{path} is damaged: {str(error)[:200]}", hint="copy or make it again") from error


def _network(header: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> QuantisedNetwork:
    graph, shape = _graph(header["network"], tensors), _shape(header["input_shape"])
    sizes, outputs = [prod(shape)], shape
    for shaped in shaped_steps(graph, shape):  # layers that do not fit together fail here
        outputs = shaped.leaving[1:]
        sizes.append(prod(outputs))
    expect(max(sizes) <= LARGEST_ACTIVATION, f"{max(sizes):,} numbers between two steps")
    labels = tuple(header["report"]["classes"])
    expect(outputs == (len(labels),), f"{len(labels)} classes for outputs of shape {outputs}")
    whole = all(type(label) is int and 0 <= label <= LARGEST_LABEL for label in labels)
    expect(whole, "its classes are not whole numbers")
    temperature = float(header["temperature"])
    expect(0 < temperature < float("inf"), f"a temperature of {temperature}")
    return QuantisedNetwork(graph, shape, labels, temperature=temperature)


def _graph(steps: Any, tensors: Mapping[str, Tensor]) -> Graph:
    """The chain with its numbers, if they have the types such a chain has."""
    if any(step["kind"] not in _KNOWN or any(step.get(word) is not None for word in _LATER) for step in steps):
        raise ValueError("a step is of a kind that is younger than the file")
    with torch.device("meta"):
        graph = rebuild(steps)
    for name, expected in graph.state_dict().items():
        expect(tensors[name].dtype == expected.dtype, f"{name} holds {tensors[name].dtype}")
    graph.load_state_dict(tensors, assign=True)
    for step in graph.steps:
        if isinstance(step.module, Select) and (step.module.index.diff() <= 0).any():
            raise ValueError("a step reads its inputs twice or out of order")
    return graph.eval().requires_grad_(False)


def _report(report: Any) -> dict[str, Any]:
    """The report, if its entries have the types that a report's have."""
    expect(isinstance(report, dict) and isinstance(report.get("context"), dict), "its report is not one")
    counted = all(type(report[name]) is int and report[name] > 0 for name in _COUNTS)
    expect(counted, "its report counts what cannot be counted")
    expect(all(type(report[name]) in (int, float) for name in _NUMBERS), "its report lacks a number")
    optional = all(type(report.get(name)) in (int, float, type(None)) for name in _NUMBERS_OR_NONE)
    expect(optional, "its report has text in the place of a number")
    before = report["architecture_before"]
    whole = isinstance(before, list) and all(type(width) is int for width in before)
    expect(whole, "its report has no architecture")
    return {name: value for name, value in report.items() if name in _REPORT}


def _shape(shape: Any) -> Shape:
    fine = isinstance(shape, list) and shape and all(type(size) is int and size > 0 for size in shape)
    expect(bool(fine), f"inputs of shape {str(shape)[:60]}")
    return tuple(shape)
