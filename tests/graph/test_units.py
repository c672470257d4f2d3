"""Which channels live and die together."""

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.graph import INPUT, Units, capture, find_units
from bhc.layers import Add, Affine, Concat, GlobalMean, Multiply, PadChannels, Subsample

from ..formats.graphs import wired


def conv(inputs: int, outputs: int, **options: int) -> nn.Module:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **options)


def units_of(*steps: tuple[object, ...], shape: tuple[int, ...] = (3, 8, 8), keep: Iterable[str] = ()) -> Units:
    return find_units(wired(*steps), shape, keep=keep)


def same(units: Units, *names: str) -> bool:
    """Whether values carry the same units, channel by channel."""
    return all(np.array_equal(units.carried[name], units.carried[names[0]]) for name in names)


def apart(units: Units, *names: str) -> bool:
    """Whether no unit is in two of the values."""
    carried = np.concatenate([np.unique(units.carried[name]) for name in names])
    return len(set(carried)) == len(carried)


def test_every_output_of_a_chain_is_a_unit_of_its_own() -> None:
    units = units_of(("a", conv(3, 4)), ("r", nn.ReLU(), "a"), ("b", conv(4, 5), "r"))
    assert units.count == 3 + 4 + 5
    assert same(units, "a", "r")
    assert apart(units, INPUT, "a", "b")
    assert [units.carried[name].tolist() for name in (INPUT, "a", "b")] == [
        [0, 1, 2],
        [3, 4, 5, 6],
        [7, 8, 9, 10, 11],
    ]


# Steps, values that carry the same units, and values that have none in common.
STREAMS: dict[str, tuple[list[tuple[object, ...]], str, str]] = {
    "a residual stream shares its units": (
        [
            *(("stem", conv(3, 4)), ("a1", conv(4, 6)), ("a2", conv(6, 4)), ("sum1", Add(), "a2", "stem")),
            *(("relu", nn.ReLU()), ("b1", conv(4, 6)), ("b2", conv(6, 4)), ("sum2", Add(), "relu", "b2")),
            ("again", Add(), "sum2", "stem"),  # of one stream already
            ("end", conv(4, 2)),
        ],
        "stem a2 sum1 relu b2 sum2 again",
        "stem a1 b1 end",
    ),
    "a projection begins a stream of its own": (
        [
            *(("stem", conv(3, 4)), ("branch", conv(4, 6)), ("shortcut", nn.Conv2d(4, 6, 1), "stem")),
            *(("sum", Add(), "branch", "shortcut"), ("end", conv(6, 2))),
        ],
        "branch shortcut sum",
        "stem sum end",
    ),
    "a gate shares the units of what it gates": (
        [
            *(("a", conv(3, 4)), ("mean", GlobalMean(True)), ("narrow", nn.Conv2d(4, 2, 1))),
            *(("gate", nn.Conv2d(2, 4, 1)), ("gated", Multiply(), "a", "gate"), ("end", conv(4, 2))),
        ],
        "a gate gated",
        "a narrow end",
    ),
    **{
        repr(step): ([("a", conv(3, 4)), ("step", step), ("end", conv(4, 2))], "a step", "a end")
        for step in (nn.MaxPool2d(2), GlobalMean(True), Affine(4), nn.Sigmoid())
    },
}


@pytest.mark.parametrize(("steps", "together", "separate"), STREAMS.values(), ids=STREAMS)
def test_who_shares_units(steps: list[tuple[object, ...]], together: str, separate: str) -> None:
    units = units_of(*steps)
    assert same(units, *together.split())
    assert apart(units, INPUT, *separate.split())
    assert units.count == 3 + sum(len(units.carried[name]) for name in separate.split())


def test_a_shortcut_with_padding_shares_its_middle_and_leaves_the_edges_to_the_branch() -> None:
    units = units_of(
        ("stem", conv(3, 4)),
        ("branch", conv(4, 7, stride=2)),
        ("halved", Subsample(2), "stem"),
        ("wide", PadChannels(1, 2)),
        ("sum", Add(), "branch", "wide"),
        ("end", conv(7, 2)),
    )
    assert same(units, "branch", "wide", "sum")
    assert np.array_equal(units.carried["sum"][1:5], units.carried["stem"])
    edges = units.carried["sum"][[0, 5, 6]]
    assert not set(edges) & set(units.carried["stem"])
    assert units.count == 3 + 4 + 3 + 2


def test_values_side_by_side_keep_their_units() -> None:
    units = units_of(("a", conv(3, 4)), ("b", conv(4, 2)), ("beside", Concat(), "a", "b", INPUT), ("end", conv(9, 2)))
    parts = [units.carried[name] for name in ("a", "b", INPUT)]
    assert np.array_equal(units.carried["beside"], np.concatenate(parts))
    assert apart(units, "a", "b", INPUT, "end")


def test_a_flatten_repeats_the_unit_of_each_channel() -> None:
    units = units_of(("a", conv(3, 2)), ("flat", nn.Flatten(), "a"), ("end", nn.Linear(8, 2), "flat"), shape=(3, 2, 2))
    first, second = units.carried["a"]
    assert units.carried["flat"].tolist() == [first] * 4 + [second] * 4


