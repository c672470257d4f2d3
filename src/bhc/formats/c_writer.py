"""What C code is collected in while the layers of a chain write theirs."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from bhc.formats.format import WeightForm
from bhc.formats.quantised import Codes, QuantisedNetwork
from bhc.layers import Select, Shape
from bhc.layers.c_code import literal

LINE = 112
TYPES = {1: "int8_t", 2: "int16_t", 4: "int32_t"}


class CWriter:
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

    def target(self, size: int) -> str:
        """The buffer that the next values go to, made large enough."""
        name = "b" if self.source == "a" else "a"
        self.buffers[name] = max(self.buffers.get(name, 0), size)
        return name

    def writable(self, size: int) -> str:
        """The buffer to change values in; the caller's input is left alone."""
        return self.target(size) if self.source == "input" else self.source

    def lines(self, comment: str, lines: Iterable[str]) -> None:
        self.body.append(f"    {{ /* {in_comment(comment)} */")
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
        codes = self.network.biases.get(name)
        if codes is None or self.form is WeightForm.FLOATS:
            return f" + {self.floats(f'{name}_bias', module.bias.detach().numpy())}[o]"
        return f" + (float){self.integers(f'{name}_bias', codes.codes)}[o] * {literal(codes.step)}"

    def read_through(self, name: str, module: Select, arriving: Shape) -> None:
        self.reads = self.integers(f"{name}_index", module.index.numpy(), unsigned=True)

    def finish(self, outputs: int) -> None:
        """The last values are the scores."""
        copy = f"for (o = 0; o < {outputs}; o++) scores[o] = {self.source}[o];"
        self.lines("scores", ["int o;", copy])

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
        full = f"{self.name}_{c_name(name)}"
        while full in self.names:  # layers whose names differ in what C does not know
            full += "_"
        self.names.add(full)
        self.arrays.append((f"static const {kind} {full}[{count}]", numbers, text))
        return full

    def declarations(self) -> list[str]:
        """The constants, written out."""
        return [
            line
            for opening, numbers, text in self.arrays
            for line in (f"{opening} = {{", *_wrapped(map(text, numbers.tolist())), "};")
        ]


def in_comment(text: str) -> str:
    """The text without what would end the comment, or look like another one's beginning, which compilers warn of."""
    printable = "".join(letter if letter.isprintable() and letter != "\\" else "?" for letter in text)
    return printable.replace("*/", "* /").replace("/*", "/ *")


def c_name(name: str) -> str:
    return "".join(letter if letter.isalnum() and letter.isascii() else "_" for letter in name)


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
