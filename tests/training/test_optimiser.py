"""Adam in pieces, and which operations may run side by side. That they compute the same there is tested on a GPU
(``test_cuda``)."""

import random
from itertools import count, pairwise

import pytest
import torch
from torch import Tensor
from torch.optim import Adam
from torch.utils._python_dispatch import TorchDispatchMode

from bhc.training import optimiser
from bhc.training.optimiser import (
    PIECE,
    Lent,
    Moment,
    PiecewiseAdam,
    StreamSchedule,
    memory_of,
    tensors_among,
    written_by,
)

SIZES = ((3,), (PIECE,), (2, PIECE + 5), (6, 5, 2, 2), (5, 7, 11), (2, 2))
SCALES = (1.0, 1.0, 4.0, 1.0, 2.5)
BAD = (0.0, 0.0, 0.0, 1.0, 0.0)  # the fourth step is not taken


def trained(kind: type[Adam], *, first: dict[int, dict[str, torch.Tensor]] | None = None) -> tuple[list, list]:
    """Parameters and states after the same steps; two have no gradients, one of these a rate of its own."""
    rng = torch.Generator().manual_seed(0)
    parameters = [torch.randn(size, generator=rng) for size in SIZES]
    parameters[3] = parameters[3].contiguous(memory_format=torch.channels_last)
    for parameter in parameters:
        parameter.requires_grad_()
    groups = [
        {"params": parameters[:2], "lr": torch.tensor(0.1)},
        {"params": parameters[2:5], "lr": torch.tensor(0.01)},
        {"params": parameters[5:], "lr": torch.tensor(1.0)},
    ]
    optimizer = kind(groups, fused=True)
    for place, state in (first or {}).items():
        optimizer.state[parameters[place]] = {name: value.clone() for name, value in state.items()}
    for scale, bad in zip(SCALES, BAD, strict=True):
        for parameter in parameters[:4]:
            parameter.grad = torch.empty_like(parameter).normal_(generator=rng)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(bad)
        optimizer.step()
    return parameters, [optimizer.state.get(parameter, {}) for parameter in parameters]


@pytest.mark.parametrize("large", [optimiser.LARGE, PIECE])
def test_pieces_are_updated_as_the_whole_is(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(optimiser, "LARGE", large)
    expected, states = trained(Adam)
    given, own = trained(PiecewiseAdam)
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    for one, other in zip(own, states, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)
    assert own[0]["step"] == len(SCALES) - 1


def test_it_goes_on_from_what_adam_remembers() -> None:
    _, states = trained(Adam)
    remembered = dict(enumerate(states[:3]))
    expected, given = trained(Adam, first=remembered)[0], trained(PiecewiseAdam, first=remembered)[0]
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)


Uses = tuple[set[int], set[int]]  # memory that an operation reads and writes


def run(plan: StreamSchedule, operations: list[Uses]) -> list[tuple[Moment, list[Moment]]]:
    placed = []
    for reads, writes in operations:
        moment, waits = plan.place(reads, writes)
        plan.touched(moment, reads, writes, made=())
        placed.append((moment, waits))
    return placed


def reachable(placed: list[tuple[Moment, list[Moment]]]) -> dict[Moment, set[Moment]]:
    """All that has ended when an operation begins: what its lane did before, what it waits for, and so on."""
    before: dict[Moment, set[Moment]] = {}
    for moment, waits in placed:
        direct = {*waits, Moment(moment.lane, moment.number - 1)} & before.keys()
        before[moment] = direct.union(*(before[other] for other in direct))
    return before


@pytest.mark.parametrize("lanes", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(20))
def test_whoever_touches_the_same_memory_waits_and_nobody_waits_twice(lanes: int, seed: int) -> None:
    chance = random.Random(seed)
    memories = range(12)
    operations = [
        ({*chance.choices(memories, k=chance.randrange(4))}, {*chance.choices(memories, k=chance.randrange(1, 3))})
        for _ in range(150)
    ]
    operations = [(reads - writes, writes) for reads, writes in operations]
    placed = run(StreamSchedule(lanes), operations)
    before = reachable(placed)
    for later, (reads, writes) in enumerate(operations):
        moment, waits = placed[later]
        for earlier, (read, wrote) in enumerate(operations[:later]):
            if writes & (read | wrote) or reads & wrote:
                assert placed[earlier][0] in before[moment]
        assert len({wait.lane for wait in waits} - {moment.lane}) == len(waits)  # one a lane, none for its own
        assert not any(wait in before[other] for wait in waits for other in waits)


