"""The plain training step that ours is measured against."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.training.optimiser import SideBySide
from bhc.training.step import LANES, WARM_UP, keeping_garbage


class PlainStep:
    """What a user's own training loop does with a batch: cross-entropy, gradients, Adam."""

    def __init__(
        self, net: nn.Module, x: Tensor, labels: Tensor, *, precision: torch.dtype | None = None, **adam: Any
    ) -> None:
        self.net, self.x, self.labels, self.precision = net, x, labels, precision
        self.optimizer = torch.optim.Adam(net.parameters(), **adam)

    def __call__(self) -> Tensor:
        with torch.autocast(self.x.device.type, self.precision, enabled=self.precision is not None):
            loss = F.cross_entropy(self.net(self.x), self.labels)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        self.optimizer.step()
        return loss


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """One CUDA graph of a step, as ours is captured: side by side what need not wait."""
    side, *others = (torch.cuda.Stream() for _ in range(LANES))
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP - 1):
            step()
        with SideBySide(others):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with keeping_garbage(), torch.cuda.graph(graph, stream=side), SideBySide(others):
        step()

    def replay() -> object:
        graph.replay()
        return step  # which holds the tensors that the graph reads

    return replay
