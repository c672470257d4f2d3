"""How large the steps of means are in a given network, and what makes steps quick on a GPU: Adam for steps that are
captured as one CUDA graph, operations that do not wait for each other side by side.

A rate is that of a network of few layers, with weights and numbers of inputs as LeNets have them. An optimiser such as
Adam moves every weight by about its rate, however small the weight is and however many move with it, and what a step
does to one layer goes through all that follow.

Small networks leave most of a GPU idle: a step is some hundred kernels of a few microseconds, one after the other.
But a divergence, the noise of the next layer and the update of one group of parameters have no need of each other.
Here each operation goes to one of several streams and waits for just those that it depends on; captured as a graph
these are branches, which cost nothing to wait for.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from math import sqrt
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim import Adam
from torch.utils._python_dispatch import TorchDispatchMode

from bhc.graph import Layer
from bhc.hypernet import FEW_LAYERS, ConditionalNetwork

USUAL_SIZE = 0.03  # root mean square of a layer's weights
USUAL_INPUTS = 800  # weights that one output sums over
SMALLEST_FACTOR = 0.01  # a layer of zeros must learn too
RISING = 100  # steps

PIECE = 8192  # numbers that one block of threads updates
LARGE = 2**22  # numbers of a tensor that is enough for a whole GPU as it is


def slowdown(network: ConditionalNetwork) -> float:
    """How much smaller steps of weights are than in a network of few layers.

    At the rate that suits four layers a residual network of 20, its batch norms folded, forgets all it knew within ten
    steps.
    """
    return max(1.0, len(network.layers) / FEW_LAYERS) ** 1.5


def rising_steps(network: ConditionalNetwork) -> int:
    """Over how many steps rates rise: Adam's first steps are all of full length, wherever they point."""
    return RISING if len(network.layers) > FEW_LAYERS else 0


def of_weights(network: ConditionalNetwork) -> dict[nn.Parameter, float]:
    """The factor of each parameter that generates a layer's weights."""
    factors = [_of_layer(layer) / slowdown(network) for layer in network.layers]
    return {
        parameter: factor
        for factor, head in zip(factors, network.hypernet.weight_heads, strict=True)
        for parameter in head.parameters()
    }


def of_vectors(network: ConditionalNetwork) -> float:
    """The factor of everything else in learning: a unit goes when its scale has gone the whole way from one to nothing,
    so scales slow down less."""
    return slowdown(network) ** -0.5


def _of_layer(layer: Layer) -> float:
    """For weights that are small, and for many of them under one output.

    Weight decay and folded batch norms leave some layers of deep networks with weights of a tenth of the usual size; at
    one rate for all they would be overwritten before others have moved. When n weights move alike, their sum moves by n
    steps, beside a sum of n random signs that is sqrt(n) in size.
    """
    size = max(SMALLEST_FACTOR, layer.weight_size / USUAL_SIZE)
    inputs = layer.num_inputs * layer.kernel_area / USUAL_INPUTS
    return min(1.0, size) / sqrt(max(1.0, inputs))


