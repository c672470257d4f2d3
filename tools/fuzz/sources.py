"""Valid files to begin with: small networks of every kind, and files at and beyond the limits."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from tools.fuzz.envelope import joined
from torch import nn

from bhc.files import tensors_to_bytes
from bhc.formats import Codes, QuantisedNetwork, pack
from bhc.formats.bhc_content import abbreviate, to_varint
from bhc.formats.coding import Counted, dumps, encode
from bhc.graph import INPUT, Graph, Step, describe
from bhc.layers import (
    Add,
    Affine,
    Concat,
    Embed,
    GlobalMean,
    Multiply,
    NetworkInput,
    Normalise,
    PadChannels,
    Recurrence,
    Select,
    Subsample,
    call_of,
)
from bhc.layers.aten import Dtype, Own, Read, SizeOf
from bhc.layers.calls import NUMBERS

CARD = {
    "context": {"classes": [3, 4, 7]},
    "threshold": -0.75,
    "scale": 0.5,
    "architecture_before": [6, 8],
    "weights_before": 9000,
    "parameter_bytes_before": 40000,
    "flops_before": 18000,
    "images": 200,
    "wrong_before": 1,
    "wrong": 3,
    "reference_bits": [4, 5],
    "rescued": [1],
    "outside": [-2.0, -1.0],
    "class_names": ["three", "four", "größer"],
}


def make_sources(seed: int = 0) -> list[bytes]:
    """Small networks with all that a file can hold, in both versions."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    chains = [_lenet_5(rng), _lenet_300(rng), _activations(rng), _sound(rng), _volume(rng), _sequences(rng), _floats()]
    branching = [_residual(rng), _squeezed(rng), _calls(rng), _several_inputs(rng)]
    return [*map(pack, [*chains, *branching]), _version_1()]


def _sequences(rng: np.random.Generator) -> QuantisedNetwork:
    graph = _named(
        scale=Normalise(0.0, 2.0),
        drive=nn.Linear(2, 12),
        lstm=Recurrence("lstm", 3, bias=False),
        kept=Select(torch.tensor([0, 2]), 2),
        gates=nn.Linear(2, 6, bias=False),
        gru=Recurrence("gru", 2, reverse=True),
        flat=nn.Flatten(),
        fc=nn.Linear(10, 3),
    )
    return _quantised(
        graph, (5, 2), rng, {"drive": 4, "lstm": 7, "gates": 3, "gru": 2, "fc": 20}, biased=["drive", "gru"]
    )


def _named(**steps: nn.Module) -> Graph:
    return Graph.chain(steps.items())


def _lenet_5(rng: np.random.Generator) -> QuantisedNetwork:
    graph = _named(
        normalise=Normalise(0.0, 255.0),
        conv1=nn.Conv2d(1, 3, 3, padding="same"),
        relu=nn.ReLU(),
        pool=nn.MaxPool2d(2),
        conv2=nn.Conv2d(3, 4, (3, 2), stride=2, padding=1, dilation=2, bias=False),
        average=nn.AvgPool2d((2, 1), 1),
        flatten=nn.Flatten(),
        kept=Select(torch.tensor([0, 3, 4, 5])),
        fc=nn.Linear(4, 3),
    )
    return _quantised(graph, (1, 10, 12), rng, {"conv1": 3, "conv2": 9, "fc": 40}, biased=["conv1", "fc"])


def _lenet_300(rng: np.random.Generator) -> QuantisedNetwork:
    graph = _named(
        normalise=Normalise(0.5, 16.0),
        flatten=nn.Flatten(),
        kept=Select(torch.from_numpy(np.sort(rng.permutation(64)[:21]))),
        fc1=nn.Linear(21, 12),
        relu=nn.ReLU(),
        fc2=nn.Linear(12, 3),
    )
    return _quantised(graph, (1, 8, 8), rng, {"fc1": 2, "fc2": 20000}, biased=["fc1"])


