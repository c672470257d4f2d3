"""From a plan to a plain, smaller network."""

import copy
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.emission.generated import Generated
from bhc.emission.plan import LayerPlan, Plan
from bhc.emission.weights import SlimLayer, Slimmer
from bhc.graph import CONVOLUTIONS, Affine, Embed, Graph, PadChannels, Place, Select, Shift, Step, bare_copy
from bhc.hypernet import ConditionalNetwork


def slim_model(network: ConditionalNetwork, plan: Plan) -> Graph:
    """The network of the kept units: ``diag(mu_z) M_w diag(mu_s)`` at the kept rows and columns only."""
    return assemble(network, plan, Slimmer(Generated.of(network, [plan.context])).layers(plan))


def assemble(network: ConditionalNetwork, plan: Plan, layers: Sequence[SlimLayer]) -> Graph:
    """The original's graph with each weighted layer replaced by what stays of it."""
    return Graph(_steps(network, plan, layers)).eval()


def _steps(network: ConditionalNetwork, plan: Plan, layers: Sequence[SlimLayer]) -> Iterator[Step]:
    by_name = {layer.cut.layer.name: layer for layer in layers}
    alive = plan.alive.cpu().numpy()
    instead: dict[str, str] = {}  # the step that puts what a layer writes where it belongs
    for step in network.base_model.steps:
        layer = by_name.get(step.name)
        reads = tuple(instead.get(name, name) for name in step.reads)
        if layer is None:
            arriving, leaving = (network.units.carried[name] for name in (step.reads[0], step.name))
            yield Step(step.name, _narrower(step.module, alive[leaving], len(arriving)), reads)
            continue
        index = _read_positions(layer.cut, alive)
        if index is not None:
            yield Step(f"select_{step.name}", Select(index), reads)
            reads = (f"select_{step.name}",)
        yield Step(step.name, _smaller(layer), reads)
        places = _written_places(layer.cut, alive)
        if places is not None:
            instead[step.name] = f"place_{step.name}"
            yield Step(instead[step.name], places, (step.name,))


def _narrower(module: nn.Module, kept: np.ndarray, arriving: int) -> nn.Module:
    """A step without weights, for the channels that stay of what it gives."""
    match module:
        case Affine():
            smaller = Affine(int(kept.sum()))
            index = torch.from_numpy(kept.nonzero()[0])
            smaller.weight.data, smaller.bias.data = module.weight[index].cpu(), module.bias[index].cpu()
            return smaller
        case Shift():
            bias = module.bias[torch.from_numpy(kept.nonzero()[0])].cpu()
            shift = Shift(tuple(bias.shape))
            shift.bias.data = bias
            return shift
        case PadChannels():
            before, after = kept[: module.before], kept[module.before + arriving :]
            return PadChannels(int(before.sum()), int(after.sum()))
    return own_copy(module)


def _read_positions(layer: LayerPlan, alive: np.ndarray) -> Tensor | None:
    """Which of the values that arrive this layer reads; None if it reads them all, or picks rows by itself."""
    if isinstance(layer.layer.module, Embed):
        return None
    among = _among_living(layer.layer.reads, layer.kept_inputs, alive)
    return None if among.all() else torch.from_numpy(among.nonzero()[0])


def _written_places(layer: LayerPlan, alive: np.ndarray) -> Place | None:
    """Where among the units that live this layer's are; None if it writes them all."""
    among = _among_living(layer.layer.writes, layer.kept_outputs, alive)
    return None if among.all() else Place(torch.from_numpy(among.nonzero()[0]), len(among))


def _among_living(units: Tensor, kept: Tensor, alive: np.ndarray) -> np.ndarray:
    """Of a layer's units those that live, and which of them it keeps; arrays, since there are many small steps."""
    keeps = np.zeros(len(units), dtype=bool)
    keeps[kept.cpu().numpy()] = True
    return keeps[alive[units.cpu().numpy()]]


def _smaller(layer: SlimLayer) -> nn.Module:
    """The layer with fewer inputs and outputs."""
    module: Any = bare_copy(layer.cut.layer.module)
    weight = layer.weight
    if isinstance(module, CONVOLUTIONS):
        module.groups = 1 if module.groups == 1 else len(weight) * module.groups // module.out_channels
        module.in_channels, module.out_channels = weight.shape[1] * module.groups, len(weight)
    elif isinstance(module, Embed):
        module.channels = len(weight)
        module.has_rows_(module.words[layer.cut.kept_inputs.to(module.index.device)])
        module.index = module.index.cpu()
    else:
        module.in_features, module.out_features = weight.shape[1], len(weight)
    module._parameters["weight"] = nn.Parameter(weight.contiguous(), requires_grad=False)
    if layer.bias is not None:
        module._parameters["bias"] = nn.Parameter(layer.bias.contiguous(), requires_grad=False)
    return module


def own_copy(module: nn.Module) -> nn.Module:
    """A module once more, on the CPU, with numbers of its own: moving them must not move the model's."""
    if module._modules:
        return copy.deepcopy(module).cpu()
    twin = bare_copy(module)
    for name, parameter in module._parameters.items():
        if parameter is not None:
            twin._parameters[name] = nn.Parameter(parameter.detach().cpu().clone(), requires_grad=False)
    for name, buffer in module._buffers.items():
        if buffer is not None:
            twin._buffers[name] = buffer.cpu().clone()
    return twin
