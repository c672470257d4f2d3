import pytest

from bhc.errors import BhcError
from bhc.formats import onnx_bytes, onnx_latency_ms, open_session

from .chains import floats


@pytest.mark.parametrize("content", [b"", b"garbage", b"\0" * 1000, onnx_bytes(floats("relu"))[:-40]])
def test_what_is_no_model_is_refused(content: bytes) -> None:
    with pytest.raises(BhcError, match="onnxruntime cannot run this model"):
        open_session(content)


def test_the_latency_is_a_plausible_time() -> None:
    network = floats("relu")
    assert 0 < onnx_latency_ms(onnx_bytes(network), network.signature) < 100
