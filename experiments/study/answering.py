"""What networks answer, on a device."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import deepcopy

import torch
from torch import Tensor

from bhc.formats import unrolled
from bhc.graph import Graph

CHUNK = 1000


@torch.no_grad()
def answers(network: Graph, images: Tensor, classes: Sequence[int], *, device: torch.device) -> Tensor:  # (n,)
    """The class that every image is taken for; ``classes`` says what the outputs stand for, or which of all count."""
    there = unrolled(network) if device.type == "cpu" else deepcopy(network).to(device)
    with exact_products():
        outputs = torch.cat([there(part.to(device)) for part in images.split(CHUNK)]).cpu()
    numbers = torch.tensor(classes)
    return numbers[(outputs if outputs.shape[1] == len(numbers) else outputs[:, numbers]).argmax(1)]


def exact_products() -> AbstractContextManager[None]:
    """Convolutions in full float32, as emitted networks have them, where a GPU would round their inputs."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
