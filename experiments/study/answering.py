"""What networks answer, on a device."""

from contextlib import AbstractContextManager
from copy import deepcopy

import torch
from torch import Tensor

from bhc.formats import unrolled
from bhc.graph import Graph

CHUNK = 1000


@torch.no_grad()
def logits(network: Graph, images: Tensor, *, device: torch.device) -> Tensor:  # (n, outputs)
    """What a network gives for images, on a device; on the CPU in the end."""
    there = unrolled(network) if device.type == "cpu" else deepcopy(network).to(device)
    with exact_convolutions():
        return torch.cat([there(part.to(device)) for part in images.split(CHUNK)]).cpu()


def exact_convolutions() -> AbstractContextManager[None]:
    """In full float32, as emitted networks have them, where a GPU would round their inputs."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
