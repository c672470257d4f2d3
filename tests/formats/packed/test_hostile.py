"""Hostile headers with checksums that fit: each is refused in words."""

from collections.abc import Callable
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tools.fuzz.envelope import joined, split, with_checksum
from tools.fuzz.judging import same
from torch import nn

from bhc.errors import BhcError
from bhc.formats import QuantisedNetwork, pack, parse_network
from bhc.formats.packed.cbor import dumps
from bhc.formats.packed.content import CARD_NAMES, LARGEST_ACTIVATION, MOST_STEPS, STEPS
from bhc.layers import Add, Affine, GlobalMean, Subsample
from tests.formats.graphs import wired

from .toys import example, in_a_row, quantised, zoo

ZOO = zoo()
IT = Path("it.bhc")


def parse(content: bytes) -> QuantisedNetwork:
    return parse_network(content, IT).network


Change = Callable[[dict[int, Any]], Any]
DROP = object()
FC = [0, "fc", 2, [0.125, [0, -1, 4]], 0.015625]
CONV = [2, [1, 1], [1, 1], [0, 0], [1, 1], [0.5, [0, 0, 1]], False]


def put(*path: Any) -> Change:
    """Put the last of ``path`` at the place that the others lead to; to put ``DROP`` there takes it away."""

    def change(header: Any) -> None:
        *keys, last, value = path
        for key in keys:
            header = header[key]
        if value is DROP:
            del header[last]
        else:
            header[last] = value

    return change


def check_refused(network: QuantisedNetwork, change: Change, noun: str) -> None:
    content = pack(network)
    header, rest = split(content)
    assert joined(dumps(header), rest) == content
    change(header)
    with pytest.raises(BhcError, match=noun) as caught:
        parse(joined(dumps(header), rest))
    assert len(str(caught.value)) < 1000


