import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tools.fuzz.envelope import with_checksum
from tools.fuzz.judging import same
from torch import nn

from bhc.errors import BhcError
from bhc.formats import Codes, QuantisedNetwork, pack, packed_parts, parse_network, read_network
from bhc.formats.bhc_content import CARD_NAMES, FROM, MOST_STEPS, STEPS, take_apart
from bhc.formats.coding import Flat
from bhc.graph import Graph
from bhc.layers import Add, GlobalMean, PadChannels, Select, Subsample, kind_of, kind_tagged, kinds
from tests.formats import chains
from tests.formats.chains import named
from tests.formats.graphs import TEXT, in_a_row, wired

from .toys import CARD, IT, branching_example, example, parse, quantised, zoo

PAGE = (Path(__file__).parents[3] / "docs" / "format.md").read_text()
ZOO = zoo()

GOLDEN = """
    42 48 43 02 47 a5 00 81 06 01 83 83 0d f9 00 00 f9 54 00 82 0e 04 85 00 62 66 63 02 82 f9 30 00 83 00 20 04 f9 24 00
    02 82 03 04 03 f9 3c 00 04 a7 00 a1 01 82 03 04 05 f9 ba 00 06 f9 38 00 07 81 06 08 18 3c 09 19 01 18 0a 18 78 04 77
    be e0 0c 05 81 87 52 df 43 6e 11
"""

GOLDEN_BRANCHING = """
    42 48 43 02 62 a5 00 83 02 02 03 01 87 83 14 82 f9 00 00 f9 3c 00 82 f9 40 00 f9 44 00 8a 13 64 64 65 65 70 02 82
    01 01 82 01 01 82 00 00 82 01 01 02 82 f9 30 00 83 00 20 05 f4 81 15 83 10 01 03 83 0f 03 82 18 18 02 83 0f 02 82
    17 f4 85 00 62 66 63 02 82 f9 30 00 83 00 20 04 f4 02 82 00 01 03 f9 3c 00 04 a0 00 00 00 c0 3f 00 00 00 bf 00 00
    80 3e 00 00 00 00 d2 33 75 9a 67 ac 06 36
"""


# What goes in comes out


@pytest.mark.parametrize("name", ZOO)
def test_a_network_reads_back_to_the_last_bit_and_is_written_to_the_same_file(name: str) -> None:
    network, content = ZOO[name], pack(ZOO[name])
    read = parse(content)
    assert same(read, network)
    inputs = 50 * chains.inputs(network.input_shape, 3) if network.input_shape != TEXT else chains.inputs(TEXT, 3)
    assert torch.equal(read.graph(inputs), network.graph(inputs))
    for codes, expected in ((read.weights, network.weights), (read.biases, network.biases)):
        assert [(key, value.step) for key, value in codes.items()] == [(key, c.step) for key, c in expected.items()]
        assert all(np.array_equal(value.codes, expected[key].codes) for key, value in codes.items())
    assert [layer.name for layer in read.layers] == [layer.name for layer in network.layers]
    assert pack(network) == pack(read) == content


@pytest.mark.parametrize("name", ZOO)
def test_the_parts_add_up_to_the_size(name: str) -> None:
    network, content = ZOO[name], pack(ZOO[name])
    file = parse_network(content, IT)
    for parts, graph in ((packed_parts(network), network.graph), (file.parts, file.network.graph)):
        assert sum(part.bytes for part in parts) == pytest.approx(len(content))
        assert {part.layer for part in parts} - {None} <= {step.name for step in graph.steps}


# They are in files, for ever; new ones go to the end.
NUMBERS = (
    "linear", "conv-2d", "relu", "relu6", "leaky-relu", "elu", "selu", "gelu", "silu", "tanh",
    "max-pool-2d", "avg-pool-2d", "flatten", "normalise", "select", "from", "add", "multiply", "concat",
    "convolution", "normalise-channels", "affine", "pad-channels", "global-mean", "subsample",
    "max-pool-1d", "max-pool-3d", "avg-pool-1d", "avg-pool-3d", "sigmoid", "hard-swish", "hard-sigmoid", "softplus",
    "channel-norm", "self-attention", "flatten-places", "shift", "place",
    "embedding", "log-mel", "call", "given", "recurrence", "again", "conv-transposed",
)  # fmt: skip
# Numbers that stand for no kind by itself: what is read, convolutions of all sorts, one number a channel.
OF_FILES = {"from": None, "convolution": "conv-3d", "normalise-channels": "normalise", "call": "pointwise"}
OF_FILES |= {"again": "tied"}
CALLS = {"pointwise", "movement", "along-axes", "norm", "product", "attention", "opaque"}
ELSEWHERE = {*CALLS, "given"}  # tried in test_calls.py, test_inputs.py


