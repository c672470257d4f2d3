"""Random weights under which no part of a network is trivially the identity."""

import torch
from torch import Generator, Tensor, nn

from zoo.inputs import Example, call, several

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
SMALL = 1e-3  # gains under it switch their branch off
INPUTS = 8  # for running statistics
GAIN = 1.4  # what a rectifier takes away


@torch.no_grad()
def randomise(net: nn.Module, seed: int, example: Example | None = None) -> nn.Module:
    """Draw all weights and running statistics by a seed; the network is then in eval mode.

    Weights of layers get the size that keeps activations in range. Gains of norms are about 1, shifts about 0.
    Everything else keeps its mean and spread where it has a spread, and moves a little where it is constant.
    With an example, running statistics are drawn around those of such inputs, as a trained network has them. Without,
    around 0 and 1; sums of many branches may then grow large.
    """
    rng = Generator().manual_seed(seed)
    seen: set[int] = set()
    for module in net.modules():
        for name, value in module.named_parameters(recurse=False):
            if id(value) not in seen and value.is_floating_point():
                seen.add(id(value))
                value.copy_(_drawn(module, name, value, rng))
        for name, value in module.named_buffers(recurse=False):
            if name == "running_mean":
                value.copy_(0.5 * _normal(value, rng))
            elif name == "running_var":
                value.copy_(0.5 + _uniform(value, rng))
    net.eval()
    if example is not None:
        _settle(net, several(example, INPUTS))
    return net


def _settle(net: nn.Module, inputs: Example) -> None:
    """Move running statistics from 0 and 1 to those of inputs, norm by norm in the order they run."""

    def move(norm: nn.Module, arriving: tuple[Tensor, ...]) -> None:
        if norm in moved:  # a norm that is used again
            return
        moved.add(norm)
        variances, means = torch.var_mean(arriving[0].transpose(0, 1).flatten(1), dim=1)
        variances = variances + 0.5 * variances.mean() + 1e-6  # some channels hardly vary
        norm.running_mean.mul_(variances.sqrt()).add_(means)
        norm.running_var.mul_(variances)

    moved: set[nn.Module] = set()
    norms = [module for module in net.modules() if isinstance(getattr(module, "running_var", None), Tensor)]
    hooks = [norm.register_forward_pre_hook(move) for norm in norms]
    call(net, inputs)
    for hook in hooks:
        hook.remove()


def _drawn(module: nn.Module, name: str, value: Tensor, rng: Generator) -> Tensor:
    if _is_norm(module) and value.dim() == 1:
        gains = float(value.float().mean()) > 0.5 or name == "weight"
        return 0.5 + _uniform(value, rng) if gains else 0.2 * _normal(value, rng)
    if name.startswith("weight") and isinstance(module, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)) and value.dim() > 1:
        transposed = isinstance(module, TRANSPOSED)
        inputs = value.numel() / (value.shape[1] * module.groups if transposed else value.shape[0])
        return GAIN * inputs**-0.5 * _normal(value, rng)
    if isinstance(module, nn.Embedding):
        return _normal(value, rng)
    if name.endswith("bias") and value.dim() == 1:
        return 0.1 * _normal(value, rng)
    mean, spread = float(value.mean()), float(value.std()) if value.numel() > 1 else 0.0
    if spread > 1e-6 * abs(mean) and spread > SMALL:
        return mean + spread * _normal(value, rng)
    if abs(mean) < SMALL and value.dim() > 1 and 1 not in value.shape:  # a table that starts at zero
        return 0.2 * _normal(value, rng)
    if abs(mean) < SMALL:
        return 0.2 + 0.4 * _uniform(value, rng)
    return value * (0.8 + 0.4 * _uniform(value, rng)) + 0.02 * _normal(value, rng)


def _is_norm(module: nn.Module) -> bool:
    name = type(module).__name__.lower()
    return "norm" in name or isinstance(getattr(module, "running_mean", None), Tensor)


def _normal(like: Tensor, rng: Generator) -> Tensor:
    return torch.randn(like.shape, generator=rng).to(like.dtype)


def _uniform(like: Tensor, rng: Generator) -> Tensor:
    return torch.rand(like.shape, generator=rng).to(like.dtype)
