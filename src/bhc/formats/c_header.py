"""A network as one C99 header: no heap, no library beyond ``stdint.h`` and ``math.h``, raw inputs in."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from torch import nn

from bhc.errors import BhcError
from bhc.formats.c_writer import CWriter, in_comment
from bhc.formats.folding import fold_normalisation, is_rising
from bhc.formats.format import Export, Figure, Format, WeightForm
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import passages
from bhc.layers import Select, c_convolution, kind_of, pair, side_by_side


@dataclass(frozen=True)
class CMemory:
    """What the C form occupies, its machine code aside."""

    flash: int  # constants: weights, biases, lists of inputs, labels
    ram: int  # activations, on the stack while it runs

    @property
    def total(self) -> int:
        """Both: what it takes where constants are copied to RAM."""
        return self.flash + self.ram


def c_obstacle(network: QuantisedNetwork) -> str | None:
    """Why the network has no C form; None where it has one."""
    for each in passages(network.graph, network.input_shape):
        kind = kind_of(each.module)
        obstacle = kind.c_obstacle(each.module, each.arriving[0][1:])
        if obstacle is not None:
            return f"{'layer' if kind.keeps_name else 'step'} {each.name!r} {obstacle}"
    return None if network.graph.is_chain else "a value is read by more than one step"


def c_memory(network: QuantisedNetwork, *, weights: WeightForm = WeightForm.INTEGERS) -> CMemory:
    """Counted from the same declarations that the header makes."""
    return _write(network, "network", weights).memory


def c_memory_if_any(network: QuantisedNetwork) -> CMemory | None:
    """The same; None where the network has no C form."""
    return None if c_obstacle(network) else _written(network, "network", WeightForm.INTEGERS).memory


def c_text(
    network: QuantisedNetwork,
    name: str,
    *,
    weights: WeightForm = WeightForm.INTEGERS,
    about: Mapping[str, Any] | None = None,
) -> str:
    """The header. ``int <name>_predict(const float *input, float *scores)`` returns the original label."""
    if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
        raise BhcError(f"{name!r} cannot be part of a C name", hint="use letters, digits and _, no digit first")
    written = _write(network, name, weights)
    return written.text(about or {})


def identifier(text: str) -> str:
    """The nearest C name."""
    plain = re.sub(r"[^A-Za-z0-9_]", "_", text) or "network"
    return f"net_{plain}" if plain[0].isdigit() else plain


class CHeader(Format):
    """For microcontrollers: one header, ``int <name>_predict(const float *input, float *scores)``."""

    name, label, suffix, media_type, is_code = "c", "C", ".h", "text/x-c", True
    weight_forms = (WeightForm.INTEGERS, WeightForm.BIT_PACKED, WeightForm.FLOATS)

    def write(self, network: QuantisedNetwork, export: Export) -> bytes:
        return c_text(network, export.name, weights=export.weights, about=_about(export.metadata)).encode()

    def figures(self, network: QuantisedNetwork, export: Export) -> tuple[Figure, ...]:
        memory = c_memory(network, weights=export.weights)
        return (
            Figure("flash_bytes", "flash", memory.flash, "bytes of constants"),
            Figure("activation_bytes", "RAM", memory.ram, "bytes of activations"),
        )


def _about(metadata: Mapping[str, Any]) -> dict[str, str]:
    """What the comment says of where the network came from."""
    if not metadata:
        return {}
    context = "; ".join(f"{name} {value}" for name, value in metadata["context"].items()) or "none"
    error = metadata["report"]["error"]
    return {"context": context, "validation error": "unknown" if error is None else f"{error:.2f} %"}


@dataclass(frozen=True)
class _Header:
    network: QuantisedNetwork
    name: str
    writer: CWriter

    @property
    def memory(self) -> CMemory:
        return CMemory(flash=self.writer.flash, ram=4 * sum(self.writer.buffers.values()) + self.writer.stack)

    def text(self, about: Mapping[str, Any]) -> str:
        name, memory = self.name, self.memory
        guard = f"BHC_{name}_H"  # as it is: net and NET are two networks
        includes = ["#include <stdint.h>"] + ["#include <math.h>"] * self.writer.uses_math
        buffers = [f"    float {key}[{size}];" for key, size in self.writer.buffers.items()]
        return "\n".join(
            [
                *self._comment(about, memory),
                f"#ifndef {guard}",
                f"#define {guard}",
                "",
                *includes,
                "",
                *self.writer.declarations(),
                *self.writer.functions,
                f"static inline int {name}_predict(const float *input, float *scores)",
                "{",
                *buffers,
                *self.writer.body,
                *self._arg_max(),
                "}",
                "",
                f"#endif /* {guard} */",
                "",
            ]
        )

    def _comment(self, about: Mapping[str, Any], memory: CMemory) -> list[str]:
        network = self.network
        lines = [
            f"{self.name}: a network of {len(network.layers)} layers and"
            f" {network.counts.weights:,} weights, written by bhc.",
            *[f"{key}: {value}" for key, value in about.items()],
            "",
            f"int {self.name}_predict(const float *input, float *scores)",
            f"  input    {prod(network.input_shape)} numbers, {' x '.join(map(str, network.input_shape))},"
            " as they are stored: normalisation is inside",
            f"  scores   {len(network.labels)} logits, for the labels {', '.join(map(str, network.labels))}",
            "  returns  the label with the largest score",
            "",
            f"flash: {memory.flash} bytes of constants. RAM: {memory.ram} bytes of stack for activations.",
            f"Together {memory.total} bytes; machine code and a few local variables not counted.",
        ]
        return ["/*", *[f" * {in_comment(line)}".rstrip() for line in lines], " */"]

    def _arg_max(self) -> list[str]:
        return [
            "    {",
            "        int best = 0, o;",
            f"        for (o = 1; o < {len(self.network.labels)}; o++)",
            "            if (scores[o] > scores[best]) best = o;",
            f"        return (int){self.name}_labels[best];",
            "    }",
        ]


def _write(network: QuantisedNetwork, name: str, weights: WeightForm) -> _Header:
    obstacle = c_obstacle(network)
    if obstacle is not None:
        raise BhcError(f"this network cannot be written in C yet: {obstacle}", hint="export it as ONNX or torch")
    return _written(network, name, weights)


def _written(network: QuantisedNetwork, name: str, weights: WeightForm) -> _Header:
    """The same, of a network that is known to have a C form."""
    folded = fold_normalisation(network)
    writer = CWriter(folded, name, weights)
    steps = [
        (each.name, each.module, each.arriving[0][1:], each.leaving[1:])
        for each in passages(folded.graph, folded.input_shape)
    ]
    while steps:
        step, module, arriving, leaving = steps.pop(0)
        following = [other for _, other, _, _ in steps[:2]]
        match module, following:
            case Select(), [nn.Linear(), *_]:
                writer.read_through(step, module, arriving)  # the layer reads through the list of inputs
            case nn.Conv2d(), [activation, nn.MaxPool2d() as pool] if is_rising(activation) and side_by_side(pool):
                (activation_name, _, _, _), (_, _, _, pooled) = steps[:2]
                c_convolution(writer, step, module, arriving, pooled, window=pair(pool.kernel_size))
                kind_of(activation).to_c(activation, activation_name, pooled, pooled, writer)
                del steps[:2]
            case _:
                kind_of(module).to_c(module, step, arriving, leaving, writer)
    writer.finish(len(network.labels))
    writer.integers("labels", network.labels)
    return _Header(network, name, writer)
