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

import numpy as np
import torch
from torch import Tensor, nn

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
from bhc.formats.quantised import DrivenRecurrence, QuantisedNetwork, driven
from bhc.formats.rewrites import COPIES, POOL, PooledConvolution, fold_normalisation, unrolled
from bhc.graph import INPUT, Input, Inputs, Signature, Step, shaped_steps
from bhc.graph.exporting import quietly
from bhc.layers import EXAMPLES, NoForm, kind_of, onnx_recurrence

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 21, 10
TOLERANCE = 1e-3  # of the largest number
OUTPUT = "logits"  # the name of the model's result
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
    writer = _Writer(network, integers=integers)
    for step in driven(network.graph if integers else unrolled(network.graph)).steps:
        writer.begin(step)
        _write(writer, step.name, step.module)
        writer.values[step.name] = writer.value
    return writer.model()


def _write(writer: "_Writer", name: str, module: nn.Module) -> None:
    if isinstance(module, PooledConvolution):
        _pooled_convolution(writer, name, module)
    elif isinstance(module, DrivenRecurrence):
        _driven_recurrence(writer, module)
    else:
        kind_of(module).to_onnx(module, name, writer)


class _Writer:
    """Collects nodes and initialisers; ``value`` is the name of what the last node gave, or of what a step reads."""

    def __init__(self, network: QuantisedNetwork, *, integers: bool) -> None:
        self.network, self.integers = network, integers
        self.arriving = {each.name: each.arriving[0][1:] for each in shaped_steps(network.graph, network.input_shape)}
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self.inputs = network.signature.names
        self.value = self.inputs[0]
        self.others: list[str] = []  # what a joint reads beside it
        self.values = {INPUT: self.inputs[0]}

    def begin(self, step: Step) -> None:
        self.value, *self.others = [self.values[name] for name in step.reads]

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        taken = name in (*self.inputs, OUTPUT)  # a step may be called as the model's own values are
        name = f"{name}.value" if taken else name
        self.side_node(kind, name, self.value, *inputs, **attributes)
        self.value = name

    def side_node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        import onnx

        self.nodes.append(onnx.helper.make_node(kind, list(inputs), [name], name=name, **attributes))

    def constant(self, name: str, values: np.ndarray) -> str:
        import onnx

        self.initialisers.append(onnx.numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    def number(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, dtype=np.float32))

    def weight(self, name: str, module: Any) -> str:
        """The name of the layer's weights, dequantised first where they are stored as integers."""
        codes = self.network.weights.get(name) if self.integers else None
        if codes is None:
            return self.constant(f"{name}.weight", module.weight.numpy())
        stored = self.constant(f"{name}.codes", codes.codes.astype(np.int8 if codes.bits <= 8 else np.int16))
        self.side_node("DequantizeLinear", f"{name}.weight", stored, self.number(f"{name}.step", codes.step))
        return f"{name}.weight"

    def model(self) -> "onnx.ModelProto":
        import onnx

        helper, kind = onnx.helper, onnx.TensorProto.FLOAT
        self.nodes[-1].output[0] = OUTPUT
        graph = helper.make_graph(
            self.nodes,
            "bhc",
            [helper.make_tensor_value_info(each.name, _element(each), each.sizes()) for each in self.network.signature],
            [helper.make_tensor_value_info(OUTPUT, kind, ["batch", len(self.network.labels)])],
            self.initialisers,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="bhc"
        )


def _element(given: Input) -> int:
    """ONNX's number for the dtype of an input."""
    import onnx

    return onnx.helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=given.dtype).numpy().dtype)


def _pooled_convolution(writer: _Writer, name: str, module: PooledConvolution) -> None:
    biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
    numbers = writer.constant(f"{name}.weight", module.weight.numpy())
    writer.node("Conv", f"{name}.copies", numbers, *biases, strides=[POOL, POOL], pads=module.padding * 2)
    windows = [0, COPIES, *module.output_shape(writer.arriving[name])]  # 0: the batch, as it comes
    shape = writer.constant(f"{name}.shape", np.array(windows))
    writer.node("Reshape", f"{name}.windows", shape)
    writer.node("ReduceMax", f"{name}.largest", writer.constant(f"{name}.axis", np.array([1])), keepdims=0)
    _write(writer, name, module.activation)


def _driven_recurrence(writer: _Writer, module: DrivenRecurrence) -> None:
    linear, recurrence = module.names
    onnx_recurrence(writer, recurrence, module.recurrence, writer.weight(linear, module.linear), module.linear.bias)


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
