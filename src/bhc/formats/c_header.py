"""A network as one C99 header: no heap, no library beyond ``stdint.h`` and ``math.h``, raw inputs in."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
from torch import nn

from bhc.errors import BhcError
from bhc.formats.format import Export, Figure, Format, WeightForm, register_format
from bhc.formats.quantised import Codes, QuantisedNetwork, fold_normalisation, is_rising
from bhc.graph import shaped_steps
from bhc.layers import Select, c_convolution, kind_of, pair, side_by_side
from bhc.layers.protocols import literal

LINE = 112
TYPES = {1: "int8_t", 2: "int16_t", 4: "int32_t"}


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
    shaped = list(shaped_steps(network.graph, network.input_shape))
    for each in shaped:
        kind = kind_of(each.module)
        obstacle = kind.c_obstacle(each.module, each.arriving[0][1:])
        if obstacle is not None:
            return f"{'layer' if kind.keeps_name else 'step'} {each.name!r} {obstacle}"
    if shaped and len(shaped[-1].leaving) > 2:
        return f"its outputs are of shape {shaped[-1].leaving[1:]}, and not one number a label"
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


@register_format
class CHeader(Format):
    """For microcontrollers: one header, ``int <name>_predict(const float *input, float *scores)``."""

    name, label, suffix, media_type, is_code = "c", "C", ".h", "text/x-c", True
    rank = 2
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
    report = metadata["report"]
    error, name = report["error"], f"validation {report['error_name']}"
    if error is None:
        return {"context": context, name: "unknown"}
    return {"context": context, name: f"{100 - error if report['higher_is_better'] else error:.2f} %"}


class _Writer:
    """Collects constants and code. Values live in ``input`` first, then in two buffers by turns."""

    def __init__(self, network: QuantisedNetwork, name: str, form: WeightForm) -> None:
        self.network, self.name, self.form = network, name, form
        # How each is declared, its numbers, and how these are written: memory is counted without writing them.
        self.arrays: list[tuple[str, np.ndarray, Callable[[Any], str]]] = []
        self.names: set[str] = set()  # of the arrays
        self.functions: list[str] = []
        self.body: list[str] = []
        self.buffers: dict[str, int] = {}  # floats in each
        self.flash = 0
        self.stack = 0  # bytes of arrays beside the buffers
        self.uses_math = False
        self.source = "input"
        self.reads: str | None = None  # the list of inputs that the next layer reads through
        self.owners = network.graph.owners
        self._weights: dict[str, tuple[Callable[[str], str], str]] = {}  # of layers that are called again
        self._biases: dict[str, str] = {}

    def target(self, size: int) -> str:
        name = "b" if self.source == "a" else "a"
        self.buffers[name] = max(self.buffers.get(name, 0), size)
        return name

    def writable(self, size: int) -> str:
        """The buffer to change values in; the caller's input is left alone."""
        return self.target(size) if self.source == "input" else self.source

    def lines(self, comment: str, lines: Iterable[str]) -> None:
        self.body.append(f"    {{ /* {_in_comment(comment)} */")
        self.body.extend(f"        {line}" for line in lines)
        self.body.append("    }")

    def integers(self, name: str, values: Sequence[int] | np.ndarray, *, unsigned: bool = False) -> str:
        """An array of the narrowest whole-byte integers; returns its C name."""
        numbers = np.asarray(values).ravel()
        low, high = (int(numbers.min()), int(numbers.max())) if numbers.size else (0, 0)
        spare = 0 if unsigned else 1
        bits = max(high.bit_length(), (~low if low < 0 else low).bit_length()) + spare
        size = next(size for size in TYPES if bits <= 8 * size)
        kind = ("u" if unsigned else "") + TYPES[size]
        return self._array(kind, size, name, numbers, str)

    def floats(self, name: str, values: np.ndarray) -> str:
        return self._array("float", 4, name, values.ravel(), literal)

    def weights(self, name: str, values: np.ndarray) -> tuple[Callable[[str], str], str]:
        """How to read weight number ``index``, and the factor that is still to be applied."""
        name = self.owners.get(name, name)
        if name not in self._weights:
            self._weights[name] = self._new_weights(name, values)
        return self._weights[name]

    def _new_weights(self, name: str, values: np.ndarray) -> tuple[Callable[[str], str], str]:
        codes = self.network.weights.get(name)
        if codes is None or self.form is WeightForm.FLOATS:
            array = self.floats(f"{name}_weight", values)
            return lambda index: f"{array}[{index}]", ""
        factor = f" * {literal(codes.step)}"
        if self.form is WeightForm.BIT_PACKED:
            return self._packed(f"{name}_weight", codes), factor
        array = self.integers(f"{name}_weight", codes.codes)
        return lambda index: f"(float){array}[{index}]", factor

    def bias(self, name: str, module: Any) -> str:
        """What is added to output ``o``, with the plus sign; nothing where there is no bias."""
        if module.bias is None:
            return ""
        name = self.owners.get(name, name)
        if name not in self._biases:
            self._biases[name] = self._new_bias(name, module)
        return self._biases[name]

    def _new_bias(self, name: str, module: Any) -> str:
        codes = self.network.biases.get(name)
        if codes is None or self.form is WeightForm.FLOATS:
            return f" + {self.floats(f'{name}_bias', module.bias.detach().numpy())}[o]"
        return f" + (float){self.integers(f'{name}_bias', codes.codes)}[o] * {literal(codes.step)}"

    def _packed(self, name: str, codes: Codes) -> Callable[[str], str]:
        """Codes less their lowest value, as few bits each as the range needs, the first bit lowest."""
        lowest = int(codes.codes.min())
        width = max(int(codes.codes.max() - lowest).bit_length(), 1)
        shifted = (codes.codes.ravel() - lowest).astype(np.uint32)
        bits = ((shifted[:, None] >> np.arange(width, dtype=np.uint32)) & 1).astype(np.uint8)
        array = self.integers(name, np.packbits(bits.ravel(), bitorder="little"), unsigned=True)
        reader = f"{self.name}_bits"
        if not self.functions:
            self.functions = _bit_reader(reader)
        return lambda index: f"(float)((int32_t){reader}({array}, (uint32_t)({index}), {width}) + ({lowest}))"

    def _array(self, kind: str, size: int, name: str, numbers: np.ndarray, text: Callable[[Any], str]) -> str:
        count = numbers.size
        self.flash += size * count
        full = f"{self.name}_{re.sub(r'[^A-Za-z0-9]', '_', name)}"
        while full in self.names:  # layers whose names differ in what C does not know
            full += "_"
        self.names.add(full)
        self.arrays.append((f"static const {kind} {full}[{count}]", numbers, text))
        return full

    def declarations(self) -> list[str]:
        return [
            line
            for opening, numbers, text in self.arrays
            for line in (f"{opening} = {{", *_wrapped(map(text, numbers.tolist())), "};")
        ]