CHANGES: dict[str, tuple[Change, str]] = {
    "inputs of billions": (put(0, [10**9, 10**9, 10**9]), "shape"),
    "more inputs than the limit": (put(0, [2049, 2049]), "shape"),
    "no inputs": (put(0, []), "input"),
    "negative inputs": (put(0, [-6]), "shape"),
    "inputs of zero": (put(0, [0]), "shape"),
    "five dimensions": (put(0, [1, 1, 1, 1, 6]), "shape"),
    "inputs as text": (put(0, "6"), "shape"),
    "a true size": (put(0, [True]), "shape"),
    "other inputs": (put(0, [7]), "damaged"),
    "inputs of two dimensions": (put(0, [2, 3]), "damaged"),
    "steps as a number": (put(1, 7), "header"),
    "no steps": (put(1, []), "outputs"),
    "a step as a number": (put(1, 0, 7), "unknown step"),
    "an empty step": (put(1, 0, []), "unknown step"),
    "a kind after the last": (put(1, 0, [999]), "unknown step"),
    "an unknown kind": (put(1, 0, [1000]), "unknown step"),
    "a negative kind": (put(1, 0, [-1]), "unknown step"),
    "a kind that is a truth": (put(1, 2, 0, False), "unknown step"),
    "a kind that is a float": (put(1, 2, 0, 0.0), "unknown step"),
    "a kind as text": (put(1, 0, ["relu"]), "unknown step"),
    "too many arguments": (put(1, 0, [2, 1]), "damaged"),
    "too few arguments": (put(1, 0, [4]), "damaged"),
    "too many steps": (put(1, [[2]] * (MOST_STEPS - 1) + [[14, 4], FC]), "header"),
    "a convolution of flat values": (put(1, 0, [1, "c", 2, [1, 1], [1, 1], [0, 0], [1, 1], None, False]), "damaged"),
    "a pool of flat values": (put(1, 0, [10, 2, 2, 0, 1]), "take"),
    "a text as a slope": (put(1, 0, [4, "none"]), "finite"),
    "a number as GELU's form": (put(1, 0, [7, 1]), "argument"),
    "a slope that is not a number": (put(1, 0, [4, float("nan")]), "finite"),
    "an endless slope": (put(1, 0, [5, float("inf")]), "finite"),
    "a standard deviation of zero": (put(1, 0, 2, 0.0), "positive"),
    "a negative standard deviation": (put(1, 0, 2, -1.0), "positive"),
    "a mean with more digits than a float": (put(1, 0, 1, 0.1), "one way"),
    "select none": (put(1, 1, 1, 0), "6 values"),
    "select a negative number": (put(1, 1, 1, -4), "6 values"),
    "select more than arrive": (put(1, 1, 1, 7), "6 values"),
    "select billions": (put(1, 1, 1, 10**9), "6 values"),
    "select others": (put(1, 1, 1, 5), "damaged"),
    "outputs of billions": (put(1, 2, 2, 10**9), "damaged"),
    "outputs of more than eight bytes hold": (put(1, 2, 2, (1 << 64) - 1), "damaged"),
    "no outputs": (put(1, 2, 2, 0), "damaged"),
    "negative outputs": (put(1, 2, 2, -2), "damaged"),
    "outputs for nothing": (put(1, [[0, "fc", 1 << 18, [0.5, [0, 0, 1]], False]]), "so small"),
    "a layer without a name": (put(1, 2, 1, ""), "name"),
    "a name with a dot": (put(1, 2, 1, "a.b"), "name"),
    "a name that torch needs": (put(1, 2, 1, "forward"), "name"),
    "a name twice": (put(1, [[14, 4], [0, "a", 4, None, None], [0, "a", 2, None, None]]), "name"),
    "a step of zero": (put(1, 2, 3, 0, 0.0), "positive"),
    "a negative step": (put(1, 2, 3, 0, -0.125), "positive"),
    "a whole step": (put(1, 2, 3, 0, 1), "finite"),
    "an endless step": (put(1, 2, 3, 0, float("inf")), "finite"),
    "a step that overflows": (put(1, 2, 3, 0, 1e37), "finite"),
    "a step of biases of zero": (put(1, 2, 4, 0.0), "positive"),
    "a step of biases that is true": (put(1, 2, 4, True), "finite"),
    "weights without a prior": (put(1, 2, 3, [0.125]), "damaged"),
    "weights as a number": (put(1, 2, 3, 0.125), "damaged"),
    "a prior of another kind": (put(1, 2, 3, 1, [9, 0, 4]), "frequencies"),
    "a prior of billions": (put(1, 2, 3, 1, [0, 0, 10**9]), "frequencies"),
    "a prior of none": (put(1, 2, 3, 1, [0, 0, 0]), "frequencies"),
    "a prior far off": (put(1, 2, 3, 1, [0, 10**12, 4]), "codes from"),
    "a prior beyond 16 bits": (put(1, 2, 3, 1, [0, 32765, 4]), "codes from"),
    "a prior with truths": (put(1, 2, 3, 1, [False, -1, 4]), "frequencies"),
    "a prior with a truth as its lowest": (put(1, 2, 3, 1, [0, True, 4]), "frequencies"),
    "another prior": (put(1, 2, 3, 1, [0, -1, 5]), "damaged"),
    "floats that are not there": (put(1, 2, 3, None), "cut off"),
    "no biases, though they are there": (put(1, 2, 4, False), "damaged"),
    "labels of billions": (put(2, [3, 1 << 31]), "labels"),
    "negative labels": (put(2, [3, -4]), "labels"),
    "a label twice": (put(2, [3, 3]), "labels"),
    "labels as floats": (put(2, [3.0, 4.0]), "labels"),
    "labels as text": (put(2, "34"), "labels"),
    "a label too many": (put(2, [3, 4, 5]), "3 labels"),
    "no labels": (put(2, []), "0 labels"),
    "a temperature of zero": (put(3, 0.0), "positive"),
    "a temperature that is none": (put(3, float("nan")), "finite"),
    "a whole temperature": (put(3, 1), "finite"),
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

WIRES: dict[str, tuple[Change, str]] = {
    "a step that reads itself": (put(1, LATE, 1, 0), "unknown step"),
    "a step that reads the next": (put(1, LATE, 1, -1), "unknown step"),
    "the step before in the long form": (put(1, LATE, 1, 1), "unknown step"),
    "a step that reads before the input": (put(1, LATE, 1, 6), "6 steps"),
    "a step that reads far before the input": (put(1, LATE, 1, 1 << 62), "steps before"),
    "a true distance": (put(1, LATE, 1, True), "unknown step"),
    "a distance as a float": (put(1, LATE, 1, 4.0), "unknown step"),
    "a distance as text": (put(1, LATE, 1, "4"), "unknown step"),
    "a distance of nothing": (put(1, LATE, 1, None), "unknown step"),
    "the long form as a float": (put(1, LATE, 0, 15.0), "unknown step"),
    "a long form without a step": (put(1, LATE, [15, 2]), "unknown step"),
    "a long form of nothing": (put(1, LATE, [15, 2, []]), "unknown step"),
    "a long form of a number": (put(1, LATE, [15, 2, 2]), "unknown step"),
    "a long form with more": (put(1, LATE, [15, 4, [24, 2], 0]), "unknown step"),
    "a long form in a long form": (put(1, LATE, [15, 4, [15, 4, [24, 2]]]), "unknown step"),
    "a sum in a long form": (put(1, SUM, [15, 2, [16, 1, 2]]), "unknown step"),
    "a side by side in a long form": (put(1, SUM, [15, 2, [18, 1, 2]]), "unknown step"),
    "a sum with itself": (put(1, SUM, 1, 0), "0 steps"),
    "a sum with what is to come": (put(1, SUM, 1, -1), "-1 steps"),
    "a sum with what is before the input": (put(1, SUM, 2, 5), "5 steps"),
    "a sum of billions of steps before": (put(1, SUM, 2, 10**12), "steps before"),
    "a sum with a true distance": (put(1, SUM, 1, True), "steps before"),
    "a sum with a float": (put(1, SUM, 1, 1.0), "steps before"),
    "a sum of one": (put(1, SUM, [16, 1]), "unknown step"),
    "a sum of three": (put(1, SUM, [16, 1, 2, 2]), "unknown step"),
    "a sum of none": (put(1, SUM, [16]), "unknown step"),
    "a sum of other shapes": (put(1, SUM, [16, 1, 4]), "Add"),
    "a product of one": (put(1, SUM, [17, 1]), "unknown step"),
    "a product of other channels": (put(1, SUM, [17, 1, 4]), "Multiply"),
    "side by side alone": (put(1, SUM, [18, 1]), "unknown step"),
    "side by side with nobody": (put(1, SUM, [18]), "unknown step"),
    "side by side with a list": (put(1, SUM, [18, 1, [2]]), "steps before"),
    "side by side with a float": (put(1, SUM, [18, 1, 2.0]), "steps before"),
    "side by side with the future": (put(1, SUM, [18, 1, 0]), "0 steps"),
    "side by side, more channels than the next takes": (put(1, SUM, [18, 1, 2]), "take|cut off|damaged"),
    "a linear layer of places": (put(1, HEAD, [15, 2, FC]), "damaged"),
    "groups that do not divide what arrives": (put(1, 2, 7, 3), "divisible"),
    "groups that do not divide the filters": (put(1, 2, 2, 3), "divisible"),
    "no groups": (put(1, 2, 7, 0), "0 groups"),
    "negative groups": (put(1, 2, 7, -2), "-2 groups"),
    "groups of billions": (put(1, 2, 7, 10**12), "damaged"),
    "true groups": (put(1, 2, 7, True), "groups"),
    "groups as a float": (put(1, 2, 7, 2.0), "unknown step"),
    "one group in the long form": (put(1, 2, 7, 1), "1 groups"),
    "a kernel of one direction for two": (put(1, 2, 3, [3]), "kernel"),
    "a kernel of three directions for two": (put(1, 2, 3, [3, 3, 3]), "kernel"),
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
    "a mean that is asked for with a number": (put(1, LATE, [23, 1]), "argument"),
    "a mean that is asked for with nothing": (put(1, LATE, [23, None]), "argument"),
    "a mean of flat values": (put(1, HEAD, [23, False]), "GlobalMean"),
    "every zeroth place": (put(1, LATE, 2, [24, 0]), "Subsample"),
    "every 4097th place": (put(1, LATE, 2, [24, 4097]), "Subsample"),
    "every second place in one direction": (put(1, LATE, 2, [24, [2, 1]]), "damaged"),
    "every second place of flat values": (put(1, HEAD, [24, 2]), "Subsample"),
    "a pool of one direction for two": (put(1, LATE, [25, 2, 2, 0, 1]), "take"),
    "a pool of three directions for two": (put(1, LATE, [28, 2, 2, 0]), "take"),
    "an affine step with an argument": (put(1, LATE, [21, 2]), "unknown step"),
    "an affine step whose numbers are not there": (put(1, 1, [21]), "cut off|damaged"),
    "one mean for two channels": (put(1, 1, [20, [0.0], [1.0]]), "unknown step"),
    "three means for two channels": (put(1, 1, [20, [0.0] * 3, [1.0] * 3]), "unknown step"),
    "fewer deviations than means": (put(1, 1, [20, [0.0, 0.0], [1.0]]), "unknown step"),
    "means of flat values": (put(1, HEAD, [20, [0.0, 0.0], [1.0, 1.0]]), "unknown step"),
    "no means": (put(1, 1, [20, [], []]), "unknown step"),
    "means without deviations": (put(1, 1, [20, [0.0, 0.0]]), "unknown step"),
    "a mean for each channel that is whole": (put(1, 1, [20, [0, 0], [1.0, 1.0]]), "finite"),
    "a mean for each channel that is none": (put(1, 1, [20, [0.0, float("nan")], [1.0, 1.0]]), "finite"),
    "a deviation of zero in a channel": (put(1, 1, [20, [0.0, 0.0], [1.0, 0.0]]), "positive"),
    "a mean with more digits than a float has": (put(1, 1, [20, [0.0, 0.1], [1.0, 1.0]]), "one way"),
    "a softplus of whole numbers": (put(1, 1, [32, 1, 20]), "finite"),
    "a softplus without a threshold": (put(1, 1, [32, 1.0]), "damaged"),
    "an endless threshold": (put(1, 1, [32, 1.0, float("inf")]), "finite"),
    "a sigmoid with an argument": (put(1, 1, [29, 1]), "damaged"),
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


def test_conv_arguments_that_torch_would_take_otherwise_are_refused() -> None:
    chain = in_a_row(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    header, rest = split(pack(quantised(chain, (1, 2, 2), {})))
    assert header[STEPS][0][3:7] == [[1, 1], [1, 1], [0, 0], [1, 1]]
    for place in (4, 5, 6):
        for value in (1, [1], [1, 1, 1], [1.0, 1.0], [-1, -1], [5000, 5000], "other", None, [1 << 40, 1]):
            changed = [list(step) for step in header[STEPS]]
            changed[0][place] = value
            with pytest.raises(BhcError):
                parse(joined(dumps(header | {STEPS: changed}), rest))
