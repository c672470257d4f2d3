"""One node of traced code as the module that does the same, and the nodes it reads."""

import copy
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from bhc.layers import (
    Add,
    ChannelNorm,
    Concat,
    Embed,
    FlattenPlaces,
    GlobalMean,
    Multiply,
    PadChannels,
    SelfAttention,
    Shift,
    Subsample,
    has_kind,
    kind_of,
    kinds,
)
from bhc.layers.activations import Activation

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
MAX_POOLS = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)
AVERAGE_POOLS = (nn.AvgPool1d, nn.AvgPool2d, nn.AvgPool3d)

# Left out of the traced graph: they do nothing when a network is used.
TRANSPARENT = (
    nn.Identity,
    nn.Dropout,
    nn.Dropout1d,
    nn.Dropout2d,
    nn.Dropout3d,
    nn.AlphaDropout,
    nn.FeatureAlphaDropout,
)

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
GLOBAL_POOLS = (nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.AdaptiveAvgPool3d)

# Functions and tensor methods that stand for a module without arguments of its own.
FUNCTIONS: dict[object, type[nn.Module]] = {
    F.relu: nn.ReLU,
    F.relu6: nn.ReLU6,
    torch.relu: nn.ReLU,
    torch.tanh: nn.Tanh,
    torch.sigmoid: nn.Sigmoid,
    F.elu: nn.ELU,
    F.selu: nn.SELU,
    F.gelu: nn.GELU,
    F.silu: nn.SiLU,
    F.sigmoid: nn.Sigmoid,
    F.tanh: nn.Tanh,
    F.hardswish: nn.Hardswish,
    F.hardsigmoid: nn.Hardsigmoid,
    "relu": nn.ReLU,
    "relu_": nn.ReLU,
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}

# Functions of two values.
JOINING: dict[object, type[nn.Module]] = {
    operator.add: Add,
    operator.iadd: Add,
    torch.add: Add,
    "add": Add,
    "add_": Add,
    operator.mul: Multiply,
    operator.imul: Multiply,
    torch.mul: Multiply,
    "mul": Multiply,
    "mul_": Multiply,
}

# Those that write into their first argument, and so change what others read of it.
IN_PLACE = (operator.iadd, operator.imul, "add_", "mul_", "relu_")


def supported() -> str:
    """The table as one line for error messages."""
    own = [kind.module for kind in kinds() if kind.module.__module__.startswith("torch.")]
    layers = sorted(
        module.__name__
        for module in (*own, *BATCH_NORMS, *GLOBAL_POOLS, nn.Embedding, nn.LayerNorm, nn.MultiheadAttention)
    )
    return f"{', '.join(layers)}; sums and products of two values, torch.cat of channels"


def as_convolution(linear: nn.Linear) -> nn.Conv1d:
    """A linear layer on each token."""
    convolution = nn.Conv1d(linear.in_features, linear.out_features, 1, bias=linear.bias is not None)
    convolution.weight.data = linear.weight.detach()[..., None].clone()
    if linear.bias is not None and convolution.bias is not None:
        convolution.bias.data = linear.bias.detach().clone()
    return convolution.requires_grad_(False)


Translation = tuple[nn.Module, Sequence[fx.Node]]


class NotKnown(Exception):
    """What a node does has no module in the table; the text goes on after the node's name."""


@dataclass(frozen=True)
class Node:
    """A node with what is known about it."""

    net: nn.Module
    node: fx.Node
    shapes: dict[fx.Node, tuple[int, ...]]  # of every tensor, for two examples
    numbers: dict[fx.Node, Any]  # what is no tensor: sizes that the code asks for
    turned: set[fx.Node]  # values whose channels come last, (N, T, C); the graph has them first

    @property
    def what(self) -> str:
        """How it is called in a message."""
        called = self.node.op == "call_module"
        return f"layer {self.node.target!r}" if called else f"step {self.node.name!r}"

    @property
    def shape(self) -> tuple[int, ...]:
        return self.shapes[self.node]

    @property
    def values(self) -> list[fx.Node]:
        """The tensors that it reads, in the order of its arguments."""
        return [node for node in self.node.all_input_nodes if node in self.shapes]

    @property
    def is_turned(self) -> bool:
        """Whether what it reads has its channels last."""
        return self.values[0] in self.turned

    @property
    def places(self) -> int:
        """Directions in space of the first value."""
        return len(self.shapes[self.values[0]]) - 2

    def numbers_of(self, learned: fx.Node) -> Tensor:
        """A parameter or buffer that the code reads by its name."""
        value: Any = self.net
        for part in str(learned.target).split("."):
            value = getattr(value, part)
        return value

    def argument(self, place: int, name: str, default: Any = None) -> Any:
        given = self.node.args[place] if len(self.node.args) > place else self.node.kwargs.get(name, default)
        return fx.node.map_arg(given, lambda node: self.numbers.get(node, node))


