"""ONNX by torch's own exporter, for networks with steps that no rule of ours writes."""

import contextlib
import io
import logging
import warnings
from typing import TYPE_CHECKING, Any

import torch

from bhc.errors import BhcError
from bhc.formats.quantised import QuantisedNetwork
from bhc.formats.runtime import open_session
from bhc.layers import EXAMPLES

if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-3  # of the largest number
OUTPUT = "logits"  # the name of the model's result


def by_torch(network: QuantisedNetwork) -> "onnx.ModelProto":
    """The model; seconds where our own rules take milliseconds."""
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise BhcError(
            "this network has steps that only torch's exporter writes as ONNX, and it needs onnxscript",
            hint="pip install onnxscript",
        ) from error
    signature = network.signature
    with _quietly():
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


@contextlib.contextmanager
def _quietly() -> Any:
    """The exporter tells every step on the way, to everybody."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(level)
