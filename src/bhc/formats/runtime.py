"""Running an ONNX model, and timing it."""

import time
from collections.abc import Callable
from statistics import median
from typing import Any

from bhc.errors import BhcError
from bhc.graph import Signature

RUNS, WARM_UPS = 101, 10
ERRORS_ONLY = 3


def open_session(content: bytes, *, threads: int = 1) -> Any:
    """An onnxruntime session on the CPU."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = threads
    options.log_severity_level = ERRORS_ONLY
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise BhcError(f"onnxruntime cannot run this model: {str(error)[:200]}") from error


def onnx_latency_ms(content: bytes, signature: Signature) -> float:
    """Median milliseconds for one example on one thread."""
    session = open_session(content, threads=1)
    feed = {name: zeros.numpy() for name, zeros in zip(signature.names, signature.zeros(1), strict=True)}
    return median_ms(lambda: session.run(None, feed))


def median_ms(call: Callable[[], object]) -> float:
    """Median milliseconds of a call, once it is warm."""
    times = []
    for run in range(WARM_UPS + RUNS):
        began = time.perf_counter()
        call()
        if run >= WARM_UPS:
            times.append(1e3 * (time.perf_counter() - began))
    return median(times)
