"""Tables of small whole numbers written as text: one row a line, values separated by commas."""

import numpy as np
from numpy.typing import NDArray

from bhc.errors import BhcError

# A block and its temporaries stay in the processor's cache: faster than one long pass, and far less memory.
_BLOCK = 1 << 18
_LONGEST = 3  # digits of the largest value, 255
_COMMA, _RETURN, _NEWLINE = b",\r\n"


def parse_table(content: bytes, *, columns: int, where: str) -> NDArray[np.uint8]:
    """Read whole numbers 0..255 into an array (rows, columns).

    Lines end in ``\\n`` or ``\\r\\n``, and a header line is not part of ``content``. It is meant for
    tables of a hundred megabytes, which it reads in about a second. What it checks is the characters,
    the range and the number of values; a wrong order of separators is left to the file's checksum.
    """
    # The commas in front let the first value look back; the newline ends a last line that lacks one.
    text = np.frombuffer(b"," * _LONGEST + content + b"\n", dtype=np.uint8)
    blocks = [
        _values(text[start - _LONGEST : start + _BLOCK], where=where) for start in range(_LONGEST, len(text), _BLOCK)
    ]
    values = np.concatenate(blocks)
    if values.size == 0 or values.size % columns:
        raise BhcError(f"{where} holds {values.size:,} values; expected whole rows of {columns:,} values")
    return values.reshape(-1, columns)


def _values(text: NDArray[np.uint8], *, where: str) -> NDArray[np.uint8]:
    """Give the values that end right before a separator of ``text``, its first three bytes aside."""
    digit = text - np.uint8(ord("0"))  # what is no digit wraps around to far above 9
    is_digit = digit <= 9
    separates = (text == _COMMA) | (text == _NEWLINE) | (text == _RETURN)
    if not (is_digit | separates).all():
        raise BhcError(f"{where} is not a table of whole numbers: only digits, commas and line ends may occur")
    # At every byte, what the one, two or three digits right before it are worth.
    two = is_digit[2:-1] & is_digit[1:-2]
    three = two & is_digit[:-3]
    hundreds = digit[:-3] * three.view(np.uint8)
    values = digit[2:-1] + 10 * (digit[1:-2] * two.view(np.uint8)) + 100 * hundreds
    # 256..299 have wrapped around to 0..43; four digits in a row are too many.
    too_large = (hundreds > 2) | ((hundreds == 2) & (values < 200)) | (three & is_digit[3:])
    if too_large.any():
        raise BhcError(f"{where} holds a value above 255")
    return values[is_digit[2:-1] & ~is_digit[3:]]