def test_each_channel_of_a_group_is_a_unit_and_so_is_the_group() -> None:
    units = units_of(("a", conv(3, 4)), ("grouped", conv(4, 6, groups=2)), ("end", conv(6, 2)))
    (heads,) = units.heads
    assert not heads.of_attention
    inputs, outputs = heads.parts
    assert inputs.units.tolist() == units.carried["a"].reshape(2, 2).tolist()
    assert outputs.units.tolist() == units.carried["grouped"].reshape(2, 3).tolist()
    assert not set(heads.rows) & set(np.concatenate(list(units.carried.values())))


def test_a_depthwise_layer_writes_the_units_that_it_reads() -> None:
    units = units_of(("a", conv(3, 4)), ("d", conv(4, 4, groups=4), "a"))
    assert same(units, "a", "d")
    wide = units_of(("a", conv(3, 4)), ("d", conv(4, 8, groups=4), "a"))
    assert np.array_equal(wide.carried["d"], np.repeat(wide.carried["a"], 2))


def test_groups_of_the_input_are_never_cut() -> None:
    units = units_of(("a", conv(3, 6, groups=3)), ("end", conv(6, 2), "a"))
    assert units.always[units.carried["a"]].all()


CHAIN = [("a", conv(3, 4)), ("b", conv(4, 5), "a"), ("c", conv(5, 2), "b")]


@pytest.mark.parametrize(("keep", "kept"), [([], ""), (["b"], "ab"), (["c"], "b")], ids=["nothing", "b", "the last"])
def test_the_input_and_what_a_kept_step_reads_and_writes_are_kept_but_outputs_are_left_to_the_context(
    keep: list[str], kept: str
) -> None:
    units = units_of(*CHAIN, keep=keep)
    always = {name for name, carried in units.carried.items() if units.always[carried].any()}
    assert always == {INPUT, *kept}
    assert all(units.always[units.carried[name]].all() for name in always)


# The same question, asked of another library.


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.a1, self.a2 = conv(3, 4), conv(4, 6), conv(6, 4)
        self.b1, self.b2, self.shortcut = conv(4, 5, stride=2), conv(5, 8), nn.Conv2d(4, 8, 1, 2)
        self.end = nn.Linear(8, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.stem(x))
        x = F.relu(self.a2(F.relu(self.a1(x))) + x)
        x = F.relu(self.b2(F.relu(self.b1(x))) + self.shortcut(x))
        return self.end(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Dense(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c, self.d = conv(3, 4), conv(4, 3), conv(7, 5), conv(12, 6)
        self.end = nn.Linear(6 * 16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.a(x)), 2)
        x = torch.cat([x, F.relu(self.b(x))], 1)
        x = torch.cat([x, F.relu(self.c(x))], 1)
        return self.end(torch.flatten(F.relu(self.d(x)), 1))


class Depthwise(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.d, self.p = conv(3, 6), conv(6, 6, groups=6), nn.Conv2d(6, 4, 1)
        self.e, self.q, self.end = conv(4, 4, groups=4), nn.Conv2d(4, 4, 1), nn.Linear(4, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.p(F.relu(self.d(F.relu(self.a(x))))))
        x = x + self.q(F.relu(self.e(x)))
        return self.end(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


Channel = tuple[str, bool, int]  # a layer, whether it is one of its outputs, and which


def our_groups(net: nn.Module, example: Tensor) -> set[frozenset[Channel]]:
    """The weights' rows and columns that go with each unit."""
    graph, shape = capture(net, example), tuple(example.shape[1:])
    units = find_units(graph, shape)
    groups: dict[int, set[Channel]] = defaultdict(set)
    for step in graph.steps:
        if not isinstance(step.module, nn.Linear | nn.Conv2d):
            continue
        for place, unit in enumerate(units.carried[step.name]):
            groups[unit].add((step.name, True, place))
        if getattr(step.module, "groups", 1) > 1:
            continue  # its inputs are its outputs
        for place, unit in enumerate(units.carried[step.reads[0]]):
            groups[unit].add((step.name, False, place))
    fixed = {*units.carried[INPUT], *units.carried[graph.last_step]}
    return {frozenset(group) for unit, group in groups.items() if unit not in fixed}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("build", [Residual, Dense, Depthwise])
def test_coupled_channels_are_those_that_another_library_finds(build: type[nn.Module]) -> None:
    tp = pytest.importorskip("torch_pruning")
    net, example = build(), torch.randn(1, 3, 8, 8)
    dependencies = tp.DependencyGraph().build_dependency(net, example_inputs=example)
    names = {module: name for name, module in net.named_modules()}
    theirs = set()
    for name, module in net.named_modules():
        if not isinstance(module, nn.Linear | nn.Conv2d) or name == "end":
            continue
        prune = dependencies.get_pruner_of_module(module).prune_out_channels
        for channel in range(len(module.weight)):
            group = set()
            for dependency, places in dependencies.get_pruning_group(module, prune, idxs=[channel]):
                layer = dependency.target.module
                if isinstance(layer, nn.Linear | nn.Conv2d):
                    outputs = dependencies.is_out_channel_pruning_fn(dependency.handler)
                    group |= {(names[layer], outputs, place) for place in places}
            theirs.add(frozenset(group))
    assert our_groups(net, example) == theirs
