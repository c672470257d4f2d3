"""From a quantised network to a file's content."""

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.formats.packed.cbor import loads
from bhc.formats.packed.coding import StatedPrior, choose_prior
from bhc.formats.packed.content import (
    CARD,
    CARD_NUMBERS,
    FROM,
    INPUT_SHAPE,
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
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import INPUT, passages
from bhc.layers import EXAMPLES, kind_of


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
    sizes = [prod(each.leaving) // EXAMPLES for each in passages(network.graph, network.input_shape)]
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
    writer = _Writer(network, content, priors)
    places = {INPUT: -1}
    for place, passage in enumerate(passages(network.graph, network.input_shape)):
        kind = kind_of(passage.module)
        step = kind.write(passage.module, passage.name, passage.arriving[0], writer)
        back = [place - places[name] for name in passage.step.reads]
        if kind.joins:
            step += back
        steps.append(step if back == [1] or kind.joins else [FROM, *back, step])
        places[passage.name] = place
    return content


class _Writer:
    """Where the kinds of layers put their numbers (``layers.protocols.FileWriter``)."""

    def __init__(self, network: QuantisedNetwork, content: Content, priors: Mapping[str, StatedPrior]) -> None:
        self.network, self.content, self.priors = network, content, priors

    def weighted(self, name: str, module: Any) -> list[Any]:
        layer = _pack_layer(self.network, name, module, self.priors.get(name))
        self.content.layers.append(layer)
        return _number_forms(self.network, layer, module)

    def floats(self, name: str, module: nn.Module) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        numbers = b"".join(_floats(part) if part.is_floating_point() else _raw(part) for part in tensors)
        self.content.layers.append(PackedLayer(name, None, None, numbers))

    def selection(self, index: Tensor, count: int, *, of_last: bool = False) -> None:
        layer = len(self.content.layers) - of_last
        self.content.selections.append(Selection(layer, _mask(index, count)))


def _mask(places: Tensor, arriving: int) -> np.ndarray:
    """Which values are read. A file does not know their order, so it must be the natural one."""
    index = places.numpy()
    if (np.diff(index) <= 0).any():
        raise BhcError("a step reads its inputs twice or out of order, which a .bhc file cannot say")
    mask = np.zeros(arriving, dtype=np.int32)
    mask[index] = 1
    return mask


def _pack_layer(network: QuantisedNetwork, name: str, module: Any, prior: StatedPrior | None) -> PackedLayer:
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


def abbreviate(value: Any) -> Any:
    """The same plain data with the known names as numbers."""
    if isinstance(value, dict):
        return {CARD_NUMBERS.get(name, name): abbreviate(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [abbreviate(item) for item in value]
    return value


def _raw(values: Tensor) -> bytes:
    """Whole numbers and truths as they are, the lowest byte first."""
    array = values.detach().cpu().numpy()
    return array.astype(array.dtype.newbyteorder("<")).tobytes()


def _floats(values: Tensor) -> bytes:
    return values.detach().numpy().astype("<f4").tobytes()
