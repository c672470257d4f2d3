"""Files of version 1 are read, and damaged ones refused."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tools.fuzz.judging import same

import bhc
from bhc.errors import BhcError
from bhc.files import parse_tensors, tensors_to_bytes
from bhc.formats import pack, parse_network

from .packed.toys import IT, parse

VERSION_1 = (Path(__file__).parent / "packed" / "version-1.bhc").read_bytes()  # as the writer of version 1 made it


def version_1(**changes: Any) -> bytes:
    tensors, header = parse_tensors(VERSION_1, IT)
    return tensors_to_bytes(tensors, header | changes)


def test_files_of_version_1_still_read_and_can_be_packed() -> None:
    file = parse_network(VERSION_1, IT)
    assert (file.version, file.size, file.parts) == (1, len(VERSION_1), ())
    network = file.network
    assert (network.labels, network.input_shape, network.temperature) == ((3, 4), (1, 2, 3), 1.25)
    assert not network.weights
    assert not network.biases
    assert same(parse(pack(network)), network)
    x = torch.arange(6.0).reshape(1, 1, 2, 3)
    hidden = torch.relu(
        torch.tensor([[0.5, -0.25, 0.125], [1, 2, -3]]) @ (x.flatten()[[1, 2, 4]] / 16) - torch.tensor([0, 0.5])
    )
    expected = torch.tensor([[1.5, -1], [0, 0.75]]) @ hidden + torch.tensor([0.25, -0.25])
    assert torch.allclose(network.graph(x)[0], expected)


def test_files_of_version_1_bring_their_report(tmp_path: Path) -> None:
    (tmp_path / "old.bhc").write_bytes(VERSION_1)
    report = bhc.read(tmp_path / "old.bhc").report
    assert report.context == {"classes": [3, 4]}
    assert (report.threshold, report.error_before, report.error, report.validation_images) == (-0.75, 1.0, 2.5, 200)
    assert (report.weights_before, report.weights_after, report.architecture_before) == (80, 10, (6, 5))
    assert (report.architecture, report.bits, report.file_bytes) == ((3, 2), (32, 32), len(VERSION_1))
    assert "context" in str(report)


def test_damage_in_version_1_is_noticed() -> None:
    for length in range(0, len(VERSION_1), 37):
        with pytest.raises(BhcError):
            parse(VERSION_1[:length])
    for place in range(0, len(VERSION_1), 3):
        changed = bytearray(VERSION_1)
        changed[place] ^= 0x10
        with pytest.raises(BhcError):
            parse(bytes(changed))


def test_a_header_of_version_1_that_is_no_header_is_refused() -> None:
    tensors, _ = parse_tensors(VERSION_1, IT)
    with pytest.raises(BhcError, match="is not a"):
        parse(tensors_to_bytes(tensors, [1, 2]))  # type: ignore[arg-type]


def test_what_came_after_version_1_is_refused_in_it() -> None:
    _, header = parse_tensors(VERSION_1, IT)
    steps = header["network"]
    assert [step["kind"] for step in steps] == ["normalise", "flatten", "select", "linear", "relu", "linear"]
    changes: list[tuple[int, dict[str, Any]]] = [
        (0, {"channels": 1}),
        (4, {"kind": "sigmoid"}),
        (4, {"kind": "add", "reads": ["fc1", "fc1"]}),
        (4, {"reads": ["fc1"]}),
    ]
    for place, change in changes:
        changed = [step | change if number == place else step for number, step in enumerate(steps)]
        with pytest.raises(BhcError, match="younger"):
            parse(version_1(network=changed))


HUGE_LAYER = {"kind": "linear", "name": "a", "in_features": 1 << 40, "out_features": 2, "bias": True}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "zip"}, "not a"),
        ({"version": 1000}, "1000"),
        ({"network": []}, "damaged"),
        ({"network": [HUGE_LAYER]}, "damaged"),
        ({"input_shape": [1, 2, 2]}, "damaged"),
        ({"input_shape": [6.0]}, "shape"),
        ({"input_shape": [-1, 2, 3]}, "shape"),
        ({"input_shape": [1, 1 << 20, 1 << 20]}, "damaged"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": 0}, "temperature"),
        ({"report": {}}, "damaged"),
        ({"report": None}, "damaged"),
        ({"report": {"classes": [1, 2, 3]}}, "3 classes"),
        ({"report": {"classes": [1, float("inf")]}}, "whole"),
        ({"report": {"classes": [1, 1 << 40]}}, "whole"),
        ({"report": {"classes": [1, 2], "context": {}, "weights_before": "80"}}, "report"),
    ],
)
def test_a_file_of_version_1_that_contradicts_itself_is_refused(change: dict[str, Any], message: str) -> None:
    assert same(parse(version_1()), parse(VERSION_1))
    with pytest.raises(BhcError, match=message):
        parse(version_1(**change))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("normalise.std", torch.Tensor.double),
        ("fc1.weight", torch.Tensor.half),
        ("fc1.weight", torch.Tensor.flatten),
        ("fc1_inputs.index", torch.Tensor.float),
        ("fc1_inputs.index", lambda index: index.flip(0)),
        ("fc1_inputs.index", lambda index: index + 4),
        ("fc1_inputs.index", lambda index: index - 4),
    ],
)
def test_tensors_of_version_1_that_do_not_fit_are_refused(name: str, change: Callable[[Any], Any]) -> None:
    tensors, header = parse_tensors(VERSION_1, IT)
    with pytest.raises(BhcError, match="damaged"):
        parse(tensors_to_bytes(tensors | {name: change(tensors[name])}, header))