def _activations(rng: np.random.Generator) -> QuantisedNetwork:
    steps = [nn.ReLU6(), nn.LeakyReLU(0.1), nn.ELU(0.5), nn.SELU(), nn.GELU("tanh"), nn.SiLU(), nn.Tanh()]
    steps += [nn.Sigmoid(), nn.Hardswish(), nn.Hardsigmoid(), nn.Softplus(0.5, 2.0)]
    modules = [nn.Linear(5, 4, bias=False), *steps, nn.Linear(4, 3)]
    graph = Graph.chain((str(place), module) for place, module in enumerate(modules))
    return _quantised(graph, (5,), rng, {"0": 0, "12": 1}, biased=[])


def _residual(rng: np.random.Generator) -> QuantisedNetwork:
    graph = Graph(
        [
            Step("normalise", Normalise([0.5, -1.0], [2.0, 64.0]), (INPUT,)),
            Step("stem", nn.Conv2d(2, 3, 3, padding=1), ("normalise",)),
            Step("relu", nn.ReLU(), ("stem",)),
            Step("down", nn.Conv2d(3, 5, 3, stride=2, padding=1, bias=False), ("relu",)),
            Step("affine", Affine(5), ("down",)),
            Step("fewer", Subsample(2), ("relu",)),
            Step("more", PadChannels(1, 1), ("fewer",)),
            Step("add", Add(), ("affine", "more")),
            Step("mean", GlobalMean(False), ("add",)),
            Step("fc", nn.Linear(5, 3), ("mean",)),
        ]
    )
    return _quantised(graph, (2, 6, 5), rng, {"stem": 3, "down": 0, "fc": 40}, biased=["stem"])


def _squeezed(rng: np.random.Generator) -> QuantisedNetwork:
    graph = Graph(
        [
            Step("wide", nn.Conv2d(1, 4, 1), (INPUT,)),
            Step("deep", nn.Conv2d(4, 4, 3, padding="same", groups=4), ("wide",)),
            Step("squeeze", GlobalMean(True), ("deep",)),
            Step("excite", nn.Conv2d(4, 4, 1), ("squeeze",)),
            Step("gate", nn.Hardsigmoid(), ("excite",)),
            Step("multiply", Multiply(), ("gate", "deep")),
            Step("concat", Concat(), ("multiply", INPUT, "wide")),
            Step("flatten", nn.Flatten(), ("concat",)),
            Step("kept", Select(torch.tensor([0, 3, 4, 40])), ("flatten",)),
            Step("fc", nn.Linear(4, 3), ("kept",)),
        ]
    )
    return _quantised(graph, (1, 4, 3), rng, {"wide": 3, "deep": 9, "excite": 1, "fc": 40}, biased=["deep", "fc"])


def _calls(rng: np.random.Generator) -> QuantisedNetwork:
    """Calls of all four families, with tensors of their own, sizes, dtypes, and one of several results."""
    gain = nn.Parameter(torch.tensor([[[0.5]], [[2.0]], [[-1.0]], [[1.5]]]), requires_grad=False)
    whole = {"dtype": Dtype("int64")}
    graph = Graph(
        [
            Step("first", nn.Conv2d(2, 4, 1), (INPUT,)),
            Step("scaled", call_of("aten.mul.Tensor", [Read(0), Own("own0")], own={"own0": gain}), ("first",)),
            Step("heads", call_of("aten.reshape.default", [Read(0), _HEADS]), ("scaled",)),
            Step("shares", call_of("aten.softmax.int", [Read(0), -1]), ("heads",)),
            Step("turned", call_of("aten.permute.default", [Read(0), [0, 1, 3, 2]]), ("shares",)),
            Step("mixed", call_of("aten.matmul.default", [Read(0), Read(1)]), ("turned", "heads")),
            Step("largest", call_of("aten.max.dim", [Read(0), 3], pick=0), ("mixed",)),
            Step("rounded", call_of("aten._to_copy.default", [Read(0)], whole), ("largest",)),
            Step("again", call_of("aten.add.Tensor", [Read(0), Read(1)], dtypes={0: "int64"}), _BOTH),
            Step("flatten", nn.Flatten(), ("again",)),
            Step("fc", nn.Linear(4, 3), ("flatten",)),
        ]
    )
    return _quantised(graph, (2, 6, 1), rng, {"first": 3, "fc": 40}, biased=["fc"])


