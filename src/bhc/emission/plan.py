"""The cut for one context: which units of which layer stay."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from bhc.contexts import Context, ContextBatch
from bhc.graph import Layer
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import LayerMask


@dataclass(frozen=True)
class LayerPlan:
    """What stays of one layer, as indices into the original."""

    layer: Layer
    kept_inputs: Tensor  # ascending
    kept_outputs: Tensor
    rescued: bool  # no unit had its writer and a reader under the threshold: one was kept all the same
    kept_weights: Tensor | None = None  # (O', I', *kernel) bool, where single weights go too

    @property
    def columns(self) -> Tensor:
        """The second index of the weights that stay: inputs, or all of those of a group."""
        if self.layer.groups == 1:
            return self.kept_inputs
        return torch.arange(self.layer.num_inputs, device=self.kept_inputs.device)

    @property
    def num_weights(self) -> int:
        return self.layer.kept_weights(len(self.kept_inputs), len(self.kept_outputs))

    @property
    def num_flops(self) -> int:
        """Two operations a weight and place it is applied at."""
        return 2 * self.num_weights * self.layer.output_area

    @property
    def width(self) -> int:
        """The layer's number in an architecture: filters of a convolution, inputs of a linear layer."""
        return len(self.kept_outputs if self.layer.is_convolution else self.kept_inputs)


@dataclass(frozen=True)
class Plan:
    """The cut at one threshold."""

    context: Context
    threshold: float
    alive: Tensor  # (U,) bool, the units that stay
    classes: tuple[int, ...]  # the outputs that remain, in the original numbering
    layers: tuple[LayerPlan, ...]

    @property
    def num_weights(self) -> int:
        return sum(layer.num_weights for layer in self.layers)

    @property
    def num_flops(self) -> int:
        return sum(layer.num_flops for layer in self.layers)

    @property
    def widths(self) -> tuple[int, ...]:
        """How many inputs and outputs each layer keeps."""
        return tuple(len(kept) for layer in self.layers for kept in (layer.kept_inputs, layer.kept_outputs))


class Cutter:
    """The scales of one context, generated once, to be cut at any threshold; no weight is generated here."""

    @torch.no_grad()
    def __init__(self, network: ConditionalNetwork, context: Context) -> None:
        self.network, self.context = network, context
        self.batch = ContextBatch.of([context], network.num_classes).to(network.device)
        self.encoding = network.space.encode(self.batch)
        self.uncertainty = network.hypernet.uncertainty(self.encoding)
        self.dropouts = network.dropouts(self.batch)

    @torch.no_grad()
    def cut(self, threshold: float) -> Plan:
        """What stays at ``threshold``."""
        limit = torch.full((1, 1), threshold, device=self.network.device)
        fates = self.network.find_masks(self.dropouts, limit, self.batch.outputs, self.batch.inputs)
        return Plan(
            self.context,
            float(threshold),
            fates.alive[0],
            tuple(self.batch.outputs[0].nonzero().flatten().tolist()),
            tuple(_layer_plan(layer, mask) for layer, mask in zip(self.network.layers, fates.layers, strict=True)),
        )


def _layer_plan(layer: Layer, mask: LayerMask) -> LayerPlan:
    inputs, outputs = (keep[0].nonzero().flatten() for keep in (mask.keep_in, mask.keep_out))
    plan = LayerPlan(layer, inputs, outputs, bool(mask.rescued[0]))
    if mask.keep_weight is None:
        return plan
    return replace(plan, kept_weights=mask.keep_weight[0][outputs[:, None], plan.columns])


def make_plan(network: ConditionalNetwork, context: Context, threshold: float) -> Plan:
    """The cut of one context at one threshold."""
    return Cutter(network, context).cut(threshold)
