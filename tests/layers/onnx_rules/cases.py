"""Calls of torch's operators, with the shapes of what they read: (N, ...), the batch first."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from bhc.formats import QuantisedNetwork
from bhc.graph import INPUT, Graph, Step
from bhc.layers import EXAMPLES, NetworkInput, call_of
from bhc.layers.aten import Device, Dtype, Own, Read, SizeOf
from bhc.layers.aten import traced as traced_call

R0, R1, R2 = Read(0), Read(1), Read(2)
OWN, OWN1, OWN2, OWN3 = (Own(f"own{place}") for place in range(4))
BATCH = SizeOf(((0, 0),))
INTS, TRUTHS = "int64", "bool"


@dataclass(frozen=True)
class Case:
    """An operator with its arguments, the shapes and dtypes of what it reads, and its own tensors."""

    operator: str
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    shapes: tuple[tuple[int, ...], ...] = ((3, 4),)
    dtypes: tuple[str, ...] = ()
    own: tuple[Tensor, ...] = ()
    pick: int | None = None
    positive: bool = False
    words: int = 4  # whole numbers are below, and not below zero where they are positive
    turned: tuple[int, ...] = ()  # values of which the call reads the second axis as its first

    def dtype(self, place: int) -> str:
        return self.dtypes[place] if place < len(self.dtypes) else "float32"

    @property
    def target(self) -> str:
        return f"aten.{self.operator}" if "." in self.operator else f"aten.{self.operator}.default"

    def network(self) -> QuantisedNetwork:
        places = range(len(self.shapes))
        own = {
            f"own{place}": nn.Parameter(numbers, requires_grad=False) if numbers.is_floating_point() else numbers
            for place, numbers in enumerate(self.own)
        }
        dtypes = {place: self.dtype(place) for place in places if self.dtype(place) != "float32"}
        call = call_of(self.target, list(self.arguments), self.named, own, self.pick, dtypes)
        given = [Step(f"x{at}", NetworkInput(f"x{at}", at, self.shapes[at], self.dtype(at)), (INPUT,)) for at in places]
        turns = [
            Step(f"turned{at}", call_of("aten.permute.default", [R0, [1, 0, 2]]), (f"x{at}",)) for at in self.turned
        ]
        reads = tuple(f"turned{at}" if at in self.turned else f"x{at}" for at in places)
        steps = [*given, *turns, Step("call", call, reads)]
        shapes = [(EXAMPLES, *shape) for shape in self.shapes]
        result = traced_call(call, [(s[1], s[0], s[2]) if at in self.turned else s for at, s in enumerate(shapes)])
        if result.dtype != torch.float32:
            name = str(result.dtype).removeprefix("torch.")
            floats = call_of("aten._to_copy.default", [R0], {"dtype": Dtype("float32")}, {}, None, {0: name})
            steps.append(Step("floats", floats, ("call",)))
        width = result.shape[-1] if result.dim() else 1
        return QuantisedNetwork(Graph(steps).eval(), (), tuple(range(width)))

    def values(self, count: int) -> tuple[Tensor, ...]:
        draws = torch.Generator().manual_seed(count)
        return tuple(self._value((count, *shape), self.dtype(at), draws) for at, shape in enumerate(self.shapes))

    def _value(self, shape: Sequence[int], dtype: str, draws: torch.Generator) -> Tensor:
        if dtype == "float32":
            numbers = torch.randn(shape, generator=draws)
            return numbers.abs() + 0.1 if self.positive else numbers
        if dtype == TRUTHS:
            return torch.rand(shape, generator=draws) > 0.4
        lowest = 0 if self.positive else -self.words
        return torch.randint(lowest, self.words, shape, generator=draws).to(getattr(torch, dtype))


def call(operator: str, *arguments: Any, **more: Any) -> Case:
    fields = {name: more.pop(name) for name in list(more) if name in Case.__dataclass_fields__}
    return Case(operator, arguments, more, **fields)


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


FLOATS_AND_INTS = [("float32",), (INTS,), ("int32",), ("uint8",)]
TWO = ((3, 4), (3, 4))

FUNCTIONS = (
    "exp", "exp2", "expm1", "sin", "cos", "tan", "atan", "sinh", "cosh", "erf", "tanh", "sigmoid", "abs", "neg", "sign",
    "relu", "selu", "hardswish", "hardsigmoid", "square", "frac", "silu", "mish", "log_sigmoid", "relu6", "hardtanh",
    "gelu", "leaky_relu", "celu", "hardshrink", "softshrink", "elu", "floor", "ceil", "round", "trunc", "isnan",
    "isinf",
)  # fmt: skip

POINTWISE = [
    *[call(name, R0) for name in FUNCTIONS],
    *[call(name, R0, positive=True) for name in ("log", "log2", "log10", "log1p", "sqrt", "rsqrt", "reciprocal")],
    call("hardtanh", R0, -0.5, 0.7),
    call("gelu", R0, approximate="tanh"),
    call("leaky_relu", R0, 0.3),
    call("celu", R0, 0.7),
    call("elu", R0, 0.7, 1.3, 1),
    call("softplus", R0),
    call("softplus", R0, 2.0, 0.5),
    call("threshold", R0, 0.3, -2.0),
    call("prelu", R0, OWN, own=(numbers(3),)),
    call("prelu", R0, OWN, own=(numbers(1),)),
    call("glu", R0),
    call("glu", R0, 1, shapes=((4, 3),)),
    *[call(name, R0, dtypes=(INTS,)) for name in ("abs", "neg", "sign", "floor", "round", "square", "sqrt", "exp")],
    call("abs", R0, dtypes=("int8",)),
    *[
        call(f"{name}.Tensor", R0, R1, shapes=TWO, dtypes=(left, right))
        for name in ("add", "mul", "eq", "ne", "lt", "le", "gt", "ge")
        for left, right in [("float32", "float32"), ("float32", INTS), (INTS, INTS), (TRUTHS, TRUTHS), ("int8", INTS)]
    ],
    *[call(f"{name}.Tensor", R0, R1, shapes=TWO) for name in ("sub", "div", "rsub")],
    call("sub.Tensor", R0, R1, shapes=((3, 4), (1, 4)), alpha=0.5),
    call("add.Tensor", R0, OWN, own=(numbers(3, 1),), alpha=2),
    call("add.Tensor", R0, OWN, own=(torch.tensor(2),), dtypes=("uint8",)),
    *[call(f"{name}.Scalar", R0, 1.5) for name in ("add", "sub", "mul", "div", "rsub", "eq", "ne", "lt", "ge")],
    *[call(f"{name}.Scalar", R0, 1.5, dtypes=(INTS,)) for name in ("add", "mul", "div", "lt", "ge")],
    *[call(f"{name}.Scalar", R0, 2, dtypes=(INTS,)) for name in ("sub", "rsub", "eq", "ne", "gt", "le", "div")],
    call("mul.Tensor", R0, BATCH),
    call("div.Tensor", R0, R1, shapes=TWO, dtypes=(INTS, "float32")),
    *[
        call("div.Tensor_mode", R0, OWN, own=(own,), rounding_mode=mode, dtypes=(dtype,))
        for mode in ("floor", "trunc")
        for own, dtype in ((torch.tensor([2, 3, -2, -5]), INTS), (torch.tensor([2.0, 0.7, -2.2, -5.0]), "float32"))
    ],
    call("floor_divide", R0, OWN, own=(torch.tensor(-3),), dtypes=(INTS,)),
    call("div.Scalar_mode", R0, 0.3, rounding_mode="floor"),
    *[call(f"{name}.Scalar", R0, -3, dtypes=(dtype,)) for name in ("remainder", "fmod") for dtype in ("float32", INTS)],
    *[call("pow.Tensor_Scalar", R0, power, positive=True) for power in (2, 0.5, 3, -1.5)],
    call("pow.Tensor_Scalar", R0, 3, dtypes=(INTS,)),
    call("pow.Scalar", 2.0, R0),
    *[
        call(f"{name}.Tensor", R0, OWN, own=(torch.tensor([2, -3, 1, -2]),), dtypes=(dtype,))
        for name in ("remainder", "fmod")
        for dtype in ("float32", INTS)
    ],
    call("pow.Tensor_Tensor", R0, R1, shapes=TWO, positive=True),
    *[call(name, R0, R1, shapes=TWO) for name in ("maximum", "minimum", "atan2")],
    *[call(name, R0, R1, shapes=TWO, dtypes=(INTS, INTS)) for name in ("maximum", "minimum")],
    call("max.other", R0, R1, shapes=TWO),
    call("min.other", R0, R1, shapes=TWO),
    call("multiply.Tensor", R0, R1, shapes=TWO),
    call("lerp.Scalar", R0, R1, 0.3, shapes=TWO),
    call("lerp.Tensor", R0, R1, OWN, shapes=TWO, own=(numbers(4),)),
    call("addcmul", R0, R1, R2, shapes=((3, 4), (3, 1), (1, 4)), value=0.5),
    call("addcdiv", R0, R1, R2, shapes=((3, 4), (3, 1), (3, 4)), positive=True),
    call("clamp", R0, -0.5, 0.5),
    call("clamp", R0, None, 0.5),
    call("clamp", R0, 1, dtypes=(INTS,)),
    call("clamp", R0, 0.5, dtypes=(INTS,)),
    call("clamp.Tensor", R0, OWN, own=(numbers(4),)),
    call("clamp_min", R0, 0.1),
    call("clamp_max", R0, 0.1),
    call("clamp_min.Tensor", R0, OWN, own=(numbers(4),)),
    call("clamp_max.Tensor", R0, OWN, own=(numbers(4),)),
    call("where.self", R0, R1, R2, shapes=((3, 1), (3, 4), (1, 4)), dtypes=(TRUTHS,)),
    call("where.self", R0, R1, R2, shapes=((4,), (4,), (4,)), dtypes=(TRUTHS, INTS, "float32")),
    call("where.self", R0, R1, R2, shapes=((4,), (4,), (4,)), dtypes=(TRUTHS,) * 3),
    call("where.ScalarOther", R0, R1, -2.0, shapes=((4,), (4,)), dtypes=(TRUTHS,)),
    call("where.ScalarSelf", R0, 1, R1, shapes=((4,), (4,)), dtypes=(TRUTHS, INTS)),
    call("where.Scalar", R0, 1.0, 0.0, dtypes=(TRUTHS,)),
    call("masked_fill.Scalar", R0, R1, -1e9, shapes=((3, 4), (1, 4)), dtypes=("float32", TRUTHS)),
    call("masked_fill.Scalar", R0, OWN, float("-inf"), own=(torch.tensor([True, False, True, False]),)),
    call("masked_fill.Tensor", R0, OWN, OWN1, own=(torch.tensor([True, False, True, False]), torch.tensor(2.0))),
    call("nan_to_num", R0),
    *[call(name, R0, R1, shapes=TWO, dtypes=(TRUTHS, INTS)) for name in ("logical_and", "logical_or", "logical_xor")],
    call("logical_not", R0, dtypes=(TRUTHS,)),
    call("logical_not", R0),
    *[
        call(f"{name}.Tensor", R0, R1, shapes=TWO, dtypes=(dtype, dtype))
        for name in ("bitwise_and", "bitwise_or", "__and__", "__or__")
        for dtype in (TRUTHS, INTS, "uint8")
    ],
    *[call("bitwise_not", R0, dtypes=(dtype,)) for dtype in (TRUTHS, INTS)],
    *[
        call("_to_copy", R0, dtype=Dtype(to), dtypes=(dtype,))
        for to in ("float32", INTS, TRUTHS, "int32")
        for dtype in ("float32", INTS, TRUTHS)
    ],
    call("to.dtype", R0, Dtype("float32"), dtypes=("uint8",), positive=True),
    call("type_as", R0, R1, shapes=TWO, dtypes=(INTS, "float32")),
    call("to.dtype_layout", R0, dtype=Dtype("float32"), dtypes=(INTS,)),
    call("to.device", R0, Device(), Dtype("float32"), dtypes=(TRUTHS,)),
    call("lift_fresh_copy", R0),
]

REDUCTIONS = [
    *[
        call(name, R0, axes, keep)
        for name in ("mean.dim", "sum.dim_IntList", "amax", "amin", "logsumexp")
        for axes, keep in (([1], False), ([-1, 1], True), ([0, 2], False))
    ],
    *[call(name, R0) for name in ("mean", "sum", "max", "min", "prod")],
    call("sum.dim_IntList", R0, [1], dtypes=(TRUTHS,)),
    call("sum.dim_IntList", R0, [1], dtypes=("int32",)),
    call("sum.dim_IntList", R0, None),
    call("mean.dim", R0, [1], dtype=Dtype("float32"), dtypes=(INTS,)),
    call("prod.dim_int", R0, 1),
    *[
        call(f"{name}.dim", R0, 1, keep, pick=pick)
        for name in ("max", "min")
        for keep in (False, True)
        for pick in (0, 1)
    ],
    call("max.dim", R0, -1, pick=1, dtypes=(INTS,), words=100),
    *[
        call(name, R0, axis, keep)
        for name in ("argmax", "argmin")
        for axis, keep in ((1, False), (-1, True), (None, False))
    ],
    call("argmax", R0, None, True),
    call("argmax", R0, -1, dtypes=(INTS,)),
    *[call(f"{name}.dim", R0, 1, keep, dtypes=(TRUTHS,)) for name in ("any", "all") for keep in (True, False)],
    *[call(name, R0, dtypes=(TRUTHS,)) for name in ("any", "all")],
    *[call(name, R0, 1, dtypes=(INTS,)) for name in ("any.dim", "all.dim")],
    *[call(name, R0, [1, 2], dtypes=(TRUTHS,)) for name in ("any.dims", "all.dims")],
    *[call(f"{name}.correction", R0, [1], correction=less) for name in ("var", "std") for less in (0, 1, None)],
    *[call(f"{name}.dim", R0, [1, 2], unbiased, True) for name in ("var", "std") for unbiased in (False, True)],
    call("var.correction", R0, [0, 2], correction=1),
    *[call("var_mean.correction", R0, [1], correction=0, pick=pick) for pick in (0, 1)],
    *[call("linalg_vector_norm", R0, order, [1]) for order in (1, 2, 3.5, float("inf"), -float("inf"), 0)],
    call("linalg_vector_norm", R0, 2, None),
    call("norm.ScalarOpt_dim", R0, 2, [-1], True),
    call("cosine_similarity", R0, R1, 1, shapes=TWO),
    *[call(name, R0, axis) for name in ("softmax.int", "log_softmax.int") for axis in (1, -1)],
    call("softmax.int", R0, -1, Dtype("float32"), dtypes=(INTS,)),
    *[call(name, R0, 1, False) for name in ("_softmax", "_log_softmax")],
    *[call("cumsum", R0, 1, dtypes=(dtype,)) for dtype in ("float32", INTS, TRUTHS)],
    *[call("topk", R0, 3, -1, largest, pick=pick) for largest in (True, False) for pick in (0, 1)],
    call("topk", R0, 2, 1, pick=0, dtypes=("uint8",), positive=True),
    call("sort.stable", R0, stable=True, dim=1, descending=True, pick=1),
    *[call("sort", R0, 1, falling, pick=pick) for falling in (True, False) for pick in (0, 1)],
    call("diff", R0, 2, 2),
    call("diff", R0, 1, -1, R1, shapes=((3, 4), (3, 1)), dtypes=(INTS, INTS)),
    call("diff", R0, 1, 1, R1, R0, shapes=((3, 4), (1, 4))),
]

IMAGES = ((4, 6, 5),)
FOUR = (numbers(4), numbers(4) + 1)
STATISTICS = (numbers(4), numbers(4).abs() + 0.1)
NORMS = [
    call("layer_norm", R0, [4], OWN, OWN1, 1e-4, own=FOUR),
    call("layer_norm", R0, [3, 4], None, None, 1e-5),
    call("layer_norm", R0, [4], OWN, own=FOUR[:1]),
    call("native_layer_norm", R0, [4], OWN, OWN1, 1e-5, own=FOUR, pick=0),
    call("rms_norm", R0, [4], OWN, 1e-5, own=FOUR[:1]),
    call("rms_norm", R0, [3, 4]),
    call("group_norm", R0, 2, OWN, OWN1, 1e-4, own=FOUR, shapes=IMAGES),
    call("group_norm", R0, 4, shapes=IMAGES),
    call("group_norm", R0, 2, shapes=((12,),)),
    call("native_group_norm", R0, OWN, OWN1, BATCH, 4, 30, 2, 1e-5, own=FOUR, shapes=IMAGES, pick=0),
    call("instance_norm", R0, OWN, OWN1, None, None, True, 0.1, 1e-5, False, own=FOUR, shapes=IMAGES),
    call("instance_norm", R0, None, None, OWN, OWN1, False, 0.1, 1e-5, False, own=STATISTICS, shapes=IMAGES),
    call("batch_norm", R0, OWN, OWN1, OWN2, OWN3, False, 0.1, 1e-5, False,
         own=FOUR + STATISTICS, shapes=IMAGES),
    call("batch_norm", R0, None, None, OWN, OWN1, False, 0.1, 1e-5, False, own=STATISTICS, shapes=((4,),)),
    call("_native_batch_norm_legit_no_training", R0, None, None, OWN, OWN1, 0.1, 1e-5,
         own=STATISTICS, shapes=IMAGES, pick=0),
]  # fmt: skip

HEADS = ((2, 5, 4), (2, 7, 4), (2, 7, 3))  # heads, places, width
SHARED = ((4, 5, 4), (2, 7, 4), (2, 7, 3))
CAUSAL = torch.ones(5, 7).tril().bool()
ATTENTION = "scaled_dot_product_attention"
CONTRACTIONS = [
    call("linear", R0, OWN, OWN1, own=(numbers(5, 4), numbers(5))),
    call("linear", R0, OWN, OWN1, own=(numbers(5, 4), numbers(5)), shapes=((4,),)),
    call("linear", R0, OWN, own=(numbers(5, 4),), shapes=((3, 2, 4),)),
    call("matmul", R0, R1, shapes=((3, 4), (4, 2))),
    call("matmul", R0, R1, shapes=((2, 3, 4), (1, 4, 5))),
    call("matmul", R0, OWN, own=(numbers(4, 6),)),
    call("matmul", R0, OWN, own=(numbers(4),)),
    call("matmul", R0, R1, shapes=((3, 4), (4, 2)), dtypes=(INTS, INTS)),
    call("bmm", R0, R1, shapes=((3, 4), (4, 2))),
    call("mm", R0, OWN, shapes=((4,),), own=(numbers(4, 6),)),
    call("mv", R0, OWN, shapes=((4,),), own=(numbers(4),)),
    call("dot", OWN, OWN1, own=FOUR),
    call("outer", OWN, OWN1, own=FOUR),
    call("addmm", OWN, R0, OWN1, shapes=((4,),), own=(numbers(6), numbers(4, 6))),
    call("addmm", OWN, R0, OWN1, shapes=((4,),), own=(numbers(6), numbers(4, 6)), alpha=0.5, beta=2),
    call("baddbmm", R0, R1, R2, shapes=((3, 2), (3, 4), (4, 2)), beta=0.5, alpha=2),
    call("baddbmm", R0, R1, R2, shapes=((3, 2), (3, 4), (4, 2)), beta=0),
    call("einsum", "bij, bjk -> bik", [R0, R1], shapes=((3, 4), (4, 2))),
    call("einsum", "...i,oi->...o", [R0, OWN], own=(numbers(5, 4),)),
    call("einsum", "nct,ncs->nts", [R0, R1], shapes=((3, 4), (3, 5))),
    call("bilinear", R0, R1, OWN, OWN1, shapes=((4,), (3,)), own=(numbers(5, 4, 3), numbers(5))),
    call("cdist", R0, R1, shapes=((3, 4), (5, 4))),
    call(ATTENTION, R0, R1, R2, shapes=HEADS),
    call(ATTENTION, R0, R1, R2, shapes=HEADS, scale=0.3),
    call(ATTENTION, R0, R1, R2, None, 0.0, True, shapes=HEADS),
    call(ATTENTION, R0, R1, R2, OWN, shapes=HEADS, own=(CAUSAL,)),
    call(ATTENTION, R0, R1, R2, OWN, shapes=HEADS, own=(CAUSAL.roll(1, 0) & (torch.arange(5) > 0)[:, None],)),
    call(ATTENTION, R0, R1, R2, OWN, shapes=HEADS, own=(numbers(5, 7),)),
    call(ATTENTION, R0, R1, R2, OWN, shapes=HEADS, own=(torch.where(CAUSAL.flip(0), 0.5, -torch.inf),)),
    call(ATTENTION, R0, R1, R2, Read(3), shapes=(*HEADS, (1, 1, 7)), dtypes=("float32",) * 3 + (TRUTHS,)),
    call(ATTENTION, R0, R1, R2, Read(3), shapes=(*HEADS, (2, 5, 7))),
    call(ATTENTION, R0, R1, R2, shapes=SHARED, enable_gqa=True),
    call(ATTENTION, R0, R1, R2, None, 0.0, True, shapes=SHARED, enable_gqa=True),
    call(ATTENTION, R0, R1, R2, shapes=((5, 4), (7, 4), (7, 3))),
]
