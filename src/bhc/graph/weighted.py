"""The layers that hold weights, which units they read and write, what cannot get smaller, and what lies beside them."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from math import prod, sqrt
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.graph.graph import INPUT, Graph, ShapedStep, calls_of_layers, layer_of, shaped_steps
from bhc.graph.units import Units
from bhc.layers import EXAMPLES, NetworkInput, Opaque, Shape, Tied, Weighted, is_weighted, kind_of, weighted_kind
from bhc.layers.aten import AtenCall


@dataclass(frozen=True)
class Layer:
    """One weighted layer: its sizes, what it costs, and the units at its two ends.

    What emission asks again and again is worked out once.
    """

    name: str
    module: Any
    reads: Tensor  # (channels that arrive,) the unit of each; after a flatten many have the same
    writes: Tensor  # (O,)
    output_area: int  # places its weights are multiplied at, in all its calls; none for rows that are picked
    calls: tuple[str, ...] = ()  # the steps that call it, the first of which it is named after
    transposed: tuple[str, ...] = ()  # and those that use its weights the other way round
    kept: bool = False  # whether it was asked to stay as wide as it is

    @cached_property
    def kind(self) -> Weighted:
        return weighted_kind(self.module)

    @cached_property
    def has_kernel(self) -> bool:
        """Whether its weights slide over places: one scale then covers all of its input."""
        return len(self.weight_shape) > 2

    @cached_property
    def may_skip(self) -> bool:
        """Whether it can leave out an input of its own accord; one scale for all of its input says nothing of one."""
        return not self.kept and not self.has_kernel and self.kind.may_skip and not self.transposed

    @cached_property
    def is_shared(self) -> bool:
        """Whether it is called more than once."""
        return len(self.calls) + len(self.transposed) > 1

    @cached_property
    def groups(self) -> int:
        return getattr(self.module, "groups", 1)

    @cached_property
    def weight_shape(self) -> tuple[int, ...]:
        """(O, I) or (O, I of one group, *kernel)."""
        return tuple(self.module.weight.shape)

    @cached_property
    def units_of_ends(self) -> tuple[np.ndarray, np.ndarray]:
        """Those that it reads and those that it writes, as arrays."""
        return self.reads.cpu().numpy(), self.writes.cpu().numpy()

    @property
    def num_inputs(self) -> int:
        """Of each output: those of its group."""
        return self.weight_shape[1]

    @property
    def num_outputs(self) -> int:
        return self.weight_shape[0]

    @property
    def kernel_area(self) -> int:
        return prod(self.weight_shape[2:])

    @property
    def num_weights(self) -> int:
        return prod(self.weight_shape)

    @property
    def weight_size(self) -> float:
        """The root mean square of its weights."""
        norm = torch.linalg.vector_norm(self.module.weight.detach(), dtype=torch.float64)
        return float(norm) / sqrt(self.num_weights)

    @property
    def num_flops(self) -> int:
        """Two operations a weight and place it is applied at."""
        return 2 * self.num_weights * self.output_area

    @property
    def width(self) -> int:
        """The layer's number in an architecture: filters of a convolution, inputs of a linear layer."""
        return self.kind.width(self.module)

    def kept_weights(self, keep_in: Tensor, keep_out: Tensor) -> Tensor:  # (K, channels), (K, O) bool -> (K,)
        """How many weights stay where these of its inputs and outputs do: those of pairs in the same group."""
        inputs, outputs = (keep.unflatten(1, (self.groups, -1)).sum(2) for keep in (keep_in, keep_out))
        return (inputs * outputs).sum(1) * self.kernel_area


def find_layers(graph: Graph, input_shape: Shape, units: Units, *, keep: Iterable[str] = ()) -> tuple[Layer, ...]:
    """Those named in ``keep`` read and write all that there is."""
    shaped = {each.name: each for each in shaped_steps(graph, input_shape)}
    layers, kept = [], set(keep)
    for name, names in calls_of_layers(graph).items():
        reads, writes = torch.tensor(units.reads[name]), torch.tensor(units.writes[name])
        module: Any = shaped[name].module
        places = sum(shaped[call].num_flops for call in names) // (2 * module.weight.numel())
        turned = tuple(call for call in names if isinstance(shaped[call].module, Tied))
        calls = tuple(call for call in names if call not in turned)
        layers.append(Layer(name, module, reads, writes, places, calls, turned, bool(kept & set(names))))
    if not layers:
        raise BhcError(
            "the network has no linear or convolution layer, so there is nothing to compress",
            hint="weights of linear layers, convolutions and embeddings are what is compressed; one that is used in"
            " several ways stays whole",
        )
    return tuple(layers)


