"""Each step of a chain in C: loops over constant sizes, from one buffer to the other."""

from collections.abc import Callable, Iterable, Sequence
from math import prod
from typing import Any

import numpy as np
from torch import nn

from bhc.formats.forms import WeightForm
from bhc.formats.quantised import Codes, QuantisedNetwork
from bhc.graph import KINDS, LogMel, Select, Shape, conv_padding, pair

LINE = 112
LOWEST = "-3.402823466e+38f"
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

    def bias(self, name: str, module: nn.Linear | nn.Conv2d) -> str:
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


def literal(value: float) -> str:
    """A float constant that reads back to the same single-precision number."""
    text = f"{np.float32(value):.9g}"
    return f"{text}f" if any(mark in text for mark in ".en") else f"{text}.0f"


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


def _linear(writer: CWriter, name: str, module: nn.Linear, arriving: Shape, leaving: Shape) -> None:
    inputs, outputs = module.in_features, module.out_features
    weight, factor = writer.weights(name, module.weight.numpy())
    bias, target = writer.bias(name, module), writer.target(outputs)
    value = f"{writer.source}[i]" if writer.reads is None else f"{writer.source}[{writer.reads}[i]]"
    writer.lines(
        f"{name}: {inputs} inputs, {outputs} outputs",
        [
            "int o, i;",
            f"for (o = 0; o < {outputs}; o++) {{",
            "    float sum = 0.0f;",
            f"    for (i = 0; i < {inputs}; i++) sum += {weight(f'o * {inputs} + i')} * {value};",
            f"    {target}[o] = sum{factor}{bias};",
            "}",
        ],
    )
    writer.source, writer.reads = target, None


def _convolution(writer: CWriter, name: str, module: nn.Conv2d, arriving: Shape, leaving: Shape) -> None:
    _convolve(writer, name, module, arriving, leaving, window=(1, 1))


def pooled_convolution(
    writer: CWriter, name: str, module: nn.Conv2d, pool: nn.MaxPool2d, arriving: Shape, leaving: Shape
) -> None:
    """The largest of each window as it is computed: the map before pooling is never stored."""
    _convolve(writer, name, module, arriving, leaving, window=pair(pool.kernel_size))


def side_by_side(pool: nn.MaxPool2d) -> bool:
    """Whether windows lie side by side without padding, so that each place belongs to one at most."""
    return (
        pair(pool.kernel_size) == pair(pool.stride) and pair(pool.padding) == (0, 0) and pair(pool.dilation) == (1, 1)
    )


def _convolve(
    writer: CWriter, name: str, module: nn.Conv2d, arriving: Shape, leaving: Shape, *, window: tuple[int, int]
) -> None:
    (channels, height, width), (filters, rows, columns) = arriving, leaving
    kernel, stride, dilation = pair(module.kernel_size), pair(module.stride), pair(module.dilation)
    padding = conv_padding(module)
    weight, factor = writer.weights(name, module.weight.numpy())
    bias, target = writer.bias(name, module), writer.target(prod(leaving))
    pooled = window != (1, 1)
    places = [f"(y * {window[0]} + p)", f"(x * {window[1]} + q)"] if pooled else ["y", "x"]
    row, column = (
        f"{places[axis]} * {stride[axis]} + {offset} * {dilation[axis]}"
        + (f" - {padding[axis]}" if padding[axis] else "")
        for axis, offset in enumerate("uv")
    )
    index = f"((o * {channels} + c) * {kernel[0]} + u) * {kernel[1]} + v"
    of_one_place = [
        "    float sum = 0.0f;",
        f"    for (c = 0; c < {channels}; c++)",
        f"    for (u = 0; u < {kernel[0]}; u++)",
        f"    for (v = 0; v < {kernel[1]}; v++) {{",
        f"        const int row = {row}, column = {column};",
        *_skip_outside(any(padding), height, width),
        f"        sum += {weight(index)} * {writer.source}[(c * {height} + row) * {width} + column];",
        "    }",
    ]
    of_a_window = [
        f"    float best = {LOWEST};",
        f"    for (p = 0; p < {window[0]}; p++)",
        f"    for (q = 0; q < {window[1]}; q++) {{",
        *[f"    {line}" for line in of_one_place],
        "        if (sum > best) best = sum;",
        "    }",
    ]
    writer.lines(
        f"{name}: {channels} channels, {filters} filters of {kernel[0]} x {kernel[1]}"
        + (f", the largest of {window[0]} x {window[1]}" if pooled else ""),
        [
            "int o, y, x, c, u, v" + (", p, q;" if pooled else ";"),
            f"for (o = 0; o < {filters}; o++)",
            f"for (y = 0; y < {rows}; y++)",
            f"for (x = 0; x < {columns}; x++) {{",
            *(of_a_window if pooled else of_one_place),
            f"    {target}[(o * {rows} + y) * {columns} + x] = {'best' if pooled else 'sum'}{factor}{bias};",
            "}",
        ],
    )
    writer.source = target