def is_leaf(module: nn.Module) -> bool:
    """Whether it is translated whole."""
    return has_kind(module) or type(module) in (*BATCH_NORMS, *GLOBAL_POOLS, *TRANSPARENT, nn.Embedding)


def module_of(node: Node) -> Translation:
    """The module and whose results it reads; NotKnown where there is none."""
    attention = _attention(node)
    if attention is not None:
        return attention
    if not node.values:
        raise NotKnown(_without_values(node))
    if node.node.op == "call_module":
        return _of_module(node)
    target = node.node.target
    if node.is_turned and not (target in JOINING or target in FUNCTIONS or target in KEEP_TURNED):
        raise NotKnown(f"calls {getattr(target, '__name__', target)} on tokens with their channels last")
    if target in JOINING:
        return _joint(node)
    if target in TRANSLATIONS:
        return TRANSLATIONS[target](node), node.values
    if target in FUNCTIONS:
        known = ("inplace", "input", *_arguments(FUNCTIONS[target]))
        if len(node.node.args) > 1 or any(name not in known for name in node.node.kwargs):
            raise NotKnown("calls an activation with arguments that are not named")
        options = {name: value for name, value in node.node.kwargs.items() if name not in ("inplace", "input")}
        return FUNCTIONS[target](**options), node.values
    raise NotKnown(f"calls {getattr(target, '__name__', target)}")


def _without_values(node: Node) -> str:
    source = next(iter(node.node.all_input_nodes), None)
    if source is None:
        return "makes a value out of nothing"
    if source.op != "call_module":
        return f"reads {source.name!r}, which is not one value"
    return f"reads layer {source.target!r}, which is a {_type_of(node.net.get_submodule(str(source.target)))}"


def _type_of(module: nn.Module) -> str:
    """Its name; with where it is from, if a known type has the same name."""
    name = type(module).__name__
    return f"{type(module).__module__}.{name}" if name in {kind.module.__name__ for kind in kinds()} else name


def _arguments(module: type[nn.Module]) -> tuple[str, ...]:
    return tuple(kind_of(module()).arguments)


def _of_module(node: Node) -> Translation:
    module = node.net.get_submodule(str(node.node.target))
    if len(node.node.args) + len(node.node.kwargs) != 1:
        raise NotKnown(f"is a {_type_of(module)} that is called with more than one argument")
    if isinstance(module, TRANSPARENT):
        return module, node.values
    if isinstance(module, GLOBAL_POOLS):
        if any(size not in (1, None) for size in _listed(module.output_size)):
            raise NotKnown(f"is a {type(module).__name__} to {module.output_size} places")
        return GlobalMean(True), node.values
    if isinstance(module, nn.Embedding):
        return _embedding(node, module), node.values
    if node.is_turned and isinstance(module, nn.LayerNorm) and len(module.normalized_shape) == 1:
        return ChannelNorm.of(module), node.values
    if node.is_turned and isinstance(module, nn.Linear):
        return as_convolution(module), node.values
    if not is_leaf(module):
        raise NotKnown(f"is a {_type_of(module)}")
    if node.is_turned and not isinstance(kind_of(module), Activation):
        raise NotKnown(f"is a {type(module).__name__} on tokens with their channels last")
    _check_variant(node, module)
    own: Any = copy.deepcopy(module)
    if hasattr(own, "inplace"):
        own.inplace = False
    return own, node.values


def _listed(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple | list) else [value]


def _check_variant(node: Node, module: Any) -> None:
    """Options that change what a layer computes, and that the table does not hold."""
    name, dimensions = type(module).__name__, len(node.shapes[node.values[0]])
    if isinstance(module, CONVOLUTIONS) and module.padding_mode != "zeros":
        raise NotKnown(f"is a {name} with padding_mode={module.padding_mode!r}")
    if isinstance(module, nn.Linear) and dimensions != 2:
        raise NotKnown(f"is a Linear on {dimensions}-dimensional batches (2 are known)")
    if isinstance(module, nn.Flatten) and not _is_flat(module.start_dim, module.end_dim, dimensions):
        raise NotKnown("is a Flatten that does not keep just the batch dimension")
    if isinstance(module, MAX_POOLS) and (module.ceil_mode or module.return_indices):
        raise NotKnown(f"is a {name} with ceil_mode or return_indices")
    if isinstance(module, AVERAGE_POOLS) and (
        module.ceil_mode or getattr(module, "divisor_override", None) or not module.count_include_pad
    ):
        raise NotKnown(f"is an {name} with ceil_mode, a divisor or uncounted padding")
    if isinstance(module, BATCH_NORMS) and (module.running_mean is None or module.running_var is None):
        raise NotKnown(f"is a {name} without running statistics")


