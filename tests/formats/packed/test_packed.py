import re
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
import torch
from tools.fuzz.envelope import with_checksum
from tools.fuzz.judging import same
from torch import nn

from bhc.errors import BhcError
from bhc.formats import Codes, QuantisedNetwork, pack, packed_parts, read_network
from bhc.formats.file import parse_network
from bhc.formats.packed.layout import CARD_NAMES, KIND_NAMES, MOST_STEPS
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