def _skip_outside(padded: bool, height: int, width: int) -> list[str]:
    test = f"        if (row < 0 || row >= {height} || column < 0 || column >= {width}) continue;"
    return [test] if padded else []


def _pool(writer: CWriter, name: str, module: nn.Module, arriving: Shape, leaving: Shape) -> None:
    (channels, height, width), (_, rows, columns) = arriving, leaving
    kernel, stride, padding = pair(module.kernel_size), pair(module.stride), pair(module.padding)
    dilation, target = pair(getattr(module, "dilation", 1)), writer.target(prod(leaving))
    largest = isinstance(module, nn.MaxPool2d)
    row, column = (
        f"{place} * {stride[axis]} + {offset} * {dilation[axis]}" + (f" - {padding[axis]}" if padding[axis] else "")
        for axis, (place, offset) in enumerate((("y", "u"), ("x", "v")))
    )
    value = f"{writer.source}[(c * {height} + row) * {width} + column]"
    take = f"if ({value} > result) result = {value};" if largest else f"result += {value};"
    mean = "" if largest else f" / {literal(kernel[0] * kernel[1])}"
    writer.lines(
        f"{name}: {'largest' if largest else 'average'} of {kernel[0]} x {kernel[1]}",
        [
            "int c, y, x, u, v;",
            f"for (c = 0; c < {channels}; c++)",
            f"for (y = 0; y < {rows}; y++)",
            f"for (x = 0; x < {columns}; x++) {{",
            f"    float result = {LOWEST if largest else '0.0f'};",
            f"    for (u = 0; u < {kernel[0]}; u++)",
            f"    for (v = 0; v < {kernel[1]}; v++) {{",
            f"        const int row = {row}, column = {column};",
            *_skip_outside(any(padding), height, width),
            f"        {take}",
            "    }",
            f"    {target}[(c * {rows} + y) * {columns} + x] = result{mean};",
            "}",
        ],
    )
    writer.source = target


def _select(writer: CWriter, name: str, module: Select, arriving: Shape, leaving: Shape) -> None:
    index, target = writer.integers(f"{name}_index", module.index.numpy(), unsigned=True), writer.target(prod(leaving))
    places = prod(leaving[1:])
    there = f"{index}[i]" if places == 1 else f"{index}[i / {places}] * {places} + i % {places}"
    loop = f"for (i = 0; i < {prod(leaving)}; i++) {target}[i] = {writer.source}[{there}];"
    writer.lines(name, ["int i;", loop])
    writer.source = target


def _each(expression: Callable[[nn.Module], str], *, math: bool = False) -> Callable[..., None]:
    """A step that changes each value on its own; ``v`` in the expression is the value."""

    def write(writer: CWriter, name: str, module: nn.Module, arriving: Shape, leaving: Shape) -> None:
        target = writer.writable(prod(arriving))
        loop = [
            "int i;",
            f"for (i = 0; i < {prod(arriving)}; i++) {{",
            f"    const float v = {writer.source}[i];",
            f"    {target}[i] = {expression(module)};",
            "}",
        ]
        writer.lines(name, loop)
        writer.source = target
        writer.uses_math = writer.uses_math or math

    return write