_HEADS, _BOTH = [SizeOf(((0, 0),)), 2, 6, 2], ("rounded", "largest")


def _several_inputs(rng: np.random.Generator) -> QuantisedNetwork:
    graph = Graph(
        [
            Step("numbers", NetworkInput("numbers", 0, (5,)), (INPUT,)),
            Step("words", NetworkInput("words", 1, (4,), "int64", (1,)), (INPUT,)),
            Step("fc1", nn.Linear(5, 3), ("numbers",)),
            Step("rows", Embed(7, 7, 3), ("words",)),
            Step("mean", GlobalMean(False), ("rows",)),
            Step("add", Add(), ("fc1", "mean")),
            Step("fc2", nn.Linear(3, 3), ("add",)),
        ]
    )
    return _quantised(graph, (), rng, {"fc1": 3, "rows": 9, "fc2": 1}, biased=["fc2"])


def _sound(rng: np.random.Generator) -> QuantisedNetwork:
    graph = _named(
        first=nn.Conv1d(2, 4, 3, padding=1, groups=2),
        largest=nn.MaxPool1d(3, 2, 1),
        second=nn.Conv1d(4, 4, 2, dilation=2),
        average=nn.AvgPool1d(2, 1, 1),
        flatten=nn.Flatten(),
        fc=nn.Linear(16, 3),
    )
    return _quantised(graph, (2, 9), rng, {"first": 3, "second": 100, "fc": 4}, biased=["fc"])


def _volume(rng: np.random.Generator) -> QuantisedNetwork:
    graph = _named(
        conv=nn.Conv3d(1, 2, (1, 2, 3), padding=(0, 1, 1)),
        largest=nn.MaxPool3d((1, 2, 2), 1),
        average=nn.AvgPool3d(2, 1, 1),
        flatten=nn.Flatten(),
        fc=nn.Linear(2 * 4 * 4 * 4, 3),
    )
    return _quantised(graph, (1, 3, 3, 4), rng, {"conv": 3, "fc": 1}, biased=["conv"])


def _floats() -> QuantisedNetwork:
    graph = _named(fc1=nn.Linear(4, 3), relu=nn.ReLU(), fc2=nn.Linear(3, 3, bias=False))
    graph = graph.eval().requires_grad_(False)
    return QuantisedNetwork(graph, (4,), (3, 4, 7), temperature=1.5, card=CARD)


def _quantised(
    graph: Graph, shape: tuple[int, ...], rng: np.random.Generator, spread: dict[str, int], biased: list[str]
) -> QuantisedNetwork:
    weights, biases = {}, {}
    for name, wide in spread.items():
        size = tuple(graph.get_submodule(name).weight.shape)  # type: ignore[union-attr, arg-type]
        codes = np.clip(np.rint(rng.laplace(0, wide / 2, size)), -32767, 32767)
        weights[name] = Codes(codes.astype(np.int32), 0.125)
        if name in biased:
            biases[name] = Codes(rng.integers(-127, 128, size[0], dtype=np.int32), 2.0**-7)
    card = CARD | {"architecture_before": [9] * len(spread), "reference_bits": [6] * len(spread)}
    build = QuantisedNetwork.build
    return build(
        graph, weights=weights, biases=biases, input_shape=shape, labels=(3, 4, 7), temperature=0.875, card=card
    )


