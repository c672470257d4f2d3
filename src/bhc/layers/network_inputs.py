"""What a network takes, and what stands before its first layer: normalised pixels, energies on the mel scale."""

import keyword
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import log10, pi, prod
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn, tensor
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.layers.arguments import (
    EXAMPLES,
    Argument,
    Kept,
    Positive,
    Real,
    Shape,
    Size,
    bounded,
    brief,
    expect,
    must_fit,
    unknown,
)
from bhc.layers.aten import DTYPES
from bhc.layers.kind import Elementwise, Example, Uncut, Whole, own_copy, spread
from bhc.layers.protocols import CWriter, FileReader, FileWriter, OnnxWriter, UnitSearch, each_number, literal, number

LOWEST = 60.0  # Hz, the lower edge of the first band
LARGEST_WINDOW = 1 << 12  # samples; the waves of a window are its square
PER_CHANNEL = 20  # in packed files: a normalisation with one number a channel


class Normalise(nn.Module):
    """``(x - mean) / std`` with one number each for all inputs, or one a channel; integers are welcome.

    Never one a pixel: it then commutes with dropping pixels. A mean of zero keeps a black
    background at exactly zero, where it neither feeds a unit nor adds noise to it.
    """

    mean: Tensor  # () or (C, 1, 1)
    std: Tensor  # like the mean

    def __init__(self, mean: float | Sequence[float], std: float | Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", _statistic(mean))
        self.register_buffer("std", _statistic(std))
        if self.mean.shape != self.std.shape:
            raise BhcError(
                f"a mean of {_described(self.mean)} does not go with a standard deviation of {_described(self.std)}",
                hint="give one number each, or one a channel each",
            )

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(self.mean.dtype) - self.mean) / self.std


def _statistic(values: float | Sequence[float]) -> Tensor:
    """A number as it is, a sequence as a column of channels that images (N, C, H, W) broadcast against."""
    if isinstance(values, Sequence):
        return tensor([float(value) for value in values]).view(-1, 1, 1)
    return tensor(float(values))


def _described(statistic: Tensor) -> str:
    return f"{statistic.numel()} channels" if statistic.ndim else "one number"


class LogMel(nn.Module):
    """Logarithms of energies in bands of the mel scale: (N, 1, T) samples up to 1 -> (N, 1, bands, frames).

    A frame is ``window`` samples under a Hann window, ``hop`` after the one before; bands are triangles over its power
    spectrum. There is nothing to learn and nothing to store: four whole numbers tell everything.
    """

    floor = 1e-6  # added to energies: the logarithm of silence

    def __init__(self, rate: int, bands: int, window: int, hop: int) -> None:
        super().__init__()
        if min(rate, bands, window, hop) < 1 or bands > window // 2:
            raise BhcError(
                f"{bands} bands of windows of {window} samples, {hop} apart, {rate} a second",
                hint="whole numbers of 1 or more, and at most half as many bands as samples in a window",
            )
        self.rate, self.bands, self.window, self.hop = rate, bands, window, hop

    def forward(self, x: Tensor) -> Tensor:
        waves, shares = (bank.to(x.dtype) for bank in _on(self.rate, self.bands, self.window, x.device))
        spectrum = F.conv1d(x, waves, stride=self.hop)  # cosines, then sines
        return torch.log(F.conv1d(spectrum * spectrum, shares) + self.floor).unsqueeze(1)

    def bank(self) -> tuple[Tensor, Tensor]:
        """Windowed waves (W + 2, 1, W), cosines first, and the part of their power in each band (bands, W + 2, 1)."""
        return _bank(self.rate, self.bands, self.window)

    def frames(self, samples: int) -> int:
        """How many windows fit."""
        return (samples - self.window) // self.hop + 1

    def extra_repr(self) -> str:
        return f"rate={self.rate}, bands={self.bands}, window={self.window}, hop={self.hop}"


