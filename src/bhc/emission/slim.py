"""From a plan to a plain, smaller network."""

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.emission.generated import Generated
from bhc.emission.plan import LayerPlan, Plan
from bhc.formats import LARGEST_BIAS_CODE, Codes
from bhc.graph import CONVOLUTIONS, Affine, Embed, Graph, PadChannels, Place, Select, Shift, Step, bare_copy
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import marginal_variance

SMALLEST_VARIANCE = 1e-20


@dataclass(frozen=True)
class SlimLayer:
    """The numbers of one layer that stay, and how sure the posterior is of them."""

    cut: LayerPlan
    weight: Tensor  # (O', I', *kernel): ``mu_z mu_ij mu_s`` (paper, Eq. 4)
    bias: Tensor | None  # (O',)
    find_variance: Callable[[], Tensor]  # only rounding needs it

    @cached_property
    def variance(self) -> Tensor:
        """Of each weight, both scales integrated out."""
        return self.find_variance()

    @cached_property
    def typical_variance(self) -> float:
        """The geometric mean: the arithmetic one is ruled by a few weights of huge variance."""
        return float(self.kept_variance.clamp_min(SMALLEST_VARIANCE).log().mean().exp())

    @property
    def kept_variance(self) -> Tensor:
        """The variances of the weights that stay; all of them, unless single weights were cut."""
        kept = self.cut.kept_weights
        return self.variance if kept is None or not kept.any() else self.variance[kept.cpu()]

    @cached_property
    def bias_codes(self) -> Codes | None:
        """Biases as a byte each; the posterior says nothing about them."""
        return None if self.bias is None else Codes.of(self.bias, 0.0, largest=LARGEST_BIAS_CODE)


class Slimmer:
    """Generates the weights of contexts where they stay, and scales them."""

    def __init__(self, generated: Generated) -> None:
        self.generated = generated
        with torch.no_grad():
            self.kept = [head.kept(generated.embedding) for head in generated.network.hypernet.weight_heads]

    @torch.no_grad()
    def layers(self, plan: Plan, place: int = 0) -> tuple[SlimLayer, ...]:
        """Every layer of the context at ``place``, at its kept rows and columns."""
        return tuple(self._layer(cut, index, place) for index, cut in enumerate(plan.layers))

    def _layer(self, cut: LayerPlan, index: int, place: int) -> SlimLayer:
        vectors, rows, columns = self.generated.vectors[index], cut.kept_outputs, cut.columns
        mean = self.kept[index].mean(place, rows, columns)
        in_scale, out_scale = _at(vectors.in_scale, place, columns), _at(vectors.out_scale, place, rows)
        bias = _at(vectors.bias, place, rows)
        kernel = [1] * (mean.dim() - 2)
        weight = mean
        if in_scale is not None:
            weight = weight * in_scale.view(-1, *kernel)
        if out_scale is not None:
            weight = weight * out_scale.view(-1, 1, *kernel)
            bias = None if bias is None else bias * out_scale
        if cut.kept_weights is not None:
            weight = weight * cut.kept_weights
        find_variance = partial(self._variance, cut, index, place, mean, in_scale, out_scale)
        return SlimLayer(cut, weight.cpu(), None if bias is None else bias.cpu(), find_variance)

    @torch.no_grad()
    def _variance(
        self, cut: LayerPlan, index: int, place: int, mean: Tensor, in_scale: Tensor | None, out_scale: Tensor | None
    ) -> Tensor:
        rates, rows, columns = self.generated.rates[index], cut.kept_outputs, cut.columns
        z, in_logvar = _with_logvar(in_scale, _at(rates.in_log_dropout, place, columns), columns)
        s, out_logvar = _with_logvar(out_scale, _at(rates.out_log_dropout, place, rows), rows)
        logvar = self.kept[index].logvar(place, rows, columns)
        return marginal_variance(mean[None], logvar[None], z, in_logvar, s, out_logvar)[0].cpu()


def _at(values: Tensor | None, place: int, units: Tensor) -> Tensor | None:
    """What one context has for the units that stay; a convolution has one number for all of its input."""
    if values is None:
        return None
    contexts, count = values.shape
    own = values[place if contexts > 1 else 0]
    return own if count == 1 else own.index_select(0, units)


def _with_logvar(scale: Tensor | None, rate: Tensor | None, places: Tensor) -> tuple[Tensor, Tensor]:  # (1, n) each
    """Means and log-variances of scales; without scales, a one that is certain.

    A rate is that of the end of learning, as the masks are; consolidation has since moved the means.
    """
    if scale is None or rate is None:
        ones = torch.ones(1, len(places), device=places.device)
        return ones, torch.full_like(ones, -torch.inf)
    return scale[None], (rate + scale.square().log())[None]


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