def _embedding(node: Node, module: nn.Embedding) -> Embed:
    if node.values[0].op != "placeholder" and node.values[0].target not in WHOLE_NUMBERS:
        raise NotKnown("is an Embedding of what is not the network's input")
    if len(node.shapes[node.values[0]]) != 2:
        raise NotKnown(f"is an Embedding of {len(node.shapes[node.values[0]])}-dimensional batches (2 are known)")
    if module.max_norm is not None:
        raise NotKnown("is an Embedding with max_norm")
    return Embed.of(module.weight.detach(), module.padding_idx)


def _is_flat(start: int, end: int, dimensions: int) -> bool:
    return start == 1 and end % dimensions == dimensions - 1


def _joint(node: Node) -> Translation:
    """Two values that meet; a value that meets itself is read twice."""
    joint = JOINING[node.node.target]()
    values = [argument for argument in node.node.args if isinstance(argument, fx.Node)]
    learned = [value for value in values if value.op == "get_attr"]
    if len(values) == 2 and len(learned) == 1 and isinstance(joint, Add):
        return _shift(node, next(value for value in values if value not in learned), learned[0])
    if learned:
        raise NotKnown(f"uses {learned[0].target!r} directly, not by a layer")
    if len({value in node.turned for value in values}) > 1:
        raise NotKnown("joins tokens with their channels first and tokens with their channels last")
    if len(values) != 2 or len(node.node.args) != 2 or node.node.kwargs or not all(v in node.shapes for v in values):
        raise NotKnown(f"is an {'addition' if isinstance(joint, Add) else 'multiplication'} of other than two values")
    left, right = (node.shapes[value] for value in values)
    if left != right and (isinstance(joint, Add) or left[:2] != right[:2] or len(left) != len(right)):
        raise NotKnown(f"joins values of shapes {left[1:]} and {right[1:]}")
    return joint, values


def _shift(node: Node, value: fx.Node, learned: fx.Node) -> Translation:
    """A learned number for each channel and place."""
    numbers = node.numbers_of(learned)
    try:
        wide = numbers.expand(1, *node.shapes[value][1:])[0]
    except RuntimeError:
        raise NotKnown(f"adds {learned.target!r} of another shape, {tuple(numbers.shape)}") from None
    bias = wide.mT if value in node.turned else wide
    shift = Shift(tuple(bias.shape))
    shift.bias.data = bias.detach().clone()
    return shift, [value]


def _attention(node: Node) -> Translation | None:
    """The first result of an ``nn.MultiheadAttention`` that is called with one value three times."""
    if node.node.target is not operator.getitem or not isinstance(node.node.args[0], fx.Node):
        return None
    source, place = node.node.args[0], node.node.args[1]
    if source.op != "call_module":
        return None
    module = node.net.get_submodule(str(source.target))
    if not isinstance(module, nn.MultiheadAttention):
        return None
    name = f"takes attention {source.target!r}"
    named = ("query", "key", "value")
    values: list[Any] = [*source.args, *(source.kwargs[key] for key in named if key in source.kwargs)]
    rest = {key: value for key, value in source.kwargs.items() if key not in (*named, "need_weights")}
    if place != 0 or len(values) != 3 or len(set(values)) != 1 or any(value is not None for value in rest.values()):
        raise NotKnown(f"{name} of other than one value with itself, without masks")
    if not module.batch_first or not module._qkv_same_embed_dim or module.bias_k is not None or module.add_zero_attn:
        raise NotKnown(f"{name} that is not batch_first, or has keys and values of its own")
    if values[0] not in node.turned:
        raise NotKnown(f"{name} of what is no sequence with channels last")
    return SelfAttention.of(module), values[:1]


def _transpose(node: Node) -> nn.Module:
    first, second = node.argument(1, "dim0"), node.argument(2, "dim1")
    if len(node.shape) != 3 or sorted(d % 3 for d in (first, second)) != [1, 2]:
        raise NotKnown(
            f"swaps dimensions {first} and {second} of {len(node.shape)}; only channels and tokens are known"
        )
    return nn.Identity()


def _concat(node: Node) -> nn.Module:
    dimension = node.argument(1, "dim", 0)
    if dimension % len(node.shape) != 1:
        raise NotKnown(f"joins values along dimension {dimension}, not along the channels")
    if list(node.argument(0, "tensors")) != node.values:
        raise NotKnown("puts a value beside itself")
    return Concat() if len(node.values) > 1 else nn.Identity()


