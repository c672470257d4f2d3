"""Hostile headers with checksums that fit: each is refused in words."""

from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
from tools.fuzz.envelope import joined, split, with_checksum
from tools.fuzz.judging import check_sound, fuzz, same
from tools.fuzz.sources import make_extremes, make_sources
from torch import nn

from bhc.emission import from_file
from bhc.errors import BhcError
from bhc.formats import QuantisedNetwork, pack, parse_network
from bhc.formats.bhc_content import CARD_NAMES, LARGEST_ACTIVATION, MOST_STEPS, STEPS
from bhc.formats.coding import dumps
from bhc.layers import Add, Affine, GlobalMean, Recurrence, Subsample
from tests.formats.graphs import in_a_row, wired

from .hostile import CONV, DROP, FC, INF, NAN, Cases, check_refused, put, tried
from .toys import IT, example, parse, quantised, zoo

ZOO = zoo()

CHANGES: Cases = {
    # The shape of the input: too many, none, and what is no shape.
    **tried("shape", 0, to=[[10**9] * 3, [2049, 2049], [-6], [0], [1, 1, 1, 1, 6], "6", [True]]),
    **tried("damaged", 0, to=[[7], [2, 3]]),
    "no inputs": (put(0, []), "input"),
    # Steps.
    "steps as a number": (put(1, 7), "header"),
    "no steps": (put(1, []), "outputs"),
    "too many steps": (put(1, [[2]] * (MOST_STEPS - 1) + [[14, 4], FC]), "header"),
    **tried("unknown step", 1, 0, to=[7, [], [999], [1000], [-1], ["relu"]]),
    **tried("unknown step", 1, 2, 0, to=[False, 0.0]),
    "too many arguments": (put(1, 0, [2, 1]), "damaged"),
    "too few arguments": (put(1, 0, [4]), "damaged"),
    "a convolution of flat values": (put(1, 0, [1, "c", 2, [1, 1], [1, 1], [0, 0], [1, 1], None, False]), "damaged"),
    "a pool of flat values": (put(1, 0, [10, 2, 2, 0, 1]), "take"),
    "a number as GELU's form": (put(1, 0, [7, 1]), "argument"),
    **tried("finite", 1, 0, to=[[4, "none"], [4, NAN], [5, INF]]),
    **tried("positive", 1, 0, 2, to=[0.0, -1.0]),
    "a mean with more digits than a float": (put(1, 0, 1, 0.1), "one way"),
    **tried("6 values", 1, 1, 1, to=[0, -4, 7, 10**9]),
    "select others": (put(1, 1, 1, 5), "damaged"),
    # The layer: outputs, name, weights and biases.
    **tried("damaged", 1, 2, 2, to=[10**9, (1 << 64) - 1, 0, -2]),
    "outputs for nothing": (put(1, [[0, "fc", 1 << 18, [0.5, [0, 0, 1]], False]]), "so small"),
    **tried("name", 1, 2, 1, to=["", "a.b", "forward"]),
    "a name twice": (put(1, [[14, 4], [0, "a", 4, None, None], [0, "a", 2, None, None]]), "name"),
    **tried("positive", 1, 2, 3, 0, to=[0.0, -0.125]),
    **tried("finite", 1, 2, 3, 0, to=[1, INF, 1e37]),
    "a step of biases of zero": (put(1, 2, 4, 0.0), "positive"),
    "a step of biases that is true": (put(1, 2, 4, True), "finite"),
    **tried("damaged", 1, 2, 3, to=[[0.125], 0.125]),
    **tried("frequencies", 1, 2, 3, 1, to=[[9, 0, 4], [0, 0, 10**9], [0, 0, 0], [False, -1, 4], [0, True, 4]]),
    **tried("codes from", 1, 2, 3, 1, to=[[0, 10**12, 4], [0, 32765, 4]]),
    "another prior": (put(1, 2, 3, 1, [0, -1, 5]), "damaged"),
    "floats that are not there": (put(1, 2, 3, None), "cut off"),
    "no biases, though they are there": (put(1, 2, 4, False), "damaged"),
    # Labels, temperature and card.
    **tried("labels", 2, to=[[3, 1 << 31], [3, -4], [3, 3], [3.0, 4.0], "34"]),
    "a label too many": (put(2, [3, 4, 5]), "3 labels"),
    "no labels": (put(2, []), "0 labels"),
    "a temperature of zero": (put(3, 0.0), "positive"),
    **tried("finite", 3, to=[NAN, 1]),
    "a card that is a list": (put(4, []), "header"),
    "an unknown name": (put(4, len(CARD_NAMES), 0), "name"),
    "a negative name": (put(4, -1, 0), "name"),
    "a name spelled out": (put(4, "images", 9), "one way"),
    "a name twice, once spelled out": (put(4, "context", {}), "one way"),
    "one key more": (put(5, 0), "header"),
    "no card": (put(4, DROP), "header"),
    "no labels at all": (put(2, DROP), "header"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_hostile_header_is_refused(name: str) -> None:
    check_refused(example(), *CHANGES[name])


def residual() -> QuantisedNetwork:
    """Steps 0 to 6: a convolution, ReLU, a depthwise convolution, the sum of the last two, and a head."""
    graph = wired(
        ("conv", nn.Conv2d(1, 2, 1)),
        ("relu", nn.ReLU()),
        ("deep", nn.Conv2d(2, 2, 3, padding=1, groups=2)),
        ("sum", Add(), "deep", "relu"),
        ("late", Subsample(2), "conv"),
        ("mean", GlobalMean(False), "sum"),
        ("fc", nn.Linear(2, 2)),
    )
    return quantised(graph, (1, 4, 4), {"conv": 2.0, "deep": 3.0, "fc": 9.0}, biased=["conv", "deep", "fc"])


SUM, LATE, MEAN, HEAD = 3, 4, 5, 6
ODD_SIZES = [1, [1], [1, 1, 1], [1.0, 1.0], [-1, -1], [5000, 5000], "other", None, [1 << 40, 1]]

WIRES: Cases = {
    # How far back a step reads.
    **tried("unknown step", 1, LATE, 1, to=[0, -1, 1, True, 4.0, "4", None]),
    **tried("6 steps before", 1, LATE, 1, to=[6]),
    **tried("steps before", 1, LATE, 1, to=[1 << 62]),
    "the long form as a float": (put(1, LATE, 0, 15.0), "unknown step"),
    **tried(
        "unknown step", 1, LATE, to=[[15, 2], [15, 2, []], [15, 2, 2], [15, 4, [24, 2], 0], [15, 4, [15, 4, [24, 2]]]]
    ),
    # Values that meet.
    **tried("unknown step", 1, SUM, to=[[15, 2, [16, 1, 2]], [15, 2, [18, 1, 2]], [16, 1], [16, 1, 2, 2], [16]]),
    **tried("unknown step", 1, SUM, to=[[17, 1], [18, 1], [18]]),
    **tried("0 steps before", 1, SUM, to=[[16, 0, 2], [18, 1, 0]]),
    **tried("-1 steps before", 1, SUM, to=[[16, -1, 2]]),
    **tried("5 steps before", 1, SUM, to=[[16, 1, 5]]),
    **tried("steps before", 1, SUM, to=[[16, 1, 10**12], [16, True, 2], [16, 1.0, 2], [18, 1, [2]], [18, 1, 2.0]]),
    "a sum of other shapes": (put(1, SUM, [16, 1, 4]), "Add"),
    "a product of other channels": (put(1, SUM, [17, 1, 4]), "Multiply"),
    "side by side, more channels than the next takes": (put(1, SUM, [18, 1, 2]), "take|cut off|damaged"),
    "a linear layer of places": (put(1, HEAD, [15, 2, FC]), "damaged"),
    **tried("divisible", 1, 2, 7, to=[3]),
    "groups that do not divide the filters": (put(1, 2, 2, 3), "divisible"),
    **tried("groups", 1, 2, 7, to=[0, -2, True, 1]),
    "groups of billions": (put(1, 2, 7, 10**12), "damaged"),
    "groups as a float": (put(1, 2, 7, 2.0), "unknown step"),
    **tried("kernel", 1, 2, 3, to=[[3], [3, 3, 3]]),
    "a kernel that is a number": (put(1, 2, 3, 3), "unknown step"),
    "a kernel of text": (put(1, 2, 3, ["3", "3"]), "damaged"),
    "a stride of one number": (put(1, 2, 4, 1), "one way"),
    "a stride of three": (put(1, 2, 4, [1, 1, 1]), "size"),
    "other groups in the plain form": (put(1, 2, 0, 1), "unknown step"),
    "a name in a long form that is taken": (put(1, LATE, [15, 4, [1, "conv", *CONV]]), "name"),
    "a pad of too many": (put(1, LATE, [22, 0, 4097]), "take"),
    "a negative pad": (put(1, LATE, [22, -1, 1]), "argument"),
    "a pad of a list": (put(1, LATE, [22, [0], 1]), "damaged"),
    "a true pad": (put(1, LATE, [22, True, 1]), "argument"),
    "half a pad": (put(1, LATE, [22, 1]), "damaged"),
    **tried("argument", 1, LATE, to=[[23, 1], [23, None]]),
    "a mean of flat values": (put(1, HEAD, [23, False]), "GlobalMean"),
    **tried("Subsample", 1, LATE, 2, to=[[24, 0], [24, 4097]]),
    "every second place in one direction": (put(1, LATE, 2, [24, [2, 1]]), "damaged"),
    "every second place of flat values": (put(1, HEAD, [24, 2]), "Subsample"),
    "a pool of one direction for two": (put(1, LATE, [25, 2, 2, 0, 1]), "take"),
    "a pool of three directions for two": (put(1, LATE, [28, 2, 2, 0]), "take"),
    "an affine step with an argument": (put(1, LATE, [21, 2]), "unknown step"),
    "an affine step whose numbers are not there": (put(1, 1, [21]), "cut off|damaged"),
    **tried("unknown step", 1, 1, to=[[20, [0.0], [1.0]], [20, [0.0] * 3, [1.0] * 3], [20, [0.0, 0.0], [1.0]]]),
    **tried("unknown step", 1, 1, to=[[20, [], []], [20, [0.0, 0.0]]]),
    "means of flat values": (put(1, HEAD, [20, [0.0, 0.0], [1.0, 1.0]]), "unknown step"),
    **tried("finite", 1, 1, to=[[20, [0, 0], [1.0, 1.0]], [20, [0.0, NAN], [1.0, 1.0]]]),
    "a deviation of zero in a channel": (put(1, 1, [20, [0.0, 0.0], [1.0, 0.0]]), "positive"),
    "a mean with more digits than a float has": (put(1, 1, [20, [0.0, 0.1], [1.0, 1.0]]), "one way"),
    "a softplus of whole numbers": (put(1, 1, [32, 1, 20]), "finite"),
    "a softplus without a threshold": (put(1, 1, [32, 1.0]), "damaged"),
    "an endless threshold": (put(1, 1, [32, 1.0, float("inf")]), "finite"),
    "a sigmoid with an argument": (put(1, 1, [29, 1]), "damaged"),
    # Stride, padding and dilation of the first convolution, which torch would take otherwise.
    **tried("size|one way|padding", 1, 0, 4, to=ODD_SIZES),
    **tried("size|one way|padding", 1, 0, 5, to=ODD_SIZES),
    **tried("size|one way|padding", 1, 0, 6, to=ODD_SIZES),
}


@pytest.mark.parametrize("name", WIRES)
def test_a_hostile_header_of_a_network_that_branches_is_refused(name: str) -> None:
    check_refused(residual(), *WIRES[name])


def test_another_wiring_that_fits_is_another_network() -> None:
    header, rest = split(pack(residual()))
    header[STEPS][SUM] = [16, 1, 3]
    read = parse(joined(dumps(header), rest))
    assert not same(read, residual())
    assert read.graph.steps[SUM].reads == ("deep", "conv")
    assert pack(read) == joined(dumps(header), rest)


def sequence() -> QuantisedNetwork:
    """Steps 0 to 3: what drives an LSTM of two units, the LSTM, and a head."""
    graph = in_a_row(nn.Linear(3, 8), Recurrence("lstm", 2), nn.Flatten(), nn.Linear(8, 2))
    return quantised(graph, (4, 3), {"0": 2.0, "1": 2.0, "3": 5.0}, biased=["0", "1", "3"])


CELL, REVERSE = 2, 3
SEQUENCES: Cases = {
    **tried("unknown step", 1, 1, CELL, to=[4, -1, True, "lstm", 0.0, None, 1 << 40]),
    **tried("unknown step", 1, 1, REVERSE, to=[0, 1, None, "reverse"]),
    "a step of arguments too few": (put(1, 1, [42, "1", 0, None, False]), "unknown step"),
    "a drive that is no multiple of the gates": (put(1, 1, CELL, 1), "take"),
    "another cell that fits": (put(1, 1, CELL, 2), "damaged|cut off"),
    "a drive of more places than time": (put(0, [2, 2, 3]), "take"),
    "more steps than there may be": (put(0, [(1 << 14) + 1, 3]), "take"),
    "weights of billions": (put(1, 0, 2, 1 << 17), "a layer of"),
}


@pytest.mark.parametrize("name", SEQUENCES)
def test_a_hostile_header_of_a_recurrence_is_refused(name: str) -> None:
    check_refused(sequence(), *SEQUENCES[name])


SHARED: Cases = {
    **tried("unknown step", 1, 2, 1, to=[0, -1, 3, 1 << 40, None, 1.0, "first"]),
    **tried("unknown step", 1, 2, 2, to=[0, 1, None, "back"]),
    "a step that is no layer": (put(1, 2, 1, 1), "calls"),
    "a call of a call": (put(1, 3, 2, 1, 1), "one way"),
    "a transpose that does not fit": (put(1, 8, 2, True), "take"),
    "a layer that does not fit": (put(1, 6, 2, False), "take"),
    "no such argument": (put(1, 2, [43, 2]), "unknown step"),
    "one that reads the step before, wrapped": (put(1, 2, [15, 1, [43, 2, False]]), "unknown step"),
}


@pytest.mark.parametrize("name", SHARED)
def test_a_hostile_header_of_a_layer_that_is_called_again_is_refused(name: str) -> None:
    check_refused(ZOO["called again"], *SHARED[name])


def test_activations_are_bounded_together() -> None:
    """Each of them is as large as it may be; together they are too many."""
    network = quantised(in_a_row(GlobalMean(False), nn.Linear(4, 2)), (4, 1 << 20), {})
    header, rest = split(pack(network))
    assert prod(header[0]) == LARGEST_ACTIVATION
    header[STEPS][:0] = [[2]] * 15
    parse(joined(dumps(header), rest))
    for more in ([2], [16, 1, 15], [18, 1, 1], [24, 1]):
        with pytest.raises(BhcError, match="activations"):
            parse(joined(dumps(header | {STEPS: [*header[STEPS][:15], more, *header[STEPS][15:]]}), rest))


def test_values_that_grow_with_every_step_are_refused_before_they_are_made() -> None:
    header, rest = split(pack(quantised(in_a_row(nn.Linear(4, 2)), (4,), {})))
    for growing in ([18, 1, 1], [18, *[1] * 500], [22, 4096, 4096]):
        steps = [growing] * (MOST_STEPS - 1) + header[STEPS]
        with pytest.raises(BhcError):
            parse(joined(dumps(header | {STEPS: steps}), rest))


def test_a_network_without_weighted_layers_is_refused() -> None:
    header, rest = split(pack(quantised(in_a_row(Affine(2), nn.Linear(2, 2)), (2,), {})))
    assert header[STEPS][0] == [21]
    with pytest.raises(BhcError, match="outputs"):
        parse(joined(dumps(header | {STEPS: [[21]]}), rest[: 1 + 16]))


def test_means_for_channels_are_for_rows_and_columns() -> None:
    """Numbers of shape (C, 1, 1) would meet other values in another way."""
    for shape, steps in (((2, 5), nn.MaxPool1d(2)), ((2, 3, 3, 3), nn.MaxPool3d(2))):
        network = quantised(in_a_row(steps, GlobalMean(False), nn.Linear(2, 2)), shape, {})
        header, rest = split(pack(network))
        with pytest.raises(BhcError, match="unknown step"):
            parse(joined(dumps(header | {STEPS: [[20, [0.0] * 2, [1.0] * 2], *header[STEPS]]}), rest))


@pytest.mark.parametrize("header", [0, [], {}, "BHC", None, [[6], [], [], 1.0, {}], {"0": 1}])
def test_a_header_of_another_kind_is_refused(header: Any) -> None:
    with pytest.raises(BhcError, match="header"):
        parse(joined(dumps(header), bytes(9)))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param("81 06", "81 18 06", id="a number in two bytes"),
        pytest.param("81 06", "98 01 06", id="a length in two bytes"),
        pytest.param("02 82 03 04 03", "02 82 03 1b 00 00 00 00 00 00 00 04 03", id="a number in nine bytes"),
        pytest.param("03 f9 3c 00", "03 fa 3f 80 00 00", id="a float in five bytes"),
        pytest.param("03 f9 3c 00", "03 fb 3f f0 00 00 00 00 00 00", id="a float in nine bytes"),
        pytest.param("62 66 63", "78 02 66 63", id="a text's length in two bytes"),
        pytest.param("81 06", "9f 06 ff", id="indefinite length"),
        pytest.param("81 06", "c0 81 06", id="a tag"),
        pytest.param("a5 00", "a5 f4", id="false as a key"),
        pytest.param("a5 00 81 06 01", "a5 01 81 06 00", id="keys exchanged"),
    ],
)
def test_a_header_in_another_form_is_refused(old: str, new: str) -> None:
    header, rest = split(pack(example()))
    packed = dumps(header)
    changed = packed.replace(bytes.fromhex(old), bytes.fromhex(new), 1)
    assert changed != packed
    with pytest.raises(BhcError):
        parse(joined(changed, rest))