def test_what_has_no_need_of_each_other_is_spread_and_a_chain_stays_on_its_lane() -> None:
    plan = StreamSchedule(3)
    apart = run(plan, [(set(), {name}) for name in (1, 2, 3)])
    assert {moment.lane for moment, _ in apart} == {0, 1, 2}
    chain = run(plan, [({1}, {4}), ({4}, {5}), ({5}, {6})])
    assert {moment.lane for moment, _ in chain} == {apart[0][0].lane}
    assert not any(waits for _, waits in chain)
    assert all(first.number < second.number for (first, _), (second, _) in pairwise(chain))


def test_readers_do_not_wait_for_each_other_but_a_writer_does_for_all_of_them() -> None:
    plan = StreamSchedule(4)
    (made, _), *readers, (writer, waits) = run(plan, [(set(), {0}), *[({0}, {n}) for n in (1, 2, 3)], (set(), {0})])
    assert {moment.lane for moment, _ in readers} | {made.lane} >= {0, 1, 2}
    assert {moment for moment, _ in readers} <= {*waits, Moment(writer.lane, writer.number - 1)}


class Block:
    """A piece of memory; what nobody holds any more can be had again from where it came."""

    def __init__(self, memory: int, shelf: list[int]) -> None:
        self.memory, self._shelf = memory, shelf

    def __del__(self) -> None:
        self._shelf.append(self.memory)


@pytest.mark.parametrize("lanes", [2, 3, 8])
@pytest.mark.parametrize("seed", range(10))
def test_memory_is_used_again_by_those_alone_who_know_that_others_are_done(lanes: int, seed: int) -> None:
    chance, names = random.Random(seed), count()
    plan, shelves = StreamSchedule(lanes), [list[int]() for _ in range(lanes)]
    lent = Lent(plan)
    placed, again = [], []
    held: list[Block] = []
    users: dict[int, list[Moment]] = {}
    for _ in range(400):
        read = chance.sample(held, min(len(held), chance.randrange(4)))
        reads = {block.memory for block in read}
        moment, waits = plan.place(reads, set())
        placed.append((moment, waits))
        lent.return_what_is_done(moment)
        for block in read:
            lent.used(block.memory, moment, block)
            users[block.memory].append(moment)
        shelf = shelves[moment.lane]
        memory = shelf.pop() if shelf else next(names)
        again += [(moment, user) for user in users.get(memory, [])]
        lent.made(memory, moment.lane)
        plan.touched(moment, reads, set(), {memory})
        users[memory] = [moment]
        held = [block for block in held if chance.random() < 0.8] + [Block(memory, shelf)]
        read = []  # nobody else holds what was dropped
        block = None
    before = reachable(placed)
    assert len({user.lane != moment.lane for moment, user in again}) == 2
    assert all(user in before[moment] for moment, user in again)


class Watched(TorchDispatchMode):
    """Notes what each operation is said to write, and what of its arguments has changed."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        kwargs = kwargs or {}
        given = list(tensors_among((args, kwargs)))
        before = [tensor.clone() for tensor in given]
        said = {memory_of(tensor) for tensor in written_by(operation, args, kwargs)}
        result = operation(*args, **kwargs)
        for tensor, value in zip(given, before, strict=True):
            if not torch.equal(tensor, value):
                assert memory_of(tensor) in said
        self.names.append(operation.overloadpacket.__name__)
        return result


def test_everything_that_a_step_changes_is_known_to_be_written() -> None:
    weight, other = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
    optimizer = torch.optim.Adam([weight, other], fused=True)
    counter = torch.zeros(())
    with Watched() as watched:
        loss = (weight @ other.mT).exp().mean() + weight.view(-1)[2:5].sum()
        loss.backward()
        optimizer.step()
        torch._foreach_add_([counter], [1.0])
        torch.mul(counter, 2, out=counter)
        with torch.no_grad():
            weight.clamp_(max=0.1)
    assert float(counter) == 2.0
    assert {"mm", "exp", "_fused_adam_", "_foreach_add_", "mul", "clamp_"} <= set(watched.names)  # gradients, too


def test_memory_of_a_view_is_that_of_the_whole() -> None:
    whole = torch.zeros(4, 4)
    assert memory_of(whole[1:, 2]) == memory_of(whole.view(16)) == memory_of(whole)
    assert memory_of(whole.clone()) != memory_of(whole)


def test_tensors_are_found_in_lists_and_by_name() -> None:
    tensors: list[Tensor] = [torch.zeros(n) for n in range(4)]
    assert list(tensors_among(([tensors[0], (tensors[1], 3)], {"a": tensors[2], "b": [tensors[3], None]}))) == tensors
