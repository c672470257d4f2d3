import io

import numpy as np
import pytest

import bhc.data.images
from bhc.data.images import parse_table
from bhc.errors import BhcError


def text(values, line_end):
    return line_end.join(",".join(map(str, row)) for row in values) + line_end


@pytest.mark.parametrize("line_end", ["\n", "\r\n"])
@pytest.mark.parametrize("block", [1, 2, 5, 64, 1 << 18])
def test_agrees_with_the_slow_reader_wherever_blocks_end(monkeypatch, line_end, block):
    monkeypatch.setattr(bhc.data.images, "_BLOCK", block)
    values = np.random.default_rng(0).integers(0, 256, (40, 7))
    values[3] = (0, 9, 10, 99, 100, 199, 255)
    content = text(values, line_end)
    slow = np.loadtxt(io.StringIO(content), delimiter=",", dtype=np.uint8)
    fast = parse_table(content.encode(), columns=7, where="table")
    assert fast.dtype == np.uint8
    np.testing.assert_array_equal(fast, slow)


def test_the_last_line_may_lack_its_end():
    np.testing.assert_array_equal(parse_table(b"1,2\n3,45", columns=2, where="table"), [[1, 2], [3, 45]])


@pytest.mark.parametrize("content", [b"", b"\n\n", b"1,2,3\n4,5", b"1,,3\n"])
def test_incomplete_rows(content):
    with pytest.raises(BhcError, match=r"some\.csv holds \d values; expected whole rows of 3 values"):
        parse_table(content, columns=3, where="some.csv")


@pytest.mark.parametrize("content", [b"1,-2\n", b"1.0,2\n", b"a,2\n", b"1, 2\n"])
def test_other_characters(content):
    with pytest.raises(BhcError, match=r"some\.csv is not a table of whole numbers"):
        parse_table(content, columns=2, where="some.csv")


@pytest.mark.parametrize("block", [1, 3, 1 << 18])
@pytest.mark.parametrize("value", [256, 299, 300, 512, 999, 1000, 10001])
def test_too_large_values(monkeypatch, value, block):
    monkeypatch.setattr(bhc.data.images, "_BLOCK", block)
    with pytest.raises(BhcError, match=r"some\.csv holds a value above 255"):
        parse_table(f"1,{value}\n".encode(), columns=2, where="some.csv")
