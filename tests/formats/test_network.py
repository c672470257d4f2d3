import json
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.tensors import read_tensors, write_tensors

HUGE_LAYER = {"kind": "linear", "name": "a", "in_features": 1 << 40, "out_features": 2, "bias": True}


@pytest.fixture
def saved(quick_model: bhc.Compressor, tmp_path: Path) -> Path:
    quick_model.compress(classes=[3, 4]).save(tmp_path / "small.bhc")
    return tmp_path / "small.bhc"


def test_a_file_reads_back_to_the_same_network(quick_model: bhc.Compressor, digits: DataSet, tmp_path: Path) -> None:
    written = quick_model.compress(classes=[3, 4]).save(tmp_path / "small.bhc")
    read = bhc.read(tmp_path / "small.bhc")
    assert torch.equal(read.module(digits.test.images), written.module(digits.test.images))
    assert read.report == written.report
    assert read.temperature == written.temperature
    assert read.report.file_bytes == (tmp_path / "small.bhc").stat().st_size


def test_an_existing_file_is_replaced_only_on_request(quick_model: bhc.Compressor, saved: Path) -> None:
    before = saved.read_bytes()
    other = quick_model.compress(classes=[5, 6])
    with pytest.raises(BhcError, match="exists already"):
        other.save(saved)
    assert saved.read_bytes() == before
    other.save(saved, overwrite=True)
    assert bhc.read(saved).classes == (5, 6)


def test_every_truncation_and_flipped_byte_is_noticed(saved: Path) -> None:
    content = saved.read_bytes()
    for length in (0, 4, 8, 100, len(content) // 2, len(content) - 1):
        saved.write_bytes(content[:length])
        with pytest.raises(BhcError):
            bhc.read(saved)
    for place in range(0, len(content), 97):
        changed = bytearray(content)
        changed[place] ^= 0x10
        saved.write_bytes(changed)
        with pytest.raises(BhcError):
            bhc.read(saved)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": "zip"}, "not a .bhc file"),
        ({"version": 1000}, "version 1000"),
        ({"network": []}, "damaged"),
        ({"input_shape": [1, 2, 2]}, "damaged"),
        ({"report": {}}, "report lacks"),
        ({"network": [HUGE_LAYER]}, "damaged"),
    ],
)
def test_a_file_that_contradicts_itself_is_refused(saved: Path, change: dict[str, object], message: str) -> None:
    tensors, header = read_tensors(saved)
    write_tensors(saved, tensors, header | change)
    with pytest.raises(BhcError, match=message):
        bhc.read(saved)


def test_classes_that_do_not_match_the_outputs_are_refused(saved: Path) -> None:
    tensors, header = read_tensors(saved)
    header["report"]["classes"] = [1, 2, 3]
    write_tensors(saved, tensors, header)
    with pytest.raises(BhcError, match="3 classes"):
        bhc.read(saved)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BhcError, match="does not exist"):
        bhc.read(tmp_path / "none.bhc")


def test_a_report_is_plain_data(quick_model: bhc.Compressor) -> None:
    report = quick_model.compress(classes=[3, 4]).measured().report
    again = json.loads(json.dumps(report.to_dict()))
    for key in (
        "context", "threshold", "architecture", "bits", "weights_before", "weights_after", "pruning_ratio",
        "bits_ratio", "file_bytes", "file_ratio", "flops_before", "flops_after", "error", "emit_ms",
    ):  # fmt: skip
        assert key in again
    assert bhc.Report.from_dict(again) == report
