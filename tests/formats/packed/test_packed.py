import re
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools.fuzz.envelope import joined, split, with_checksum
from tools.fuzz.judging import same
from torch import nn

from bhc.errors import BhcError
from bhc.formats import Codes, QuantisedNetwork, pack, packed_parts, read_network
from bhc.formats.file import parse_network
from bhc.formats.packed.cbor import dumps
from bhc.formats.packed.layout import CARD_NAMES, KIND_NAMES, MOST_STEPS, STEPS
from bhc.formats.packed.priors import Flat
from bhc.formats.packed.write import take_apart
from bhc.graph import KINDS_BY_NAME, Select, describe

from .toys import every_kind, example, quantised, zoo

HERE = Path(__file__).parent
VERSION_1 = (HERE / "version-1.bhc").read_bytes()  # as the writer of version 1 made it
ZOO = zoo()
IT = Path("it.bhc")

GOLDEN = """
    42 48 43 02 47 a5 00 81 06 01 83 83 0d f9 00 00 f9 54 00 82 0e 04 85 00 62 66 63 02 82 f9 30 00 83 00 20 04 f9 24 00
    02 82 03 04 03 f9 3c 00 04 a7 00 a1 01 82 03 04 05 f9 ba 00 06 f9 38 00 07 81 06 08 18 3c 09 19 01 18 0a 18 78 04 77
    be e0 0c 05 81 87 52 df 43 6e 11
"""


def parse(content: bytes) -> QuantisedNetwork:
    return parse_network(content, IT).network


# What goes in comes out


@pytest.mark.parametrize("name", ZOO)
def test_a_network_reads_back_to_the_last_bit(name: str) -> None:
    network = ZOO[name]
    read = parse(pack(network))
    assert same(read, network)
    inputs = 50 * torch.randn(3, *network.input_shape)
    assert torch.equal(read.chain(inputs), network.chain(inputs))
    assert list(read.weights) == list(network.weights)
    for codes, expected in ((read.weights, network.weights), (read.biases, network.biases)):
        assert {key: value.step for key, value in codes.items()} == {key: value.step for key, value in expected.items()}
        assert all(np.array_equal(value.codes, expected[key].codes) for key, value in codes.items())
    assert [layer.name for layer in read.layers] == [layer.name for layer in network.layers]


@pytest.mark.parametrize("name", ZOO)
def test_written_again_it_is_the_same_file(name: str) -> None:
    content = pack(ZOO[name])
    assert pack(ZOO[name]) == content
    assert pack(parse(content)) == content


@pytest.mark.parametrize("name", ZOO)
def test_the_parts_add_up_to_the_size(name: str) -> None:
    content = pack(ZOO[name])
    for parts in (packed_parts(ZOO[name]), parse_network(content, IT).parts):
        assert sum(part.bytes for part in parts) == pytest.approx(len(content))
        assert {part.layer for part in parts} - {None} <= {layer.name for layer in ZOO[name].layers}


def test_every_kind_has_a_number_and_is_tried() -> None:
    assert set(KIND_NAMES) == set(KINDS_BY_NAME)
    assert {step["kind"] for step in describe(every_kind())} == set(KINDS_BY_NAME)


def test_numbers_of_kinds_and_names_stay() -> None:
    """They are in files. New ones go to the end."""
    assert KIND_NAMES == (
        "linear", "conv-2d", "relu", "relu6", "leaky-relu", "elu", "selu", "gelu", "silu", "tanh",
        "max-pool-2d", "avg-pool-2d", "flatten", "normalise", "select",
    )  # fmt: skip
    assert CARD_NAMES == (
        "context", "classes", "appearance", "domain", "budget", "threshold", "scale", "architecture_before",
        "weights_before", "parameter_bytes_before", "flops_before", "images", "wrong_before", "wrong",
        "reference_bits", "rescued", "outside", "class_names", "features",
    )  # fmt: skip


def test_the_bytes_do_not_change_unnoticed() -> None:
    assert pack(example()).hex(" ") == " ".join(GOLDEN.split())


def test_the_document_shows_these_bytes() -> None:
    text = (HERE.parents[2] / "docs" / "format.md").read_text()
    table = text.split("## A file, byte by byte")[1].split("## ")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert " ".join(" ".join(re.findall(r"`([0-9a-f ]+)`", cell)) for cell in cells) == " ".join(GOLDEN.split())


