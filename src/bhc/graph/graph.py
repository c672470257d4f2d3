"""A network as steps in the order they run, each reading the results of earlier ones: its plain data, its shapes and
its counts, by arithmetic, for nothing need be run or allocated."""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, reduce
from typing import Any

import torch
from torch import Tensor, fx, nn

from bhc.errors import BhcError
from bhc.layers import EXAMPLES, Embed, NetworkInput, Shape, Tied, bare_copy, is_weighted, kind_named, kind_of
from bhc.layers.arguments import expect
from bhc.layers.aten import PRODUCTS, AtenCall, traced

INPUT = ""  # what the network is given, among the names that a step reads

Inputs = Tensor | tuple[Tensor, ...]  # several, in their order, where there are steps that each read one
Apply = Callable[..., Tensor]  # a step and what it reads, to what it gives


@dataclass(frozen=True)
class Step:
    """One module, and whose results it is called with."""

    name: str
    module: nn.Module
    reads: tuple[str, ...]

    def rewired(self, instead: Mapping[str, str]) -> "Step":
        """The same step, which reads other results in the place of some."""
        return Step(self.name, self.module, tuple(instead.get(name, name) for name in self.reads))


def layer_of(module: nn.Module) -> nn.Module | None:
    """The layer with weights that a step calls; None for others."""
    layer = module.layer if isinstance(module, Tied) else module
    return layer if isinstance(layer, nn.Module) and is_weighted(layer) else None


