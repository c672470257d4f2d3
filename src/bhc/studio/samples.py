"""Uploaded samples: a ``.npy`` file, looked at before anything is made of it."""

import io
from math import prod

import numpy as np
import torch
from torch import Tensor

from bhc.errors import BhcError

HINT = "write it with numpy.save(path, array), images of shape (n, channels, height, width)"
KINDS = "buif"  # truths, integers, floats


def sample_of(content: bytes, most: int) -> Tensor:
    """The array of a file of at most ``most`` samples; never pickled objects, never more than the file holds."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, kind = read(file)
    except (ValueError, TypeError, EOFError, SyntaxError, MemoryError, RecursionError) as error:
        raise BhcError(f"the body is not an array that can be read: {error}", hint=HINT) from None
    if kind.kind not in KINDS:
        raise BhcError(f"the body is an array of {kind}, and not of numbers", hint=HINT)
    values = content[file.tell() :]
    if len(values) != prod(shape) * kind.itemsize:
        raise BhcError(f"the body is not an array that can be read: {shape} of {kind} is not what it holds", hint=HINT)
    if shape and shape[0] > most:
        raise BhcError(
            f"a sample of {shape[0]:,} inputs, where at most {most:,} are taken", hint="some hundreds say enough"
        )
    array = np.frombuffer(values, kind).reshape(shape, order="F" if by_column else "C")
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32 if kind.kind == "f" else np.int64)))
