"""A network as an ONNX model: raw inputs in, logits out, any batch; what is known about it as metadata."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from bhc.errors import BhcError
from bhc.formats.fold import fold_normalisation
from bhc.formats.forms import WeightForm
from bhc.formats.onnx_tokens import TOKEN_RULES
from bhc.formats.quantised import Codes, QuantisedNetwork
from bhc.formats.unroll import COPIES, POOL, PooledConvolution, unrolled
from bhc.graph import (
    CONVOLUTIONS,
    KINDS,
    Add,
    Affine,
    Concat,
    GlobalMean,
    LogMel,
    Multiply,
    PadChannels,
    Place,
    Select,
    Step,
    Subsample,
    WeightedModule,
    conv_padding,
    passages,
    sizes,
)
from bhc.graph import INPUT as GRAPH_INPUT
from bhc.graph.kinds import AVERAGE_POOLS, MAX_POOLS

if TYPE_CHECKING:
    import onnx

OPSET, IR_VERSION = 21, 10
INPUT, OUTPUT = "input", "logits"


def onnx_bytes(
    network: QuantisedNetwork, *, weights: WeightForm = WeightForm.FLOATS, metadata: Mapping[str, Any] | None = None
) -> bytes:
    """The model, serialised. With ``INTEGERS`` the weights are int8 or int16 before a DequantizeLinear node."""
    if weights is WeightForm.BIT_PACKED:
        raise BhcError("ONNX has no bit-packed weights", hint="choose floats or integers")
    network = fold_normalisation(network)
    # Floats are for speed, integers for size: unrolling is faster and stores more numbers.
    integers = weights is WeightForm.INTEGERS
    writer = _Writer(network, integers=integers)
    for step in (network.graph if integers else unrolled(network.graph)).steps:
        writer.begin(step)
        RULES[type(step.module)](writer, step.name, step.module)
        writer.values[step.name] = writer.value
    return writer.model(metadata or {}).SerializeToString()


class _Writer:
    """Collects nodes and initialisers; ``value`` is the name of what the last node gave, or of what a step reads."""

    def __init__(self, network: QuantisedNetwork, *, integers: bool) -> None:
        self.network, self.integers = network, integers
        self.arriving = {each.name: each.arriving[0] for each in passages(network.graph, network.input_shape)}
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self.value = INPUT
        self.others: list[str] = []  # what a joint reads beside it
        self.values = {GRAPH_INPUT: INPUT}

    def begin(self, step: Step) -> None:
        """Look at what a step reads."""
        self.value, *self.others = [self.values[name] for name in step.reads]

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        """A node that reads what came before it in the step."""
        taken = name in (INPUT, OUTPUT)  # a step may be called as the model's own values are
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

    def weight(self, name: str, module: WeightedModule) -> str:
        """The name of the layer's weights, dequantised first where they are stored as integers."""
        codes = self.network.weights.get(name) if self.integers else None
        if codes is None:
            return self.constant(f"{name}.weight", module.weight.numpy())
        stored = self.constant(f"{name}.codes", _narrowest(codes))
        self.side_node("DequantizeLinear", f"{name}.weight", stored, self.number(f"{name}.step", codes.step))
        return f"{name}.weight"

    def model(self, metadata: Mapping[str, Any]) -> "onnx.ModelProto":
        import onnx

        helper, kind = onnx.helper, onnx.TensorProto.FLOAT
        self.nodes[-1].output[0] = OUTPUT
        graph = helper.make_graph(
            self.nodes,
            "bhc",
            [helper.make_tensor_value_info(INPUT, kind, ["batch", *self.network.input_shape])],
            [helper.make_tensor_value_info(OUTPUT, kind, ["batch", len(self.network.labels)])],
            self.initialisers,
        )
        model = helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION, producer_name="bhc"
        )
        helper.set_model_props(model, {f"bhc.{key}": json.dumps(value) for key, value in metadata.items()})
        return model


def _narrowest(codes: Codes) -> np.ndarray:
    return codes.codes.astype(np.int8 if codes.bits <= 8 else np.int16)


def _linear(writer: _Writer, name: str, module: nn.Linear) -> None:
    biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
    writer.node("Gemm", name, writer.weight(name, module), *biases, transB=1)


