"""A network as an ONNX model: raw inputs in, logits out, any batch; what is known about it as metadata."""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import nn

from bhc.errors import BhcError
from bhc.formats.fold import fold_normalisation
from bhc.formats.forms import WeightForm
from bhc.formats.quantised import Codes, QuantisedNetwork
from bhc.formats.unroll import COPIES, POOL, PooledConvolution, unrolled
from bhc.graph import KINDS, Select, chain_shapes, conv_padding, pair

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
    for name, module in (network.chain if integers else unrolled(network.chain)).named_children():
        RULES[type(module)](writer, name, module)
    return writer.model(metadata or {}).SerializeToString()


class _Writer:
    """Collects nodes and initialisers; ``value`` is the name of what the last node gave."""

    def __init__(self, network: QuantisedNetwork, *, integers: bool) -> None:
        self.network, self.integers = network, integers
        self.arriving = {name: shape for name, _, shape, _ in chain_shapes(network.chain, network.input_shape)}
        self.nodes: list[onnx.NodeProto] = []
        self.initialisers: list[onnx.TensorProto] = []
        self.value = INPUT

    def node(self, kind: str, name: str, *inputs: str, **attributes: Any) -> None:
        """A node that continues the chain."""
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

    def weight(self, name: str, module: nn.Linear | nn.Conv2d) -> str:
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


def _convolution(writer: _Writer, name: str, module: nn.Conv2d) -> None:
    biases = [] if module.bias is None else [writer.constant(f"{name}.bias", module.bias.numpy())]
    writer.node(
        "Conv",
        name,
        writer.weight(name, module),
        *biases,
        kernel_shape=pair(module.kernel_size),
        strides=pair(module.stride),
        dilations=pair(module.dilation),
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


def _max_pool(writer: _Writer, name: str, module: nn.MaxPool2d) -> None:
    window = {"kernel_shape": pair(module.kernel_size), "strides": pair(module.stride)}
    writer.node("MaxPool", name, **window, dilations=pair(module.dilation), pads=pair(module.padding) * 2)


def _average_pool(writer: _Writer, name: str, module: nn.AvgPool2d) -> None:
    window = {"kernel_shape": pair(module.kernel_size), "strides": pair(module.stride)}
    writer.node("AveragePool", name, **window, pads=pair(module.padding) * 2, count_include_pad=1)


def _select(writer: _Writer, name: str, module: Select) -> None:
    writer.node("Gather", name, writer.constant(f"{name}.index", module.index.numpy()), axis=1)


def _normalise(writer: _Writer, name: str, module: nn.Module) -> None:
    writer.node("Sub", f"{name}.centred", writer.number(f"{name}.mean", float(module.mean)))  # type: ignore[arg-type]
    writer.node("Div", name, writer.number(f"{name}.std", float(module.std)))  # type: ignore[arg-type]


def _relu6(writer: _Writer, name: str, _: nn.Module) -> None:
    writer.node("Clip", name, writer.number(f"{name}.low", 0.0), writer.number(f"{name}.high", 6.0))


def _silu(writer: _Writer, name: str, _: nn.Module) -> None:
    arriving = writer.value
    writer.side_node("Sigmoid", f"{name}.sigmoid", arriving)
    writer.node("Mul", name, f"{name}.sigmoid")


def _plain(kind: str, **attributes: str) -> Callable[[_Writer, str, nn.Module], None]:
    """A step that is one node; ``attributes`` maps the node's names to the module's."""

    def write(writer: _Writer, name: str, module: nn.Module) -> None:
        values = {key: getattr(module, source) for key, source in attributes.items()}
        # A whole number would become an integer attribute, which these nodes do not take.
        writer.node(kind, name, **{key: v if isinstance(v, str) else float(v) for key, v in values.items()})

    return write


RULES: dict[type[nn.Module], Callable[..., None]] = {
    nn.Linear: _linear,
    nn.Conv2d: _convolution,
    PooledConvolution: _pooled_convolution,
    nn.ReLU: _plain("Relu"),
    nn.ReLU6: _relu6,
    nn.LeakyReLU: _plain("LeakyRelu", alpha="negative_slope"),
    nn.ELU: _plain("Elu", alpha="alpha"),
    nn.SELU: _plain("Selu"),
    nn.GELU: _plain("Gelu", approximate="approximate"),
    nn.SiLU: _silu,
    nn.Tanh: _plain("Tanh"),
    nn.MaxPool2d: _max_pool,
    nn.AvgPool2d: _average_pool,
    nn.Flatten: _plain("Flatten"),
    Select: _select,
    next(kind for kind, entry in KINDS.items() if entry.name == "normalise"): _normalise,
}
