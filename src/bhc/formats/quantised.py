"""A network as it is stored, integer codes behind its numbers, and made ready for a runtime.

There normalisation is folded into the first layer, and pools are unrolled. Runtimes copy the input once for every place
a filter is applied at; with few filters that copy takes most of the time. Here each filter appears four times, shifted
over the pooling window in a kernel larger by one: a quarter of the places, some 1.4 times the multiplications, less
than half the time.
"""

import keyword
import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil, frexp, isfinite, ldexp
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bhc.graph import INPUT, Counts, Graph, Signature, Step, calls_of_layers, count
from bhc.layers import (
    Normalise,
    Recurrence,
    RecurrentLayer,
    Select,
    Shape,
    Tied,
    bare_copy,
    conv_padding,
    has_kind,
    is_product,
    kind_of,
    pair,
    side_by_side,
    weighted_kind,
)

PLAIN = re.compile(r"\w+", re.ASCII)
_CHAIN, _BRANCHING = nn.Sequential(), fx.GraphModule(nn.Module(), fx.Graph())


def with_plain_names(graph: Graph) -> Graph:
    """The same steps, those that have an impossible name under another one."""
    container = _CHAIN if graph.is_chain else _BRANCHING
    names = {INPUT: INPUT}
    taken = {step.name for step in graph.steps}
    for step in graph.steps:
        word = PLAIN.fullmatch(step.name) and not keyword.iskeyword(step.name) and step.name != "self"
        name = step.name
        if not word or hasattr(container, name):
            name = "step_" + re.sub(r"\W+", "_", name, flags=re.ASCII)
            while name in taken:
                name += "_"
        names[step.name] = name
        taken.add(name)
    return Graph(
        Step(names[step.name], step.module, tuple(names[source] for source in step.reads)) for step in graph.steps
    ).train(graph.training)


class DrivenRecurrence(nn.Module):
    """A recurrence and the linear layer that drives it and nothing else, with the names that they have."""

    def __init__(self, linear: Step, recurrence: Step) -> None:
        super().__init__()
        self.names = (linear.name, recurrence.name)
        self.linear: Any = linear.module
        self.recurrence: Any = recurrence.module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.recurrence(self.linear(x))

    def output_shape(self, arriving: Shape) -> Shape:
        """Of one example."""
        return (arriving[0], self.recurrence.hidden)


def driven(graph: Graph) -> Graph:
    """The same function with each recurrence and its linear layer as one step: others have kernels for both."""
    steps = {step.name: step for step in graph.steps}
    for step in (step for step in graph.steps if isinstance(step.module, Recurrence)):
        before = steps.get(step.reads[0])
        if before is not None and isinstance(before.module, nn.Linear) and len(graph.readers[before.name]) == 1:
            steps[step.name] = Step(step.name, DrivenRecurrence(before, step), before.reads)
            del steps[before.name]
    return graph if len(steps) == len(graph.steps) else Graph(steps.values()).train(graph.training)


def with_kernels(graph: Graph) -> Graph:
    """The same with torch's own kernels for recurrences that are one step with what drives them."""
    pairs = {step.name: step.module for step in graph.steps if isinstance(step.module, DrivenRecurrence)}
    return graph.with_steps({name: RecurrentLayer(pair.linear, pair.recurrence) for name, pair in pairs.items()})


FLOAT_BITS = 32
LARGEST_CODE = (1 << 15) - 1
LARGEST_BIAS_CODE = (1 << 7) - 1
SIGNIFICANT_BITS = 11  # of a step: those of a 16-bit float, so that most take two bytes


@dataclass(frozen=True)
class Codes:
    """Numbers stored as ``codes * step``."""

    codes: np.ndarray  # int32, the shape of what they stand for
    step: float  # positive, a 32-bit float

    @classmethod
    def of(cls, values: torch.Tensor, step: float, *, largest: int = LARGEST_CODE) -> "Codes":
        """Round to multiples of ``step``, itself rounded to few bits, and made coarser if the codes need it."""
        peak = float(values.abs().max()) if values.numel() else 0.0
        step = round_step(max(step, peak / largest))
        return cls((values / step).round_().to(torch.int32).clamp_(-largest, largest).numpy(), step)

    @property
    def bits(self) -> int:
        """Width of the narrowest two's complement integer that holds every code; at least 1."""
        if not self.codes.size:
            return 1
        lowest, highest = int(self.codes.min()), int(self.codes.max())
        return max((~lowest if lowest < 0 else lowest).bit_length(), highest.bit_length()) + 1

    @property
    def entropy_bytes(self) -> float:
        """The least that any code takes which knows how often each value occurs, and nothing else."""
        _, counts = np.unique(self.codes, return_counts=True)
        return -float((counts * np.log2(counts / counts.sum())).sum()) / 8

    def values(self) -> torch.Tensor:
        """What they stand for, in single precision."""
        return torch.from_numpy(self.codes).to(torch.float32) * torch.tensor(self.step, dtype=torch.float32)


