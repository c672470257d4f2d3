"""Transformers from context to module, to a file, to ONNX, and how fast that runs, at 4 and 8 times fewer FLOPs.

    python benchmarks/transformer_emission.py

A ViT-Tiny (12 blocks of width 192, 197 tokens) and a BERT-mini (4 blocks of width 256, 128 tokens), random weights and
dropout rates; the threshold is the one that leaves a fourth or an eighth of the operations, channels in multiples of
eight. Times are medians; onnxruntime runs the original and the small network by turns, one thread, batch 32 and 1.
"""

import time
from functools import partial
from typing import Any

import numpy as np
import torch
from timing import Results, options, take_turns, write
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import ContextScales, Cut, Cutter, Slimmer, assemble
from bhc.formats import QuantisedNetwork, onnx_bytes, pack
from bhc.hypernet import ConditionalNetwork

RATIOS = (4.0, 8.0)
ROUND_TO = 8
BATCHES = (32, 1)


class Block(nn.Module):
    """Attention, then a small network on each token; norms before, or behind the sums."""

    def __init__(self, width: int, heads: int, *, behind: bool) -> None:
        super().__init__()
        self.first, self.second, self.heads, self.behind = nn.LayerNorm(width), nn.LayerNorm(width), heads, behind
        self.query, self.key, self.value = (nn.Linear(width, width) for _ in range(3))
        self.out = nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attend(self, x: Tensor) -> Tensor:
        split = (
            layer(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)
        )
        return self.out(F.scaled_dot_product_attention(*split).transpose(1, 2).flatten(2))

    def think(self, x: Tensor) -> Tensor:
        return self.narrow(F.gelu(self.wide(x)))

    def forward(self, x: Tensor) -> Tensor:
        if self.behind:
            x = self.first(x + self.attend(x))
            return self.second(x + self.think(x))
        x = x + self.attend(self.first(x))
        return x + self.think(self.second(x))


class ViTTiny(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches, self.token = nn.Conv2d(3, 192, 16, 16), nn.Parameter(torch.randn(1, 1, 192))
        self.places = nn.Parameter(torch.randn(1, 197, 192))
        self.blocks = nn.Sequential(*(Block(192, 3, behind=False) for _ in range(12)))
        self.norm, self.end = nn.LayerNorm(192), nn.Linear(192, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).mT
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.places
        return self.end(self.norm(self.blocks(x))[:, 0])


class BertMini(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30522, 256), nn.Embedding(512, 256)
        self.blocks = nn.Sequential(*(Block(256, 4, behind=True) for _ in range(4)))
        self.norm, self.end = nn.LayerNorm(256), nn.Linear(256, 150)

    def forward(self, x: Tensor) -> Tensor:
        x = self.norm(self.words(x) + self.places(torch.arange(x.shape[1])))
        return self.end(self.blocks(x).mean(1))


NETWORKS: dict[str, tuple[type[nn.Module], Any]] = {
    "ViT-Tiny": (ViTTiny, lambda batch: torch.randn(batch, 3, 224, 224)),
    "BERT-mini": (BertMini, lambda batch: torch.randint(30522, (batch, 128))),
}


def main() -> None:
    arguments = options(__file__, __doc__, rounds=9).parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    found: Results = {}
    for name, (build, example) in NETWORKS.items():
        torch.manual_seed(0)
        net = build().eval()
        began = time.perf_counter()
        model = bhc.wrap(net, bhc.SingleContext(), example_input=example(2))
        found[name] = {"wrap_seconds": time.perf_counter() - began}
        scatter_(model.network)
        for ratio in RATIOS:
            found[name][f"{ratio:g} x"] = row = measured(model.network, example, ratio, rounds)
            print(
                f"{name}, {row['flops_ratio']:.1f} x fewer FLOPs: " + ", ".join(f"{k} {v:.3g}" for k, v in row.items())
            )
    write(arguments, {"networks": found})


@torch.no_grad()
def scatter_(network: ConditionalNetwork) -> None:
    """Rates that differ."""
    draws = torch.Generator().manual_seed(0)
    for name, parameter in network.hypernet.named_parameters():
        if "logvar" in name and name.endswith("offset") and "vectors" in name:
            parameter += 5 + 3 * torch.randn(parameter.shape, generator=draws)


@torch.no_grad()
def measured(network: ConditionalNetwork, example: Any, ratio: float, rounds: int) -> Results:
    context = Context()
    multiples = bhc.posterior.Multiples(ROUND_TO)
    cutter = Cutter(network, context).rounded_to(multiples)
    threshold = threshold_at(network, cutter, ratio)

    def module() -> Any:
        scales = ContextScales.of(network, [context])
        cut = Cutter(network, context, scales).rounded_to(multiples).cut(threshold)
        return assemble(network, cut, Slimmer(scales).layers(cut))

    slim = module()
    labels = tuple(range(network.num_classes))
    small = QuantisedNetwork(slim, network.input_shape, labels, card={"context": {}})
    whole = QuantisedNetwork(network.base_model, network.input_shape, labels, card={"context": {}})
    times = take_turns(
        {"module_ms": module, "file_ms": partial(pack, small), "onnx_ms": partial(onnx_bytes, small)}, rounds=rounds
    )
    ratios = {
        "flops_ratio": network.counts.flops / small.counts.flops,
        "weights_ratio": network.num_weights / small.counts.weights,
    }
    return ratios | times | speed(whole, small, example, rounds)


def threshold_at(network: ConditionalNetwork, cutter: Cutter, ratio: float) -> float:
    """The largest with so many times fewer operations."""
    batch = ContextBatch.of([Context()], network.num_classes)
    rates = network.find_masks.noisiest_links(network.dropouts(batch), batch.outputs)
    rates = rates[rates.isfinite()].sort().values
    low, high = 0, len(rates) - 1
    while high - low > 1:
        middle = (low + high) // 2
        cut: Cut = cutter.cut(float(rates[middle]))
        low, high = (middle, high) if network.counts.flops >= ratio * cut.num_flops else (low, middle)
    return float(rates[low])


def speed(whole: QuantisedNetwork, small: QuantisedNetwork, example: Any, rounds: int) -> Results:
    """How many times as fast the small one runs in onnxruntime, one thread, and the largest difference from torch."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = settings.inter_op_num_threads = 1
    sessions = {
        name: onnxruntime.InferenceSession(onnx_bytes(network), settings, providers=["CPUExecutionProvider"])
        for name, network in (("whole", whole), ("small", small))
    }
    found: Results = {}
    for batch in BATCHES:
        (x,) = small.signature.cast(example(batch))
        given = {sessions["small"].get_inputs()[0].name: x.numpy()}
        runs = {name: partial(session.run, None, given) for name, session in sessions.items()}
        times = take_turns(runs, rounds=min(rounds, 5), warm_up=1)
        found[f"speed_up_batch_{batch}"] = times["whole"] / times["small"]
        wanted, (answer,) = small.graph(x).numpy(), runs["small"]()
        found["difference"] = float(np.abs(answer - wanted).max() / np.abs(wanted).max())
    return found


if __name__ == "__main__":
    main()
