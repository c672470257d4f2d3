"""Layers of sequences. Recurrences: what LSTMs, GRUs and plain recurrent layers do from step to step, one layer in one
direction each; and attention of a sequence to itself as one layer.

The product with what arrives is the same at every step, so it is a linear layer of its own, which *drives* the
recurrence: ``d_t = W x_t + b``. A recurrence adds the product with its hidden state, and has that alone as weights."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.layers.arguments import LARGEST_SIZE, Argument, Choice, Flag, Shape, Size, bounded, must_fit, unknown
from bhc.layers.kind import Example, OfTokens, Weighted, bare_copy, fixed, spread
from bhc.layers.linear import with_numbers
from bhc.layers.protocols import FileReader, FileWriter, OnnxWriter, Operators, UnitSearch

LONGEST_SEQUENCE = 1 << 14  # steps
State = tuple[Tensor, ...]  # the hidden state first, (N, H) each


@dataclass(frozen=True)
class Cell:
    """What one step makes of the drive, (N, G H), of the product with the hidden state, (N, G H), and of the state."""

    name: str
    gates: int  # G
    states: int
    step: Callable[[Tensor, Tensor, State], State]
    call: str  # torch's operator for whole sequences
    module: Callable[..., nn.RNNBase]  # torch's layer
    onnx: str
    order: tuple[int, ...]  # of ONNX's gates, as places among torch's
    attributes: Mapping[str, Any]  # of ONNX's node
    sums: bool = True  # whether a bias of the product is one of the drive: a GRU has its reset gate between them

    def unrolled(self, drive: Tensor, recur: Callable[[Tensor], Tensor], *, reverse: bool) -> Tensor:  # (N, T, H)
        """Every hidden state, from a state of zeros on; ``drive`` (N, T, G H), ``recur`` the product with a state."""
        examples, _, width = drive.shape
        dtype = torch.promote_types(drive.dtype, torch.float32)  # states add up what lower precisions would lose
        state: State = (drive.new_zeros(examples, width // self.gates, dtype=dtype),) * self.states
        steps, given = drive.unbind(1), []
        for each in reversed(steps) if reverse else steps:
            state = self.step(each, recur(state[0]), state)
            given.append(state[0])
        return torch.stack(given[::-1] if reverse else given, 1)


def _lstm(drive: Tensor, product: Tensor, state: State) -> State:
    """``c = f c + i g``, ``h = o tanh(c)``; i, f and o are sigmoids of their sums, g is a tanh."""
    i, f, g, o = (drive + product).chunk(4, 1)
    c = torch.addcmul(f.sigmoid() * state[1], i.sigmoid(), g.tanh())
    return o.sigmoid() * c.tanh(), c


def _gru(drive: Tensor, product: Tensor, state: State) -> State:
    """``h = (1 - z) n + z h``, ``n = tanh(d_n + r p_n)``; r and z are sigmoids of their sums."""
    (h,), width = state, drive.shape[1] // 3
    r, z = (drive[:, : 2 * width] + product[:, : 2 * width]).sigmoid().chunk(2, 1)
    n = torch.addcmul(drive[:, 2 * width :], r, product[:, 2 * width :]).tanh()
    return (n + z * (h - n),)


def _tanh(drive: Tensor, product: Tensor, state: State) -> State:
    return ((drive + product).tanh(),)


def _relu(drive: Tensor, product: Tensor, state: State) -> State:
    return ((drive + product).relu(),)


def _rnn(nonlinearity: str) -> Callable[..., nn.RNNBase]:
    return lambda *sizes, **options: nn.RNN(*sizes, nonlinearity=nonlinearity, **options)


# A packed file has the place in this list, which never changes; new ones are added at the end.
_LISTED = (
    Cell("lstm", 4, 2, _lstm, "aten.lstm.input", nn.LSTM, "LSTM", (0, 3, 1, 2), {}),
    Cell("gru", 3, 1, _gru, "aten.gru.input", nn.GRU, "GRU", (1, 0, 2), {"linear_before_reset": 1}, False),
    Cell("tanh", 1, 1, _tanh, "aten.rnn_tanh.input", _rnn("tanh"), "RNN", (0,), {"activations": ["Tanh"]}),
    Cell("relu", 1, 1, _relu, "aten.rnn_relu.input", _rnn("relu"), "RNN", (0,), {"activations": ["Relu"]}),
)
CELLS = {cell.name: cell for cell in _LISTED}
NAMES = tuple(CELLS)


class Recurrence(nn.Module):
    """``h_t = cell(d_t, W h_(t-1) + b)`` from a drive (N, T, G H), all hidden states (N, T, H); or from the last step.

    The G gates of a hidden unit lie ``hidden`` apart, in torch's order.
    """

    bias: nn.Parameter | None

    def __init__(self, cell: str, hidden: int, reverse: bool = False, bias: bool = True) -> None:
        super().__init__()
        self.cell, self.hidden, self.reverse = cell, hidden, reverse
        width = CELLS[cell].gates * hidden
        self.weight = fixed(torch.zeros(width, hidden))
        self.register_parameter("bias", fixed(torch.zeros(width)) if bias else None)

    def forward(self, drive: Tensor) -> Tensor:
        return CELLS[self.cell].unrolled(drive, lambda h: F.linear(h, self.weight, self.bias), reverse=self.reverse)

    def extra_repr(self) -> str:
        return f"{self.cell}, {self.hidden}" + (", reverse" if self.reverse else "")


class RecurrentLayer(nn.Module):
    """A recurrence with the linear layer that drives it, by torch's own kernel: (N, T, I) -> (N, T, H)."""

    def __init__(self, linear: nn.Linear, recurrence: Recurrence) -> None:
        super().__init__()
        biased = linear.bias is not None or recurrence.bias is not None
        build = CELLS[recurrence.cell].module
        self.reverse = recurrence.reverse
        self.rnn = build(linear.in_features, recurrence.hidden, bias=biased, batch_first=True, device="meta")
        for end, layer in (("ih", linear), ("hh", recurrence)):
            setattr(self.rnn, f"weight_{end}_l0", fixed(layer.weight.detach()))
            if biased:
                bias = torch.zeros(len(layer.weight)) if layer.bias is None else layer.bias.detach()
                setattr(self.rnn, f"bias_{end}_l0", fixed(bias))

    def forward(self, x: Tensor) -> Tensor:
        given, *_ = self.rnn(x.flip(1) if self.reverse else x)
        return given.flip(1) if self.reverse else given