def round_step(step: float) -> float:
    """Up to the next number of ``SIGNIFICANT_BITS`` bits: up, so that the largest code still fits."""
    if not isfinite(step):
        return step
    mantissa, exponent = frexp(step)
    if mantissa == 0 or exponent < -120:  # a layer of zeros, or close to it; the exponent of zero is zero
        return ldexp(1.0, -120)
    return ldexp(ceil(ldexp(mantissa, SIGNIFICANT_BITS)), exponent - SIGNIFICANT_BITS)


def with_numbers(graph: Graph, numbers: Mapping[str, torch.Tensor | None]) -> Graph:
    """A graph with other weights or biases, named as in a state dict; steps without weights are shared."""
    replaced: dict[str, nn.Module] = {}
    owners = graph.owners
    for key, values in numbers.items():
        name, kind = key.rsplit(".", 1)
        if name not in replaced:
            replaced[name] = bare_copy(graph.get_submodule(name))
        numbers_of = replaced[name]._parameters
        numbers_of[kind] = None if values is None else nn.Parameter(values, requires_grad=False)
    for step in graph.steps:
        layer = replaced.get(owners.get(step.name, ""))
        if layer is not None:
            replaced[step.name] = Tied(layer) if isinstance(step.module, Tied) else layer
    changed = graph.with_steps(replaced)
    # To put all modules to rest takes longer than to change some; what is emitted is at rest from the start.
    at_rest = not changed.training and not any(parameter.requires_grad for parameter in changed.parameters())
    return changed if at_rest else changed.eval().requires_grad_(False)


@dataclass(frozen=True)
class QuantisedNetwork:
    """A graph, the codes behind its numbers, and a label of plain data; it knows nothing of contexts or training.

    A layer without an entry in ``weights`` or ``biases`` keeps those numbers as 32-bit floats.
    """

    graph: Graph
    input_shape: Shape
    labels: tuple[int, ...]  # the original number of each output
    weights: Mapping[str, Codes] = field(default_factory=dict)
    biases: Mapping[str, Codes] = field(default_factory=dict)
    temperature: float = 1.0
    card: Mapping[str, Any] = field(default_factory=dict)  # what is known about it: plain data, stored as it is

    @classmethod
    def build(
        cls, graph: Graph, *, weights: Mapping[str, Codes], biases: Mapping[str, Codes], **rest: Any
    ) -> "QuantisedNetwork":
        """``graph`` with the numbers that the codes stand for; its own are left alone."""
        numbers = {f"{name}.weight": codes.values() for name, codes in weights.items()}
        numbers |= {f"{name}.bias": codes.values() for name, codes in biases.items()}
        return cls(with_numbers(graph, numbers), weights=weights, biases=biases, **rest)

    @cached_property
    def layers(self) -> tuple["StoredLayer", ...]:
        names = dict.fromkeys(self.graph.owners.values())
        modules = ((name, self.graph.get_submodule(name)) for name in names)
        return tuple(
            StoredLayer(name, module, self.weights.get(name), self.biases.get(name)) for name, module in modules
        )

    @cached_property
    def counts(self) -> Counts:
        return count(self.graph, self.input_shape)

    @cached_property
    def signature(self) -> Signature:
        return Signature.of(self.graph, self.input_shape)

    def module(self) -> nn.Module:
        """A copy that the caller may change, made of plain modules; names that torch cannot take are changed."""
        return with_plain_names(with_kernels(driven(deepcopy(self.graph)))).plain()


@dataclass(frozen=True)
class StoredLayer:
    """One weighted layer as it is stored."""

    name: str
    module: Any
    weight: Codes | None  # None: 32-bit floats
    bias: Codes | None

    @property
    def bits(self) -> int:
        return FLOAT_BITS if self.weight is None else self.weight.bits

    @property
    def num_weights(self) -> int:
        return self.module.weight.numel()

    @property
    def width(self) -> int:
        """The layer's number in an architecture: filters of a convolution, inputs of a linear layer."""
        return weighted_kind(self.module).width(self.module)


def fold_normalisation(network: QuantisedNetwork) -> QuantisedNetwork:
    """``W (x - mean) / std + b = (W / std) x + (b - W mean / std)``: the same codes with another step.

    Left as it is where that does not hold: a padded convolution of inputs with a mean pads with zeros after
    the mean was taken off.
    """
    chain = _to_first_layer(network.graph)
    if chain is None:
        return network
    first, *_, layer = chain
    if first.module.mean.dim():  # type: ignore[operator]
        return network  # one number a channel; a step of codes is one for all
    mean, std = float(first.module.mean), float(first.module.std)  # type: ignore[arg-type]
    module: Any = layer.module
    if module.weight.dim() > 2 and any(conv_padding(module)) and mean != 0:
        return network
    numbers = {f"{layer.name}.weight": module.weight / std}
    if mean != 0:
        shift = mean * numbers[f"{layer.name}.weight"].flatten(1).sum(1)
        numbers[f"{layer.name}.bias"] = -shift if module.bias is None else module.bias - shift
    _, *rest = with_numbers(network.graph, numbers).steps
    graph = Graph(step.rewired({first.name: INPUT}) for step in rest)
    weights = {key: Codes(c.codes, c.step / std) if key == layer.name else c for key, c in network.weights.items()}
    biases = {key: codes for key, codes in network.biases.items() if key != layer.name or mean == 0}
    return replace(network, graph=graph, weights=weights, biases=biases)


