"""From a quantised network to a file's content."""

from typing import Any

import numpy as np
from torch import Tensor, nn

from bhc.formats.packed.layout import (
    CARD,
    CARD_NUMBERS,
    INPUT_SHAPE,
    KIND_NUMBERS,
    LABELS,
    STEPS,
    TEMPERATURE,
    Content,
    PackedLayer,
    Part,
    Selection,
)
from bhc.formats.packed.priors import choose_prior
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import KINDS, Select, chain_shapes


def pack(network: QuantisedNetwork) -> bytes:
    """The bytes of the network's file; the same on every machine."""
    return take_apart(network).to_bytes()


def packed_parts(network: QuantisedNetwork) -> tuple[Part, ...]:
    """What these bytes are for."""
    return tuple(take_apart(network).parts())


def take_apart(network: QuantisedNetwork) -> Content:
    """The network as a file sees it."""
    steps: list[list[Any]] = []
    content = Content(
        {
            INPUT_SHAPE: list(network.input_shape),
            STEPS: steps,
            LABELS: list(network.labels),
            TEMPERATURE: network.temperature,
            CARD: abbreviate(dict(network.card)),
        }
    )
    for name, module, arriving, _ in chain_shapes(network.chain, network.input_shape):
        kind = KINDS[type(module)]
        step: list[Any] = [KIND_NUMBERS[kind.name]]
        if isinstance(module, nn.Linear | nn.Conv2d):
            layer = _pack_layer(network, name, module)
            content.layers.append(layer)
            step += [name, len(module.weight), *_geometry(module), *_number_forms(network, layer, module)]
        elif isinstance(module, Select):
            mask = np.zeros(arriving[0], dtype=np.int32)
            mask[module.index.numpy()] = 1
            content.selections.append(Selection(len(content.layers), mask))
            step.append(len(module.index))
        elif kind.name == "normalise":
            step += [float(module.mean), float(module.std)]  # type: ignore[arg-type]
        else:
            step += [_plain(getattr(module, argument)) for argument in kind.arguments]
        steps.append(step)
    return content


def _pack_layer(network: QuantisedNetwork, name: str, module: nn.Linear | nn.Conv2d) -> PackedLayer:
    weights, biases = network.weights.get(name), network.biases.get(name)
    plain = b"" if weights is not None else _floats(module.weight)
    if module.bias is not None:
        plain += _floats(module.bias) if biases is None else biases.codes.astype(np.int8).tobytes()
    return PackedLayer(name, weights, None if weights is None else choose_prior(weights.codes), plain)


def _number_forms(network: QuantisedNetwork, layer: PackedLayer, module: nn.Module) -> list[Any]:
    """How weights and biases are stored: ``[step, prior]`` or null for floats; a step, null, or false for none."""
    biases = network.biases.get(layer.name)
    weight_form = None
    if layer.weights is not None and layer.prior is not None:
        weight_form = [layer.weights.step, layer.prior.to_list()]
    if module.bias is None:
        return [weight_form, False]
    return [weight_form, None if biases is None else biases.step]


def _geometry(module: nn.Linear | nn.Conv2d) -> list[Any]:
    if isinstance(module, nn.Linear):
        return []
    return [_plain(part) for part in (module.kernel_size, module.stride, module.padding, module.dilation)]


def abbreviate(value: Any) -> Any:
    """The same plain data with the known names as numbers."""
    if isinstance(value, dict):
        return {CARD_NUMBERS.get(name, name): abbreviate(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [abbreviate(item) for item in value]
    return value


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value


def _floats(values: Tensor) -> bytes:
    return values.detach().numpy().astype("<f4").tobytes()