def test_every_kind_has_a_number_and_is_tried() -> None:
    ours = {kind.name for kind in kinds() if "." not in kind.name}
    assert {kind.name for kind in kinds() if isinstance(kind.tag, int)} == ours
    assert {kind_of(step.module).name for network in ZOO.values() for step in network.graph.steps} == ours - ELSEWHERE
    used = {number for network in ZOO.values() for number in numbers_in(take_apart(network).header[STEPS])}
    assert used == set(range(len(NUMBERS))) - {NUMBERS.index(name) for name in ("call", "given")}


def numbers_in(steps: list[Any]) -> set[int]:
    """The kinds of steps, and of those that are wrapped."""
    return {step[0] for step in steps} | {step[2][0] for step in steps if step[0] == FROM}


def test_numbers_of_kinds_and_names_stay() -> None:
    for number, name in enumerate(NUMBERS):
        if OF_FILES.get(name, name) is not None:
            assert kind_tagged(number).name == OF_FILES.get(name, name)
    assert NUMBERS[FROM] == "from"
    assert CARD_NAMES == (
        "context", "classes", "appearance", "domain", "budget", "threshold", "scale", "architecture_before",
        "weights_before", "parameter_bytes_before", "flops_before", "images", "wrong_before", "wrong",
        "reference_bits", "rescued", "outside", "class_names", "features", "guarantee", "alarm", "round_to", "measure",
        "origin",
    )  # fmt: skip


def test_the_bytes_do_not_change_unnoticed() -> None:
    assert pack(example()).hex(" ") == " ".join(GOLDEN.split())
    assert pack(branching_example()).hex(" ") == " ".join(GOLDEN_BRANCHING.split())


def test_the_document_shows_these_bytes() -> None:
    table = PAGE.split("## A file, byte by byte")[1].split("## ")[0]
    cells = [row.split("|")[1] for row in table.splitlines() if row.startswith("| `")]
    assert " ".join(" ".join(re.findall(r"`([0-9a-f ]+)`", cell)) for cell in cells) == " ".join(GOLDEN.split())


def test_the_document_lists_every_kind_and_name() -> None:
    for table in (NUMBERS, CARD_NAMES):
        for number, name in enumerate(table):
            assert f"| {number} | {name} |" in PAGE


@pytest.mark.parametrize(
    ("graph", "names"),
    [
        (
            named(relu1=nn.Linear(4, 4), x=nn.ReLU(), y=nn.ReLU(), z=nn.Tanh(), relu3=nn.Linear(4, 2)),
            ["relu1", "relu2", "relu4", "tanh1", "relu3"],
        ),
        (
            wired(
                ("relu1", nn.Linear(4, 4)), ("x", nn.ReLU()), ("relu2", nn.Linear(4, 2), "relu1"), ("end", nn.ReLU())
            ),
            ["relu1", "relu3", "relu2", "relu4"],
        ),
    ],
    ids=["chain", "branches"],
)
def test_names_of_layers_are_kept_and_others_made(graph: Graph, names: list[str]) -> None:
    assert [step.name for step in parse(pack(quantised(graph, (4,), {}))).graph.steps] == names


def test_a_prior_that_is_not_the_cheapest_reads_all_the_same() -> None:
    network = example()
    content = take_apart(network, {"fc": Flat(-3, 9)}).to_bytes()
    assert content != pack(network)
    assert same(parse(content), network)


def test_numbers_of_other_types_are_written_as_what_they_are() -> None:
    network = quantised(in_a_row(nn.LeakyReLU(1), nn.Linear(4, 2)), (4,), {"1": 1.0})
    weights = {"1": Codes(network.weights["1"].codes, np.float32(0.0625))}
    odd = replace(network, labels=tuple(np.array(network.labels)), weights=weights, temperature=1)
    assert pack(odd) == pack(network)


# Values that branch


