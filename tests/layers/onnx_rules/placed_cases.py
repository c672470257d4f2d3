"""Calls that move numbers, pick them by whole numbers, slide windows over them or go from step to step."""

from typing import Any

import torch
from torch import Tensor

from bhc.layers.aten import Dtype, Own, SizeOf

from .cases import BATCH, IMAGES, INTS, OWN, OWN1, R0, R1, R2, TRUTHS, TWO, Case, call, numbers

MOVEMENT = [
    call("reshape", R0, [BATCH, 2, 6]),
    call("reshape", R0, [-1, 12]),
    call("reshape", R0, [SizeOf(((0, 0),), 3), 4]),
    call("reshape", R0, [3, BATCH, 4]),
    call("reshape", OWN, [1, 1, 6], own=(numbers(2, 3),)),
    call("reshape", R0, [BATCH, 12], dtypes=("int8",)),
    call("reshape", OWN, [SizeOf(((0, 0), (0, 1)), 2), -1], own=(numbers(60),), shapes=((3,),)),
    call("permute", R0, [0, 2, 1]),
    call("permute", R0, [-1, 0, 1], dtypes=(TRUTHS,)),
    call("swapaxes", R0, 1, -1),
    call("expand", R0, [BATCH, 3, 5, 4], shapes=((3, 1, 4),)),
    call("expand", R0, [2, -1, 3, -1]),
    call("expand", OWN, [BATCH, 5, 4], own=(numbers(1, 5, 4),)),
    call("expand_as", R0, R1, shapes=((1, 4), (3, 4))),
    call("reshape_as", R0, R1, shapes=((3, 4), (2, 6))),
    call("copy", R0, R1, shapes=((3, 4), (1, 4)), dtypes=("float32", INTS)),
    call("slice.Tensor", R0, 1, 1, 3),
    call("slice.Tensor", R0, -1, -3, -1),
    call("slice.Tensor", R0, 2, 0, None, 2),
    call("slice.Tensor", R0, 1, None, 1 << 62, dtypes=(TRUTHS,)),
    call("slice.Tensor", OWN, 0, 0, BATCH, own=(numbers(7, 3),)),
    call("select.int", R0, 1, 2),
    call("select.int", R0, -1, -1, dtypes=("uint8",)),
    call("cat", [R0, R1, R0], 1, shapes=((3, 4), (1, 4))),
    call("cat", [R0, R0], 0),
    call("cat", [R0, R1], 1, shapes=TWO, dtypes=(INTS, "float32")),
    call("stack", [R0, R1], 1, shapes=TWO),
    call("stack", [R0, R1], -1, shapes=TWO, dtypes=(TRUTHS, INTS)),
    call("pad", R0, [1, 2]),
    call("pad", R0, [1, 0, 0, 2], "constant", 0.5),
    call("pad", R0, [-1, 1, 2, 0]),
    call("pad", R0, [1, 1], dtypes=(INTS,)),
    call("pad", R0, [1, 1], value=1.0, dtypes=(TRUTHS,)),
    call("constant_pad_nd", R0, [1, 2, 0, 1], 3),
    *[call("pad", R0, [1, 2, 2, 1], mode, shapes=IMAGES) for mode in ("reflect", "replicate", "circular")],
    call("flip", R0, [1, -1]),
    call("roll", R0, [1, -2], [1, 2]),
    call("roll", R0, [7], [-1], dtypes=(INTS,)),
    call("roll", R0, [4], [2]),
    call("repeat", R0, [1, 2, 3]),
    call("repeat", R0, [2, 1, 1, 2]),
    call("repeat", OWN, [BATCH, 1], own=(numbers(3),)),
    call("tile", R0, [2]),
    call("tile", R0, [2, 1, 1, 3]),
    call("pixel_shuffle", R0, 2, shapes=((8, 3, 2),)),
    call("pixel_unshuffle", R0, 2, shapes=((3, 4, 6),)),
    *[
        call(name, R0, diagonal, dtypes=(dtype,))
        for name in ("tril", "triu")
        for diagonal, dtype in ((0, "float32"), (1, INTS), (-1, TRUTHS), (0, "int32"))
    ],
    *[call("meshgrid.indexing", [OWN, OWN1], indexing=order, own=(numbers(3), numbers(4)), pick=pick)
      for order in ("ij", "xy") for pick in (0, 1)],
    call("slice_scatter", R0, R1, 1, 1, 3, shapes=((4, 5), (2, 5))),
    call("slice_scatter", R0, R1, 0, 0, 1 << 62, shapes=TWO),
    call("slice_scatter", R0, R1, 1, -3, -1, shapes=((4, 5), (2, 5))),
    call("select_scatter", R0, R1, 1, -1, shapes=((4, 5), (5,)), dtypes=("float32", INTS)),
    call("select_scatter", R0, R1, 1, -2, shapes=((4, 5), (5,))),
    *[call(name, [BATCH, 3]) for name in ("zeros", "ones")],
    call("zeros", [2, 3], dtype=Dtype(INTS)),
    call("full", [BATCH, 3], 2.5),
    call("full", [3], True, dtype=Dtype(TRUTHS)),
    *[call(name, R0, [BATCH, 2]) for name in ("new_zeros", "new_ones")],
    call("new_full", R0, [BATCH, 2], 1.5, dtypes=(INTS,)),
    *[call(name, R0, dtypes=(dtype,)) for name in ("zeros_like", "ones_like") for dtype in ("float32", TRUTHS)],
    call("full_like", R0, 3.5),
    call("fill.Scalar", R0, 3.5),
    call("fill.Tensor", R0, OWN, own=(torch.tensor(2),)),
    call("zero", R0),
    call("arange", 5),
    call("arange", BATCH),
    call("arange.start", -1, BATCH, dtype=Dtype("float32")),
    call("arange.start_step", 1, 8, 2),
    call("arange.start_step", 0, 1, 0.1),
    call("linspace", -1, 2, 7),
    call("eye", 4),
    call("eye.m", 4, 3),
]  # fmt: skip

