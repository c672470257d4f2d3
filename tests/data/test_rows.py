import numpy as np
import pytest

from bhc.data.images import PIXELS, format_rows, parse_rows
from bhc.errors import BhcError

from .tiny_cifar import batch


def test_round_trip():
    images, labels = batch(5)
    given, named = parse_rows(format_rows(images, labels), where="here")
    assert given.shape == (4, 3, 32, 32)
    np.testing.assert_array_equal(given.reshape(4, PIXELS), images)
    np.testing.assert_array_equal(named, labels)


def test_the_label_comes_first_then_red_row_by_row():
    content = bytes([7]) + bytes(range(256)) * 12
    images, labels = parse_rows(content, where="here")
    assert labels.tolist() == [7]
    assert images[0, 0, 1, :3].tolist() == [32, 33, 34]
    assert images[0, 2].tobytes() == content[1 + 2 * 1024 :]


@pytest.mark.parametrize("content", [b"", bytes(PIXELS), bytes(2 * (PIXELS + 1) + 1)])
def test_what_is_not_whole_rows_is_refused(content):
    with pytest.raises(BhcError, match=rf"here has {len(content):,} bytes; expected are whole rows of 3,073 bytes"):
        parse_rows(content, where="here")
