"""The small parts: pictures, samples, tokens, the cache, the counters."""

import io

import matplotlib.image
import numpy as np
import pytest
import torch

import bhc
from bhc.contexts import SampleMean, from_token, to_token
from bhc.studio.drawings import png
from bhc.studio.middleware import Metrics, cpu_seconds, resident_bytes
from bhc.studio.service import Cache, Service, sample_of
from tests.studio.serving import npy


@pytest.mark.parametrize("channels", [1, 3])
def test_pictures_read_back(channels: int) -> None:
    image = torch.randint(0, 256, (channels, 5, 7), dtype=torch.uint8)
    read = (255 * matplotlib.image.imread(io.BytesIO(png(image)), format="png")).round().astype(np.uint8)
    assert (read.reshape(5, 7, channels) == image.permute(1, 2, 0).numpy()).all()


def test_pictures_are_those_of_the_class(service: Service) -> None:
    sample = service.model.model.validation
    assert sample is not None
    first = sample.inputs[sample.labels == 7][0]
    assert service.picture(7, 0) == png(first)
    assert service.picture(7, 9) is service.picture(-1, 0) is service.picture(10**30, 0) is None
    assert service.facts()["examples"][7] == (sample.labels == 7).nonzero().flatten()[:9].tolist()


@pytest.mark.parametrize("array", [np.ones((20, 1, 2, 2), np.uint8), np.asfortranarray(np.random.rand(20, 1, 2, 2))])
def test_samples_read_back(array: np.ndarray) -> None:
    np.testing.assert_allclose(sample_of(npy(array), 20).numpy(), array, rtol=1e-6)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "not an array"),
        (b"PK\x03\x04 a zip file", "not an array"),
        (npy(np.array([{"a": 1}], dtype=object), pickled=True), "not of numbers"),
        (npy(np.array(["text"])), "not of numbers"),
        (npy(np.ones(30))[:-8], "not what it holds"),
        (npy(np.zeros((4, 4))).replace(b"(4, 4)", b"(9, 9)"), "not what it holds"),  # far more than there is
        (npy(np.ones((31, 2))), "at most 30"),
    ],
)
def test_what_is_no_sample_is_refused(content: bytes, problem: str) -> None:
    with pytest.raises(bhc.BhcError, match=problem):
        sample_of(content, 30)


def test_tokens_read_back() -> None:
    mean = torch.rand(1, 4, 4) * 255
    token = to_token(SampleMean(mean, 40))
    again = from_token(token, (1, 4, 4))
    assert torch.equal(again.mean, mean)
    assert again.size == 40
    assert token == to_token(again)


@pytest.mark.parametrize(
    "spoil", [lambda t: "x", lambda t: t[:-4], lambda t: t[:30] + "AAAA" + t[34:], lambda t: t + "é"]
)
def test_damaged_tokens_are_refused(spoil: object) -> None:
    token = to_token(SampleMean(torch.rand(1, 4, 4), 40))
    with pytest.raises(bhc.BhcError, match="token"):
        from_token(spoil(token), (1, 4, 4))  # type: ignore[operator]
    with pytest.raises(bhc.BhcError, match="another model"):
        from_token(token, (1, 8, 8))


def test_the_cache_lets_go_of_what_was_not_asked_for() -> None:
    cache: Cache[str] = Cache(2, size=100)
    cache.put("a", "A", 10)
    cache.put("b", "B", 10)
    assert cache.get("a") == "A"
    cache.put("c", "C", 10)
    assert (cache.get("a"), cache.get("b"), cache.get("c")) == ("A", None, "C")
    cache.put("d", "D", 95)
    assert (len(cache), cache.held) == (1, 96)
    cache.put("e", "E", 1000)
    assert cache.get("e") is None
    off: Cache[str] = Cache(0)
    off.put("a", "A")
    assert off.get("a") is None


def test_counters_are_text_that_prometheus_reads() -> None:
    metrics = Metrics()
    metrics.note("/v1/networks", 200, 0.02)
    metrics.note("/v1/networks", 422, 100.0)
    lines = metrics.text({"bhc_workers": ("Alive.", 2)}, {"front": 1, "gone": None}).splitlines()
    assert 'bhc_requests_total{route="/v1/networks",status="200"} 1' in lines
    assert 'bhc_request_seconds_bucket{route="/v1/networks",le="0.025"} 1' in lines
    assert 'bhc_request_seconds_bucket{route="/v1/networks",le="+Inf"} 2' in lines
    assert "bhc_workers 2" in lines
    assert (resident_bytes(2**30), cpu_seconds(2**30)) == (None, None)