INDEX = torch.tensor([[0, 2], [1, -1]])
INDEXING = [
    call("embedding", OWN, R0, own=(numbers(4, 5),), shapes=((6,),), dtypes=(INTS,), positive=True),
    call("embedding", OWN, R0, 0, own=(numbers(4, 5),), shapes=((2, 3),), dtypes=("int32",), positive=True),
    call("index_select", R0, 1, OWN, own=(torch.tensor([2, 0, 2]),)),
    call("gather", R0, 1, R1, shapes=((4, 3), (2, 3)), dtypes=("float32", INTS), positive=True),
    call("gather", R0, -1, R1, shapes=((3, 4), (2, 3)), dtypes=("float32", INTS), positive=True),
    call("take_along_dim", R0, R1, 1, shapes=((4, 3), (2, 1)), dtypes=("float32", INTS), positive=True),
    call("scatter.src", R0, 2, R1, R2, shapes=((3, 6), (3, 1), (3, 1)), dtypes=("float32", INTS), positive=True),
    call("scatter.value", R0, 2, R1, 2.5, shapes=((3, 4), (3, 2)), dtypes=("float32", INTS), positive=True),
    call("scatter_add", R0, 1, R1, R2, shapes=((4, 3), (5, 3), (5, 3)), dtypes=("float32", INTS), positive=True),
    call("one_hot", R0, 5, dtypes=(INTS,), positive=True),
    call("repeat_interleave.self_int", R0, 3, 1),
    call("repeat_interleave.self_int", R0, 2, 0),
    call("unfold", R0, 2, 3, 2, shapes=((3, 8),)),
    call("unfold", R0, 1, 2, 1),
    call("diagonal", R0, 0, 1, 2),
    call("diagonal", R0, 1, -1, 1),
    call("diagonal", R0, -1, 1, 2, shapes=((5, 3),)),
    call("index.Tensor", R0, [None, OWN], own=(torch.tensor([2, 0, -1]),)),
    call("index.Tensor", R0, [None, None, OWN], own=(INDEX,)),
    call("index.Tensor", R0, [None, OWN, OWN1], own=(INDEX, torch.tensor([3, 1]))),
    call("index.Tensor", R0, [None, OWN, None, OWN1], own=(INDEX, torch.tensor([0, 1])), shapes=((3, 4, 2),)),
    call("index.Tensor", R0, [None, None, OWN, OWN1], own=(INDEX, INDEX), shapes=((2, 3, 4, 5),)),
    call("index.Tensor", OWN, [R0], own=(numbers(4, 5),), shapes=((2,),), dtypes=(INTS,)),
    call(
        "index.Tensor", OWN, [R0, R1], own=(numbers(4, 5),), shapes=((2, 1), (2, 3)), dtypes=(INTS, INTS), positive=True
    ),
]

