"""From a plan to a plain, smaller network."""

import copy
from collections import OrderedDict
from collections.abc import Iterator

import torch
from torch import Tensor, nn

from bhc.contexts import ContextBatch
from bhc.emission.plan import LayerPlan, Plan
from bhc.graph import Select
from bhc.hypernet import ConditionalNetwork


@torch.no_grad()
def slim_model(network: ConditionalNetwork, plan: Plan) -> nn.Sequential:
    """The network of the kept units: ``diag(mu_z) M_w diag(mu_s)`` at the kept rows and columns only.

    Scales are generated whole, they are short; of the weights only what stays is ever computed.
    """
    batch = ContextBatch.of([plan.context], network.num_classes).to(network.device)
    embedding = network.hypernet.embedder(*network.space.encode(batch))
    vectors = network.hypernet.vectors.means(embedding)
    weights = {}
    for layer, head, scales in zip(plan.layers, network.hypernet.weight_heads, vectors, strict=True):
        rows, columns = layer.kept_outputs, layer.kept_inputs
        weight = head.mean_at(embedding, rows, columns)
        bias = None if scales.bias is None else scales.bias[0, rows]
        if scales.in_scale is not None:
            one_for_all = scales.in_scale.shape[1] == 1
            in_scale = scales.in_scale[0] if one_for_all else scales.in_scale[0, columns]
            weight = weight * in_scale.reshape(1, -1, *[1] * (weight.dim() - 2))
        if scales.out_scale is not None:
            out_scale = scales.out_scale[0, rows]
            weight = weight * out_scale.reshape(-1, *[1] * (weight.dim() - 1))
            bias = None if bias is None else bias * out_scale
        weights[layer.layer.step] = (layer, weight.cpu(), None if bias is None else bias.cpu())
    return nn.Sequential(OrderedDict(_steps(network, plan, weights))).eval()


def _steps(
    network: ConditionalNetwork, plan: Plan, weights: dict[int, tuple[LayerPlan, Tensor, Tensor | None]]
) -> Iterator[tuple[str, nn.Module]]:
    alive: Tensor | None = None  # units of the layer before, in the original numbering
    for step, (name, module) in enumerate(network.base_model.named_children()):
        if step not in weights:
            yield name, copy.deepcopy(module)  # its own: moving it must not move the model
            continue
        layer, weight, bias = weights[step]
        index = _read_positions(layer, alive)
        if index is not None:
            yield f"select_{name}", Select(index)
        yield name, _smaller(layer, weight, bias)
        alive = layer.kept_outputs


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


def _smaller(layer: LayerPlan, weight: Tensor, bias: Tensor | None) -> nn.Module:
    original = layer.layer.module
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
