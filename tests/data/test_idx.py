import struct

import numpy as np
import pytest

from bhc.data.images import format_idx, parse_idx
from bhc.errors import BhcError


@pytest.mark.parametrize("shape", [(7,), (4, 5), (2, 3, 4), (0, 3, 4)])
def test_round_trip(shape):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    back = parse_idx(format_idx(array), dimensions=len(shape), where="file")
    np.testing.assert_array_equal(back, array)
    assert back.flags.writeable


def test_format_is_the_published_one():
    assert format_idx(np.array([[1, 2]], dtype=np.uint8)) == bytes.fromhex("00000802 00000001 00000002 0102")


def test_a_strided_array_is_written_in_order():
    array = np.arange(6, dtype=np.uint8).reshape(2, 3)
    assert format_idx(array[:, 1]) == format_idx(np.array([1, 4], dtype=np.uint8))


@pytest.mark.parametrize("content", [b"", b"\0\0", bytes.fromhex("00000803 00000001")])
def test_no_room_for_the_header(content):
    with pytest.raises(BhcError, match=r"images has \d bytes; the header .* 3 dimension\(s\) alone has 16"):
        parse_idx(content, dimensions=3, where="images")


@pytest.mark.parametrize("magic", ["01000801", "00000d01", "1f8b0808"])
def test_wrong_magic_number(magic):
    with pytest.raises(BhcError, match=rf"labels starts with 0x{magic}, .*0x00000801"):
        parse_idx(bytes.fromhex(magic) + b"\0\0\0\1\5", dimensions=1, where="labels")


def test_wrong_number_of_dimensions():
    content = format_idx(np.zeros((2, 3), dtype=np.uint8))
    with pytest.raises(BhcError, match=r"labels has 2 dimension\(s\) instead of 1"):
        parse_idx(content, dimensions=1, where="labels")


@pytest.mark.parametrize("change", [lambda content: content[:-1], lambda content: content + b"\0"])
def test_wrong_length(change):
    content = change(format_idx(np.zeros((2, 3), dtype=np.uint8)))
    with pytest.raises(BhcError, match=r"file has 1[79] bytes; 18 are expected for its dimensions 2 x 3"):
        parse_idx(content, dimensions=2, where="file")


def test_dimensions_whose_product_is_huge_take_no_memory():
    content = struct.pack(">I3I", 0x803, *[0xFFFFFFFF] * 3)
    with pytest.raises(BhcError, match="are expected"):
        parse_idx(content, dimensions=3, where="file")
