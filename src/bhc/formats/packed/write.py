"""From a quantised network to a file's content."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.formats.packed.cbor import loads
from bhc.formats.packed.layout import (
    CARD,
    CARD_NUMBERS,
    INPUT_SHAPE,
    KIND_NUMBERS,
    LABELS,
    LARGEST_ACTIVATION,
    LARGEST_ACTIVATIONS,
    MOST_STEPS,
    STEPS,
    TEMPERATURE,
    Content,
    PackedLayer,
    Part,
    Selection,
    most_numbers,
)
from bhc.formats.packed.priors import StatedPrior, choose_prior
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import (
    CONVOLUTIONS,
    INPUT,
    KINDS,
    LAYERS,
    Add,
    Affine,
    ChannelNorm,
    Concat,
    Embed,
    Multiply,
    Passage,
    Place,
    Select,
    SelfAttention,
    Shift,
    WeightedModule,
    passages,
)

JOINTS = (Add, Multiply, Concat)
# Steps with numbers of their own that stay floats, and those of their arguments that the shapes do not tell.
HOLDING_FLOATS = (Affine, ChannelNorm, SelfAttention, Shift)
NOT_IN_SHAPES: dict[str, tuple[str, ...]] = {
    "affine": (),
    "channel-norm": ("eps",),
    "self-attention": ("heads",),
    "shift": (),
}
FROM = KIND_NUMBERS["from"]
REAL_ARGUMENTS = ("negative_slope", "alpha", "beta", "threshold", "eps")


def pack(network: QuantisedNetwork) -> bytes:
    """The bytes of the network's file; the same on every machine."""
    content = take_apart(network)
    packed = content.to_bytes()
    _check_limits(content, len(packed))
    _check_activations(network)
    return packed


def packed_size(network: QuantisedNetwork) -> int:
    """How many bytes that would be; whether a reader would take them is not asked."""
    return len(take_apart(network).to_bytes())


def _check_limits(content: Content, size: int) -> None:
    """What a reader would take for damage must not be written."""
    try:
        loads(content.header_bytes)
    except ValueError as error:
        raise BhcError(f"what is known about the network does not fit into a .bhc file: {error}") from error
    if len(content.header[STEPS]) > MOST_STEPS:
        raise BhcError(f"a network of {len(content.header[STEPS])} steps, a .bhc file holds at most {MOST_STEPS}")
    if content.numbers > most_numbers(size):
        raise BhcError(
            f"{content.numbers:,} weights, codes and inputs in {size:,} bytes, which no reader would believe",
            hint="layers this large with next to nothing in them should be pruned first",
        )


def _check_activations(network: QuantisedNetwork) -> None:
    sizes = [prod(each.leaving) for each in passages(network.graph, network.input_shape)]
    if max(sizes, default=0) > LARGEST_ACTIVATION or sum(sizes) > LARGEST_ACTIVATIONS:
        raise BhcError(
            f"steps that give up to {max(sizes):,} numbers, {sum(sizes):,} in all;"
            f" a .bhc file holds at most {LARGEST_ACTIVATION:,} and {LARGEST_ACTIVATIONS:,}",
            hint="smaller inputs make them fewer",
        )


def packed_parts(network: QuantisedNetwork) -> tuple[Part, ...]:
    """What these bytes are for."""
    return tuple(take_apart(network).parts())


def take_apart(network: QuantisedNetwork, priors: Mapping[str, StatedPrior] | None = None) -> Content:
    """The network as a file sees it; ``priors`` of layers where they are known already."""
    priors = priors or {}
    steps: list[list[Any]] = []
    content = Content(
        {
            INPUT_SHAPE: list(network.input_shape),
            STEPS: steps,
            LABELS: [int(label) for label in network.labels],
            TEMPERATURE: float(network.temperature),
            CARD: abbreviate(dict(network.card)),
        }
    )
    places = {INPUT: -1}
    for place, passage in enumerate(passages(network.graph, network.input_shape)):
        step = _step(network, passage, content, priors)
        back = [place - places[name] for name in passage.step.reads]
        if isinstance(passage.module, JOINTS):
            step += back
        steps.append(step if back == [1] or isinstance(passage.module, JOINTS) else [FROM, *back, step])
        places[passage.name] = place
    return content


