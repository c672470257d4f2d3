"""Starting values of weights, drawn from a generator instead of torch's global state."""

import torch
from torch import Generator, nn

EMBEDDING_STD = 0.3


def initialise_(net: nn.Module, generator: Generator) -> None:
    """torch's own starting values; for convolutions that batch norm follows, those customary for them."""
    for module in net.modules():
        # A convolution is left without a bias where batch norm adds one.
        if isinstance(module, nn.Conv2d) and module.bias is None:
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu", generator=generator)
        elif isinstance(module, nn.Linear | nn.Conv1d | nn.Conv2d):
            bound = module.weight[0].numel() ** -0.5
            for parameter in module.parameters(recurse=False):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
        elif isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING_STD, generator=generator)
            if module.padding_idx is not None:
                with torch.no_grad():
                    module.weight[module.padding_idx] = 0