def _convolution(writer: _Writer, name: str, module: Any) -> None:
    biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
    writer.node(
        "Conv",
        name,
        writer.weight(name, module),
        *biases,
        kernel_shape=module.kernel_size,
        strides=module.stride,
        dilations=module.dilation,
        group=module.groups,
        pads=conv_padding(module),
    )


def _pooled_convolution(writer: _Writer, name: str, module: PooledConvolution) -> None:
    biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
    numbers = writer.constant(f"{name}.weight", module.weight.numpy())
    writer.node("Conv", f"{name}.copies", numbers, *biases, strides=[POOL, POOL], pads=module.padding * 2)
    windows = [0, COPIES, *module.output_shape(writer.arriving[name])]  # 0: the batch, as it comes
    shape = writer.constant(f"{name}.shape", np.array(windows))
    writer.node("Reshape", f"{name}.windows", shape)
    writer.node("ReduceMax", f"{name}.largest", writer.constant(f"{name}.axis", np.array([1])), keepdims=0)
    RULES[type(module.activation)](writer, name, module.activation)


def _max_pool(writer: _Writer, name: str, module: Any) -> None:
    writer.node("MaxPool", name, **_window(writer, name, module), dilations=_each(writer, name, module.dilation))


def _average_pool(writer: _Writer, name: str, module: Any) -> None:
    writer.node("AveragePool", name, **_window(writer, name, module), count_include_pad=1)


def _window(writer: _Writer, name: str, module: Any) -> dict[str, Any]:
    return {
        "kernel_shape": _each(writer, name, module.kernel_size),
        "strides": _each(writer, name, module.stride),
        "pads": _each(writer, name, module.padding) * 2,
    }


def _each(writer: _Writer, name: str, value: Any) -> tuple[int, ...]:
    """An argument for every direction of what arrives."""
    return sizes(value, len(writer.arriving[name]) - 1)


def _global_mean(writer: _Writer, name: str, module: GlobalMean) -> None:
    axes = writer.constant(f"{name}.axes", np.arange(2, len(writer.arriving[name]) + 1))
    writer.node("ReduceMean", name, axes, keepdims=int(module.keep_places))


def _subsample(writer: _Writer, name: str, module: Subsample) -> None:
    axes = np.arange(2, len(writer.arriving[name]) + 1)
    same = np.ones_like(axes)
    end = np.iinfo(np.int64).max
    numbers = {"starts": 0 * same, "ends": end * same, "axes": axes, "steps": module.stride * same}
    writer.node("Slice", name, *[writer.constant(f"{name}.{key}", values) for key, values in numbers.items()])


def _pad_channels(writer: _Writer, name: str, module: PadChannels, *, like: str | None = None) -> None:
    rest = [0] * (len(writer.arriving[like or name]) - 1)
    pads = np.array([0, module.before, *rest, 0, module.after, *rest])
    writer.node("Pad", name, writer.constant(f"{name}.pads", pads))


def _affine(writer: _Writer, name: str, module: Affine) -> None:
    shape = (-1, *[1] * (len(writer.arriving[name]) - 1))
    factor, shift = (numbers.numpy().reshape(shape) for numbers in (module.weight, module.bias))
    writer.node("Mul", f"{name}.scaled", writer.constant(f"{name}.weight", factor))
    writer.node("Add", name, writer.constant(f"{name}.bias", shift))


def _joint(kind: str, **attributes: int) -> Callable[["_Writer", str, nn.Module], None]:
    def write(writer: _Writer, name: str, module: nn.Module) -> None:
        writer.node(kind, name, *writer.others, **attributes)

    return write


def _select(writer: _Writer, name: str, module: Select) -> None:
    writer.node("Gather", name, writer.constant(f"{name}.index", module.index.numpy()), axis=1)


def _place(writer: _Writer, name: str, module: Place) -> None:
    """A channel of zeros beside those that arrive, and each place reads the one or the other."""
    _pad_channels(writer, f"{name}.zero", PadChannels(0, 1), like=name)
    source = np.full(module.width, len(module.index))
    source[module.index.numpy()] = np.arange(len(module.index))
    writer.node("Gather", name, writer.constant(f"{name}.index", source), axis=1)


