"""What a layer is: one object a kind, one module a family; and the registry, all kinds there are by their modules,
names and numbers. Users add their own, which are tried first.
"""

import inspect
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from bhc.errors import BhcError, NotRegisteredError
from bhc.layers import (
    call_families,
    calls,
    contractions,
    convolution,
    elementwise,
    linear,
    network_inputs,
    norms,
    pools,
    reshape,
    sequences,
)
from bhc.layers.arguments import (
    EXAMPLES,
    Argument,
    Cells,
    Choice,
    Flag,
    Kept,
    Positive,
    Real,
    Shape,
    Size,
    conv_padding,
    pair,
    resized,
    sizes,
    unknown,
)
from bhc.layers.aten import Opaque, call_of, is_norm
from bhc.layers.call_families import Movement, Pointwise
from bhc.layers.convolution import TransposedConvolution, transpose_convolve
from bhc.layers.elementwise import Add, Concat, Multiply, Shift
from bhc.layers.kind import Elementwise, LayerKind, NoForm, Weighted, Whole, bare_copy, own_copy
from bhc.layers.linear import Embed, Tied, check_words
from bhc.layers.network_inputs import LogMel, NetworkInput, Normalise
from bhc.layers.norms import Affine, ChannelNorm
from bhc.layers.pools import AlongAxes, GlobalMean, Subsample, side_by_side
from bhc.layers.protocols import c_convolution
from bhc.layers.reshape import FlattenPlaces, PadChannels, ScatterChannels, Select
from bhc.layers.sequences import Recurrence, RecurrentLayer, SelfAttention, onnx_recurrence

TOLERANCE = 1e-6


def check_contract(kind: type[LayerKind]) -> LayerKind:
    """The kind, if it answers what it must and its answers agree with its module; BhcError names what does not."""
    if not (isinstance(kind, type) and issubclass(kind, LayerKind)):
        raise BhcError(f"{kind!r} is no kind of layer", hint="give a subclass of bhc.layers.LayerKind")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise BhcError(f"{kind.__name__} leaves open: {missing}", hint="write these methods; nothing is guessed")
    name, module = getattr(kind, "name", None), getattr(kind, "module", None)
    if not isinstance(name, str) or "." not in name.strip(".") or not name.isprintable():
        raise _broken(kind, f"its name is {name!r}", "choose one with a dot in it, such as 'acme.mish'")
    if not (isinstance(module, type) and issubclass(module, nn.Module)):
        raise _broken(kind, f"its module is {module!r}", "name the class of nn.Module that it describes")
    if kind.number is not None:
        raise _broken(kind, f"it has the number {kind.number}", "numbers are for kinds that come with bhc")
    made = kind()
    examples = made.examples()
    if not examples:
        raise _broken(kind, "it has no examples", "give at least one module with the shapes that it reads")
    for example, shapes in examples:
        _check_example(made, example, shapes)
    return made


def _check_example(kind: LayerKind, module: nn.Module, shapes: tuple[Shape, ...]) -> None:
    if type(module) is not kind.module:
        raise _broken(type(kind), f"an example is a {type(module).__name__}", f"give a {kind.module.__name__}")
    values = [_values(shape, seed) for seed, shape in enumerate(shapes)]
    module = module.eval()
    with torch.no_grad():
        given = module(*values)
    said = tuple(kind.output_shape(module, *shapes))
    if said != tuple(given.shape):
        raise _broken(type(kind), f"output_shape says {said}, and its module gives {tuple(given.shape)}")
    described = kind.describe(module)
    twin: Any = kind.build(described)
    if type(twin) is not type(module) or kind.describe(twin) != described:
        raise _broken(type(kind), "build(describe(module)) is another module", "list all arguments in `arguments`")
    twin.load_state_dict(module.state_dict())
    with torch.no_grad():
        again = twin.eval()(*values)
    if not torch.allclose(given, again, atol=TOLERANCE):
        raise _broken(
            type(kind), "a module that is built again gives other numbers", "numbers must be arguments or parameters"
        )


