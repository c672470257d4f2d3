"""A network as an ONNX model: raw inputs in, logits out, any batch; what is known about it as metadata.

Written by the layers' own rules, or by torch's exporter where a step has none; run and timed by onnxruntime.
"""

import io
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import redirect_stdout
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.files import read_bytes
from bhc.formats.format import (
    LARGEST_FILE,
    Deployed,
    Export,
    Format,
    WeightForm,
    checked,
    not_ours,
    register_format,
    signature_in,
)
from bhc.formats.onnx_writer import OUTPUT, ModelWriter
from bhc.formats.quantised import QuantisedNetwork, driven, fold_normalisation, unrolled
from bhc.graph import Inputs, Signature
from bhc.graph.exporting import quietly
from bhc.layers import EXAMPLES, NoForm

if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-3  # of the largest number
RUNS, WARM_UPS = 101, 10
ERRORS_ONLY = 3


def onnx_bytes(
    network: QuantisedNetwork, *, weights: WeightForm = WeightForm.FLOATS, metadata: Mapping[str, Any] | None = None
) -> bytes:
    """The model, serialised. With ``INTEGERS`` the weights are int8 or int16 before a DequantizeLinear node."""
    import onnx

    if weights is WeightForm.BIT_PACKED:
        raise BhcError("ONNX has no bit-packed weights", hint="choose floats or integers")
    # Floats are for speed, integers for size: unrolling is faster and stores more numbers.
    integers = weights is WeightForm.INTEGERS
    try:
        model = _by_our_rules(fold_normalisation(network), integers=integers)
    except NoForm as problem:
        if integers:
            raise BhcError(
                f"weights cannot be written as integers: {problem}, which torch's exporter writes",
                hint="choose floats",
            ) from problem
        model = _by_torch(network)
    onnx.helper.set_model_props(model, {f"bhc.{key}": json.dumps(value) for key, value in (metadata or {}).items()})
    return model.SerializeToString()


@register_format
class Onnx(Format):
    """For every runtime that reads ONNX."""

    name, label, suffix = "onnx", "ONNX", ".onnx"
    rank = 1
    weight_forms = (WeightForm.FLOATS, WeightForm.INTEGERS)

    def write(self, network: QuantisedNetwork, export: Export) -> bytes:
        return onnx_bytes(network, weights=export.weights, metadata=export.metadata)

    def open(self, path: Path) -> Deployed:
        content = read_bytes(path, limit=LARGEST_FILE)
        try:
            session = open_session(content)
            sources = session.get_inputs()
            metadata = session.get_modelmeta().custom_metadata_map
            ours = {name.removeprefix("bhc."): text for name, text in metadata.items() if name.startswith("bhc.")}
            known = {name: json.loads(text) for name, text in ours.items()}
            if "inputs" not in known:
                (source,) = sources
                known["input_shape"] = source.shape[1:]
            signature = signature_in(known)

            def logits(x: Inputs) -> Tensor:
                given = zip(sources, signature.cast(x), strict=True)
                feed = {source.name: numbers.numpy() for source, numbers in given}
                return torch.from_numpy(session.run(None, feed)[0])

            return checked(known, signature, "onnxruntime", len(content), logits, path)
        except Exception as error:  # onnxruntime's exceptions share no base class
            raise not_ours(path, error) from error


def _by_our_rules(network: QuantisedNetwork, *, integers: bool) -> "onnx.ModelProto":
    """In milliseconds; NoForm where a layer has no rule."""
    graph = driven(network.graph if integers else unrolled(network.graph))
    writer = ModelWriter(network, graph, integers=integers)
    for step in graph.steps:
        writer.write(step)
    return writer.model()


def _by_torch(network: QuantisedNetwork) -> "onnx.ModelProto":
    """The model; seconds where our own rules take milliseconds."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BhcError(
            "this network has steps that only torch's exporter writes as ONNX, and it needs onnxscript",
            hint="pip install onnxscript",
        ) from error
    signature = network.signature
    with quietly(logging.WARNING), redirect_stdout(io.StringIO()):  # it tells every step on the way, to everybody
        try:
            program: Any = torch.onnx.export(
                network.module().eval(),
                signature.zeros(EXAMPLES),
                dynamo=True,
                dynamic_shapes=signature.dynamic_shapes(),
                input_names=list(signature.names),
                output_names=[OUTPUT],
                verbose=False,
            )
        except Exception as error:  # its own, and whatever its parts raise
            cause: BaseException = error
            while cause.__cause__ is not None:
                cause = cause.__cause__
            reason = str(cause).strip().splitlines() or [type(cause).__name__]
            raise BhcError(
                f"torch's exporter cannot write this network as ONNX: {reason[0][:200]}", hint="export it as torch"
            ) from error
    _check(program.model_proto, network)
    return program.model_proto


def _check(model: "onnx.ModelProto", network: QuantisedNetwork) -> None:
    """The exporter leaves out some arguments without a word, so that what it wrote is run before it is believed."""
    draws = torch.Generator().manual_seed(0)
    x = {  # whole numbers, also fit for words
        name: torch.randn(zeros.shape, generator=draws).abs().round().to(zeros.dtype)
        for name, zeros in zip(network.signature.names, network.signature.zeros(3), strict=True)
    }
    with torch.no_grad():
        wanted = network.graph(*x.values())
    try:
        session = open_session(model.SerializeToString())
        (given,) = session.run(None, {name: numbers.numpy() for name, numbers in x.items()})
    except Exception as error:  # onnxruntime's exceptions share no base class
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise BhcError(
            f"onnxruntime does not run what torch's exporter wrote: {reason[0][:200]}", hint="export it as torch"
        ) from error
    off = (torch.from_numpy(given) - wanted).abs().max() / wanted.abs().max().clamp_min(1e-30)
    if wanted.shape != given.shape or not off <= TOLERANCE:
        raise BhcError("torch's exporter writes an ONNX model that computes something else", hint="export it as torch")


def open_session(content: bytes, *, threads: int = 1) -> Any:
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
