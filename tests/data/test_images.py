"""IDX files and tables of text, and how they become splits."""

import io
import struct

import numpy as np
import pytest
import torch

from bhc.data import images
from bhc.data.images import DIGITS_TABLE, IdxLayout, RowsLayout, TableLayout, format_idx, parse_idx, parse_table
from bhc.errors import BhcError

from .tiny import CONTENTS, TEST, TRAIN
from .tiny_cifar import ROWS

EMPTY = format_idx(np.zeros((2, 3), dtype=np.uint8))
TABLE = {DIGITS_TABLE: b"1,2,3,4,0\n5,6,7,8,1\n9,10,11,12,2\n13,14,15,16,3\n"}


@pytest.mark.parametrize("shape", [(7,), (2, 3, 4), (0, 3, 4)])
def test_idx_round_trip(shape):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    back = parse_idx(format_idx(array), dimensions=len(shape), where="file")
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


def test_the_idx_format_is_the_published_one():
    array = np.array([[1, 0], [2, 0]], dtype=np.uint8)
    assert format_idx(array[:, :1].T) == bytes.fromhex("00000802 00000001 00000002 0102")


@pytest.mark.parametrize(
    ("content", "dimensions", "why"),
    [
        *((content, 3, "header") for content in (b"", b"\0\0", bytes.fromhex("00000803 00000001"))),
        *((bytes.fromhex(magic) + b"\0\0\0\1\5", 1, f"0x{magic}") for magic in ("01000801", "00000d01", "1f8b0808")),
        (EMPTY, 1, "2 dimension"),
        (EMPTY[:-1], 2, "17 bytes; 18"),
        (EMPTY + b"\0", 2, "19 bytes; 18"),
        (struct.pack(">I3I", 0x803, *[0xFFFFFFFF] * 3), 3, "16 bytes"),  # their product takes no memory
    ],
)
def test_what_is_no_idx_file(content, dimensions, why):
    with pytest.raises(BhcError, match=f"file .*{why}"):
        parse_idx(content, dimensions=dimensions, where="file")


def text(values, line_end):
    return line_end.join(",".join(map(str, row)) for row in values) + line_end


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [1, 5, 1 << 18])
def test_a_table_agrees_with_the_slow_reader_wherever_blocks_end(monkeypatch, line_end, block):
    monkeypatch.setattr(images, "_BLOCK", block)
    values = np.random.default_rng(0).integers(0, 256, (40, 7))
    values[3] = (0, 9, 10, 99, 100, 199, 255)
    content = text(values, line_end)
    slow = np.loadtxt(io.StringIO(content), delimiter=",", dtype=np.uint8)
    fast = parse_table(content.encode(), columns=7, where="table")
    assert fast.dtype == np.uint8
    np.testing.assert_array_equal(fast, slow)


def test_the_last_line_may_lack_its_end():
    np.testing.assert_array_equal(parse_table(b"1,2\n3,45", columns=2, where="table"), [[1, 2], [3, 45]])


@pytest.mark.parametrize("block", [1, 3, 1 << 18])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        *((content, "whole rows") for content in (b"", b"\n\n", b"1,2,3\n4,5", b"1,,3\n")),
        *((content, "whole numbers") for content in (b"1,-2,3\n", b"1.0,2,3\n", b"a,2,3\n", b"1, 2,3\n")),
        *((b"1,2,%d\n" % value, "above 255") for value in (256, 299, 300, 512, 999, 1000, 10001)),
    ],
)
def test_what_is_no_table_of_bytes(monkeypatch, content, why, block):
    monkeypatch.setattr(images, "_BLOCK", block)
    with pytest.raises(BhcError, match=rf"some\.csv .*{why}"):
        parse_table(content, columns=3, where="some.csv")


def test_the_end_of_the_training_file_is_held_back():
    splits = IdxLayout(validation=4).splits(CONTENTS)
    for split, pixels, labels in (
        (splits.train, TRAIN[0][:8], TRAIN[1][:8]),
        (splits.validation, TRAIN[0][8:], TRAIN[1][8:]),
        (splits.test, *TEST),
    ):
        np.testing.assert_array_equal(split.inputs.squeeze(1), pixels)
        np.testing.assert_array_equal(split.labels, labels)
        assert split.inputs.shape[1] == 1
        assert (split.inputs.dtype, split.labels.dtype) == (torch.uint8, torch.int64)


def test_a_table_is_cut_in_its_order():
    splits = TableLayout(image_size=(2, 2), train=2, validation=1).splits(TABLE)
    assert splits.train.inputs.tolist() == [[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]]
    assert [split.labels.tolist() for split in (splits.train, splits.validation, splits.test)] == [[0, 1], [2], [3]]


@pytest.mark.parametrize(
    ("layout", "contents", "there"),
    [
        (IdxLayout(validation=12), CONTENTS, 12),
        (RowsLayout(validation=20), ROWS, 20),
        (TableLayout(image_size=(2, 2), train=3, validation=1), TABLE, 4),
    ],
)
def test_too_few_images_to_hold_some_back(layout, contents, there):
    with pytest.raises(BhcError, match=f"has {there} images"):
        layout.splits(contents)