def test_lengths_in_another_form_or_beyond_the_end_are_refused() -> None:
    content = pack(example())[:-4]
    for length in (b"\xc7\x00", b"\x46", b"\x48", b"\xff\xff\xff\xff\x0f", b"\xff" * 20):
        with pytest.raises(BhcError):
            parse(with_checksum(content[:4] + length + content[5:]))


@pytest.mark.parametrize("depth", [10, 1000, 1_000_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    header, rest = split(pack(example()))
    with pytest.raises(BhcError, match="nested"):
        parse(joined(b"\x81" * depth + dumps(header), rest))


def test_damaged_streams_and_arrays_are_refused_or_read() -> None:
    """With a checksum that fits, other biases are other biases; what no writer makes is refused."""
    content = pack(ZOO["every kind"])
    _, rest = split(content)
    start, refused = len(content) - 4 - len(rest), 0
    for place in range(len(rest)):
        changed = bytearray(content[:-4])
        changed[start + place] ^= 1 << place % 8
        try:
            read = parse(with_checksum(bytes(changed)))
        except BhcError:
            refused += 1
            continue
        assert not same(read, ZOO["every kind"])
        assert pack(read)[:4] == b"BHC\2"
    assert 0 < refused < len(rest)


@pytest.mark.parametrize("modules", [(), (Affine(2),)], ids=["weights", "affine"])
def test_floats_that_are_none_are_refused(modules: tuple[nn.Module, ...]) -> None:
    network = quantised(in_a_row(*modules, nn.Linear(2, 2, bias=False)), (2,), {"1": 0.0} if modules else {})
    header, rest = split(pack(network))
    for place, value in product(range(4), (np.nan, np.inf, -np.inf)):
        floats = np.ones(4, dtype="<f4")
        floats[place] = value
        with pytest.raises(BhcError, match="finite"):
            parse(joined(dumps(header), rest[:1] + floats.tobytes()))


def test_a_bias_of_minus_128_is_refused() -> None:
    content = pack(example())[:-4]
    with pytest.raises(BhcError, match="bias"):
        parse(with_checksum(content.replace(b"\x05\x81\x87\x52", b"\x05\x80\x87\x52")))


# A short run of ``tools/fuzz``; the long one is run by hand.


def test_sources_are_valid_and_differ() -> None:
    networks = [from_file(parse_network(content, IT), IT) for content in make_sources()]
    for place, one in enumerate(networks):
        check_sound(one)
        assert [same(one.network, other.network) for other in networks].index(True) == place
    assert {one.network.graph.is_chain for one in networks} == {True, False}


def test_extremes_reach_both_sides_of_the_limits() -> None:
    read = 0
    for content in make_extremes():
        try:
            check_sound(from_file(parse_network(content, IT), IT))
            read += 1
        except BhcError:
            pass
    assert 0 < read < len(make_extremes())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_changed_files_are_refused_or_sound(seed: int) -> None:
    # A loaded machine may take its time; the limit here only catches what has no limit.
    tally = fuzz(500, seed, longest_ms=1000)
    assert not tally.failures, tally.failures[0][1]
    assert tally.count == tally.refused + tally.read == 500
    assert tally.read > 0
    assert tally.traced_bytes < 100 << 20