class RecurrenceKind(Weighted):
    """``Recurrence``: the gates of a hidden unit, their drive and what it gives go together.

    Its weights read hidden units, which it gives, and write gates, which arrive.
    """

    name, module, number, sums, may_skip = "recurrence", Recurrence, 42, False, False
    arguments: ClassVar[Mapping[str, Argument]] = {"cell": Choice(NAMES), "hidden": Size(), "reverse": Flag()}
    in_axis = out_axis = -1

    def output_shape(self, module: Recurrence, *arriving: Shape) -> Shape:
        (shape,) = arriving
        width = CELLS[module.cell].gates * module.hidden
        must_fit(len(shape) == 3 and shape[2] == width and shape[1] <= LONGEST_SEQUENCE, module, shape)
        return (*shape[:2], module.hidden)

    def follow(self, module: Recurrence, search: UnitSearch, leaving: Shape, *arriving: Tensor) -> Tensor:
        gates = search.along(arriving[0], self.in_axis).unflatten(0, (-1, module.hidden))
        hidden = gates[0]
        for others in gates[1:]:
            search.join(hidden, others)
        search.tie(hidden)  # a gate that is left out would be half open
        search.has_ends(hidden, gates.flatten())
        return spread(hidden, leaving, self.out_axis)

    def operator(self, module: Recurrence, operators: Operators) -> Any:
        return operators.recurrence(module)

    def smaller(self, module: Recurrence, weight: Tensor, bias: Tensor | None, kept_inputs: Tensor) -> nn.Module:
        recurrence = bare_copy(module)
        recurrence.hidden = weight.shape[1]
        return with_numbers(recurrence, weight, bias)

    def check(self, described: Mapping[str, Any]) -> None:
        cell = CELLS[self.arguments["cell"].checked(described["cell"])]
        bounded(cell.gates, described["hidden"], described["hidden"])

    def write(self, module: Recurrence, name: str, arriving: Shape, file: FileWriter) -> list[Any]:
        return [self.tag, name, NAMES.index(module.cell), module.reverse, *file.weighted(name, module)]

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        match entry:
            case [_, str(name), int(cell), bool(reverse), weight, bias] if type(cell) is int and cell in range(
                len(NAMES)
            ):
                hidden = file.shape[-1] // CELLS[NAMES[cell]].gates
                arguments = {"cell": NAMES[cell], "hidden": hidden, "reverse": reverse}
                file.weighted(self.name, name, arguments, weight, bias)
            case _:
                raise unknown(entry)

    def to_onnx(self, module: Recurrence, name: str, writer: OnnxWriter) -> None:
        """A node takes what drives it as a product: here one with the identity."""
        drive = writer.constant(f"{name}.drive", np.eye(len(module.weight), dtype=np.float32))
        onnx_recurrence(writer, name, module, drive, None)

    def examples(self) -> Sequence[Example]:
        made = [
            Recurrence(cell, 3, reverse, bias) for cell in NAMES for reverse, bias in ((False, True), (True, False))
        ]
        for place, recurrence in enumerate(made):
            for numbers in recurrence.parameters():
                numbers.data.normal_(generator=torch.Generator().manual_seed(place))
        return [(recurrence, ((2, 5, len(recurrence.weight)),)) for recurrence in made]


