"""From a plan to a plain, smaller network."""

import copy
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor, nn

from bhc.emission.plan import Cutter, LayerPlan, Plan
from bhc.formats import LARGEST_BIAS_CODE, Codes
from bhc.graph import Select
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
        rows, columns = cut.kept_outputs, cut.kept_inputs
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


def slim_model(network: ConditionalNetwork, plan: Plan) -> nn.Sequential:
    """The network of the kept units: ``diag(mu_z) M_w diag(mu_s)`` at the kept rows and columns only."""
    return assemble(network, Slimmer(Cutter(network, plan.context)).layers(plan))


def assemble(network: ConditionalNetwork, layers: Sequence[SlimLayer]) -> nn.Sequential:
    """The original's chain with each weighted layer replaced by what stays of it."""
    return nn.Sequential(OrderedDict(_steps(network, layers))).eval()


def _steps(network: ConditionalNetwork, layers: Sequence[SlimLayer]) -> Iterator[tuple[str, nn.Module]]:
    by_step = {layer.cut.layer.step: layer for layer in layers}
    alive: Tensor | None = None  # units of the layer before, in the original numbering
    for step, (name, module) in enumerate(network.base_model.named_children()):
        if step not in by_step:
            # Its own where it holds numbers: moving them must not move the model's.
            yield name, copy.deepcopy(module).cpu() if [*module.buffers()] else copy.copy(module)
            continue
        layer = by_step[step]
        index = _read_positions(layer.cut, alive)
        if index is not None:
            yield f"select_{name}", Select(index)
        yield name, _smaller(layer)
        alive = layer.cut.kept_outputs


def _read_positions(layer: LayerPlan, alive: Tensor | None) -> Tensor | None:
    """Which of the values that arrive this layer reads; None if it reads them all."""
    if layer.layer.is_convolution:
        return None
    arriving = torch.arange(layer.layer.num_inputs, device=layer.kept_inputs.device)
    if alive is not None:
        positions = torch.arange(layer.layer.positions, device=alive.device)
        arriving = (alive[:, None] * layer.layer.positions + positions).flatten()
    if len(arriving) == len(layer.kept_inputs):
        return None
    is_read = torch.zeros(layer.layer.num_inputs, dtype=torch.bool, device=arriving.device)
    is_read[layer.kept_inputs] = True
    return is_read[arriving].nonzero().flatten().cpu()


def _smaller(layer: SlimLayer) -> nn.Module:
    original, weight, bias = layer.cut.layer.module, layer.weight, layer.bias
    module: nn.Module
    # Without storage of its own: initialising weights that are replaced at once would cost most of the time.
    if isinstance(original, nn.Conv2d):
        module = nn.Conv2d(
            weight.shape[1],
            weight.shape[0],
            original.kernel_size,  # type: ignore[arg-type]
            stride=original.stride,  # type: ignore[arg-type]
            padding=original.padding,  # type: ignore[arg-type]
            dilation=original.dilation,  # type: ignore[arg-type]
            bias=bias is not None,
            device="meta",
        )
    else:
        module = nn.Linear(weight.shape[1], weight.shape[0], bias=bias is not None, device="meta")
    module.weight = nn.Parameter(weight.contiguous(), requires_grad=False)
    if bias is not None:
        module.bias = nn.Parameter(bias.contiguous(), requires_grad=False)
    return module