LINE, VOLUME = ((4, 9),), ((4, 5, 6, 4),)
BEYOND_IMAGES = ((4, 7, 9),)
WINDOWS = [
    call("conv1d", R0, OWN, OWN1, [2], [1], [2], 2, own=(numbers(6, 2, 3), numbers(6)), shapes=LINE),
    call("conv2d", R0, OWN, OWN1, own=(numbers(3, 4, 2, 3), numbers(3)), shapes=IMAGES),
    call("conv2d", R0, OWN, None, [2, 1], [1, 2], [1, 2], 4, own=(numbers(4, 1, 3, 3),), shapes=IMAGES),
    call("conv3d", R0, OWN, own=(numbers(2, 4, 2, 2, 2),), shapes=VOLUME),
    call("conv2d.padding", R0, OWN, None, [1], "same", [2], own=(numbers(3, 4, 2, 3),), shapes=IMAGES),
    call("conv3d.padding", R0, OWN, None, [1], "same", own=(numbers(3, 4, 2, 2, 3),), shapes=VOLUME),
    call("conv1d.padding", R0, OWN, None, [2], "valid", own=(numbers(3, 4, 2),), shapes=LINE),
    call("conv_transpose1d", R0, OWN, OWN1, [2], [1], [1], own=(numbers(4, 3, 3), numbers(3)), shapes=LINE),
    call("conv_transpose2d.input", R0, OWN, None, [2, 3], [1, 0], [1, 2], 2, [1, 2],
         own=(numbers(4, 3, 3, 2),), shapes=IMAGES),
    call("conv_transpose3d.input", R0, OWN, own=(numbers(4, 1, 2, 2, 2),), shapes=VOLUME),
    call("convolution", R0, OWN, OWN1, [1, 1], [1, 1], [1, 1], False, [0, 0], 1,
         own=(numbers(3, 4, 3, 3), numbers(3)), shapes=IMAGES),
    call("convolution", R0, OWN, None, [2], [1], [1], True, [1], 1, own=(numbers(4, 2, 3),), shapes=LINE),
    *[
        call(f"max_pool{len(shapes[0]) - 1}d", R0, [3], [2], [1], [1], ceil, shapes=shapes)
        for shapes in (LINE, IMAGES, VOLUME)
        for ceil in (False, True)
    ],
    call("max_pool2d", R0, [2, 3], [], [0], [2, 1], True, shapes=BEYOND_IMAGES),
    call("max_pool2d", R0, [4], [4], [0], [1], True, shapes=BEYOND_IMAGES),
    call("max_pool2d_with_indices", R0, [2], pick=0, shapes=IMAGES),
    call("max_pool3d_with_indices", R0, [2], pick=0, shapes=VOLUME),
    *[call("max_pool2d_with_indices", R0, [3], [2], [1], pick=pick, shapes=IMAGES) for pick in (0, 1)],
    call("max_unpool2d", R0, R1, [2, 2], shapes=((4, 1, 1), (4, 1, 1)), dtypes=("float32", INTS), positive=True),
    *[
        call(f"avg_pool{len(shapes[0]) - 1}d", R0, [3], [2], [1], ceil, include, shapes=shapes)
        for shapes in (LINE, BEYOND_IMAGES, VOLUME)
        for ceil in (False, True)
        for include in (False, True)
    ],
    call("avg_pool2d", R0, [4], [3], [0], True, shapes=BEYOND_IMAGES),
    call("avg_pool2d", R0, [2], [2], [1], False, True, 3, shapes=IMAGES),
    call("avg_pool2d", R0, [3], [2], [1], True, False, 5, shapes=BEYOND_IMAGES),
    *[
        call(f"adaptive_{name}_pool{len(shapes[0]) - 1}d", R0, [size] * (len(shapes[0]) - 1), shapes=shapes,
             pick=0 if name == "max" else None)
        for name in ("avg", "max") for shapes in (LINE, ((4, 6, 9),), VOLUME) for size in (1, 3)
    ],
    call("adaptive_avg_pool2d", R0, [7, 2], shapes=((4, 5, 5),)),
    call("im2col", R0, [2, 3], [1, 2], [1, 0], [2, 1], shapes=IMAGES),
    call("col2im", R0, [5, 6], [2, 3], [1, 2], [1, 0], [2, 1], shapes=((12, 6),)),
    call("col2im", R0, [4, 4], [2, 2], [1, 1], [0, 0], [2, 2], shapes=((12, 4),)),
    *[call(f"upsample_nearest{len(shapes[0]) - 1}d.vec", R0, None, [2.0] * (len(shapes[0]) - 1), shapes=shapes)
      for shapes in (LINE, IMAGES, VOLUME)],
    call("upsample_nearest2d.vec", R0, [7, 11], None, shapes=IMAGES),
    call("upsample_nearest2d.vec", R0, None, [1.5, 2.5], shapes=IMAGES),
    call("upsample_nearest2d.vec", R0, None, [1.3, 0.7], shapes=IMAGES),
    call("upsample_nearest2d", R0, [7, 11], shapes=IMAGES),
    call("upsample_bilinear2d", R0, [7, 11], False, shapes=IMAGES),
    *[
        call(f"{name}.vec", R0, size, align, factors, shapes=shapes)
        for align in (False, True)
        for name, size, factors, shapes in (
            ("upsample_linear1d", [13], None, LINE), ("upsample_linear1d", None, [2.0], LINE),
            ("upsample_bilinear2d", [9, 4], None, IMAGES), ("upsample_bilinear2d", None, [2.0, 1.5], IMAGES),
            ("upsample_bilinear2d", [1, 1], None, IMAGES),
            ("upsample_bicubic2d", [9, 8], None, IMAGES), ("upsample_trilinear3d", [7, 8, 9], None, VOLUME),
        )
    ],
    *[
        call("grid_sampler", R0, R1, mode, padding, align, shapes=((3, 5, 6), (4, 4, 2)))
        for mode, padding, align in ((0, 0, False), (0, 1, True), (1, 2, False))
    ],
]  # fmt: skip


