"""Whole numbers as a stream of bytes: range coding under frequency tables."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from bhc.formats.packed.priors import TOTAL, Prior

WORD = 4  # bytes; the coder works in 32-bit words, stored with the highest byte first


def encode(parts: Sequence[tuple[np.ndarray, Prior]]) -> bytes:
    """One stream of several parts; zero bytes at its end are left out, the reader puts them back."""
    import constriction

    encoder = constriction.stream.queue.RangeEncoder()
    for codes, prior in parts:
        model = _model(prior)
        if model is not None and codes.size:
            encoder.encode((codes.ravel() - prior.lowest).astype(np.int32), model)
    return encoder.get_compressed().astype(">u4").tobytes().rstrip(b"\0")


class Decoder:
    """Reads the parts of a stream, in order."""

    def __init__(self, content: bytes) -> None:
        import constriction

        words = np.frombuffer(content + bytes(-len(content) % WORD), dtype=">u4")
        self._decoder = constriction.stream.queue.RangeDecoder(words.astype(np.uint32))

    def read(self, count: int, prior: Prior) -> np.ndarray:
        """The next ``count`` codes; ValueError if the stream cannot hold them."""
        model = _model(prior)
        if model is None or count == 0:
            return np.full(count, prior.lowest, dtype=np.int32)
        try:
            return self._decoder.decode(model, count) + np.int32(prior.lowest)
        except (AssertionError, ValueError) as error:
            raise ValueError("the coded numbers are damaged") from error


def _model(prior: Prior) -> Any:
    """The coder's table: exact, for a frequency over 2^16 needs no rounding. None if there is nothing to say."""
    import constriction

    if len(prior.frequencies) == 1:
        return None
    return constriction.stream.model.Categorical(prior.frequencies / TOTAL, perfect=False)