def check_outputs(graph: Graph, input_shape: Shape, units: Units) -> None:
    """Raise where contexts are to decide which outputs there are, and the network has none that can be cut."""
    if not units.outputs_are_free:
        *_, last = shaped_steps(graph, input_shape)
        raise BhcError(
            f"the network gives values of shape {last.leaving[1:]}, and not one number a class",
            hint="it must end in a layer, most often a linear one, with one output of its own for each class",
        )


def find_features(
    graph: Graph, layers: tuple[Layer, ...], input_shape: Shape, features: Shape
) -> dict[str, Tensor]:  # (channels that arrive,) by layer: the feature that each carries
    """The layers that read features of a shape: every value of the input, or its channels; of texts, words."""
    if len(graph.input_steps) > 1:
        raise BhcError(
            f"the network takes {len(graph.input_steps)} inputs: {', '.join(graph.input_steps)}",
            hint="contexts of features and words need a network that takes one",
        )
    by_name = {name: layer for layer in layers for name in layer.calls}
    given, places, reads = {INPUT}, {}, {step.name: step.reads for step in graph.steps}
    for step in graph.steps:
        if not given & set(step.reads):
            continue
        if step.name in by_name:
            if not all(given.intersection(reads[name]) for name in by_name[step.name].calls):
                raise BhcError(
                    f"layer {step.name!r} reads the input, and in another call something else",
                    hint="contexts of features need a network whose first layer is called once",
                )
            places[by_name[step.name].name] = _arriving(by_name[step.name], input_shape, features)
        elif kind_of(step.module).keeps_inputs_apart:
            given.add(step.name)
        else:
            raise BhcError(
                f"layer {step.name!r} ({type(step.module).__name__}) reads the input before any layer with weights, so"
                " no feature can be left out there",
                hint="wrap a network that begins with a linear layer, a convolution or an embedding",
            )
    return places


def _arriving(layer: Layer, input_shape: Shape, features: Shape) -> Tensor:
    words = layer.kind.words(layer.module)
    if words is not None:
        count, rows = words
        if features != (count,):
            raise BhcError(
                f"features of shape {features}, and layer {layer.name!r} reads words of {count:,}",
                hint=f"give VocabularySubsets({count})",
            )
        return rows.cpu()
    if features not in (input_shape, input_shape[:1]):
        raise BhcError(
            f"features of shape {features}, and the network takes inputs of shape {input_shape}",
            hint=f"give {input_shape}, every value, or {input_shape[:1]}, the channels",
        )
    if layer.has_kernel:
        if layer.groups > 1 or (features != input_shape[:1] and prod(input_shape[1:]) > 1):
            raise BhcError(
                f"layer {layer.name!r} is a convolution: it reads whole channels"
                + (", in groups" if layer.groups > 1 else ""),
                hint=f"give FeatureSubsets({input_shape[:1]}), or wrap a network that begins with a linear layer",
            )
        return torch.arange(input_shape[0])
    numbers = torch.arange(prod(features)).reshape(*features, *[1] * (len(input_shape) - len(features)))
    places = numbers.expand(input_shape).flatten()
    if len(places) != len(layer.reads):
        raise BhcError(
            f"layer {layer.name!r} reads inputs of shape {input_shape} place by place, all by the same weights",
            hint="contexts of features need a network that begins with a convolution, or a linear layer of flat inputs",
        )
    return places


MOST_WHOLE = 3  # steps that stay whole, where they are told


@dataclass(frozen=True)
class Whole:
    """A step whose weights all stay."""

    name: str
    weights: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.weights:,} weights): {self.reason}"


def find_whole(graph: Graph, layers: tuple[Layer, ...], units: Units) -> tuple[Whole, ...]:
    """Steps with weights of which nothing can go, the largest first."""
    always = units.always
    stay = (layer for layer in layers if always[layer.reads].all() and always[layer.writes].all())
    found = [Whole(layer.name, layer.num_weights, _why(graph, layer, units)) for layer in stay]
    seen: set[int] = set()  # numbers that two steps share are told once
    for step in graph.steps:
        if layer_of(step.module) is not None:
            continue
        counted = kind_of(step.module).weights_of(step.module)
        own = [
            numbers for name, numbers in step.module.named_parameters() if name in counted and id(numbers) not in seen
        ]
        seen.update(map(id, own))
        weights = sum(numbers.numel() for numbers in own)
        if weights and always[units.carried[step.name]].all():
            found.append(Whole(step.name, weights, _of_its_own(step.module)))
    return tuple(sorted(found, key=lambda whole: -whole.weights))