def _normalise(writer: _Writer, name: str, module: nn.Module) -> None:
    writer.node("Sub", f"{name}.centred", writer.constant(f"{name}.mean", module.mean.numpy()))  # type: ignore[operator]
    writer.node("Div", name, writer.constant(f"{name}.std", module.std.numpy()))  # type: ignore[operator]


def _log_mel(writer: _Writer, name: str, module: LogMel) -> None:
    waves, shares = (numbers.numpy() for numbers in module.bank())
    writer.node("Conv", f"{name}.spectrum", writer.constant(f"{name}.waves", waves), strides=[module.hop])
    writer.node("Mul", f"{name}.power", writer.value)
    writer.node("Conv", f"{name}.energy", writer.constant(f"{name}.shares", shares))
    writer.node("Add", f"{name}.raised", writer.number(f"{name}.floor", module.floor))
    writer.node("Log", f"{name}.log")
    writer.node("Unsqueeze", name, writer.constant(f"{name}.axis", np.array([1])))


def _relu6(writer: _Writer, name: str, _: nn.Module) -> None:
    writer.node("Clip", name, writer.number(f"{name}.low", 0.0), writer.number(f"{name}.high", 6.0))


def _silu(writer: _Writer, name: str, _: nn.Module) -> None:
    arriving = writer.value
    writer.side_node("Sigmoid", f"{name}.sigmoid", arriving)
    writer.node("Mul", name, f"{name}.sigmoid")


def _hard_sigmoid(writer: _Writer, name: str, _: nn.Module) -> None:
    writer.node("HardSigmoid", name, alpha=1 / 6, beta=0.5)


def _softplus(writer: _Writer, name: str, module: nn.Softplus) -> None:
    arriving = writer.value
    writer.node("Mul", f"{name}.steeper", writer.number(f"{name}.beta", float(module.beta)))
    writer.side_node("Softplus", f"{name}.soft", f"{name}.steeper")
    writer.side_node("Div", f"{name}.curve", f"{name}.soft", f"{name}.beta")
    # Beyond the threshold torch gives the value itself.
    writer.node("Greater", f"{name}.straight", writer.number(f"{name}.threshold", float(module.threshold)))
    writer.node("Where", name, arriving, f"{name}.curve")


def _plain(kind: str, **attributes: str) -> Callable[[_Writer, str, nn.Module], None]:
    """A step that is one node; ``attributes`` maps the node's names to the module's."""

    def write(writer: _Writer, name: str, module: nn.Module) -> None:
        values = {key: getattr(module, source) for key, source in attributes.items()}
        # A whole number would become an integer attribute, which these nodes do not take.
        writer.node(kind, name, **{key: v if isinstance(v, str) else float(v) for key, v in values.items()})

    return write


RULES: dict[type[nn.Module], Callable[..., None]] = {
    nn.Linear: _linear,
    **TOKEN_RULES,
    **dict.fromkeys(CONVOLUTIONS, _convolution),
    PooledConvolution: _pooled_convolution,
    nn.ReLU: _plain("Relu"),
    nn.ReLU6: _relu6,
    nn.LeakyReLU: _plain("LeakyRelu", alpha="negative_slope"),
    nn.ELU: _plain("Elu", alpha="alpha"),
    nn.SELU: _plain("Selu"),
    nn.GELU: _plain("Gelu", approximate="approximate"),
    nn.SiLU: _silu,
    nn.Tanh: _plain("Tanh"),
    nn.Sigmoid: _plain("Sigmoid"),
    nn.Hardswish: _plain("HardSwish"),
    nn.Hardsigmoid: _hard_sigmoid,
    nn.Softplus: _softplus,
    **dict.fromkeys(MAX_POOLS, _max_pool),
    **dict.fromkeys(AVERAGE_POOLS, _average_pool),
    GlobalMean: _global_mean,
    Subsample: _subsample,
    PadChannels: _pad_channels,
    Affine: _affine,
    Add: _joint("Add"),
    Multiply: _joint("Mul"),
    Concat: _joint("Concat", axis=1),
    nn.Flatten: _plain("Flatten"),
    Select: _select,
    Place: _place,
    next(kind for kind, entry in KINDS.items() if entry.name == "normalise"): _normalise,
    LogMel: _log_mel,
}
