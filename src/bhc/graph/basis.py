"""Other axes for a network that computes the same: those along which it can be cut best.

They need norms without numbers of their own: gains and shifts go into layers that read them, means off those that
write. A norm may stand on a stream, as BERT has them: its gain lies between the norm and the shortcut around what reads
it. A layer of its own on the shortcut takes it in, ``x + f(x) = D n + f(n)`` with ``x = D n``. Each norm then has a
stream of its own, which may be turned: the layer leads from the axes of one to those of the next.
"""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.graph.coordinates import Gain, Reader, Search
from bhc.graph.graph import INPUT, Graph, Inputs, Step
from bhc.graph.signature import Signature
from bhc.graph.spaces import Classes, End, Space, balanced, find_free, find_spaces, follow, principal, turn_
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


CHUNK = 64  # examples that go through a network at once
TINY = 1e-30
TOLERANCE = 1e-4  # of the largest output, in single precision


class Basis(ABC):
    """A choice of axes where a network leaves one."""

    @abstractmethod
    def turned(self, graph: Graph, example_input: Any, input_shape: Shape) -> Graph:
        """A graph that computes the same in other coordinates; BhcError where it does not."""


@dataclass(frozen=True, eq=False)
class PrincipalAxes(Basis):
    """The principal axes of real activations, the largest first.

    A network is cut by leaving out units, and what it has learned seldom lies along them. Where two linear maps follow
    each other, the coordinates between them are free. With ``M`` the second moment of what is written and ``G`` that
    of the weights that read it, the axes are those along which both are diagonal and the same (balanced truncation):

    ``A M A^T = A^-T G A^-1 = diag(s)``, ``M^(1/2) G M^(1/2) = U diag(s^2) U^T``, ``A = diag(s)^(1/2) U^T M^(-1/2)``

    so that leaving out the last coordinates is the best approximation of that rank. This is done between value and
    output projection of a head, between query and key (``G`` is the second moment of the keys), between an embedding
    and the layers that read it, and between two linear layers. Around norms lengths must stay: there ``A`` is the
    rotation to the eigenvectors of ``M``. Gains and shifts of norms go into their readers before, and a layer norm
    becomes an RMS norm after centring. Where something that is not linear stands between, nothing changes.

    ``inputs`` are a batch of real inputs as the network takes them, like ``example_input``: some hundreds, so that
    there are many more tokens than channels; without them ``example_input`` is used. With too few, the directions that
    they do not reach are completed to a basis: the network computes the same, and its axes say less.

    Norms that stand on the stream itself, as BERT has them, keep it as it is: their gain lies between a norm and the
    shortcut around what reads it. ``shortcuts=True`` puts a layer there, as wide as the stream, so that it can be
    turned after all, between each two norms to axes of its own.

    >>> model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=x[:1], basis=bhc.PrincipalAxes(x[:512]))
    """

    inputs: Any = None
    shortcuts: bool = False

    @torch.no_grad()
    def turned(self, graph: Graph, example_input: Any, input_shape: Shape) -> Graph:
        given = example_input if self.inputs is None else self.inputs
        x = Signature.of(graph, input_shape).taken(given)
        bare = with_streams_freed if self.shortcuts else without_norms_numbers
        turned = bare(graph, input_shape).eval()
        turn_to_principal_axes_(turned, x, input_shape)
        turned.original = graph.original
        _check_same(graph, turned, x)
        return turned


def without_norms_numbers(graph: Graph, input_shape: Shape) -> Graph:
    """The same function: norms that leave vectors where they point, where the layers around take in the rest."""
    return take_means_off(fold_gains(deepcopy(graph), input_shape), input_shape)


def with_streams_freed(graph: Graph, input_shape: Shape) -> Graph:
    """The same, with layers on shortcuts wherever this lets a stream be turned."""
    names = gains_on_streams(without_norms_numbers(graph, input_shape), input_shape)
    while True:
        bare = without_norms_numbers(with_layers_on_shortcuts(graph, names), input_shape)
        streams = [space for space in find_free(bare, input_shape) if space.orthogonal]
        used = {end.step for space in streams for end in space.ends}
        if used.issuperset(names.values()):
            return bare
        names = {name: layer for name, layer in names.items() if layer in used}