def onnx_recurrence(
    writer: OnnxWriter, name: str, module: Recurrence, driving: str, driving_bias: Tensor | None
) -> None:
    """A node of ONNX's own: time first, gates in another order, and an axis for directions, of which there is one.

    ``driving`` names the weights that what arrives is multiplied by, in torch's order.
    """
    cell = CELLS[module.cell]
    order = np.concatenate([place * module.hidden + np.arange(module.hidden) for place in cell.order])
    axis, index = writer.constant(f"{name}.axis", np.array([0])), writer.constant(f"{name}.order", order)
    weights = []
    for end, weight in (("drives", driving), ("recurs", writer.weight(name, module))):
        writer.side_node("Gather", f"{name}.{end}.ordered", weight, index, axis=0)
        writer.side_node("Unsqueeze", f"{name}.{end}", f"{name}.{end}.ordered", axis)
        weights.append(f"{name}.{end}")
    biases = [np.zeros(len(order), np.float32) if b is None else b.numpy()[order] for b in (driving_bias, module.bias)]
    bias = writer.constant(f"{name}.bias", np.concatenate(biases)[None])
    direction = "reverse" if module.reverse else "forward"
    writer.node("Transpose", f"{name}.steps", perm=[1, 0, 2])
    writer.node(
        cell.onnx, f"{name}.states", *weights, bias, hidden_size=module.hidden, direction=direction, **cell.attributes
    )
    writer.node("Squeeze", f"{name}.hidden", writer.constant(f"{name}.directions", np.array([1])))
    writer.node("Transpose", name, perm=[1, 0, 2])