def _version_1() -> bytes:
    network = _floats()
    first = {"normalise": Normalise(0.0, 16.0), "kept": Select(torch.tensor([1, 2, 4, 5]))}
    graph = _named(**first, **dict(network.graph.named_children()))
    report = {
        "context": {"classes": [3, 4, 7]}, "classes": [3, 4, 7], "threshold": -0.75, "layers": ["fc1", "fc2"],
        "architecture_before": [9, 8], "architecture": [4, 3], "bits": [32, 32], "layer_weights": [12, 9],
        "weights_before": 9000, "weights_after": 21, "parameter_bytes_before": 40000, "flops_before": 18000,
        "flops_after": 42, "error_before": 1.0, "error": 2.5, "validation_images": 200, "emit_ms": 3.5,
        "file_bytes": None, "notes": [], "pruning_ratio": 400.0, "bits_ratio": 400.0, "file_ratio": None,
    }  # fmt: skip
    header = {
        "format": "bhc", "version": 1, "network": describe(graph), "input_shape": [6], "temperature": 1.25,
        "report": report,
    }  # fmt: skip
    return tensors_to_bytes(graph.state_dict(), header)


def make_extremes() -> list[bytes]:
    """Files that go to the limits of what a small file may hold, and some that go beyond."""
    constant, wide, two = [0.5, [0, 7, 1]], [0.5, [0, -32767, 65535]], [0.5, [0, 0, 2]]
    half = 1 << 19
    return [
        _extreme([1000], [[0, "a", 1000, constant, False], [0, "b", 2, constant, None]], plain=bytes(8)),
        _extreme([1000], [[0, "a", 1000, two, False], [0, "b", 2, constant, False]]),
        _extreme([half], [[0, "a", 1, two, False], *_narrow()]),
        _extreme([half], [[14, half], [0, "a", 1, constant, False], *_narrow()], masks=[(half, half)]),
        _extreme([half], [[14, half // 2], *_narrow()], masks=[(half, half // 2)]),
        _extreme([half], [[14, half // 4], [14, 9], *_narrow()], masks=[(half, half // 4), (half // 4, 9)]),
        _extreme([1000, 1000], [[12], [14, 1], *_narrow()], masks=[(1000000, 1)]),
        _extreme([1000, 1000], [[12], [14, 1], *_narrow()], masks=[(1000000, 0)]),
        _extreme([1 << 22], [[14, 1], *_narrow()]),
        _extreme([4, 1024, 1024], [*_same(40, 4), *_end()]),
        _extreme([4, 1024, 1024], [*_same(14, 4), [23, False], *_narrow()]),
        _extreme([2], [[18, 1, 1]] * 18 + _narrow()),
        _extreme([2], [[18, 1, 1]] * 30 + _narrow()),
        _extreme([2], [[18, *[1] * 8000], *_narrow()]),
        _extreme([2], [[16, 1, 1], [17, 1, 1]] * 400 + _narrow()),
        _extreme([2], [[2]] * 1022 + [[15, 1023, [2]], *_narrow()]),
        _extreme([2], [[2]] * 900 + [[18, *range(1, 902)], *_narrow()]),
        _extreme([1], [[22, 4096, 4096]] * 40 + _narrow()),
        _extreme([1 << 16, 1], [_one_by_one(1 << 16, 1 << 16), [12], *_narrow()]),
        _extreme([1 << 16, 1], [_one_by_one(1 << 20, 1 << 16), [12], *_narrow()]),
        _extreme([1 << 16, 1], [_one_by_one(1 << 16, 1 << 15), [12], *_narrow()]),
        _extreme([3000, 1, 1], [[20, [0.0] * 3000, [1.0] * 3000], [12], *_narrow()]),
        _extreme([1 << 18], [[21], *_narrow()], plain=bytes(8 << 18)),
        _extreme([1 << 18], [[21], *_narrow()]),
        _extreme([1, 160, 160, 160], [[26, 80, 1, 0, 1], [23, False], *_narrow()]),
        _extreme([1, 1 << 20], [[25, 4096, 1, 2048, 1], [24, 4096], [23, False], *_narrow()]),
        _extreme([1, 1000, 1000], [[1, "c", 1, [800, 800], [1, 1], [0, 0], [1, 1], constant, False], *_end()]),
        _extreme([1, 2048, 2048], [[10, 2000, 1, 0, 1], *_end()]),
        _extreme([1, 2000, 2000], [[11, 4096, 9, 2048], *_end()]),
        _extreme([2], [[0, str(number), 2, [0.5, [0, -1, 3]], 0.5] for number in range(128)], plain=bytes(256)),
        _extreme([2], [[0, str(number), 2, wide, False] for number in range(15)]),
        _extreme([2], [[0, str(number), 2, wide, False] for number in range(128)]),
        _extreme([2], [[0, str(number), 2, [0.5, [1, -9, 4096, number % 80, 9]], False] for number in range(128)]),
        _extreme([2], [[kind] for kind in (2, 3, 6, 8, 9, 12) for _ in range(21)] + _narrow()),
        _extreme([2], [[2]] * 1023 + _narrow()),
        _extreme([2], [[2]] * 100_000 + _narrow()),
        _extreme([2], _narrow(), card=CARD | {"context": {"classes": [[]] * 8000}}),
        _extreme([2], _narrow(), card=CARD | {str(number): 0 for number in range(4000)}),
        _extreme([2], [[0, "x" * 60_000, 2, constant, False]]),
        _extreme([2], [_called("aten.arange.default", 10**12), *_narrow()]),
        _extreme([2], [_called("aten.repeat.default", {0: 0}, [1, 1 << 30]), *_narrow()]),
        _extreme([2], [_called("aten.expand.default", {0: 0}, [1 << 40, 2]), *_narrow()]),
        _extreme([2], [_called("aten.pad.default", {0: 0}, [1 << 40, 1 << 40]), *_narrow()]),
        _extreme([2], [_called("aten.add.Tensor", {0: 0}, {0: 0})] * 2000 + _narrow()),
        _extreme([2], [_called("aten.reshape.default", {0: 0}, [{2: [[[0, 0]] * 7, 1 << 31, 1]}]), *_narrow()]),
        _extreme([], [*[_input(place, [1 << 16]) for place in range(64)], *_narrow()]),
        _extreme([], [_input(0, [2]), *[[15, 2 + place, _input(1 + place, [9])] for place in range(200)], *_narrow()]),
    ]


def _called(target: str, *arguments: Any) -> list[Any]:
    return [40, NUMBERS[target], list(arguments), {}, 1]


def _input(place: int, shape: list[int]) -> list[Any]:
    return [41, f"input{place}", place, shape, "float32", [1]]


def _narrow() -> list[Any]:
    return [[0, "end", 2, [0.5, [0, 1, 1]], False]]


def _one_by_one(filters: int, groups: int) -> list[Any]:
    """A convolution of single places, in groups."""
    return [19, "one", filters, [1], [1], [0], [1], groups, [0.5, [0, 1, 1]], False]


def _end() -> list[Any]:
    return [[12], [0, "all", 1, [0.5, [0, 0, 1]], False], *_narrow()]


def _same(count: int, channels: int) -> list[Any]:
    """Convolutions that leave large maps as large as they are."""
    rest = [channels, [1, 1], [1, 1], [0, 0], [1, 1], [0.5, [0, 0, 1]], False]
    return [[1, f"c{number}", *rest] for number in range(count)]


def _extreme(
    shape: list[int],
    steps: list[Any],
    *,
    masks: Sequence[tuple[int, int]] = (),
    plain: bytes = b"",
    card: dict[str, Any] | None = None,
) -> bytes:
    """A file whose select steps read their last values, and whose codes are all the first of their prior."""
    card = dict(card or CARD) | {"architecture_before": [1] * sum(step[0] in (0, 1, 19) for step in steps)}
    for name in ("reference_bits", "rescued", "class_names"):
        card.pop(name)
    header = {0: shape, 1: steps, 2: [3, 4], 3: 1.0, 4: abbreviate(card)}
    parts = [
        (np.arange(arriving, dtype=np.int32) >= arriving - kept, Counted((arriving - kept, kept)))
        for arriving, kept in masks
    ]
    stream = encode([(mask.astype(np.int32), prior) for mask, prior in parts])
    return joined(dumps(header), to_varint(len(stream)) + stream + plain)