def turn_to_principal_axes_(graph: Graph, x: Inputs, input_shape: Shape) -> None:
    """Turn every space of a graph, in place."""
    spaces = find_free(graph, input_shape)
    for space, (written, read) in zip(spaces, second_moments(graph, x, spaces), strict=True):
        if space.orthogonal:
            matrix, inverse = principal(_of_unit_trace(written) + _of_unit_trace(read))
        else:
            matrix, inverse = balanced(written, read)
        for end in space.ends:
            turn_(graph, end, inverse.mT if end.opposite else matrix)


def _of_unit_trace(moment: Tensor) -> Tensor:
    return moment / moment.trace().clamp(min=TINY)


def second_moments(graph: Graph, x: Inputs, spaces: Sequence[Space]) -> list[tuple[Tensor, Tensor]]:
    """Of every space ``M``, that of vectors that are turned by ``A``, and ``G``, that of vectors turned by ``A^-T``."""
    seen = _means(graph, x, [end for space in spaces for side in (False, True) for end in _seen(space, side)])
    return [(_moment(graph, space, False, seen), _moment(graph, space, True, seen)) for space in spaces]


def _moment(graph: Graph, space: Space, opposite: bool, seen: Mapping["Place", Tensor]) -> Tensor:
    """Weights that read are vectors of the other side, but where lengths must stay: there they have no say."""
    total = torch.zeros(space.size, space.size, dtype=torch.float64)
    for end in _seen(space, opposite):
        total += seen[_place(end)] if end.value is not None else _in_tensor(graph, end)
    for end in space.ends:
        if end.reads and end.opposite == opposite and not space.orthogonal:
            total += _in_tensor(graph, end)
    return total


def _seen(space: Space, opposite: bool) -> list[End]:
    """Where its vectors of one side are read, each value once; where no layer reads them, where they are written."""
    read = {_place(end): end for end in space.ends if end.reads and end.opposite != opposite}
    return list(read.values()) or [end for end in space.ends if not end.reads and end.opposite == opposite]


Place = tuple[Any, ...]


def _place(end: End) -> Place:
    """Where the vectors of an end are seen."""
    return end.value, end.axis, *end.index.tolist()


def _means(graph: Graph, x: Inputs, ends: Sequence[End]) -> dict[Place, Tensor]:
    """The second moments of what stands at some places, means over the inputs."""
    wanted: dict[str | None, dict[Place, End]] = defaultdict(dict)
    for end in ends:
        wanted[end.value][_place(end)] = end
    sums: dict[Place, Tensor] = {}
    counts: Counter[Place] = Counter()

    def note(step: Step, *values: Tensor) -> Tensor:
        given = step.module(*values)
        for place, end in wanted.get(step.name, {}).items():
            vectors = given.movedim(end.axis, -1).flatten(0, -2)[:, end.index].double()
            sums[place] = sums.get(place, 0) + vectors.mT @ vectors
            counts[place] += len(vectors)
        return given

    for part in _parts(x):
        graph.run(part, note)
    if not all(total.isfinite().all() for total in sums.values()):
        raise BhcError(
            "the inputs make values that are not finite", hint="give PrincipalAxes inputs without nan or inf"
        )
    return {place: total / counts[place] for place, total in sums.items()}


def _in_tensor(graph: Graph, end: End) -> Tensor:
    """The second moment of the vectors of a tensor, summed."""
    name, axis = end.tensors[0]
    vectors = getattr(graph.get_submodule(end.step), name).data.movedim(axis, -1)
    vectors = vectors.reshape(-1, vectors.shape[-1])[:, end.index].double()
    return vectors.mT @ vectors


def _parts(x: Inputs) -> Iterator[Inputs]:
    if isinstance(x, Tensor):
        yield from x.cpu().split(CHUNK)
    else:
        yield from zip(*[tensor.cpu().split(CHUNK) for tensor in x], strict=True)


def _check_same(graph: Graph, turned: Graph, x: Inputs) -> None:
    both = [(graph.run(part).double(), turned.run(part).double()) for part in _parts(x)]
    largest = max(float(wanted.abs().max()) for wanted, _ in both)
    apart = max(float((wanted - given).abs().max()) for wanted, given in both)
    if not apart <= TOLERANCE * largest:
        raise BhcError(
            f"in other coordinates the network differs by {apart / max(largest, TINY):.1e} of its largest output, and"
            f" {TOLERANCE:.0e} is allowed",
            hint="wrap it with basis=None, and please report this network: it is our fault",
        )