class SelfAttention(nn.Module):
    """``nn.MultiheadAttention`` of a sequence with itself, for use: no dropout, no masks, no weights returned."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.channels, self.heads = channels, heads
        self.in_weight = nn.Parameter(torch.zeros(3 * channels, channels), requires_grad=False)
        self.in_bias = nn.Parameter(torch.zeros(3 * channels), requires_grad=False)
        self.out_weight = nn.Parameter(torch.zeros(channels, channels), requires_grad=False)
        self.out_bias = nn.Parameter(torch.zeros(channels), requires_grad=False)

    @classmethod
    def of(cls, module: nn.MultiheadAttention) -> "SelfAttention":
        attention = cls(module.embed_dim, module.num_heads)
        source: Any = module
        attention.in_weight.data = source.in_proj_weight.detach().clone()
        attention.out_weight.data = source.out_proj.weight.detach().clone()
        if source.in_proj_bias is not None:
            attention.in_bias.data = source.in_proj_bias.detach().clone()
            attention.out_bias.data = source.out_proj.bias.detach().clone()
        return attention

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.conv1d(x, self.in_weight[..., None], self.in_bias)
        query, key, value = mixed.unflatten(1, (3, self.heads, -1)).mT.unbind(1)  # (N, heads, T, C of a head)
        attended = F.scaled_dot_product_attention(query, key, value)
        return F.conv1d(attended.mT.flatten(1, 2), self.out_weight[..., None], self.out_bias)

    def extra_repr(self) -> str:
        return f"{self.channels}, heads={self.heads}"


class SelfAttentionKind(OfTokens):
    name, module, number = "self-attention", SelfAttention, 34
    arguments: ClassVar[Mapping[str, Argument]] = {"channels": Size(), "heads": Size()}
    weights = ("in_weight", "out_weight")

    def num_flops(self, module: SelfAttention, arriving: Sequence[Shape], leaving: Shape) -> int:
        """Two a weight and token, and two products of all tokens with all others over the channels."""
        examples, channels, tokens = leaving
        weights = module.in_weight.numel() + module.out_weight.numel()
        return 2 * examples * tokens * (weights + 2 * tokens * channels)

    def check(self, described: Mapping[str, Any]) -> None:
        bounded(described["channels"], described["channels"])
        if described["channels"] % bounded(described["heads"]):
            raise ValueError(f"{described['channels']} channels for {described['heads']} heads")

    def read(self, entry: Sequence[Any], file: FileReader) -> None:
        if len(entry) != 2:
            raise unknown(entry)
        heads, tokens = entry[1], file.shape[-1]
        if type(heads) is not int or heads * tokens**2 > LARGEST_SIZE:
            raise ValueError(f"attention of {str(heads)[:60]} heads over {tokens} places")
        super().read(entry, file)

    def to_onnx(self, module: SelfAttention, name: str, writer: OnnxWriter) -> None:
        """``V softmax(Q^T K / sqrt(d))^T`` for each head, between two products over the channels."""
        channels, _ = writer.arriving[name]
        width = channels // module.heads
        _product(writer, f"{name}.mixed", module.in_weight, module.in_bias)
        _reshape(writer, f"{name}.heads", 0, 3, module.heads, width, -1)
        heads = writer.value
        for place, key in enumerate(("query", "key", "value")):
            index = writer.constant(f"{name}.{key}.place", np.array([place]))
            writer.side_node("Gather", f"{name}.{key}", heads, index, axis=1)
        writer.side_node("Transpose", f"{name}.asked", f"{name}.query", perm=[0, 1, 2, 4, 3])
        writer.value = f"{name}.asked"
        writer.node("MatMul", f"{name}.products", f"{name}.key")
        writer.node("Mul", f"{name}.scores", writer.number(f"{name}.scale", width**-0.5))
        writer.node("Softmax", f"{name}.shares", axis=-1)
        writer.side_node("Transpose", f"{name}.given", writer.value, perm=[0, 1, 2, 4, 3])
        writer.value = f"{name}.value"
        writer.node("MatMul", f"{name}.attended", f"{name}.given")
        _reshape(writer, f"{name}.together", 0, channels, -1)
        _product(writer, name, module.out_weight, module.out_bias)

    def examples(self) -> Sequence[Example]:
        attention = SelfAttention(4, 2)
        for numbers in attention.parameters():
            numbers.data.normal_(generator=torch.Generator().manual_seed(0))
        return [(attention, ((2, 4, 3),))]


def _product(writer: OnnxWriter, name: str, weight: Tensor, bias: Tensor) -> None:
    """A linear layer on the channels of each token."""
    kernel = writer.constant(f"{name}.weight", weight[..., None].numpy())
    writer.node("Conv", name, kernel, writer.constant(f"{name}.bias", bias.numpy()), kernel_shape=[1])


def _reshape(writer: OnnxWriter, name: str, *sizes: int) -> None:
    """A size of 0 is that of the batch, as it comes."""
    writer.node("Reshape", name, writer.constant(f"{name}.shape", np.array(sizes)))