class PiecewiseAdam(Adam):
    """The same update, its parameters given to the fused kernel in pieces, and their steps counted all at once.

    A block of that kernel walks over 65,536 numbers: seven of them update a layer of LeNet-5-Caffe, a twentieth of a
    large GPU, up to forty microseconds for each learning rate there is. What makes the pieces costs time on the host,
    so this is for steps that are captured: there it is paid once.
    """

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Update everything that has a gradient, unless ``found_inf`` is 1; gradients are divided by ``grad_scale``."""
        assert closure is None
        scale, bad = self.grad_scale, self.found_inf  # type: ignore[attr-defined]
        learned = [[p for p in group["params"] if p.grad is not None] for group in self.param_groups]
        states = [[self._state_of(parameter) for parameter in parameters] for parameters in learned]
        steps = [state["step"] for own in states for state in own]
        torch._foreach_add_(steps, 1)
        for group, parameters, own in zip(self.param_groups, learned, states, strict=True):
            if not parameters:  # the kernel cannot do with nothing
                continue
            given = [piece for pair in zip(parameters, own, strict=True) for piece in _pieces(*pair)]
            values, gradients, firsts, seconds, counts = (list(column) for column in zip(*given, strict=True))
            beta1, beta2 = group["betas"]
            torch._fused_adam_(
                values,
                gradients,
                firsts,
                seconds,
                [],
                counts,
                lr=group["lr"],
                beta1=beta1,
                beta2=beta2,
                weight_decay=group["weight_decay"],
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
                grad_scale=scale,
                found_inf=bad,
            )
        torch._foreach_sub_(steps, [bad] * len(steps))  # one tensor for all would be read back as a number

    def _state_of(self, parameter: Tensor) -> dict[str, Tensor]:
        """What Adam keeps of a parameter, under the names it has there."""
        state: dict[str, Tensor] = self.state[parameter]
        if not state:
            state["step"] = torch.zeros((), device=parameter.device)
            state["exp_avg"], state["exp_avg_sq"] = torch.zeros_like(parameter), torch.zeros_like(parameter)
        return state


def _pieces(parameter: Tensor, state: dict[str, Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """What the kernel is given of a parameter: values, gradients, both moments, and the count of steps each time.

    Large ones stay whole, and so do those that are laid out in another order, as all that belongs to them is.
    """
    assert parameter.grad is not None
    tensors = parameter, parameter.grad, state["exp_avg"], state["exp_avg_sq"]
    if parameter.numel() >= LARGE or not all(tensor.is_contiguous() for tensor in tensors):
        yield *tensors, state["step"]
        return
    for piece in zip(*(tensor.view(-1).split(PIECE) for tensor in tensors), strict=True):
        yield *piece, state["step"]


LAUNCH = 2.0  # microseconds of an operation however small, for the estimate of when a lane is free
CROSSING = 1.0  # more where it has to wait for another lane
NUMBERS = 5e5  # that an operation walks over in a microsecond

# What needs no more of its arguments than their shapes.
_ATEN = torch.ops.aten
FRESH = {
    *(_ATEN.empty_like, _ATEN.zeros_like, _ATEN.ones_like, _ATEN.full_like),
    *(_ATEN.new_empty, _ATEN.new_zeros, _ATEN.new_ones, _ATEN.new_full, _ATEN.new_empty_strided),
}


class Moment(NamedTuple):
    """The end of an operation: its lane, and how many there had been on that lane with it."""

    lane: int
    number: int


@dataclass
class _Uses:
    """Who wrote a piece of memory last, and who has read it since."""

    writer: Moment | None = None
    readers: list[Moment] = field(default_factory=list)


class StreamSchedule:
    """Which lane an operation goes to and which ends of others it waits for, from what memory it reads and writes.

    An operation waits for whoever last wrote what it touches, and one that writes for all who have read that since.
    """

    def __init__(self, lanes: int) -> None:
        self._uses: dict[int, _Uses] = {}
        self._ends: list[list[float]] = [[0.0] for _ in range(lanes)]  # estimated, of each operation of each lane
        # For each operation of each lane, how many of every lane are known to have ended when it has.
        self._known: list[list[tuple[int, ...]]] = [[(0,) * lanes] for _ in range(lanes)]

    def place(
        self, reads: Iterable[int], writes: Iterable[int], *, cost: float = LAUNCH
    ) -> tuple[Moment, list[Moment]]:
        """The operation's own end, and what it waits for on other lanes; memory is told apart by any number."""
        before = self._before(reads, writes)
        lanes = range(len(self._ends))
        lane = min(lanes, key=lambda lane: (self._start(lane, before), -self._ends[lane][-1]))
        moment = Moment(lane, len(self._ends[lane]))
        waits = self._unknown(lane, before)
        clocks = [self._known[lane][-1], *(self._known[other][number] for other, number in waits)]
        known = [max(column) for column in zip(*clocks, strict=True)]
        known[lane] = moment.number
        self._known[lane].append(tuple(known))
        self._ends[lane].append(self._start(lane, before) + cost)
        return moment, waits

    def touched(self, moment: Moment, reads: Iterable[int], writes: Iterable[int], made: Iterable[int]) -> None:
        """What the operation did; ``made`` is memory that nobody used before."""
        for memory in reads:
            self._uses.setdefault(memory, _Uses()).readers.append(moment)
        for memory in chain(writes, made):
            self._uses[memory] = _Uses(moment)

    def knows(self, later: Moment, earlier: Moment) -> bool:
        """Whether one operation has ended whenever another one begins."""
        if later.lane == earlier.lane:
            return earlier.number < later.number
        return self._known[later.lane][later.number][earlier.lane] >= earlier.number

    def _before(self, reads: Iterable[int], writes: Iterable[int]) -> set[Moment]:
        nobody = _Uses()
        read, written = ([self._uses.get(memory, nobody) for memory in part] for part in (reads, writes))
        writers = {uses.writer for uses in (*read, *written) if uses.writer is not None}
        return writers.union(*(uses.readers for uses in written))

    def _start(self, lane: int, before: Iterable[Moment]) -> float:
        """When the lane could begin with it."""
        ends = (self._ends[own][number] + (0.0 if own == lane else CROSSING) for own, number in before)
        return max(self._ends[lane][-1], *ends, 0.0)

    def _unknown(self, lane: int, before: Iterable[Moment]) -> list[Moment]:
        """What it has to be told to wait for: the last of each other lane, unless that follows from the rest."""
        lanes = {moment.lane for moment in before}
        latest = [Moment(other, max(m.number for m in before if m.lane == other)) for other in lanes]
        waits: list[Moment] = []
        known = self._known[lane][-1]
        # The last to end first: it may have waited for the others.
        for moment in sorted(latest, key=lambda m: self._ends[m.lane][m.number], reverse=True):
            if moment.lane != lane and moment.number > known[moment.lane]:
                waits.append(moment)
                known = tuple(map(max, known, self._known[moment.lane][moment.number]))
        return waits


