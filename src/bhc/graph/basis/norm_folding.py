"""Norms without numbers of their own: gains and shifts go into layers that read them, means off those that write.

A norm may stand on a stream, as BERT has them: its gain lies between the norm and the shortcut around what reads it. A
layer of its own on the shortcut takes it in, ``x + f(x) = D n + f(n)`` with ``x = D n``. Each norm then has a stream of
its own, which may be turned: the layer leads from the axes of one to those of the next.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn

from bhc.graph.basis.coordinates import Gain, Reader, Search
from bhc.graph.basis.spaces import Classes, Space, find_spaces, follow, turn_
from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import Shape, call_of
from bhc.layers.aten import AtenCall, Own, Read
from bhc.layers.kind import fixed

SMALLEST = 1e-4  # of the largest gain: what is less is not divided by


def fold_gains(graph: Graph, input_shape: Shape) -> Graph:
    """``W (g * x + b) = (W diag(g)) x + W b`` where linear layers alone read it, ``g * (W x) = (diag(g) W) x`` where
    nobody else reads ``W x``. The layers of the graph are changed in place."""
    search = follow(graph, input_shape)
    folding = _Folding(graph, search, Classes(search))
    taken_in = {}
    for gain in search.gains:
        module: AtenCall = graph.get_submodule(gain.step)  # type: ignore[assignment]
        if folding.into_readers(gain, module) or folding.into_writers(gain, module):
            taken_in[gain.step] = module
    return Graph(_without(graph, taken_in, folding.left))


def _without(graph: Graph, taken_in: dict[str, AtenCall], left: dict[str, Tensor]) -> Iterator[Step]:
    """The steps without gains that layers have taken in; shifts that are left are steps of their own."""
    instead: dict[str, str] = {}
    for step in graph.steps:
        step = step.rewired(instead)
        module = taken_in.get(step.name)
        if module is None:
            yield step
        elif not _is_norm(module):
            instead[step.name] = step.reads[0]
        else:
            yield Step(step.name, _bare(module), step.reads)
        if step.name in left:
            instead[step.name] = unused_name(graph, f"{step.name}_shift")
            added = call_of("aten.add.Tensor", [Read(0), Own("own0")], None, {"own0": fixed(left[step.name])})
            yield Step(instead[step.name], added, (step.name,))


def unused_name(graph: Graph, wanted: str) -> str:
    while hasattr(graph, wanted):
        wanted += "_"
    return wanted


class _Folding:
    """What is known of gains, and the layers that take them in."""

    def __init__(self, graph: Graph, search: Search, classes: Classes) -> None:
        self.graph, self.search = graph, search
        # Of norms whose readers take in no shift, what is to be added before the gain.
        self.left: dict[str, Tensor] = {}
        gains = {gain.step for gain in search.gains}
        self.layers = [each for each in search.sources if not each.is_constant and each.step not in gains]
        alone = (classes.sizes == 1) & ~classes.stays[classes.of] & ~classes.having(*search.elsewhere)[classes.of]
        gained, read, by_layers = torch.zeros(3, len(alone), dtype=torch.int64)
        for marks, places in (
            (gained, [gain.arriving for gain in search.gains]),
            (read, [reader.coordinates for reader in search.readers]),
            (by_layers, [source.coordinates for source in self.layers]),
        ):
            for each in places:
                marks += torch.bincount(each, minlength=len(alone))
        self.for_readers = alone & (gained == 0)  # of each coordinate, whether linear layers alone read it
        self.for_gain = alone & (gained == 1) & (read == 0) & (by_layers == 1)  # or one gain what a layer writes

    def into_readers(self, gain: Gain, module: AtenCall) -> bool:
        readers = list(self._readers(gain))
        factor, shift = _numbers(module)
        if not readers or not self.for_readers[gain.coordinates].all():
            return False
        if shift is not None and not all(reader.unchanged for reader, _ in readers):
            if factor.abs().min() < SMALLEST * factor.abs().max():
                return False
            self.left[gain.step], shift = shift / factor, None
        for reader, columns in readers:
            layer: nn.Linear = self.graph.get_submodule(reader.step)  # type: ignore[assignment]
            places = reader.coordinates[columns] - gain.coordinates[0]
            _take_in_(layer, columns, factor[places], None if shift is None else shift[places])
        return True

    def _readers(self, gain: Gain) -> Iterator[tuple[Reader, Tensor]]:
        """With the columns that read this gain."""
        for reader in self.search.readers:
            columns = torch.isin(reader.coordinates, gain.coordinates).nonzero().flatten()
            if len(columns):
                yield reader, columns

    def into_writers(self, gain: Gain, module: AtenCall) -> bool:
        if _is_norm(module) or not self.for_gain[gain.arriving].all():
            return False
        factor, _ = _numbers(module)
        for source in self.layers:
            here = torch.isin(gain.arriving, source.coordinates)
            for name, axis in source.tensors:
                rows = getattr(self.graph.get_submodule(source.step), name).data.movedim(axis, -1)
                rows[..., gain.arriving[here] - source.first] *= factor[here]
        return True


def _take_in_(layer: nn.Linear, columns: Tensor, factor: Tensor, shift: Tensor | None) -> None:
    weight = layer.weight.data
    if shift is not None:
        added = weight[:, columns].double() @ shift.double()
        layer.bias = fixed((added if layer.bias is None else layer.bias.data + added).to(weight.dtype))
    weight[:, columns] *= factor


def _is_norm(module: AtenCall) -> bool:
    return module.op in ("layer_norm", "rms_norm")


def _numbers(module: AtenCall) -> tuple[Tensor, Tensor | None]:
    """Gain and shift."""
    if not _is_norm(module):
        (name,) = [name for name, _ in module.owned()]
        return getattr(module, name).data.flatten(), None
    both = [module.argument("weight"), module.argument("bias")]
    gain, shift = (getattr(module, own.name).data if isinstance(own, Own) else None for own in both)
    return torch.ones_like(shift) if gain is None else gain, shift  # type: ignore[arg-type]


def _bare(module: AtenCall, op: str = "") -> AtenCall:
    """A norm of the same numbers, without gain and shift; as another operator."""
    op = op or module.op
    nothing = [None] if op == "rms_norm" else [None, None]
    arguments = [Read(0), module.argument("normalized_shape"), *nothing, module.argument("eps")]
    return call_of(f"aten.{op}.default", arguments)


def take_means_off(graph: Graph, input_shape: Shape) -> Graph:
    """``LayerNorm(x) = RMSNorm(C x)`` with ``C = I - 1 1^T / d``, which goes into all that write ``x``.

    Where layer norms alone read it; the layers of the graph are changed in place.
    """
    search = follow(graph, input_shape)
    spaces, classes = find_spaces(search)
    by_classes = {tuple(space.classes.tolist()): space for space in spaces}
    under = {
        name: [by_classes.get(tuple(classes.of[line].sort().values.tolist())) for line in lines]
        for name, lines in search.norms.items()
    }
    across = [lines.flatten() for name, lines in search.norms.items() if None in under[name]]
    matters = classes.having(*search.means_matter, *across)
    centred = [space for space in spaces if not matters[space.classes].any() and _stands_under(space, under.values())]
    for space in centred:
        centring = torch.eye(space.size, dtype=torch.float64) - 1 / space.size
        for end in space.ends:
            if not end.reads and end.step not in search.keeping_means:
                turn_(graph, end, centring)
    done = [name for name, found in under.items() if all(any(each is space for each in centred) for space in found)]
    modules: dict[str, AtenCall] = {name: graph.get_submodule(name) for name in done}  # type: ignore[misc]
    return graph.with_steps({name: _bare(module, "rms_norm") for name, module in modules.items()})


def _stands_under(space: Space, norms: Iterable[Sequence[Space | None]]) -> bool:
    return any(each is space for found in norms for each in found)


def gains_on_streams(graph: Graph, input_shape: Shape) -> dict[str, str]:
    """The steps with gains that linear layers read, and others too; a name for the layer on the shortcut."""
    steps = {step.name: step.module for step in graph.steps}
    found = {}
    for gain in follow(graph, input_shape).gains:
        readers = graph.readers[gain.step]
        linear = [type(steps.get(name)) is nn.Linear for name in readers]
        if any(linear) and not all(linear) and INPUT not in readers:
            found[gain.step] = unused_name(graph, f"{gain.step}_shortcut")
    return found


def with_layers_on_shortcuts(graph: Graph, instead: Mapping[str, str]) -> Graph:
    """A layer that changes nothing, by the name given, between each of these steps and all that read it but are no
    linear layers."""
    made: list[Step] = []
    for step in graph.steps:
        made.append(step if type(step.module) is nn.Linear else step.rewired(instead))
        if step.name in instead:
            made.append(Step(instead[step.name], _identity(_width(graph, step)), (step.name,)))
    return Graph(made)


def _width(graph: Graph, step: Step) -> int:
    steps = {each.name: each.module for each in graph.steps}
    layers = (steps[name] for name in graph.readers[step.name] if name in steps)
    return next(layer.in_features for layer in layers if isinstance(layer, nn.Linear))


def _identity(width: int) -> nn.Linear:
    layer = nn.Linear(width, width, bias=False, device="meta")
    layer.weight = fixed(torch.eye(width))
    return layer
