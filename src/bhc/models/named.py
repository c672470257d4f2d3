"""A chain whose steps have names."""

from collections import OrderedDict

from torch import nn


def named(**steps: nn.Module) -> nn.Sequential:
    """The steps one after the other, each under its name."""
    return nn.Sequential(OrderedDict(steps))