def _log_mel(writer: CWriter, name: str, module: LogMel, arriving: Shape, leaving: Shape) -> None:
    """Each frequency of each frame by its sum over the window: slow, and no constants beyond three short tables."""
    (_, bands, frames), window = leaving, module.window
    waves, shares = module.bank()
    frequencies = len(waves) // 2
    turns = 2 * np.pi * np.arange(window) / window
    hann = writer.floats(f"{name}_window", waves[0, 0].numpy())
    cosines, sines = (
        writer.floats(f"{name}_{key}", values) for key, values in (("cosines", np.cos(turns)), ("sines", np.sin(turns)))
    )
    parts = writer.floats(f"{name}_shares", shares[:, :frequencies, 0].numpy())
    target, value = writer.target(prod(leaving)), f"{writer.source}[f * {module.hop} + n] * {hann}[n]"
    writer.lines(
        f"{name}: {bands} bands in {frames} windows of {window} samples",
        [
            "int f, k, n, o;",
            f"float power[{frequencies}];",
            f"for (f = 0; f < {frames}; f++) {{",
            f"    for (k = 0; k < {frequencies}; k++) {{",
            "        float real = 0.0f, imaginary = 0.0f;",
            f"        for (n = 0; n < {window}; n++) {{",
            f"            real += {value} * {cosines}[k * n % {window}];",
            f"            imaginary += {value} * {sines}[k * n % {window}];",
            "        }",
            "        power[k] = real * real + imaginary * imaginary;",
            "    }",
            f"    for (o = 0; o < {bands}; o++) {{",
            "        float sum = 0.0f;",
            f"        for (k = 0; k < {frequencies}; k++) sum += {parts}[o * {frequencies} + k] * power[k];",
            f"        {target}[o * {frames} + f] = logf(sum + {literal(module.floor)});",
            "    }",
            "}",
        ],
    )
    writer.source, writer.uses_math = target, True
    writer.stack += 4 * frequencies


def _flatten(writer: CWriter, name: str, module: nn.Module, arriving: Shape, leaving: Shape) -> None:
    """Values lie flat already."""


def _gelu(module: nn.Module) -> str:
    if module.approximate == "tanh":
        return "0.5f * v * (1.0f + tanhf(0.797884561f * (v + 0.044715f * v * v * v)))"
    return "0.5f * v * (1.0f + erff(v * 0.707106781f))"


def _number(module: nn.Module, attribute: str) -> str:
    return literal(float(getattr(module, attribute)))


RULES: dict[type[nn.Module], Callable[..., None]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    nn.ReLU: _each(lambda _: "v > 0.0f ? v : 0.0f"),
    nn.ReLU6: _each(lambda _: "v > 6.0f ? 6.0f : (v > 0.0f ? v : 0.0f)"),
    nn.LeakyReLU: _each(lambda module: f"v > 0.0f ? v : v * {_number(module, 'negative_slope')}"),
    nn.ELU: _each(lambda module: f"v > 0.0f ? v : {_number(module, 'alpha')} * expm1f(v)", math=True),
    nn.SELU: _each(lambda _: "1.05070099f * (v > 0.0f ? v : 1.67326324f * expm1f(v))", math=True),
    nn.GELU: _each(_gelu, math=True),
    nn.SiLU: _each(lambda _: "v / (1.0f + expf(-v))", math=True),
    nn.Tanh: _each(lambda _: "tanhf(v)", math=True),
    nn.MaxPool2d: _pool,
    nn.AvgPool2d: _pool,
    nn.Flatten: _flatten,
    Select: _select,
    LogMel: _log_mel,
    next(kind for kind, entry in KINDS.items() if entry.name == "normalise"): _each(
        lambda module: f"(v - {_number(module, 'mean')}) / {_number(module, 'std')}"
    ),
}