class Graph(nn.Module):
    """Steps as children, named as they are in state dicts; the last one gives the result."""

    # Weights and parameters of the network that it was captured from, which may have had norms that are gone.
    original: tuple[int, int] | None = None

    def __init__(self, steps: Iterable[Step]) -> None:
        super().__init__()
        self._reads: dict[str, tuple[str, ...]] = {}
        for step in steps:
            if step.name in self._reads or not all(name == INPUT or name in self._reads for name in step.reads):
                raise ValueError(f"step {step.name!r} is there twice, or reads what comes after it")
            self.add_module(step.name, step.module)
            self._reads[step.name] = step.reads

    @classmethod
    def chain(cls, named: Iterable[tuple[str, nn.Module]]) -> "Graph":
        """Steps that each read the one before."""
        steps, before = [], INPUT
        for name, module in named:
            steps.append(Step(name, module, (before,)))
            before = name
        return cls(steps)

    @property
    def steps(self) -> tuple[Step, ...]:
        return tuple(Step(name, self._modules[name], reads) for name, reads in self._reads.items())  # type: ignore[arg-type]

    @cached_property
    def readers(self) -> Mapping[str, tuple[str, ...]]:
        """Who reads each result; the network's own result counts as read by a step without a name."""
        readers: dict[str, tuple[str, ...]] = dict.fromkeys((INPUT, *self._reads), ())
        for name, reads in self._reads.items():
            for source in reads:
                readers[source] += (name,)
        readers[self.last_step] += (INPUT,)
        return readers

    @property
    def last_step(self) -> str:
        return next(reversed(self._reads), INPUT)

    @cached_property
    def input_steps(self) -> tuple[str, ...]:
        """The steps that are inputs, in their order; none where there is one tensor, which any step may read."""
        return tuple(name for name, module in self._modules.items() if isinstance(module, NetworkInput))

    @property
    def owners(self) -> Mapping[str, str]:
        """By every step of a layer with weights the first one of the same layer: itself, unless that is called again,
        as it is or transposed."""
        first: dict[int, str] = {}
        layers = ((step.name, layer_of(step.module)) for step in self.steps)
        return {name: first.setdefault(id(layer), name) for name, layer in layers if layer is not None}

    @property
    def is_chain(self) -> bool:
        """Whether each step reads just the one before it, from one tensor on."""
        before = [INPUT, *self._reads]
        pairs = zip(before, self._reads.values(), strict=False)
        return not self.input_steps and all(reads == (name,) for name, reads in pairs)

    @cached_property
    def _finished(self) -> Mapping[str, tuple[str, ...]]:
        """The results that nobody reads once a step has run."""
        last_reader = {source: name for name, reads in self._reads.items() for source in reads}
        finished: dict[str, tuple[str, ...]] = dict.fromkeys(self._reads, ())
        for source, name in last_reader.items():
            finished[name] += (source,)
        return finished

    def run(self, x: Inputs, apply: Apply = lambda step, *values: step.module(*values)) -> Tensor:
        """Go through the steps, each done by ``apply``; what is no longer read is let go."""
        values: dict[str, Any] = {INPUT: x}
        for step in self.steps:
            values[step.name] = apply(step, *[values[name] for name in step.reads])
            for name in self._finished[step.name]:
                del values[name]
        return values[self.last_step]

    def forward(self, *x: Tensor) -> Tensor:
        return self.run(x[0] if len(x) == 1 else x)

    def state_dict(self, *args: Any, prefix: str = "", **options: Any) -> dict[str, Any]:  # type: ignore[override]
        """As of any module, the numbers of a layer under the name of its first call alone."""
        state = super().state_dict(*args, prefix=prefix, **options)
        again = tuple(f"{prefix}{name}." for name, owner in self.owners.items() if name != owner)
        for key in [key for key in state if key.startswith(again)]:
            del state[key]
        return state

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        for name, owner in self.owners.items():
            inner = f"{name}.layer" if isinstance(self._modules[name], Tied) else name
            for key in [key for key in state_dict if key.startswith(f"{prefix}{owner}.") and name != owner]:
                state_dict[f"{prefix}{inner}.{key.removeprefix(f'{prefix}{owner}.')}"] = state_dict[key]
        super()._load_from_state_dict(state_dict, prefix, *rest)

    def with_steps(self, replaced: Mapping[str, nn.Module]) -> "Graph":
        """The same wiring with other modules in some places."""
        twin = bare_copy(self)  # adding modules one by one takes far longer
        twin._modules.update(replaced)
        return twin

    def plain(self) -> nn.Module:
        """The same function without this class: an ``nn.Sequential``, or an ``fx.GraphModule`` where values branch."""
        if self.is_chain:
            return nn.Sequential(OrderedDict((step.name, step.module) for step in self.steps)).train(self.training)
        graph = fx.Graph()
        inputs = {name: graph.placeholder(str(self.get_submodule(name).called)) for name in self.input_steps}
        inputs = inputs or {INPUT: graph.placeholder("x")}
        nodes = dict(inputs)
        for step in self.steps:
            reads = (inputs[step.name],) if step.name in inputs else tuple(nodes[name] for name in step.reads)
            nodes[step.name] = graph.call_module(step.name, reads)
        graph.output(nodes[self.last_step])
        return fx.GraphModule(dict(self._modules), graph, class_name="Network").train(self.training)


def calls_of_layers(graph: Graph) -> dict[str, tuple[str, ...]]:
    """By every layer with weights the steps that call it, the first of which it is named after."""
    calls: dict[str, tuple[str, ...]] = {}
    for name, owner in graph.owners.items():
        calls[owner] = (*calls.get(owner, ()), name)
    return calls


def needed_steps(steps: Sequence[Step], wanted: Iterable[str]) -> list[Step]:
    """The steps that some depend on."""
    needed = set(wanted)
    for step in reversed(steps):
        if step.name in needed:
            needed.update(step.reads)
    return [step for step in steps if step.name in needed]


ABOUT_STEPS = ("kind", "name", "reads")  # what a description says beside its kind's own
AGAIN = "again"  # in the place of a kind: a layer that an earlier step has called


def describe(graph: Graph) -> list[dict[str, Any]]:
    """One dict a step: the kind's name, the step's name, the constructor's arguments, and what it reads.

    A step that reads just the one before it does not say so; a layer that is called again is described once.
    """
    described: list[dict[str, Any]] = []
    before, owners = INPUT, graph.owners
    for step in graph.steps:
        kind, owner = kind_of(step.module), owners.get(step.name, step.name)
        if owner == step.name:
            described.append({"kind": kind.name, "name": step.name} | kind.describe(step.module))
        else:
            turned = isinstance(step.module, Tied)
            described.append({"kind": AGAIN, "name": step.name, "layer": owner, "transposed": turned})
        if step.reads != (before,):
            described[-1]["reads"] = list(step.reads)
        before = step.name
    return described


