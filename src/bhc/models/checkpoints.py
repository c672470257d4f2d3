"""Weights of residual networks for CIFAR that others have trained and published."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from bhc.errors import BhcError

# What wraps a network for several devices puts this in front of every name.
_WRAPPER = "module."
# The last layer has one of two names, depending on whose code it was.
_RENAMED = {"fc.weight": "linear.weight", "fc.bias": "linear.bias"}
# A count of steps that files from before torch 0.4.1 lack; a trained network does not read it.
_COUNTER = "num_batches_tracked"
# Ours alone: public networks expect pixels that were normalised before.
_OWN = ("normalise.mean", "normalise.std")
_SHOWN = 5


def load_public_resnet_(
    net: nn.Module,  # from bhc.models
    checkpoint: Mapping[str, Any],  # as torch.load(path, weights_only=True) gives it
) -> None:
    """Copy the weights of a public checkpoint into ``net``, or raise and leave ``net`` as it is.

    The names are those of the common public networks with shortcuts "A": ``conv1``, ``bn1``,
    ``layer1.0.conv1`` to ``layer3.8.bn2``, and ``linear`` or ``fc``, each with or without ``module.``
    in front. They stand in the checkpoint itself or in its entry ``state_dict``.
    """
    state = checkpoint.get("state_dict", checkpoint)
    given = {_own_name(name): tensor for name, tensor in state.items()}
    expected = net.state_dict()
    missing = [name for name in expected if name not in given and not _may_be_missing(name)]
    unexpected = [name for name in given if name not in expected]
    misshapen = [
        f"{name} is {_shape(tensor)} instead of {_shape(expected[name])}"
        for name, tensor in given.items()
        if name in expected and _shape(tensor) != _shape(expected[name])
    ]
    problems = [
        f"{what}: {_listed(names)}"
        for what, names in (("missing", missing), ("unexpected", unexpected), ("of another shape", misshapen))
        if names
    ]
    if problems:
        raise BhcError(
            f"the checkpoint does not fit this network; {'; '.join(problems)}",
            hint="the depth, the number of classes and the kind of shortcuts (without weights) must be the same",
        )
    net.load_state_dict({**expected, **given})


def _own_name(name: str) -> str:
    bare = name.removeprefix(_WRAPPER)
    return _RENAMED.get(bare, bare)


def _may_be_missing(name: str) -> bool:
    return name in _OWN or name.endswith(_COUNTER)


def _shape(value: object) -> tuple[int, ...] | str:
    return tuple(value.shape) if isinstance(value, Tensor) else f"a {type(value).__name__}"


def _listed(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return ", ".join(names[:_SHOWN]) + (f" and {more} more" if more > 0 else "")