class Lent:
    """What others use of a lane's memory, kept until that lane knows that they are done.

    Memory that is free goes back to the lane it came from, which takes it for what it does next, whatever others are
    still doing with it.
    """

    def __init__(self, plan: StreamSchedule) -> None:
        self._plan = plan
        self._owners: dict[int, int] = {}
        self._kept: dict[int, list[tuple[Moment, object]]] = {}

    def made(self, memory: int, lane: int) -> None:
        """Somebody has got this from a lane's memory."""
        self._owners[memory] = lane

    def used(self, memory: int, moment: Moment, content: object) -> None:
        """An operation uses it; ``content`` is what it is kept by."""
        owner = self._owners.get(memory, moment.lane)  # what was there before all this stays anyway
        if owner != moment.lane:
            self._kept.setdefault(owner, []).append((moment, content))

    def return_what_is_done(self, moment: Moment) -> None:
        """Let go of what its lane knows to be done when this operation of it begins."""
        kept = self._kept.pop(moment.lane, [])
        left = [(use, content) for use, content in kept if not self._plan.knows(moment, use)]
        if left:
            self._kept[moment.lane] = left


class SideBySide(TorchDispatchMode):
    """While inside, operations on the current stream are spread over it and ``others``; joined again at the end."""

    def __init__(self, others: Sequence[torch.cuda.Stream]) -> None:
        super().__init__()
        self._others = tuple(others)

    def __enter__(self) -> "SideBySide":
        self._streams = (torch.cuda.current_stream(), *self._others)
        self._plan = StreamSchedule(len(self._streams))
        self._lent = Lent(self._plan)
        self._events: list[list[torch.cuda.Event]] = [[self._streams[0].record_event()] for _ in self._streams]
        for stream in self._others:
            stream.wait_event(self._events[0][0])
        super().__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        for stream in self._others:
            self._streams[0].wait_stream(stream)
        del self._streams, self._plan, self._lent, self._events

    def __torch_dispatch__(
        self, operation: Any, types: object, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if operation.is_view or operation is torch.ops.aten._unsafe_view.default:  # nothing to compute
            return operation(*args, **kwargs)
        fresh = operation.overloadpacket in FRESH
        given = [] if fresh else [tensor for tensor in tensors_among((args, kwargs)) if tensor.is_cuda]
        writes = {memory_of(tensor) for tensor in written_by(operation, args, kwargs) if tensor.is_cuda}
        reads = {memory_of(tensor) for tensor in given} - writes
        largest = max((tensor.numel() for tensor in given), default=0)
        moment, waits = self._plan.place(reads, writes, cost=LAUNCH + largest / NUMBERS)
        stream = self._streams[moment.lane]
        for wait in waits:
            stream.wait_event(self._events[wait.lane][wait.number])
        self._lent.return_what_is_done(moment)
        with torch.cuda.stream(stream):
            result = operation(*args, **kwargs)
        self._events[moment.lane].append(stream.record_event())
        for tensor in given:
            self._lent.used(memory_of(tensor), moment, tensor.untyped_storage())
        made = {memory_of(tensor) for tensor in tensors_among(result) if tensor.is_cuda} - reads - writes
        for memory in made:
            self._lent.made(memory, moment.lane)
        self._plan.touched(moment, reads, writes, made)
        return result


def memory_of(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def tensors_among(values: Any) -> Iterator[Tensor]:
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (list, tuple)):
        for value in values:
            yield from tensors_among(value)
    elif isinstance(values, dict):
        yield from tensors_among(list(values.values()))


def written_by(operation: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[Tensor]:
    for place, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            yield from tensors_among(args[place] if place < len(args) else kwargs.get(argument.name))