@lru_cache(maxsize=8)
def _bank(rate: int, bands: int, window: int) -> tuple[Tensor, Tensor]:
    with torch.device("cpu"):  # also where modules are built without storage
        places = torch.arange(window, dtype=torch.float64)
        frequencies = torch.arange(window // 2 + 1, dtype=torch.float64)
        hann = 0.5 - 0.5 * torch.cos(2 * pi * places / window)
        angles = 2 * pi * frequencies[:, None] * places / window
        waves = torch.cat([torch.cos(angles), torch.sin(angles)]) * hann
        edges = torch.linspace(_to_mel(LOWEST), _to_mel(rate / 2), bands + 2, dtype=torch.float64)
        hertz = 700 * (10 ** (edges / 2595) - 1)
        low, middle, high = hertz[:-2, None], hertz[1:-1, None], hertz[2:, None]
        at = frequencies * rate / window
        triangles = torch.minimum((at - low) / (middle - low), (high - at) / (high - middle)).clamp(min=0)
        return waves[:, None].float(), torch.cat([triangles, triangles], 1)[..., None].float()


@lru_cache(maxsize=8)
def _on(rate: int, bands: int, window: int, device: torch.device) -> tuple[Tensor, Tensor]:
    waves, shares = _bank(rate, bands, window)
    return waves.to(device), shares.to(device)


def _to_mel(hertz: float) -> float:
    return 2595 * log10(1 + hertz / 700)


class NormaliseKind(Elementwise):
    name, module, number, keeps_inputs_apart = "normalise", Normalise, 13, True

    def output_shape(self, module: Normalise, *arriving: Shape) -> Shape:
        (shape,) = arriving
        fits = not module.mean.dim() or (len(shape) == 4 and shape[1] == len(module.mean))
        must_fit(fits, module, shape)
        return shape

    def narrowed(self, module: Normalise, arriving: Sequence[Kept], leaving: Kept) -> nn.Module:
        if not module.mean.dim():
            return own_copy(module)
        index = torch.from_numpy(leaving.index)
        return Normalise(*(numbers.cpu()[index].flatten().tolist() for numbers in (module.mean, module.std)))

    def describe(self, module: Normalise) -> dict[str, Any]:
        return {"channels": module.mean.numel() if module.mean.dim() else None}

    def build(self, described: Mapping[str, Any]) -> nn.Module:
        channels = described.get("channels")
        if channels is None:
            return Normalise(0.0, 1.0)
        return Normalise([0.0] * bounded(channels), [1.0] * channels)

    def write(self, module: Normalise, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        if module.mean.dim():
            return [PER_CHANNEL, module.mean.flatten().tolist(), module.std.flatten().tolist()]
        return [self.tag, float(module.mean), float(module.std)]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        mean, std = Real().checked, Positive().checked
        match entry:
            case [self.number, float(one), float(other)]:
                file.add(self.name, Normalise(mean(one), std(other)))
            case [_, list(means), list(stds)] if len(means) == len(stds) == file.shape[1] and len(file.shape) == 4:
                file.add(self.name, Normalise([*map(mean, means)], [*map(std, stds)]))
            case _:
                raise unknown(entry)

    def to_onnx(self, module: Normalise, name: str, writer: OnnxWriter) -> None:
        writer.node("Sub", f"{name}.centred", writer.constant(f"{name}.mean", module.mean.numpy()))
        writer.node("Div", name, writer.constant(f"{name}.std", module.std.numpy()))

    def c_obstacle(self, module: Normalise, arriving: Shape) -> str | None:
        return "normalises channel by channel" if module.mean.dim() else None

    def to_c(self, module: Normalise, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        each_number(writer, name, arriving, f"(v - {number(module, 'mean')}) / {number(module, 'std')}")

    def examples(self) -> Sequence[Example]:
        return [(Normalise(0.5, 2.0), ((2, 3),)), (Normalise([0.5, 1.0], [2.0, 3.0]), ((2, 2, 3, 4),))]


class LogMelKind(Whole):
    """``LogMel``: samples go in, of which none can be left out."""

    name, module, number = "log-mel", LogMel, 39
    arguments: ClassVar[Mapping[str, Argument]] = dict.fromkeys(("rate", "bands", "window", "hop"), Size())

    def output_shape(self, module: LogMel, *arriving: Shape) -> Shape:
        (shape,) = arriving
        fits = len(shape) == 3 and shape[1] == 1 and module.frames(shape[2]) > 0
        must_fit(fits, module, shape)
        return (shape[0], 1, module.bands, module.frames(shape[2]))

    def follow(self, module: LogMel, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        search.keep(arriving[0])
        return arriving[0][:, :, :1, None].expand(leaving)

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(described["rate"], described["hop"])
        window, bands = bounded(described["window"]), bounded(described["bands"])
        if window > LARGEST_WINDOW or bands > window // 2:
            raise ValueError(f"{bands} bands of windows of {window} samples")

    def to_onnx(self, module: LogMel, name: str, writer: OnnxWriter) -> None:
        waves, shares = (numbers.numpy() for numbers in module.bank())
        writer.node("Conv", f"{name}.spectrum", writer.constant(f"{name}.waves", waves), strides=[module.hop])
        writer.node("Mul", f"{name}.power", writer.value)
        writer.node("Conv", f"{name}.energy", writer.constant(f"{name}.shares", shares))
        writer.node("Add", f"{name}.raised", writer.number(f"{name}.floor", module.floor))
        writer.node("Log", f"{name}.log")
        writer.node("Unsqueeze", name, writer.constant(f"{name}.axis", np.array([1])))

    def to_c(self, module: LogMel, name: str, arriving: Shape, leaving: Shape, writer: CWriter) -> None:
        """Each frequency of each frame by its sum over the window: slow, and no constants beyond three short tables."""
        (_, bands, frames), window = leaving, module.window
        waves, shares = module.bank()
        frequencies = len(waves) // 2
        turns = 2 * np.pi * np.arange(window) / window
        hann = writer.floats(f"{name}_window", waves[0, 0].numpy())
        tables = (("cosines", np.cos(turns)), ("sines", np.sin(turns)))
        cosines, sines = (writer.floats(f"{name}_{key}", values) for key, values in tables)
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

    def examples(self) -> Sequence[Example]:
        return [(LogMel(1000, 4, 32, 16), ((2, 1, 100),))]


MOST_INPUTS, MOST_AXES, LONGEST_NAME = 64, 6, 100
CHANNELS = 1  # their axis in an input


class NetworkInput(nn.Module):
    """The input at ``place``, (N, *shape): floats as they come, whole numbers in the dtype that they were captured in.

    ``called`` is its name for those who give it, as the network's forward pass has it; a step's may differ. Along the
    ``dynamic`` axes, of which 0 would be the batch, a batch may have another size than ``shape`` says.
    """

    def __init__(
        self, called: str, place: int, shape: Shape, dtype: str = "float32", dynamic: Sequence[int] = ()
    ) -> None:
        super().__init__()
        self.called, self.place, self.shape = called, place, tuple(shape)
        self.dtype, self.dynamic = dtype, tuple(dynamic)

    def forward(self, inputs: Tensor | Sequence[Tensor]) -> Tensor:
        x = inputs if isinstance(inputs, Tensor) else inputs[self.place]
        wanted: torch.dtype = getattr(torch, self.dtype)
        return x if wanted.is_floating_point and x.is_floating_point() else x.to(wanted)

    def extra_repr(self) -> str:
        free = f", dynamic={self.dynamic}" if self.dynamic else ""
        return f"{self.called}, {self.place}, {self.shape}, {self.dtype}{free}"


class NetworkInputKind(Uncut):
    """``NetworkInput``: reads the network's input, the only step that may where there are several."""

    name, module, number, keeps_inputs_apart = "given", NetworkInput, 41, True
    arguments: ClassVar[Mapping[str, Argument]] = {
        **dict.fromkeys(("called", "place"), Argument()),
        "shape": Size(),
        "dtype": Argument(),
        "dynamic": Size(),
    }

    def output_shape(self, module: NetworkInput, *arriving: Shape) -> Shape:
        (shape,) = arriving
        must_fit(shape[1:] in ((), module.shape), module, shape)
        return (EXAMPLES, *module.shape)

    def follow(self, module: NetworkInput, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        """A unit a channel, so that a layer may read some; none of them goes."""
        if len(leaving) <= CHANNELS:
            return search.whole(leaving)
        return spread(search.new(leaving[CHANNELS]), leaving, CHANNELS)

    def check(self, described: Mapping[str, Any]) -> None:
        called, place, shape, dtype, dynamic = (described[name] for name in self.arguments)
        # It becomes a parameter of a function that torch writes.
        word = isinstance(called, str) and called.isascii() and called.isidentifier() and len(called) <= LONGEST_NAME
        expect(word and not keyword.iskeyword(called) and called != "self", f"an input called {brief(called)}")
        expect(type(place) is int and 0 <= place < MOST_INPUTS, f"input {place!r}")
        expect(isinstance(shape, tuple) and len(shape) < MOST_AXES, f"an input of shape {shape!r}")
        bounded(*shape)
        expect(isinstance(dtype, str) and dtype in DTYPES, f"an input of dtype {dtype!r}")
        axes = list(range(1, 1 + len(shape)))
        rises = isinstance(dynamic, tuple) and list(dynamic) == sorted(set(dynamic))
        expect(rises and all(type(axis) is int and axis in axes for axis in dynamic), f"dynamic axes {dynamic!r}")

    def to_onnx(self, module: NetworkInput, name: str, writer: OnnxWriter) -> None:
        writer.value = module.called  # an input of the model

    def c_obstacle(self, module: NetworkInput, arriving: Shape) -> str | None:
        return "is one of several inputs, or has a size that is not fixed, and a header's function takes one array"

    def examples(self) -> Sequence[Example]:
        shape = (3, 4)
        return [(NetworkInput("x", 0, shape, dynamic=axes), ((EXAMPLES, *shape),)) for axes in ((), (2,))]


KINDS = (NormaliseKind, LogMelKind, NetworkInputKind)