def test_the_document_lists_every_kind_and_name() -> None:
    text = (HERE.parents[2] / "docs" / "format.md").read_text()
    for table in (KIND_NAMES, CARD_NAMES):
        for number, name in enumerate(table):
            assert f"| {number} | {name} |" in text


def test_names_of_layers_are_kept_and_others_made() -> None:
    steps = OrderedDict(relu1=nn.Linear(4, 4), x=nn.ReLU(), y=nn.ReLU(), z=nn.Tanh(), relu3=nn.Linear(4, 2))
    read = parse(pack(quantised(nn.Sequential(steps), (4,), {})))
    assert [name for name, _ in read.chain.named_children()] == ["relu1", "relu2", "relu4", "tanh1", "relu3"]


def test_a_prior_that_is_not_the_cheapest_reads_all_the_same() -> None:
    network = example()
    content = take_apart(network, {"fc": Flat(-3, 9)}).to_bytes()
    assert content != pack(network)
    assert same(parse(content), network)


def test_numbers_of_other_types_are_written_as_what_they_are() -> None:
    network = quantised(nn.Sequential(nn.LeakyReLU(1), nn.Linear(4, 2)), (4,), {"1": 1.0})
    odd = QuantisedNetwork(
        network.chain,
        network.input_shape,
        tuple(np.array(network.labels)),
        weights={"1": Codes(network.weights["1"].codes, np.float32(0.0625))},
        temperature=1,
        card=network.card,
    )
    assert pack(odd) == pack(network)


# What cannot be written


def test_a_list_of_inputs_out_of_order_cannot_be_written() -> None:
    for index in ([1, 0], [1, 1]):
        chain = nn.Sequential(Select(torch.tensor(index)), nn.Linear(2, 2))
        with pytest.raises(BhcError, match="out of order"):
            pack(quantised(chain, (4,), {}))


def test_more_than_a_reader_believes_cannot_be_written() -> None:
    chain = nn.Sequential(nn.Linear(1500, 1500, bias=False), nn.Linear(1500, 2))
    with pytest.raises(BhcError, match="no reader would believe"):
        pack(quantised(chain, (1500,), {"0": 0.0}))


def test_more_steps_than_a_reader_takes_cannot_be_written() -> None:
    steps = [nn.ReLU() for _ in range(MOST_STEPS - 1)]
    parse(pack(quantised(nn.Sequential(*steps, nn.Linear(2, 2)), (2,), {})))
    with pytest.raises(BhcError, match="at most 128"):
        pack(quantised(nn.Sequential(*steps, nn.ReLU(), nn.Linear(2, 2)), (2,), {}))


def test_a_card_beyond_the_limits_cannot_be_written() -> None:
    chain = nn.Sequential(nn.Linear(2, 2))
    with pytest.raises(BhcError, match="too many"):
        pack(quantised(chain, (2,), {}, card={"class_names": ["a"] * 9000}))


# Damage


@pytest.fixture(scope="module")
def content() -> bytes:
    return pack(ZOO["every kind"])


def test_every_truncation_is_noticed(content: bytes) -> None:
    for length in range(len(content)):
        with pytest.raises(BhcError):
            parse(content[:length])


def test_every_flipped_bit_is_noticed(content: bytes) -> None:
    for place in range(len(content)):
        changed = bytearray(content)
        changed[place] ^= 1 << place % 8
        with pytest.raises(BhcError):
            parse(bytes(changed))


@pytest.mark.parametrize("more", [b"\0", b"\0\0\0\0", b"x", b"BHC"])
def test_bytes_at_the_end_are_noticed(content: bytes, more: bytes) -> None:
    with pytest.raises(BhcError, match="checksum"):
        parse(content + more)
    with pytest.raises(BhcError):
        parse(with_checksum(content[:-4] + more))


def test_a_wrong_checksum_is_named(content: bytes) -> None:
    with pytest.raises(BhcError, match=r"it\.bhc is damaged: its checksum does not match"):
        parse(content[:-4] + bytes(4))


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_another_version_is_refused_with_a_hint(content: bytes, version: int) -> None:
    with pytest.raises(BhcError, match=f"version {version}, this program reads 1 and 2") as caught:
        parse(with_checksum(b"BHC" + bytes([version]) + content[4:-4]))
    assert caught.value.hint == "update bhc"