def _to_first_layer(graph: Graph) -> list[Step] | None:
    """The steps from the normalisation to the layer that alone reads it, where there is such a way."""
    way, name = [], INPUT
    steps = {step.name: step for step in graph.steps}
    while len(graph.readers[name]) == 1 and graph.readers[name][0] in steps:
        name = graph.readers[name][0]
        way.append(steps[name])
        if is_product(way[-1].module):
            break
    if len(way) < 2 or not isinstance(way[0].module, Normalise) or not is_product(way[-1].module):
        return None
    if len(calls_of_layers(graph).get(way[-1].name, ())) != 1:  # other calls of the layer read other values
        return None
    return way if all(isinstance(step.module, nn.Flatten | Select) for step in way[1:-1]) else None


POOL = 2
COPIES = POOL * POOL
MOST_FILTERS = 16  # with more, the multiplications weigh more than the copies


class PooledConvolution(nn.Module):
    """``activation(largest of four shifted convolutions)``; kernels (4 O, I, height + 1, width + 1)."""

    def __init__(self, convolution: nn.Conv2d, activation: nn.Module) -> None:
        super().__init__()
        filters, channels, height, width = convolution.weight.shape
        grown = torch.zeros(POOL, POOL, filters, channels, height + POOL - 1, width + POOL - 1)
        for down in range(POOL):
            for across in range(POOL):
                grown[down, across, :, :, down : down + height, across : across + width] = convolution.weight
        self.weight = grown.flatten(0, 2)
        self.bias = None if convolution.bias is None else convolution.bias.repeat(COPIES)
        self.padding = conv_padding(convolution)[:2]
        self.activation = activation

    def forward(self, x: Tensor) -> Tensor:
        copies = F.conv2d(x, self.weight, self.bias, stride=POOL, padding=self.padding)
        return self.activation(copies.unflatten(1, (COPIES, -1)).amax(1))

    def output_shape(self, shape: Shape) -> Shape:
        """Of one example."""
        sizes = zip(shape[1:], self.padding, self.weight.shape[2:], strict=True)
        return (len(self.weight) // COPIES, *((size + 2 * pad - kernel) // POOL + 1 for size, pad, kernel in sizes))


def is_rising(activation: nn.Module) -> bool:
    """Whether it never swaps the order of two values, so that the largest value stays the largest."""
    rises = has_kind(activation) and kind_of(activation).rises
    return rises and getattr(activation, "alpha", 1.0) >= 0  # an ELU can be made to fall


def unrolled(graph: Graph) -> Graph:
    """The same function with every convolution, activation and 2 x 2 maximum that allow it taken together."""
    if not any(isinstance(module, nn.Conv2d) for module in graph.children()):
        return graph
    steps = {step.name: step for step in graph.steps}
    instead: dict[str, str] = {}
    for step in graph.steps:
        following = _only_readers(graph, step.name)
        if isinstance(step.module, nn.Conv2d) and _can_unroll(step.module, [steps[name].module for name in following]):
            activation, pool = following
            pooled = PooledConvolution(step.module, steps[activation].module)
            steps[step.name] = Step(step.name, pooled, step.reads)
            instead[pool] = step.name
            del steps[activation], steps[pool]
    return Graph(step.rewired(instead) for step in steps.values()) if instead else graph


def _only_readers(graph: Graph, name: str) -> list[str]:
    """The two steps after this one, where each is the only one to read the one before."""
    following: list[str] = []
    while len(following) < 2:
        match graph.readers[following[-1] if following else name]:
            case [reader] if reader != INPUT:
                following.append(reader)
            case _:
                return following
    return following


def _can_unroll(convolution: nn.Conv2d, following: Sequence[nn.Module]) -> bool:
    top, left, bottom, right = conv_padding(convolution)
    match following:
        case [activation, nn.MaxPool2d() as pool]:
            return (
                convolution.out_channels <= MOST_FILTERS
                and convolution.groups == 1
                and pair(convolution.stride) == pair(convolution.dilation) == (1, 1)
                and (top, left) == (bottom, right)
                and is_rising(activation)
                and side_by_side(pool)
                and pair(pool.kernel_size) == (POOL, POOL)
            )
    return False
