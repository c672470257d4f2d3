"""From a plan to a plain, smaller network."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from bhc.emission.plan import Cutter, LayerPlan, Plan
from bhc.formats import LARGEST_BIAS_CODE, Codes
from bhc.graph import CONVOLUTIONS, Affine, Graph, PadChannels, Place, Select, Shift, Step
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import Scales, marginal_variance

SMALLEST_VARIANCE = 1e-20


@dataclass(frozen=True)
class SlimLayer:
    """The numbers of one layer that stay, and how sure the posterior is of them."""

    cut: LayerPlan
    weight: Tensor  # (O', I', *kernel): ``mu_z mu_ij mu_s`` (paper, Eq. 4)
    bias: Tensor | None  # (O',)
    variance: Tensor  # of each weight, both scales integrated out

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
    """The means of one context's scales and biases, generated once; weights are generated where they stay."""

    @torch.no_grad()
    def __init__(self, cutter: Cutter) -> None:
        self.network, self.uncertainty = cutter.network, cutter.uncertainty
        self.embedding = self.network.hypernet.embedder(*cutter.encoding)
        self.vectors = self.network.hypernet.vectors.means(self.embedding)

    @torch.no_grad()
    def layers(self, plan: Plan) -> tuple[SlimLayer, ...]:
        """Every layer at its kept rows and columns."""
        return tuple(self._layer(cut, index) for index, cut in enumerate(plan.layers))

    def _layer(self, cut: LayerPlan, index: int) -> SlimLayer:
        head, vectors, belief = self.network.hypernet.weight_heads[index], self.vectors[index], self.uncertainty[index]
        rows, columns = cut.kept_outputs, cut.columns
        mean = head.mean_at(self.embedding, rows, columns)
        logvar = head.logvar_at(self.embedding, rows, columns)
        in_scale, in_rate = _at(vectors.in_scale, belief.in_scale, columns)
        out_scale, out_rate = _at(vectors.out_scale, belief.out_scale, rows)
        weight = mean * in_scale.reshape(1, -1, *[1] * (mean.dim() - 2))
        weight = weight * out_scale.reshape(-1, *[1] * (mean.dim() - 1))
        # A rate is that of the end of learning, as the masks are; consolidation has since moved the means.
        variance = marginal_variance(
            mean[None],
            logvar[None],
            in_scale[None],
            (in_rate + in_scale.square().log())[None],
            out_scale[None],
            (out_rate + out_scale.square().log())[None],
        )[0]
        if cut.kept_weights is not None:
            weight = weight * cut.kept_weights
        bias = None if vectors.bias is None else vectors.bias[0, rows] * out_scale
        return SlimLayer(cut, weight.cpu(), None if bias is None else bias.cpu(), variance.cpu())


def _at(mean: Tensor | None, scales: Scales | None, places: Tensor) -> tuple[Tensor, Tensor]:
    """Means and log dropout rates of the scales that stay; without scales, a one that is certain."""
    if mean is None or scales is None:
        ones = torch.ones(len(places), device=places.device)
        return ones, torch.full_like(ones, -torch.inf)
    if mean.shape[1] == 1:  # a convolution's one scale for all of its input
        return mean[0], scales.log_dropout[0]
    return mean[0, places], scales.log_dropout[0, places]


def slim_model(network: ConditionalNetwork, plan: Plan) -> Graph:
    """The network of the kept units: ``diag(mu_z) M_w diag(mu_s)`` at the kept rows and columns only."""
    return assemble(network, plan, Slimmer(Cutter(network, plan.context)).layers(plan))


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
        index = _read_positions(layer.cut, plan.alive)
        if index is not None:
            yield Step(f"select_{step.name}", Select(index), reads)
            reads = (f"select_{step.name}",)
        yield Step(step.name, _smaller(layer), reads)
        places = _written_places(layer.cut, plan.alive)
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
    # Its own where it holds numbers: moving them must not move the model's.
    return copy.deepcopy(module).cpu() if [*module.buffers(), *module.parameters()] else copy.copy(module)


def _read_positions(layer: LayerPlan, alive: Tensor) -> Tensor | None:
    """Which of the values that arrive this layer reads; None if it reads them all."""
    arriving = alive[layer.layer.reads.to(alive.device)]
    is_read = torch.zeros_like(arriving)
    is_read[layer.kept_inputs] = True
    among = is_read[arriving]
    return None if bool(among.all()) else among.nonzero().flatten().cpu()


def _written_places(layer: LayerPlan, alive: Tensor) -> Place | None:
    """Where among the units that live this layer's are; None if it writes them all."""
    living = alive[layer.layer.writes.to(alive.device)]
    is_written = torch.zeros_like(living)
    is_written[layer.kept_outputs] = True
    among = is_written[living]
    return None if bool(among.all()) else Place(among.nonzero().flatten().cpu(), len(among))


def _smaller(layer: SlimLayer) -> nn.Module:
    original, weight, bias = layer.cut.layer.module, layer.weight, layer.bias
    module: Any
    # Without storage of its own: initialising weights that are replaced at once would cost most of the time.
    if isinstance(original, CONVOLUTIONS):
        groups = 1 if original.groups == 1 else len(weight) * original.groups // original.out_channels
        module = type(original)(
            weight.shape[1] * groups,
            weight.shape[0],
            original.kernel_size,  # type: ignore[arg-type]
            stride=original.stride,  # type: ignore[arg-type]
            padding=original.padding,  # type: ignore[arg-type]
            dilation=original.dilation,  # type: ignore[arg-type]
            groups=groups,
            bias=bias is not None,
            device="meta",
        )
    else:
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    module.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return module
