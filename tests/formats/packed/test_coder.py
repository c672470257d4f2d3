import numpy as np
import pytest

from bhc.formats.bhc_content import choose_prior
from bhc.formats.coding import Bell, Bytes, Counted, Decoder, Flat, Nibbles, Prior, encode

from .reference_coding import RangeDecoder, RangeEncoder

PRIORS: list[Prior] = [
    Flat(-3, 7),
    Flat(5, 1),
    Flat(-32767, 65535),
    Bell(-9, 20, 3, 9),
    Bell(-2000, 4096, 79, 2000),
    Nibbles(-1, (15, 0, 1, 7)),
    Bytes(0, (255, 1)),
    Counted((999, 1)),
    Counted((0, 5)),
    Counted((5, 0)),
]


def codes_of(prior: Prior, count: int, rng: np.random.Generator, *, likely: bool = True) -> np.ndarray:
    frequencies = prior.frequencies
    chances = frequencies / frequencies.sum() if likely else None
    return (prior.lowest + rng.choice(len(frequencies), count, p=chances)).astype(np.int32)


@pytest.mark.parametrize("likely", [True, False])
@pytest.mark.parametrize("count", [1, 2, 50, 3000])
def test_what_was_written_is_read(count: int, likely: bool) -> None:
    rng = np.random.default_rng(count)
    parts = [(codes_of(prior, count, rng, likely=likely), prior) for prior in PRIORS]
    decoder = Decoder(encode(parts))
    for codes, prior in parts:
        read = decoder.read(count, prior)
        assert read.dtype == np.int32
        assert np.array_equal(read, codes)


def test_the_coder_is_the_one_that_is_specified() -> None:
    rng = np.random.default_rng(0)
    for trial in range(100):
        chosen = [PRIORS[place] for place in rng.integers(len(PRIORS), size=3)]
        parts = [(codes_of(prior, int(rng.integers(0, 40)), rng, likely=trial % 2 == 0), prior) for prior in chosen]
        encoder, symbols = RangeEncoder(), []
        for codes, prior in parts:
            symbols.append(((codes - prior.lowest).tolist(), prior.weights.tolist()))
            encoder.write(*symbols[-1])
        stream = encode(parts)
        assert stream == encoder.to_bytes()
        decoder = RangeDecoder(stream)
        for expected, weights in symbols:
            assert decoder.symbols(len(expected), weights) == expected


def test_carries_run_through_many_words() -> None:
    """The last of few symbols, again and again, keeps the lower end just under a carry."""
    prior = Counted((1, 65535))
    for tail in range(40):
        symbols = [1] * 3000 + [0] * tail
        encoder = RangeEncoder()
        encoder.write(symbols, [1, 65535])
        stream = encode([(np.array(symbols, dtype=np.int32), prior)])
        assert stream == encoder.to_bytes()
        assert Decoder(stream).read(len(symbols), prior).tolist() == symbols


def test_zeros_at_the_end_are_left_out_and_put_back() -> None:
    prior, codes = Flat(0, 256), np.array([7, *[0] * 100], dtype=np.int32)
    stream = encode([(codes, prior)])
    assert len(stream) < 8
    assert not stream.endswith(b"\0")
    assert np.array_equal(Decoder(stream).read(101, prior), codes)
    assert np.array_equal(Decoder(stream + bytes(9)).read(101, prior), codes)


def test_nothing_takes_nothing() -> None:
    assert encode([]) == b""
    assert encode([(np.zeros(0, dtype=np.int32), Flat(0, 9))]) == b""
    assert encode([(np.full(1000, -5, dtype=np.int32), Flat(-5, 1))]) == b""
    assert Decoder(b"").read(3, Flat(-5, 1)).tolist() == [-5, -5, -5]
    assert Decoder(b"").read(0, Flat(0, 9)).tolist() == []
    assert Decoder(b"").read(5, Flat(2, 8)).tolist() == [2] * 5


def test_damaged_streams_are_noticed_or_read_to_other_codes() -> None:
    rng = np.random.default_rng(4)
    prior = choose_prior(codes := np.rint(rng.laplace(0, 3, 400)).astype(np.int32))
    stream = encode([(codes, prior)])
    refused = 0
    for _ in range(500):
        damaged = bytearray(stream)
        damaged[rng.integers(len(damaged))] ^= 1 << int(rng.integers(8))
        try:
            read = Decoder(bytes(damaged)).read(400, prior)
        except ValueError:
            refused += 1
            continue
        assert read.min() >= prior.lowest
        assert read.max() < prior.lowest + prior.count
    assert refused < 500


def test_words_that_no_encoder_writes_are_refused() -> None:
    with pytest.raises(ValueError, match="damaged"):
        Decoder(b"\xff" * 40).read(20, Flat(0, 3))