@dataclass(frozen=True)
class _Header:
    network: QuantisedNetwork
    name: str
    writer: _Writer

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
                "    {",
                "        int best = 0, o;",
                f"        for (o = 1; o < {len(self.network.labels)}; o++)",
                "            if (scores[o] > scores[best]) best = o;",
                f"        return (int){name}_labels[best];",
                "    }",
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
        return ["/*", *[f" * {_in_comment(line)}".rstrip() for line in lines], " */"]


def _write(network: QuantisedNetwork, name: str, weights: WeightForm) -> _Header:
    obstacle = c_obstacle(network)
    if obstacle is not None:
        raise BhcError(f"this network cannot be written in C yet: {obstacle}", hint="export it as ONNX or torch")
    return _written(network, name, weights)


def _written(network: QuantisedNetwork, name: str, weights: WeightForm) -> _Header:
    """The same, of a network that is known to have a C form."""
    folded = fold_normalisation(network)
    writer = _Writer(folded, name, weights)
    steps = [
        (each.name, each.module, each.arriving[0][1:], each.leaving[1:])
        for each in shaped_steps(folded.graph, folded.input_shape)
    ]
    while steps:
        step, module, arriving, leaving = steps.pop(0)
        following = [other for _, other, _, _ in steps[:2]]
        match module, following:
            case Select(), [nn.Linear(), *_]:
                writer.reads = writer.integers(f"{step}_index", module.index.numpy(), unsigned=True)
            case nn.Conv2d(), [activation, nn.MaxPool2d() as pool] if is_rising(activation) and side_by_side(pool):
                (activation_name, _, _, _), (_, _, _, pooled) = steps[:2]
                c_convolution(writer, step, module, arriving, pooled, window=pair(pool.kernel_size))
                kind_of(activation).to_c(activation, activation_name, pooled, pooled, writer)
                del steps[:2]
            case _:
                kind_of(module).to_c(module, step, arriving, leaving, writer)
    writer.lines("scores", ["int o;", f"for (o = 0; o < {len(network.labels)}; o++) scores[o] = {writer.source}[o];"])
    writer.integers("labels", network.labels)
    return _Header(network, name, writer)


def _in_comment(text: str) -> str:
    """The text without what would end the comment, or look like another one's beginning, which compilers warn of."""
    printable = "".join(letter if letter.isprintable() and letter != "\\" else "?" for letter in text)
    return printable.replace("*/", "* /").replace("/*", "/ *")


def _wrapped(numbers: Iterable[str]) -> list[str]:
    lines, line = [], "   "
    for number in numbers:
        if len(line) + len(number) + 2 > LINE:
            lines.append(line)
            line = "   "
        line += f" {number},"
    return [*lines, line]


def _bit_reader(name: str) -> list[str]:
    return [
        "",
        f"static inline uint32_t {name}(const uint8_t *data, uint32_t index, uint32_t width)",
        "{",
        "    uint32_t result = 0, bit, at = index * width;",
        "    for (bit = 0; bit < width; bit++, at++)",
        "        result |= (uint32_t)((data[at >> 3] >> (at & 7u)) & 1u) << bit;",
        "    return result;",
        "}",
        "",
    ]