def _flatten(node: Node) -> nn.Module:
    """By any name: the result has the batch and one other dimension."""
    before = node.shapes[node.values[0]]
    if len(before) > 3 and node.shape == (*before[:2], prod(before[2:])):
        return FlattenPlaces()
    if node.shape != (before[0], prod(before[1:])):
        raise NotKnown(f"changes the shape {before[1:]} to {node.shape[1:]}; only a flat one is known")
    return nn.Flatten()


def _mean(node: Node) -> nn.Module:
    dimensions = _listed(node.argument(1, "dim"))
    keep = node.argument(2, "keepdim", False)
    count = node.places + 2
    if node.is_turned and dimensions == [1] and not keep:
        return GlobalMean(False)
    if (
        node.is_turned
        or None in dimensions
        or sorted(d % count for d in dimensions) != list(range(2, count))
        or node.places < 1
    ):
        raise NotKnown(f"is a mean over dimensions {dimensions}, not over all places of a channel")
    return GlobalMean(bool(keep))


def _global_pool(node: Node) -> nn.Module:
    size = _listed(node.argument(1, "output_size"))
    if any(part not in (1, None) for part in size):
        raise NotKnown(f"pools to {size} places, not to one")
    return GlobalMean(True)


def _getitem(node: Node) -> nn.Module:
    index = node.node.args[1]
    whole, places = slice(None), index[2:] if isinstance(index, tuple) else ()
    strides = {part.step for part in places if isinstance(part, slice) and part.start is None and part.stop is None}
    if len(places) != node.places or len(strides) != 1 or index[:2] != (whole, whole) or not places:  # type: ignore[index]
        raise NotKnown(f"picks {index}; only every n-th place of all channels is known")
    return Subsample(strides.pop() or 1)


def _pad(node: Node) -> nn.Module:
    padding = list(node.argument(1, "pad"))
    mode, value = node.argument(2, "mode", "constant"), node.argument(3, "value", None)
    channels, rest = padding[-2:], padding[:-2]
    if mode != "constant" or value not in (None, 0) or len(rest) != 2 * node.places or any(rest) or min(channels) < 0:
        raise NotKnown(f"pads by {padding}; only channels of zeros are known")
    return PadChannels(*channels)


def _pool(kinds: Sequence[type[nn.Module]], names: Sequence[str]) -> Callable[[Node], nn.Module]:
    """A functional pool of one, two or three directions."""

    def translate(node: Node) -> nn.Module:
        options = {name: node.argument(place + 1, name) for place, name in enumerate(names)}
        extra = set(node.node.kwargs) - set(names) - {"input"}
        if extra or len(node.node.args) > len(names) + 1:
            raise NotKnown(f"pools with {', '.join(sorted(extra)) or 'more arguments'}")
        given = {name: value for name, value in options.items() if value not in (None, [])}
        module = kinds[node.places - 1](**given)
        _check_variant(node, module)
        return module

    return translate


def _nothing(node: Node) -> nn.Module:
    if node.argument(2, "training", True):
        raise NotKnown("drops values also when the network is used")
    return nn.Identity()


_max_pool = _pool(MAX_POOLS, ("kernel_size", "stride", "padding", "dilation", "ceil_mode", "return_indices"))
_average_pool = _pool(AVERAGE_POOLS, ("kernel_size", "stride", "padding", "ceil_mode", "count_include_pad"))

TRANSLATIONS: dict[object, Callable[[Node], nn.Module]] = {
    torch.cat: _concat,
    torch.concat: _concat,
    torch.flatten: _flatten,
    torch.reshape: _flatten,
    "flatten": _flatten,
    "view": _flatten,
    "reshape": _flatten,
    torch.mean: _mean,
    "mean": _mean,
    F.adaptive_avg_pool1d: _global_pool,
    F.adaptive_avg_pool2d: _global_pool,
    F.adaptive_avg_pool3d: _global_pool,
    operator.getitem: _getitem,
    F.pad: _pad,
    F.max_pool1d: _max_pool,
    F.max_pool2d: _max_pool,
    F.max_pool3d: _max_pool,
    torch.max_pool2d: _max_pool,
    F.avg_pool1d: _average_pool,
    F.avg_pool2d: _average_pool,
    F.avg_pool3d: _average_pool,
    F.dropout: _nothing,
    "contiguous": lambda node: nn.Identity(),
    "long": lambda node: nn.Identity(),
    "int": lambda node: nn.Identity(),
    "transpose": _transpose,
    torch.transpose: _transpose,
}

# What makes numbers of words fit for an embedding; in the graph it sees to that itself.
WHOLE_NUMBERS = ("long", "int")

# Of these, what can be done to tokens with their channels last.
KEEP_TURNED = ("contiguous", "transpose", torch.transpose, F.dropout, "mean", torch.mean)
TURNS = ("transpose", torch.transpose)