def rebuild(steps: Sequence[Any]) -> Graph:
    """The graph that ``steps`` describe, its tensors uninitialised: load a state dict into it."""
    try:
        built: dict[str, Step] = {}
        before = INPUT
        for step in steps:
            name, reads = str(step["name"]), tuple(map(str, step.get("reads", (before,))))
            built[name] = Step(name, _built(step, built), reads)
            before = name
        return Graph(built.values())
    except BhcError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        raise BhcError(f"the description of the network is damaged: {error!r}") from error


def _built(step: Mapping[str, Any], before: Mapping[str, Step]) -> nn.Module:
    if step["kind"] == AGAIN:
        module = before[str(step["layer"])].module
        expect(is_weighted(module), f"{step['layer']!r} is no layer with weights")
        return Tied(module) if step["transposed"] else module
    own = {key: value for key, value in step.items() if key not in ABOUT_STEPS}
    own = {key: tuple(value) if isinstance(value, list) else value for key, value in own.items()}
    return kind_named(step["kind"]).build(own)


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


def shaped_steps(graph: Graph, input_shape: Shape) -> Iterator[ShapedStep]:
    """Every step with its shapes; ValueError where two do not fit together. ``input_shape`` is of one example."""
    shapes = {INPUT: (EXAMPLES, *input_shape)}
    for step in graph.steps:
        arriving = tuple(shapes[name] for name in step.reads)
        shapes[step.name] = output_shape(step.module, *arriving)
        yield ShapedStep(step, arriving, shapes[step.name])


def output_shape(module: nn.Module, *arriving: Shape) -> Shape:
    kind = kind_of(module)
    if len(arriving) != 1 and not kind.joins:
        raise ValueError(f"{type(module).__name__} reads one value")
    return kind.output_shape(module, *arriving)


def output_dtype(module: nn.Module, shapes: Sequence[Shape], dtypes: Sequence[torch.dtype]) -> torch.dtype:
    """Of what a step gives; ValueError where it does not compute with what arrives."""
    if isinstance(module, NetworkInput):
        own: torch.dtype = getattr(torch, module.dtype)
        return torch.float32 if own.is_floating_point else own
    if isinstance(module, Embed) or not (isinstance(module, AtenCall) or any(d != torch.float32 for d in dtypes)):
        return torch.float32
    problem = f"{type(module).__name__} does not compute with {', '.join(map(str, dtypes))}"
    if not isinstance(module, AtenCall):
        expect(kind_of(module).any_dtype, problem)
        return reduce(torch.promote_types, dtypes)
    met = {*dtypes, *(numbers.dtype for numbers in (*module.parameters(), *module.buffers()))}
    masks = {torch.bool} if module.op == "scaled_dot_product_attention" else set()
    expect(module.op not in PRODUCTS or len(met - masks) == 1, problem)  # without data torch does not look
    try:
        return traced(module, shapes, dtypes).dtype
    except (RuntimeError, TypeError, IndexError, ValueError, AttributeError) as error:
        raise ValueError(problem) from error


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
    return Counts(weights, parameters, sum(each.num_flops for each in shaped_steps(graph, input_shape)))


def count_parameters(graph: Graph) -> tuple[int, int]:
    counted: dict[int, tuple[int, bool]] = {}
    for step in graph.steps:
        weights = kind_of(step.module).weights_of(step.module)
        for name, numbers in step.module.named_parameters():
            _, before = counted.get(id(numbers), (0, False))
            counted[id(numbers)] = numbers.numel(), before or name in weights
    return sum(size for size, is_weight in counted.values() if is_weight), sum(size for size, _ in counted.values())
