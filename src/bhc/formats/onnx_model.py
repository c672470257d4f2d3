"""A network as an ONNX model: raw inputs in, logits out, any batch; what is known about it as metadata.

Written by the layers' own rules, or by torch's exporter where a step has none; run and timed by onnxruntime.
"""

import io
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from functools import cached_property
from pathlib import Path
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
    median_ms,
    not_ours,
    register_format,
    signature_in,
)
from bhc.formats.quantised import (
    COPIES,
    POOL,
    DrivenRecurrence,
    PooledConvolution,
    QuantisedNetwork,
    driven,
    fold_normalisation,
    unrolled,
)
from bhc.graph import INPUT, Graph, Input, Inputs, Signature, Step, output_dtype, output_shape
from bhc.graph.exporting import quietly
from bhc.graph.signature import SHORTER
from bhc.layers import EXAMPLES, NetworkInput, NoForm, Shape, kind_of, onnx_recurrence
from bhc.layers.protocols import OnnxValue

OPSET, IR_VERSION = 21, 10
OUTPUT = "logits"  # the name of the model's result


class ModelWriter:
    """Collects nodes and initialisers; ``value`` is the name of what the last node gave, or of what a step reads.

    Shapes are those of ``EXAMPLES`` examples. Sizes that another batch would change are found by a second look at all
    shapes, for another batch, when a rule first asks.
    """

    def __init__(self, network: QuantisedNetwork, graph: Graph, *, integers: bool) -> None:
        import onnx

        self.network, self.graph, self.integers = network, graph, integers
        self.made = onnx.ModelProto(ir_version=IR_VERSION, producer_name="bhc")
        self.made.graph.name = "bhc"
        self.inputs = network.signature.names
        self.value = self.inputs[0]
        self.others: list[str] = []  # what a joint reads beside it
        self.reads: tuple[OnnxValue, ...] = ()
        self.arriving: dict[str, Shape] = {}  # of the first value that each step reads, without the batch
        self.values = {INPUT: OnnxValue(self.inputs[0], (EXAMPLES, *network.input_shape))}
        self._sources: tuple[str, ...] = ()
        self._sizes: dict[tuple[str, int], str] = {}
        self.owners, self._weights = network.graph.owners, dict[str, str]()  # of layers, the names of their weights
        self._shared: dict[Any, tuple[str, object]] = {}  # by owner, or by content; owners are kept alive

    def write(self, step: Step) -> None:
        self._sources, module = step.reads, step.module
        self.reads = tuple(self.values[name] for name in step.reads)
        self.value, *self.others = [value.name for value in self.reads]
        shapes = [value.shape for value in self.reads]
        self.arriving[step.name] = shapes[0][1:]
        dtype = _dtype(step, self.reads)
        write = FUSED.get(type(module))
        if write is None:
            kind_of(module).to_onnx(module, step.name, self)
        else:
            write(self, step.name, module)
        self.values[step.name] = OnnxValue(self.value, _shape(module, *shapes), dtype)

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        taken = name in (*self.inputs, OUTPUT)  # a step may be called as the model's own values are
        name = f"{name}.value" if taken else name
        self.side_node(kind, name, self.value, *inputs, **attributes)
        self.value = name

    def side_node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        self.add(kind, inputs, [name], **attributes)

    def add(self, kind: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> None:
        import onnx

        self.made.graph.node.append(onnx.helper.make_node(kind, inputs, outputs, name=outputs[0], **attributes))

    def constant(self, name: str, values: np.ndarray) -> str:
        """Written in its place at once: most of the time goes into copies of large tensors."""
        import onnx

        tensor = self.made.graph.initializer.add()
        tensor.name, tensor.data_type = name, onnx.helper.np_dtype_to_tensor_dtype(values.dtype)
        tensor.dims.extend(values.shape)
        tensor.raw_data = values.astype(values.dtype.newbyteorder("<"), copy=False).tobytes()
        return name

    def number(self, name: str, value: float) -> str:
        return self.constant(name, np.array(value, dtype=np.float32))

    def shared(self, values: np.ndarray, owner: object = None) -> str:
        content = id(owner) if owner is not None else values.tobytes()
        key = (values.dtype, values.shape, content)
        if key not in self._shared:
            # No step's name begins with a dot.
            self._shared[key] = self.constant(f".{len(self._shared)}", values), owner
        return self._shared[key][0]

    def weight(self, name: str, module: Any) -> str:
        """The name of the layer's weights, dequantised first where they are stored as integers."""
        owner = self.owners.get(name, name)
        if owner in self._weights:  # a layer that was called before
            return self._weights[owner]
        self._weights[owner] = f"{name}.weight"
        codes = self.network.weights.get(owner) if self.integers else None
        if codes is None:
            return self.constant(f"{name}.weight", module.weight.numpy())
        stored = self.constant(f"{name}.codes", codes.codes.astype(np.int8 if codes.bits <= 8 else np.int16))
        self.side_node("DequantizeLinear", f"{name}.weight", stored, self.number(f"{name}.step", codes.step))
        return f"{name}.weight"

    def size(self, value: str, axis: int) -> str:
        if (value, axis) not in self._sizes:
            name = f"{value}.size_{axis}"
            self.add("Shape", [value], [name], start=axis, end=axis + 1)
            self._sizes[value, axis] = name
        return self._sizes[value, axis]

    def varies(self, place: int, axis: int) -> bool:
        return self._shapes_elsewhere[self._sources[place]][axis] != self.reads[place].shape[axis]

    @cached_property
    def _shapes_elsewhere(self) -> Mapping[str, Shape]:
        """Of all values, for a batch twice as large that is shorter where it may be."""
        count = 2 * EXAMPLES
        shapes = {INPUT: (count, *self.network.input_shape)}
        for step in self.graph.steps:
            if isinstance(step.module, NetworkInput):
                shapes[step.name] = (count, *_shorter(Input.of(step.module)))
                continue
            try:
                shapes[step.name] = _shape(step.module, *[shapes[name] for name in step.reads])
            except ValueError as error:
                raise NoForm(f"step {step.name!r} takes no other batch: {error}") from error
        return shapes

    def model(self) -> Any:
        import onnx

        self._end()
        info, graph = onnx.helper.make_tensor_value_info, self.made.graph
        graph.input.extend(info(each.name, _element(each), each.sizes()) for each in self.network.signature)
        graph.output.append(info(OUTPUT, onnx.TensorProto.FLOAT, self._result_sizes()))
        self.made.opset_import.append(onnx.helper.make_opsetid("", OPSET))
        return self.made

    def _result_sizes(self) -> list[int | str | None]:
        last = self.graph.last_step
        shape = self.values[last].shape
        if len(shape) == 2:
            return ["batch", len(self.network.labels)]
        pairs = zip(shape, self._shapes_elsewhere[last], strict=True)
        return [size if size == other else None for size, other in pairs]

    def _end(self) -> None:
        """The result gets its name."""
        dtype = self.values[self.graph.last_step].dtype
        if dtype != torch.float32:
            raise NoForm(f"the result is {dtype}")
        nodes = self.made.graph.node
        given = nodes[-1].output if nodes else []
        if self.value in given:
            given[list(given).index(self.value)] = OUTPUT
        else:
            self.add("Identity", [self.value], [OUTPUT])


def _dtype(step: Step, reads: Sequence[OnnxValue]) -> torch.dtype:
    try:
        return output_dtype(step.module, [value.shape for value in reads], [value.dtype for value in reads])
    except ValueError as error:
        raise NoForm(f"step {step.name!r}: {error}") from error


def _shape(module: nn.Module, *arriving: Shape) -> Shape:
    if type(module) not in FUSED:
        return output_shape(module, *arriving)
    ((count, *shape),) = arriving
    fused: Any = module
    return (count, *fused.output_shape(tuple(shape)))


def _shorter(given: Input) -> Shape:
    """Of one example, less of it along the axes that allow it."""
    sizes = enumerate(given.shape, start=1)
    return tuple(max(int(SHORTER * size), 1) if axis in given.dynamic else size for axis, size in sizes)


def _element(given: Input) -> int:
    """ONNX's number for the dtype of an input."""
    import onnx

    return onnx.helper.np_dtype_to_tensor_dtype(torch.empty(0, dtype=given.dtype).numpy().dtype)


def _write_pooled(writer: ModelWriter, name: str, module: PooledConvolution) -> None:
    biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
    numbers = writer.constant(f"{name}.weight", module.weight.numpy())
    writer.node("Conv", f"{name}.copies", numbers, *biases, strides=[POOL, POOL], pads=module.padding * 2)
    windows = [0, COPIES, *module.output_shape(writer.arriving[name])]  # 0: the batch, as it comes
    shape = writer.constant(f"{name}.shape", np.array(windows))
    writer.node("Reshape", f"{name}.windows", shape)
    writer.node("ReduceMax", f"{name}.largest", writer.constant(f"{name}.axis", np.array([1])), keepdims=0)
    kind_of(module.activation).to_onnx(module.activation, name, writer)


def _write_driven(writer: ModelWriter, name: str, module: DrivenRecurrence) -> None:
    linear, recurrence = module.names
    onnx_recurrence(writer, recurrence, module.recurrence, writer.weight(linear, module.linear), module.linear.bias)


# Steps that stand for several; each can say its ``output_shape`` for one example.
FUSED: dict[type[nn.Module], Callable[[ModelWriter, str, Any], None]] = {
    PooledConvolution: _write_pooled,
    DrivenRecurrence: _write_driven,
}


if TYPE_CHECKING:
    import onnx

TOLERANCE = 1e-3  # of the largest number
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
