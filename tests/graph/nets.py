"""Small networks put together from a forward pass."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

FLAT, MAPS = (2, 4), (2, 3, 8, 8)


def seeded(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def net_of(forward: Callable[..., Any], **modules: Any) -> nn.Module:
    """A network with two linear layers, or with the modules and tensors given, run by ``forward(net, x)``."""
    net = type("Net", (nn.Module,), {"forward": forward})()
    for name, part in (modules or {"first": nn.Linear(4, 4), "end": nn.Linear(4, 2)}).items():
        if isinstance(part, Tensor) and not isinstance(part, nn.Parameter):
            net.register_buffer(name, part)
        else:
            setattr(net, name, part)
    return net


def maps_of(forward: Callable[..., Any]) -> nn.Module:
    """A network with convolutions on 3 x 8 x 8 maps, run by ``forward(net, x)``."""
    return net_of(
        forward, a=nn.Conv2d(3, 4, 3, padding=1), b=nn.Conv2d(4, 4, 3, padding=1), relu=nn.ReLU(), end=nn.Linear(4, 2)
    )


def ends(net: Any, x: Tensor) -> Tensor:
    return net.end(x.mean((2, 3)))


def sequential(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(*modules)