def test_the_document_shows_the_steps_of_a_residual_block() -> None:
    graph = wired(
        ("stem", nn.Conv2d(2, 4, 3, padding=1)),
        ("relu", nn.ReLU()),
        ("down", nn.Conv2d(4, 6, 3, stride=2, padding=1)),
        ("fewer", Subsample(2), "relu"),
        ("more", PadChannels(1, 1)),
        ("sum", Add(), "down", "more"),
        ("mean", GlobalMean(False)),
        ("fc", nn.Linear(6, 2)),
    )
    network = quantised(graph, (2, 6, 7), {})
    assert same(parse(pack(network)), network)
    table = PAGE.split("A residual block")[1].split("### ")[0]
    shown = re.findall(r"^\| (\d) \| `(.*?)(?:, \.\.\.\])?` \|", table, re.MULTILINE)
    assert len(shown) == 6
    steps = take_apart(network).header[STEPS]
    for place, beginning in shown:
        assert str(steps[int(place)]).replace("'", '"').startswith(beginning)


def test_values_may_be_picked_after_the_last_layer() -> None:
    graph = wired(("fc", nn.Linear(4, 5)), ("pick", Select(torch.tensor([1, 4]))))
    network = quantised(graph, (4,), {"fc": 2.0})
    assert same(parse(pack(network)), network)
    assert {part.layer for part in packed_parts(network) if part.name == "inputs read"} == {"fc"}


# What cannot be written


def to_refuse(shape: int, *modules: nn.Module, **more: Any) -> QuantisedNetwork:
    return quantised(in_a_row(*modules), (shape,), {"0": 0.0} if shape > 4 else {}, **more)


@pytest.mark.parametrize(
    ("network", "noun"),
    [
        (to_refuse(4, Select(torch.tensor([1, 0])), nn.Linear(2, 2)), "order"),
        (to_refuse(4, Select(torch.tensor([1, 1])), nn.Linear(2, 2)), "order"),
        (to_refuse(1500, nn.Linear(1500, 1500, bias=False), nn.Linear(1500, 2)), "believe"),
        (to_refuse(2, nn.Linear(2, 2), card={"class_names": ["a"] * 140_000}), "too many"),
    ],
    ids=["inputs out of order", "an input twice", "more weights than a reader believes", "a card beyond the limits"],
)
def test_what_a_reader_would_refuse_cannot_be_written(network: QuantisedNetwork, noun: str) -> None:
    with pytest.raises(BhcError, match=noun):
        pack(network)


def test_more_steps_than_a_reader_takes_cannot_be_written() -> None:
    steps = [nn.ReLU() for _ in range(MOST_STEPS - 1)]
    parse(pack(quantised(in_a_row(*steps, nn.Linear(2, 2)), (2,), {})))
    with pytest.raises(BhcError, match="4096"):
        pack(quantised(in_a_row(*steps, nn.ReLU(), nn.Linear(2, 2)), (2,), {}))


@pytest.mark.parametrize(("size", "count"), [(1 << 22, 15), (1 << 22, 16), ((1 << 22) + 1, 1)])
def test_more_activations_than_a_reader_takes_cannot_be_written(size: int, count: int) -> None:
    steps = [(f"r{place}", nn.ReLU()) for place in range(count)]
    graph = wired(*steps, ("mean", GlobalMean(False)), ("fc", nn.Linear(1, 2).requires_grad_(False)))
    network = QuantisedNetwork(graph, (1, size), (3, 4), card=CARD)
    if count == 15:
        assert same(parse(pack(network)), network)
        return
    with pytest.raises(BhcError, match="numbers"):
        pack(network)


# Damage


@pytest.fixture(scope="module", params=["every kind", "branching example"])
def content(request: pytest.FixtureRequest) -> bytes:
    return pack(ZOO[request.param])


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
def test_bytes_at_the_end_and_a_wrong_checksum_are_noticed(content: bytes, more: bytes) -> None:
    with pytest.raises(BhcError, match="checksum"):
        parse(content + more)
    with pytest.raises(BhcError):
        parse(with_checksum(content[:-4] + more))
    with pytest.raises(BhcError, match="checksum"):
        parse(content[:-4] + bytes(4))


@pytest.mark.parametrize("version", [0, 1, 3, 255])
def test_another_version_is_refused_with_a_hint(content: bytes, version: int) -> None:
    with pytest.raises(BhcError, match=f"version {version}") as caught:
        parse(with_checksum(b"BHC" + bytes([version]) + content[4:-4]))
    assert caught.value.hint == "update bhc"


def test_missing_files_and_folders_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BhcError, match="exist"):
        read_network(tmp_path / "none.bhc")
    with pytest.raises(BhcError, match="folder"):
        read_network(tmp_path)