def gates(count: int, *, layers: int = 1, directions: int = 1, biases: bool = True) -> tuple[Tensor, ...]:
    """Numbers of a recurrent layer of 3 inputs and 4 states, after one tensor for the states."""
    made = []
    for layer in range(layers):
        for _ in range(directions):
            width = 3 if layer == 0 else 4 * directions
            made += [numbers(4 * count, width), numbers(4 * count, 4), *([numbers(4 * count)] * 2 if biases else [])]
    return tuple(made)


def recurrent(operator: str, gates_of_one: int, pick: int = 0, *, first: bool = True, **more: Any) -> Case:
    own = gates(gates_of_one, **more)
    layers, directions = more.get("layers", 1), more.get("directions", 1)
    states = [R1, R2] if operator == "lstm.input" else R1
    rest = [more.get("biases", True), layers, 0.0, False, directions == 2, first]
    parameters = [Own(f"own{place}") for place in range(len(own))]
    count = 2 if operator == "lstm.input" else 1
    shapes = ((5, 3), *[(layers * directions, 4)] * count)
    turned = (*([] if first else [0]), *range(1, 1 + count))
    return call(operator, R0, states, parameters, *rest, own=own, pick=pick, shapes=shapes, turned=turned)


def cell(operator: str, gates_of_one: int, pick: int | None = None, *, biases: bool = True) -> Case:
    own = gates(gates_of_one, biases=biases)
    states = [R1, R2] if operator == "lstm_cell" else R1
    shapes = ((3,), *[(4,)] * (2 if operator == "lstm_cell" else 1))
    parameters = [Own(f"own{place}") for place in range(len(own))]
    return call(operator, R0, states, *parameters, own=own, pick=pick, shapes=shapes)


GATES = [
    *[recurrent("lstm.input", 4, pick) for pick in (0, 1, 2)],
    recurrent("lstm.input", 4, biases=False, first=False),
    *[recurrent("lstm.input", 4, pick, layers=2, directions=2) for pick in (0, 1, 2)],
    *[recurrent("gru.input", 3, pick) for pick in (0, 1)],
    recurrent("gru.input", 3, layers=2, directions=2),
    recurrent("gru.input", 3, 1, biases=False, layers=3),
    *[recurrent(f"{name}.input", 1, pick) for name in ("rnn_tanh", "rnn_relu") for pick in (0, 1)],
    recurrent("rnn_relu.input", 1, layers=2, directions=2),
    *[cell("lstm_cell", 4, pick) for pick in (0, 1)],
    cell("gru_cell", 3),
    cell("rnn_tanh_cell", 1),
    cell("rnn_relu_cell", 1, biases=False),
]
