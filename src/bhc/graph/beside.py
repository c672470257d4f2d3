"""Weights and operations of the steps beside the layers that are cut, some of which go with the units around them."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from bhc.graph.graph import Graph, ShapedStep, layer_of, shaped_steps
from bhc.graph.units import Units
from bhc.layers import EXAMPLES, Shape, kind_of


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
