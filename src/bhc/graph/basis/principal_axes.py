"""Other axes for a network that computes the same: those along which it can be cut best."""

from abc import ABC, abstractmethod
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.graph.basis.norm_folding import fold_gains, gains_on_streams, take_means_off, with_layers_on_shortcuts
from bhc.graph.basis.spaces import End, Space, find_spaces, follow, turn_
from bhc.graph.graph import Graph, Inputs, Step
from bhc.graph.signature import Signature
from bhc.layers import Shape

CHUNK = 64  # examples that go through a network at once
FLOOR = 1e-6  # of the largest variance: what is less was never seen, and a direction of rounding errors
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


def find_free(graph: Graph, input_shape: Shape) -> list[Space]:
    """The spaces whose axes may be chosen: those that layers read, or vectors that are multiplied with theirs."""
    search = follow(graph, input_shape)
    search.staying += [lines.flatten() for lines in search.norms.values()]  # a mean is taken off there still
    spaces, _ = find_spaces(search)
    return [space for space in spaces if space.orthogonal or {end.opposite for end in space.ends} == {False, True}]


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


def principal(moment: Tensor) -> tuple[Tensor, Tensor]:
    """The rotation to the eigenvectors of a second moment, the largest first, and back."""
    _, axes = _eigen(moment)
    return axes.mT, axes


def balanced(written: Tensor, read: Tensor) -> tuple[Tensor, Tensor]:
    """``A`` and its inverse: ``A M A^T = A^-T G A^-1 = diag(s)``, the largest first.

    ``M^(1/2) G M^(1/2) = U diag(s^2) U^T``, ``A = diag(s)^(1/2) U^T M^(-1/2)``. Eigenvalues of ``M`` and ``s`` have a
    floor, under which they tell no more than how sums were rounded.
    """
    variances, axes = _eigen(written)
    root = _floored(variances).sqrt()
    squares, turn = _eigen(root[:, None] * (axes.mT @ read @ axes) * root)
    scale = _floored(squares.clamp(min=0).sqrt()).sqrt()
    return scale[:, None] * turn.mT / root @ axes.mT, axes @ (root[:, None] * turn / scale)


def _eigen(moment: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues from the largest on, eigenvectors as columns, of each the largest number positive."""
    values, vectors = torch.linalg.eigh(moment)
    largest = vectors.gather(0, vectors.abs().argmax(0, keepdim=True))
    return values.flip(0), (vectors * largest.sign()).flip(1)


def _floored(values: Tensor) -> Tensor:
    largest = values.max()
    return values.clamp(min=FLOOR * largest) if largest > 0 else torch.ones_like(values)


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
