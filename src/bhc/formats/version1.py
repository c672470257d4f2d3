"""The ``.bhc`` file, version 1: a chain's description and its float32 tensors. Read, no longer written."""

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.formats.packed import LARGEST_ACTIVATION
from bhc.formats.packed.layout import FROM
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import Graph, passages, rebuild
from bhc.layers import Select, Shape, kinds
from bhc.tensors import parse_tensors

VERSION = 1
KNOWN = {kind.name for kind in kinds() if kind.number is not None and kind.number < FROM}  # when it was written
LATER = ("reads", "channels")  # words of a description that came after it
LARGEST_LABEL = (1 << 31) - 1

# What a report must hold to be shown, and what it may hold. The rest is counted from the network.
_COUNTS = ("weights_before", "parameter_bytes_before", "flops_before")
_NUMBERS = ("threshold", "validation_images")
_NUMBERS_OR_NONE = ("error_before", "error", "emit_ms")
_REPORT = (*_COUNTS, *_NUMBERS, *_NUMBERS_OR_NONE, "context", "classes", "architecture_before")


def read_version_1(content: bytes, path: Path) -> tuple[QuantisedNetwork, dict[str, Any]]:
    """The network, all floats, and the report that lies beside it."""
    tensors, header = parse_tensors(content, path)
    if not isinstance(header, dict) or header.get("format") != "bhc":
        raise BhcError(f"{path} is not a .bhc file", hint="make one with: bhc compress RUN/ ... --out small.bhc")
    if header.get("version") != VERSION:
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
    for passage in passages(graph, shape):  # layers that do not fit together fail here
        outputs = passage.leaving[1:]
        sizes.append(prod(outputs))
    if max(sizes) > LARGEST_ACTIVATION:
        raise ValueError(f"{max(sizes):,} numbers between two steps")
    labels = tuple(header["report"]["classes"])
    if outputs != (len(labels),):
        raise ValueError(f"{len(labels)} classes for outputs of shape {outputs}")
    if not all(type(label) is int and 0 <= label <= LARGEST_LABEL for label in labels):
        raise ValueError("its classes are not whole numbers")
    temperature = float(header["temperature"])
    if not 0 < temperature < float("inf"):
        raise ValueError(f"a temperature of {temperature}")
    return QuantisedNetwork(graph, shape, labels, temperature=temperature)


def _graph(steps: Any, tensors: Mapping[str, Tensor]) -> Graph:
    """The chain with its numbers, if they have the types such a chain has."""
    if any(step["kind"] not in KNOWN or any(step.get(word) is not None for word in LATER) for step in steps):
        raise ValueError("a step is of a kind that is younger than the file")
    with torch.device("meta"):
        graph = rebuild(steps)
    for name, expected in graph.state_dict().items():
        if tensors[name].dtype != expected.dtype:
            raise ValueError(f"{name} holds {tensors[name].dtype}")
    graph.load_state_dict(tensors, assign=True)
    for step in graph.steps:
        if isinstance(step.module, Select) and (step.module.index.diff() <= 0).any():
            raise ValueError("a step reads its inputs twice or out of order")
    return graph.eval().requires_grad_(False)


def _report(report: Any) -> dict[str, Any]:
    """The report, if its entries have the types that a report's have."""
    if not isinstance(report, dict) or not isinstance(report.get("context"), dict):
        raise ValueError("its report is not one")
    if not all(type(report[name]) is int and report[name] > 0 for name in _COUNTS):
        raise ValueError("its report counts what cannot be counted")
    if not all(_is_number(report[name]) for name in _NUMBERS):
        raise ValueError("its report lacks a number")
    if not all(report.get(name) is None or _is_number(report[name]) for name in _NUMBERS_OR_NONE):
        raise ValueError("its report has text in the place of a number")
    before = report["architecture_before"]
    if not isinstance(before, list) or not all(type(width) is int for width in before):
        raise ValueError("its report has no architecture")
    return {name: value for name, value in report.items() if name in _REPORT}


def _is_number(value: Any) -> bool:
    return type(value) in (int, float)


def _shape(shape: Any) -> Shape:
    if not isinstance(shape, list) or not shape or not all(type(size) is int and size > 0 for size in shape):
        raise ValueError(f"inputs of shape {str(shape)[:60]}")
    return tuple(shape)