def _values(shape: Shape, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _broken(kind: type[LayerKind], what: str, hint: str | None = None) -> BhcError:
    return BhcError(f"layer {getattr(kind, 'name', kind.__name__)!r} cannot be registered: {what}", hint=hint or "")


BUILT_IN: tuple[type[LayerKind], ...] = (
    linear.Linear,
    convolution.Convolution1d,
    convolution.Convolution2d,
    convolution.Convolution3d,
    convolution.Transposed,
    linear.Embedding,
    sequences.RecurrenceKind,
    linear.TiedKind,
    *elementwise.ACTIVATIONS,
    *pools.KINDS,
    *elementwise.JOINS,
    *reshape.KINDS,
    *network_inputs.KINDS,
    *call_families.KINDS,
    pools.AlongAxesKind,
    *norms.KINDS,
    *contractions.KINDS,
    sequences.SelfAttentionKind,
    *calls.KINDS,
)

_BY_MODULE: dict[type[nn.Module], LayerKind] = {}
_BY_NAME: dict[str, LayerKind] = {}
_BY_TAG: dict[int | str, LayerKind] = {}


def register_layer(kind: type[LayerKind]) -> type[LayerKind]:
    """Make a kind of layer known: its modules are captured, cut, trained and written from now on.

    ``kind`` is a subclass of ``LayerKind`` (most often of ``Elementwise`` or ``Whole``) whose ``name`` has a dot in it,
    such as ``"acme.mish"``. It is tried on its own examples at once; one that breaks the contract is refused by name.
    Returns the class, so that it can be used as a decorator.
    """
    _add(check_contract(kind))
    return kind


def _add(kind: LayerKind) -> None:
    taken = [(kind.name, _BY_NAME.get(kind.name)), (kind.module.__name__, _BY_MODULE.get(kind.module))]
    for what, other in taken:
        if other is not None:
            raise BhcError(
                f"layer {kind.name!r} cannot be registered: {what} is taken by {type(other).__name__}",
                hint="give it another name, or another module",
            )
    _BY_NAME[kind.name] = _BY_MODULE[kind.module] = kind
    _BY_TAG.setdefault(kind.tag, kind)


for _kind in BUILT_IN:
    _add(_kind())
# Numbers that have stood for a variant of a kind.
_BY_TAG[convolution.GENERAL] = _BY_NAME["conv-3d"]
_BY_TAG[network_inputs.PER_CHANNEL] = _BY_NAME["normalise"]


def kinds_called(target: str) -> Iterator[LayerKind]:
    return (kind for kind in _BY_NAME.values() if target in kind.calls)


def kinds() -> Iterator[LayerKind]:
    """Every kind there is, ours first."""
    yield from _BY_NAME.values()


def has_kind(module: nn.Module) -> bool:
    """Whether a module is of a known kind; a subclass of one is not."""
    return type(module) in _BY_MODULE


def kind_of(module: nn.Module) -> LayerKind:
    try:
        return _BY_MODULE[type(module)]
    except KeyError:
        name = type(module).__name__
        raise NotRegisteredError(f"no kind of layer is registered for {name}", "register_layer") from None


def kind_named(name: str) -> LayerKind:
    """The kind of a name, as descriptions have it; KeyError where none of ours has it."""
    if isinstance(name, str) and "." in name and name not in _BY_NAME:
        raise NotRegisteredError(f"layer {name[:60]!r} is not registered here", "register_layer")
    return _BY_NAME[name]


def kind_tagged(tag: object) -> LayerKind:
    """The kind of a number or dotted name in a packed file; ValueError for an unknown one."""
    if (type(tag) is int or isinstance(tag, str)) and tag in _BY_TAG:
        return _BY_TAG[tag]
    if isinstance(tag, str) and "." in tag:  # one of others
        raise NotRegisteredError(f"layer {tag[:60]!r} is not registered here", "register_layer")
    raise unknown([tag])


def is_weighted(module: nn.Module) -> bool:
    """Whether its weights are pruned and rounded."""
    return isinstance(_BY_MODULE.get(type(module)), Weighted)


def is_product(module: nn.Module) -> bool:
    """Whether it is a sum of products of weights, with a bias or one that could have one."""
    return is_weighted(module) and weighted_kind(module).sums


def weighted_kind(module: nn.Module) -> Weighted:
    """The kind of a module with weights that are pruned."""
    kind = _BY_MODULE[type(module)]
    assert isinstance(kind, Weighted)
    return kind
