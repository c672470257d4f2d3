"""From a plan to a plain, smaller network."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from bhc.emission.plan import Generated, LayerPlan, Plan
from bhc.emission.weights import SlimLayer, Slimmer
from bhc.graph import Graph, Step
from bhc.hypernet import ConditionalNetwork
from bhc.layers import Kept, Place, Select, kind_of


def slim_model(network: ConditionalNetwork, plan: Plan) -> Graph:
    """The network of the kept units: ``diag(mu_z) M_w diag(mu_s)`` at the kept rows and columns only."""
    return assemble(network, plan, Slimmer(Generated.of(network, [plan.context])).layers(plan))


def assemble(network: ConditionalNetwork, plan: Plan, layers: Sequence[SlimLayer]) -> Graph:
    """The original's graph with each weighted layer replaced by what stays of it."""
    return Graph(_steps(network, plan, layers)).eval()


def _steps(network: ConditionalNetwork, plan: Plan, layers: Sequence[SlimLayer]) -> Iterator[Step]:
    by_name = {layer.cut.layer.name: layer for layer in layers}
    alive, units = plan.alive.cpu().numpy(), network.units
    instead: dict[str, str] = {}  # the step that puts what a layer writes where it belongs
    for step in network.base_model.steps:
        layer = by_name.get(step.name)
        reads = tuple(instead.get(name, name) for name in step.reads)
        if layer is None:
            *arriving, leaving = (
                Kept(units.axes[name], alive[units.carried[name]], units.dimensions[name])
                for name in (*step.reads, step.name)
            )
            yield Step(step.name, kind_of(step.module).narrowed(step.module, arriving, leaving), reads)
            continue
        index = _read_positions(layer.cut, alive)
        if index is not None:
            axis = layer.cut.layer.kind.in_axis % units.dimensions[step.reads[0]]
            yield Step(f"select_{step.name}", Select(index, axis), reads)
            reads = (f"select_{step.name}",)
        cut = layer.cut
        smaller = cut.layer.kind.smaller(step.module, layer.weight, layer.bias, cut.kept_inputs)
        yield Step(step.name, smaller, reads)
        places = _written_places(layer.cut, alive, layer.cut.layer.kind.out_axis % units.dimensions[step.name])
        if places is not None:
            instead[step.name] = f"place_{step.name}"
            yield Step(instead[step.name], places, (step.name,))


def _read_positions(layer: LayerPlan, alive: np.ndarray) -> Tensor | None:
    """Which of the values that arrive this layer reads; None if it reads them all, or picks rows by itself."""
    if layer.layer.kind.words(layer.layer.module) is not None:
        return None
    among = _among_living(layer.layer.reads, layer.kept_inputs, alive)
    return None if among.all() else torch.from_numpy(among.nonzero()[0])


def _written_places(layer: LayerPlan, alive: np.ndarray, axis: int) -> Place | None:
    """Where among the units that live this layer's are; None if it writes them all."""
    among = _among_living(layer.layer.writes, layer.kept_outputs, alive)
    return None if among.all() else Place(torch.from_numpy(among.nonzero()[0]), len(among), axis)


def _among_living(units: Tensor, kept: Tensor, alive: np.ndarray) -> np.ndarray:
    """Of a layer's units those that live, and which of them it keeps; arrays, since there are many small steps."""
    keeps = np.zeros(len(units), dtype=bool)
    keeps[kept.cpu().numpy()] = True
    return keeps[alive[units.cpu().numpy()]]