@pytest.mark.parametrize("text", [b"", b"B", b"BHC", b"BHC\2", b"PK\3\4 and so on", b"{}" * 40])
def test_other_files_are_refused(text: bytes) -> None:
    with pytest.raises(BhcError):
        parse(text)


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BhcError, match="does not exist"):
        read_network(tmp_path / "none.bhc")
    with pytest.raises(BhcError, match="is a folder"):
        read_network(tmp_path)


# Hostile headers, with checksums that fit

Change = Callable[[dict[int, Any]], Any]
FC = [0, "fc", 2, [0.125, [0, -1, 4]], 0.015625]


def put(*path: Any) -> Change:
    """Put the last of ``path`` at the place that the others lead to."""

    def change(header: dict[int, Any]) -> None:
        *keys, last, value = path
        place: Any = header
        for key in keys:
            place = place[key]
        place[last] = value

    return change


def drop(*path: Any) -> Change:
    def change(header: dict[int, Any]) -> None:
        *keys, last = path
        place: Any = header
        for key in keys:
            place = place[key]
        del place[last]

    return change


CHANGES: dict[str, tuple[Change, str]] = {
    "inputs of billions": (put(0, [10**9, 10**9, 10**9]), "inputs of shape"),
    "more inputs than the limit": (put(0, [2049, 2049]), "inputs of shape"),
    "no inputs": (put(0, []), "inputs of shape"),
    "negative inputs": (put(0, [-6]), "inputs of shape"),
    "inputs of zero": (put(0, [0]), "inputs of shape"),
    "five dimensions": (put(0, [1, 1, 1, 1, 6]), "inputs of shape"),
    "inputs as text": (put(0, "6"), "inputs of shape"),
    "a true size": (put(0, [True]), "inputs of shape"),
    "other inputs": (put(0, [7]), "damaged"),
    "inputs of two dimensions": (put(0, [2, 3]), "damaged"),
    "steps as a number": (put(1, 7), "header"),
    "no steps": (put(1, []), "labels for outputs"),
    "a step as a number": (put(1, 0, 7), "unknown step"),
    "an empty step": (put(1, 0, []), "unknown step"),
    "an unknown kind": (put(1, 0, [15]), "unknown step"),
    "a negative kind": (put(1, 0, [-1]), "unknown step"),
    "a kind that is a truth": (put(1, 2, 0, False), "one way"),
    "a kind that is a float": (put(1, 2, 0, 0.0), "one way"),
    "a kind as text": (put(1, 0, ["relu"]), "unknown step"),
    "too many arguments": (put(1, 0, [2, 1]), "damaged"),
    "too few arguments": (put(1, 0, [4]), "damaged"),
    "too many steps": (put(1, [[2]] * 130 + [[14, 4], FC]), "header"),
    "a convolution of flat values": (put(1, 0, [1, "c", 2, [1, 1], [1, 1], [0, 0], [1, 1], None, False]), "damaged"),
    "a pool of flat values": (put(1, 0, [10, 2, 2, 0, 1]), "does not take"),
    "a text as a slope": (put(1, 0, [4, "none"]), "finite number"),
    "a number as GELU's form": (put(1, 0, [7, 1]), "argument"),
    "a slope that is not a number": (put(1, 0, [4, float("nan")]), "finite number"),
    "an endless slope": (put(1, 0, [5, float("inf")]), "finite number"),
    "a standard deviation of zero": (put(1, 0, 2, 0.0), "positive"),
    "a negative standard deviation": (put(1, 0, 2, -1.0), "positive"),
    "a mean with more digits than a float": (put(1, 0, 1, 0.1), "one way"),
    "select none": (put(1, 1, 1, 0), "of 6 values"),
    "select a negative number": (put(1, 1, 1, -4), "of 6 values"),
    "select more than arrive": (put(1, 1, 1, 7), "of 6 values"),
    "select billions": (put(1, 1, 1, 10**9), "of 6 values"),
    "select others": (put(1, 1, 1, 5), "damaged"),
    "outputs of billions": (put(1, 2, 2, 10**9), "damaged"),
    "outputs of more than eight bytes hold": (put(1, 2, 2, (1 << 64) - 1), "damaged"),
    "no outputs": (put(1, 2, 2, 0), "damaged"),
    "negative outputs": (put(1, 2, 2, -2), "damaged"),
    "outputs for nothing": (put(1, [[0, "fc", 1 << 18, [0.5, [0, 0, 1]], False]]), "so small a file"),
    "a layer without a name": (put(1, 2, 1, ""), "name of a layer"),
    "a name with a dot": (put(1, 2, 1, "a.b"), "name of a layer"),
    "a name that torch needs": (put(1, 2, 1, "forward"), "exists"),
    "a name twice": (put(1, [[14, 4], [0, "a", 4, None, None], [0, "a", 2, None, None]]), "name of a layer"),
    "a step of zero": (put(1, 2, 3, 0, 0.0), "positive"),
    "a negative step": (put(1, 2, 3, 0, -0.125), "positive"),
    "a whole step": (put(1, 2, 3, 0, 1), "finite number"),
    "an endless step": (put(1, 2, 3, 0, float("inf")), "finite number"),
    "a step that overflows": (put(1, 2, 3, 0, 1e37), "finite number"),
    "a step of biases of zero": (put(1, 2, 4, 0.0), "positive"),
    "a step of biases that is true": (put(1, 2, 4, True), "finite number"),
    "weights without a prior": (put(1, 2, 3, [0.125]), "damaged"),
    "weights as a number": (put(1, 2, 3, 0.125), "damaged"),
    "a prior of another kind": (put(1, 2, 3, 1, [9, 0, 4]), "table of frequencies"),
    "a prior of billions": (put(1, 2, 3, 1, [0, 0, 10**9]), "table of frequencies"),
    "a prior of none": (put(1, 2, 3, 1, [0, 0, 0]), "table of frequencies"),
    "a prior far off": (put(1, 2, 3, 1, [0, 10**12, 4]), "codes from"),
    "a prior beyond 16 bits": (put(1, 2, 3, 1, [0, 32765, 4]), "codes from"),
    "a prior with truths": (put(1, 2, 3, 1, [False, -1, 4]), "table of frequencies"),
    "a prior with a truth as its lowest": (put(1, 2, 3, 1, [0, True, 4]), "table of frequencies"),
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
    "a temperature that is none": (put(3, float("nan")), "finite number"),
    "a whole temperature": (put(3, 1), "finite number"),
    "a card that is a list": (put(4, []), "header"),
    "an unknown name": (put(4, 19, 0), "unknown name"),
    "a negative name": (put(4, -1, 0), "unknown name"),
    "a name spelled out": (put(4, "images", 9), "one way"),
    "a name twice, once spelled out": (put(4, "context", {}), "one way"),
    "one key more": (put(5, 0), "header"),
    "no card": (drop(4), "header"),
    "no labels at all": (drop(2), "header"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_hostile_header_is_refused(name: str) -> None:
    change, message = CHANGES[name]
    header, rest = split(pack(example()))
    assert joined(dumps(header), rest) == pack(example())
    change(header)
    with pytest.raises(BhcError, match=message) as caught:
        parse(joined(dumps(header), rest))
    assert len(str(caught.value)) < 1000


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


def test_floats_that_are_none_are_refused() -> None:
    network = quantised(nn.Sequential(nn.Linear(2, 2, bias=False)), (2,), {})
    header, rest = split(pack(network))
    for value in (np.nan, np.inf, -np.inf):
        floats = np.array([0, 0, 0, value], dtype="<f4").tobytes()
        with pytest.raises(BhcError, match="finite"):
            parse(joined(dumps(header), rest[:1] + floats))


def test_a_bias_of_minus_128_is_refused() -> None:
    content = pack(example())[:-4]
    with pytest.raises(BhcError, match="bias is out of range"):
        parse(with_checksum(content.replace(b"\x05\x81\x87\x52", b"\x05\x80\x87\x52")))


def test_conv_arguments_that_torch_would_take_otherwise_are_refused() -> None:
    chain = nn.Sequential(nn.Conv2d(1, 2, 1), nn.Flatten(), nn.Linear(8, 2))
    header, rest = split(pack(quantised(chain, (1, 2, 2), {})))
    assert header[STEPS][0][3:7] == [[1, 1], [1, 1], [0, 0], [1, 1]]
    for place in (4, 5, 6):
        for value in (1, [1], [1, 1, 1], [1.0, 1.0], [-1, -1], [5000, 5000], "other", None, [1 << 40, 1]):
            changed = [list(step) for step in header[STEPS]]
            changed[0][place] = value
            with pytest.raises(BhcError):
                parse(joined(dumps(header | {STEPS: changed}), rest))
