"""The shapes of a graph's values, and how much there is of it: by arithmetic, nothing need be run or allocated."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import EXAMPLES, Shape, kind_of


@dataclass(frozen=True)
class ShapedStep:
    """A step with the shapes of what it reads and of what it gives, for ``EXAMPLES`` examples."""

    step: Step
    arriving: tuple[Shape, ...]
    leaving: Shape

    @property
    def name(self) -> str:
        return self.step.name

    @property
    def module(self) -> nn.Module:
        return self.step.module

    @property
    def num_flops(self) -> int:
        """Additions and multiplications for one example."""
        return kind_of(self.module).num_flops(self.module, self.arriving, self.leaving) // EXAMPLES


def passages(graph: Graph, input_shape: Shape) -> Iterator[ShapedStep]:
    """Every step with its shapes; ValueError where two do not fit together. ``input_shape`` is of one example."""
    shapes = {INPUT: (EXAMPLES, *input_shape)}
    for step in graph.steps:
        arriving = tuple(shapes[name] for name in step.reads)
        shapes[step.name] = output_shape(step.module, *arriving)
        yield ShapedStep(step, arriving, shapes[step.name])


def output_shape(module: nn.Module, *arriving: Shape) -> Shape:
    """The shape that ``module`` makes of those that arrive."""
    kind = kind_of(module)
    if len(arriving) != 1 and not kind.joins:
        raise ValueError(f"{type(module).__name__} reads one value")
    return kind.output_shape(module, *arriving)


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
