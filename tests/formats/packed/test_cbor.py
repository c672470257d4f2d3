import math
import struct
from typing import Any

import pytest

from bhc.formats.coding import MOST_VALUES, dumps, loads

VALUES = [
    0, 1, 255, 256, 65535, 65536, (1 << 32) - 1, 1 << 32, -24, -25, -256, -257, -0.75, 0.1, 2.0**-24, 65520.0,
    -math.inf, "", "größer", "x" * 300, b"", b"\0\xff", bytes(70000), [], [1, [2, [3]]], list(range(30)), {},
    {"z": 1, "a": 2}, {0: "a", "b": [None], -1: {}}, [[[[[[[[0]]]]]]]],
]  # fmt: skip


@pytest.mark.parametrize("value", VALUES, ids=lambda value: repr(value)[:30])
def test_round_trip(value: Any) -> None:
    again = loads(dumps(value))
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        # from RFC 8949, appendix A
        (10, "0a"), (23, "17"), (24, "1818"), (100, "1864"), (1000, "1903e8"), (1000000, "1a000f4240"),
        (1000000000000, "1b000000e8d4a51000"), (18446744073709551615, "1bffffffffffffffff"), (-1, "20"),
        (-100, "3863"), (-1000, "3903e7"), (-18446744073709551616, "3bffffffffffffffff"),
        (0.0, "f90000"), (-0.0, "f98000"), (1.0, "f93c00"), (1.1, "fb3ff199999999999a"), (65504.0, "f97bff"),
        (100000.0, "fa47c35000"), (3.4028234663852886e38, "fa7f7fffff"), (1e300, "fb7e37e43c8800759c"),
        (5.960464477539063e-08, "f90001"), (math.inf, "f97c00"), (False, "f4"), (True, "f5"), (None, "f6"),
        (b"\1\2\3\4", "4401020304"), ("IETF", "6449455446"), ("ü", "62c3bc"), ([1, [2, 3], [4, 5]], "8301820203820405"),
        ({"a": 1, "b": [2, 3]}, "a26161016162820203"), ({1: 2, 3: 4}, "a201020304"),
    ],
)  # fmt: skip
def test_the_standard_writes_the_same(value: Any, expected: str) -> None:
    assert dumps(value).hex() == expected
    assert loads(bytes.fromhex(expected)) == value


def test_a_float_takes_no_more_bytes_than_it_needs() -> None:
    assert loads(dumps((1, (2,)))) == [1, [2]], "tuples become lists"
    for value in (0.1, 1 / 3, 2.0**-149, 2.0**-150, 1.0009765625, 1.00048828125):
        packed = dumps(value)
        shorter = {9: ">f", 5: ">e"}.get(len(packed))
        if shorter is not None:
            assert struct.unpack(shorter, struct.pack(shorter, value))[0] != value


@pytest.mark.parametrize("value", [1 << 64, -(1 << 64) - 1, {"a": {1}}])
def test_other_objects_and_numbers_beyond_eight_bytes_are_refused(value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=r"eight bytes|set"):
        dumps(value)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="nothing"),
        pytest.param("18", id="number cut off"),
        pytest.param("1903", id="number cut off in the middle"),
        pytest.param("0000", id="two values"),
        pytest.param("6261", id="text cut off"),
        pytest.param("62ffff", id="no UTF-8"),
        pytest.param("8201", id="list cut off"),
        pytest.param("9b7fffffffffffffff00", id="list of 2^63"),
        pytest.param("5bffffffffffffffff00", id="bytes of 2^64"),
        pytest.param("ba00ffffff0000", id="map of 2^24"),
        pytest.param("a2000100", id="map cut off"),
        pytest.param("a200010002", id="a key twice"),
        pytest.param("a1f401", id="a truth as a key"),
        pytest.param("a1f93c0001", id="a float as a key"),
        pytest.param("a18001", id="a list as a key"),
        pytest.param("c000", id="a tag"),
        pytest.param("1c", id="reserved size"),
        pytest.param("9f00ff", id="indefinite length"),
        pytest.param("f7", id="undefined"),
        pytest.param("f0", id="other simple value"),
        pytest.param("f93c", id="float cut off"),
        pytest.param("81" * 13 + "00", id="nested fourteen deep"),
        pytest.param("81" * 100000, id="nested deep enough to end the interpreter"),
    ],
)
def test_anything_else_is_refused(content: str) -> None:
    with pytest.raises(ValueError):
        loads(bytes.fromhex(content))


def test_the_number_of_values_is_bounded() -> None:
    assert len(loads(dumps([0] * (MOST_VALUES - 1)))) == MOST_VALUES - 1
    with pytest.raises(ValueError, match="too many"):
        loads(dumps([0] * MOST_VALUES))
