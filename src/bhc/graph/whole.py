"""What of a network cannot get smaller, and why."""

from dataclasses import dataclass

from torch import nn

from bhc.graph.graph import INPUT, Graph
from bhc.graph.layers import Layer
from bhc.graph.units import Units
from bhc.layers import Given, Opaque, is_weighted, kind_of
from bhc.layers.aten import AtenCall

MOST_WHOLE = 3  # steps that stay whole, where they are told


@dataclass(frozen=True)
class Whole:
    """A step whose weights all stay."""

    name: str
    weights: int
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.weights:,} weights): {self.reason}"


def find_whole(graph: Graph, layers: tuple[Layer, ...], units: Units) -> tuple[Whole, ...]:
    """Steps with weights of which nothing can go, the largest first."""
    found = [
        Whole(layer.name, layer.num_weights, _why(graph, layer, units)) for layer in layers if _stays(layer, units)
    ]
    seen: set[int] = set()  # numbers that two steps share are told once
    for step in graph.steps:
        if is_weighted(step.module):
            continue
        counted = kind_of(step.module).weights_of(step.module)
        own = [
            numbers for name, numbers in step.module.named_parameters() if name in counted and id(numbers) not in seen
        ]
        seen.update(map(id, own))
        weights = sum(numbers.numel() for numbers in own)
        if weights and units.always[units.carried[step.name]].all():
            found.append(Whole(step.name, weights, _of_its_own(step.module)))
    return tuple(sorted(found, key=lambda whole: -whole.weights))


def _stays(layer: Layer, units: Units) -> bool:
    return bool(units.always[layer.reads].all() and units.always[layer.writes].all())


def _why(graph: Graph, layer: Layer, units: Units) -> str:
    """Who keeps what the layer reads and writes."""
    steps = {step.name: step for step in graph.steps}
    keepers = [units.kept_by.get(int(unit), INPUT) for unit in (*layer.writes.tolist(), *layer.reads.tolist())]
    named = [name for name in dict.fromkeys(keepers) if name in steps and not _is_an_end(steps[name].module)]
    if not named:
        return "it was asked to stay, or reads the input and gives the result"
    said = [f"{name!r} ({_called(steps[name].module)})" for name in named[:2]]
    return f"{' and '.join(said)} {'mixes' if len(said) == 1 else 'mix'} all of its channels"


def _is_an_end(module: nn.Module) -> bool:
    """Whether it keeps units since they are an input's, or words, and not since it mixes them."""
    return isinstance(module, Given) or is_weighted(module)


def _of_its_own(module: object) -> str:
    if isinstance(module, AtenCall) and module.why:
        return module.why
    if isinstance(module, Opaque):
        return f"there is no rule for cutting {_called(module)}"
    return "it goes with values that stay whole"


def _called(module: object) -> str:
    return module.op if isinstance(module, AtenCall) else type(module).__name__