def _step(
    network: QuantisedNetwork, passage: Passage, content: Content, priors: Mapping[str, StatedPrior]
) -> list[Any]:
    """The step without what it reads; its numbers go to ``content``."""
    name, module = passage.name, passage.module
    kind = KINDS[type(module)]
    if isinstance(module, Embed):
        content.selections.append(Selection(len(content.layers), _mask(module.words, module.count)))
        content.layers.append(layer := _pack_layer(network, name, module, priors.get(name)))
        weight_form, _ = _number_forms(network, layer, module)
        return [KIND_NUMBERS[kind.name], name, module.count, module.rows, module.channels, weight_form]
    if isinstance(module, LAYERS):
        layer = _pack_layer(network, name, module, priors.get(name))
        content.layers.append(layer)
        number = KIND_NUMBERS["convolution" if _is_general(module) else kind.name]
        return [number, name, len(module.weight), *_geometry(module), *_number_forms(network, layer, module)]
    if isinstance(module, Select):
        content.selections.append(Selection(len(content.layers), _mask(module.index, passage.arriving[0][0])))
        return [KIND_NUMBERS[kind.name], len(module.index)]
    if isinstance(module, Place):
        content.selections.append(Selection(len(content.layers) - 1, _mask(module.index, module.width)))
        return [KIND_NUMBERS[kind.name], module.width]
    if isinstance(module, HOLDING_FLOATS):
        content.layers.append(PackedLayer(name, None, None, b"".join(map(_floats, module.parameters()))))
        return [KIND_NUMBERS[kind.name], *[_argument(key, getattr(module, key)) for key in NOT_IN_SHAPES[kind.name]]]
    if kind.name == "normalise":
        mean, std = module.mean, module.std
        if mean.dim():  # type: ignore[operator]
            return [KIND_NUMBERS["normalise-channels"], mean.flatten().tolist(), std.flatten().tolist()]  # type: ignore[operator]
        return [KIND_NUMBERS[kind.name], float(mean), float(std)]  # type: ignore[arg-type]
    return [
        KIND_NUMBERS[kind.name],
        *[_argument(argument, getattr(module, argument)) for argument in kind.arguments],
    ]


def _is_general(module: WeightedModule) -> bool:
    """Whether it is a convolution other than the usual one: of two directions, in one group."""
    return isinstance(module, CONVOLUTIONS) and (not isinstance(module, nn.Conv2d) or module.groups > 1)


def _mask(places: Tensor, arriving: int) -> np.ndarray:
    """Which values are read. A file does not know their order, so it must be the natural one."""
    index = places.numpy()
    if (np.diff(index) <= 0).any():
        raise BhcError("a step reads its inputs twice or out of order, which a .bhc file cannot say")
    mask = np.zeros(arriving, dtype=np.int32)
    mask[index] = 1
    return mask


def _pack_layer(network: QuantisedNetwork, name: str, module: WeightedModule, prior: StatedPrior | None) -> PackedLayer:
    weights, biases = network.weights.get(name), network.biases.get(name)
    plain = b"" if weights is not None else _floats(module.weight)
    if module.bias is not None:
        plain += _floats(module.bias) if biases is None else biases.codes.astype(np.int8).tobytes()
    return PackedLayer(name, weights, None if weights is None else prior or choose_prior(weights.codes), plain)


def _number_forms(network: QuantisedNetwork, layer: PackedLayer, module: nn.Module) -> list[Any]:
    """How weights and biases are stored: ``[step, prior]`` or null for floats; a step, null, or false for none."""
    biases = network.biases.get(layer.name)
    weight_form = None
    if layer.weights is not None and layer.prior is not None:
        weight_form = [float(layer.weights.step), layer.prior.to_list()]
    if module.bias is None:
        return [weight_form, False]
    return [weight_form, None if biases is None else float(biases.step)]


def _geometry(module: WeightedModule) -> list[Any]:
    if isinstance(module, nn.Linear | Embed):
        return []
    plain = [_plain(part) for part in (module.kernel_size, module.stride, module.padding, module.dilation)]
    return [*plain, module.groups] if _is_general(module) else plain


def abbreviate(value: Any) -> Any:
    """The same plain data with the known names as numbers."""
    if isinstance(value, dict):
        return {CARD_NUMBERS.get(name, name): abbreviate(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [abbreviate(item) for item in value]
    return value


def _argument(name: str, value: Any) -> Any:
    return float(value) if name in REAL_ARGUMENTS else _plain(value)


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _floats(values: Tensor) -> bytes:
    return values.detach().numpy().astype("<f4").tobytes()