def _why(graph: Graph, layer: Layer, units: Units) -> str:
    """Who keeps what the layer reads and writes."""
    steps = {step.name: step for step in graph.steps}
    keepers = [units.kept_by.get(int(unit), INPUT) for unit in (*layer.writes.tolist(), *layer.reads.tolist())]
    named = [name for name in dict.fromkeys(keepers) if name in steps and not _is_an_end(steps[name].module)]
    if not named:
        return "it was asked to stay, or reads the input and gives the result"
    said = [f"{name!r} ({_called(steps[name].module)})" for name in named[:2]]
    return f"{' and '.join(said)} {'mixes' if len(said) == 1 else 'mix'} all of its channels"


def _is_an_end(module: nn.Module) -> bool:
    """Whether it keeps units since they are an input's, or words, and not since it mixes them."""
    return isinstance(module, NetworkInput) or is_weighted(module)


def _of_its_own(module: object) -> str:
    if isinstance(module, AtenCall) and module.why:
        return module.why
    if isinstance(module, Opaque):
        return f"there is no rule for cutting {_called(module)}"
    return "it goes with values that stay whole"


def _called(module: object) -> str:
    return module.op if isinstance(module, AtenCall) else type(module).__name__


@dataclass(frozen=True)
class _Share:
    """Numbers that stay in proportion to units: to the smallest of several proportions."""

    amount: int
    units: tuple[np.ndarray, ...]

    def left(self, alive: Tensor) -> Tensor:  # (K, U) -> (K,)
        parts = [alive[:, torch.from_numpy(own.ravel()).to(alive.device)].double().mean(1) for own in self.units]
        return self.amount * torch.stack(parts).amin(0)


class Beside:
    """What the steps beside the layers hold and compute, all of it or with some units alone."""

    def __init__(self, graph: Graph, input_shape: Shape, units: Units) -> None:
        self.units = units
        self.weights: list[_Share] = []
        self.flops: list[_Share] = []
        self.fixed_weights = self.fixed_flops = 0
        seen: dict[int, int] = {}  # numbers that several steps share count once
        for shaped in shaped_steps(graph, input_shape):
            if layer_of(shaped.module) is None:
                self._add_flops(shaped)
                self._add_weights(shaped, seen)

    @property
    def shrinks(self) -> bool:
        """Whether any of it goes with units."""
        return bool(self.weights or self.flops)

    def counts(self, alive: Tensor) -> tuple[Tensor, Tensor]:  # (K, U) -> weights and operations, (K,) each
        weights = torch.full((len(alive),), float(self.fixed_weights), dtype=torch.float64, device=alive.device)
        flops = torch.full_like(weights, float(self.fixed_flops))
        for share in self.weights:
            weights = weights + share.left(alive)
        for share in self.flops:
            flops = flops + share.left(alive)
        return weights.round().long(), flops.round().long()

    def _add_flops(self, shaped: ShapedStep) -> None:
        names = (*shaped.step.reads, shaped.name)
        kind = kind_of(shaped.module)
        for amount, places in kind.shares_of_flops(shaped.module, shaped.arriving, shaped.leaving):
            own = tuple(self.units.carried[names[place]] for place in places)
            own = tuple(each for each in own if not self.units.always[each].all())
            if own:
                self.flops.append(_Share(amount // EXAMPLES, own))
            else:
                self.fixed_flops += amount // EXAMPLES

    def _add_weights(self, shaped: ShapedStep, seen: dict[int, int]) -> None:
        own = dict(shaped.module.named_parameters())
        for name in kind_of(shaped.module).weights_of(shaped.module):
            numbers = own[name]
            if id(numbers) in seen:
                continue
            seen[id(numbers)] = numbers.numel()
            units = self._units_along(shaped, numbers)
            if units is None:
                self.fixed_weights += numbers.numel()
            else:
                self.weights.append(_Share(numbers.numel(), (units,)))

    def _units_along(self, shaped: ShapedStep, numbers: Tensor) -> np.ndarray | None:
        """The units that a step's own numbers go with; None where they all stay."""
        units = self.units.carried[shaped.name]
        if self.units.always[units].all():
            return None
        from_last = [axis - self.units.dimensions[shaped.name] for axis in self.units.axes[shaped.name]]
        lies = all(numbers.dim() >= -axis and numbers.shape[axis] == shaped.leaving[axis] for axis in from_last)
        return units if lies else None
