"""How much there is of a network: the one place where weights, parameters and operations are counted."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from bhc.graph.graph import Graph
from bhc.graph.shapes import passages
from bhc.layers import Shape, kind_of


@dataclass(frozen=True)
class Counts:
    """``weights`` are all parameters but biases and the gains and shifts of norms, as the paper counts."""

    weights: int
    parameters: int
    flops: int  # for one example

    def __sub__(self, other: "Counts") -> "Counts":
        return Counts(self.weights - other.weights, self.parameters - other.parameters, self.flops - other.flops)


def count(graph: Graph, input_shape: Shape) -> Counts:
    """Everything, also what stays whole; numbers that two steps share count once."""
    weights, parameters = count_parameters(graph)
    return Counts(weights, parameters, sum(each.num_flops for each in passages(graph, input_shape)))


def count_parameters(graph: Graph) -> tuple[int, int]:
    """Weights, and all parameters."""
    counted: dict[int, tuple[int, bool]] = {}
    for step in graph.steps:
        for is_weight, numbers in _numbers(step.module):
            _, before = counted.get(id(numbers), (0, False))
            counted[id(numbers)] = numbers.numel(), before or is_weight
    return sum(size for size, is_weight in counted.values() if is_weight), sum(size for size, _ in counted.values())


def _numbers(module: nn.Module) -> Iterator[tuple[bool, nn.Parameter]]:
    weights = kind_of(module).weights_of(module)
    for name, numbers in module.named_parameters():
        yield name in weights, numbers
