"""A training step of a deep network on a GPU: time and memory beside plain training at equal batch, in one run.

    python benchmarks/deep_step.py [OUT.json]

Plain is the same network, its batch norms folded, with the same optimiser and the same precision: no scales, no noise,
no divergence. Needs CUDA.
"""

import gc
import sys
from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch
from timing import Results, environment, write
from torch import nn
from torch.nn import functional as F

import bhc
from bhc.data import Split
from bhc.hypernet import GeneratorSpec
from bhc.training.stages import Draw, Stage
from bhc.training.step import make_step

MODELS = ("vgg", "resnet-20")
IMAGES = 256
GENERATORS: tuple[GeneratorSpec, ...] = (bhc.ScalesOnly(), bhc.LowRank())
STAGES: tuple[Stage, ...] = (
    bhc.Learn(steps=100_000, kl_weight=1e-3),
    bhc.Narrow(steps=100_000, kl_weight=1e-3),
    bhc.Consolidate(steps=100_000),
)
GONE = 0.5  # part of the units, while narrowing
CALLS = 30
MIB = 2**20


def main() -> int:
    if not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)
        return 2
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True  # as in training
    rows: list[Results] = []
    for name in MODELS:
        plain = measured(lambda name=name: plain_step(name))
        rows.append({"model": name, "training": "plain", **plain})
        for generator in GENERATORS:
            for stage in STAGES:
                own = measured(lambda name=name, stage=stage, spec=generator: conditional_step(name, stage, spec))
                ratios = {"time_ratio": own["ms"] / plain["ms"], "memory_ratio": own["mib"] / plain["mib"]}
                rows.append({"model": name, "training": f"{generator.kind}, {stage.kind}", **own, **ratios})
        for row in rows:
            if row["model"] == name:
                ratios = [f"{row[key]:.2f} x" for key in ("time_ratio", "memory_ratio") if key in row]
                print(name, row["training"], f"{row['ms']:.2f} ms, {row['mib']:.0f} MiB", *ratios, flush=True)
    device = torch.cuda.get_device_name()
    write({"benchmark": "deep-step", "images": IMAGES, "precision": "bfloat16", "device": device}
          | {**environment(), "rows": rows})  # fmt: skip
    return 0


def measured(build: Callable[[], Callable[[], object]]) -> Results:
    """Median milliseconds and the most memory held at once, network, gradients and optimiser included."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    step = build()
    times = []
    for _ in range(8):
        torch.cuda.synchronize()
        began = perf_counter()
        for _ in range(CALLS):
            step()
        torch.cuda.synchronize()
        times.append(1e3 * (perf_counter() - began) / CALLS)
    return {"ms": median(times[2:]), "mib": (torch.cuda.max_memory_allocated() - before) / MIB}


def plain_step(name: str) -> Callable[[], object]:
    """The folded network under Adam, captured like the others."""
    data = photographs()
    net = bhc.wrap(network(name), bhc.SingleContext(), example_input=data.images[:1]).network.base_model
    net.to("cuda").requires_grad_(True)
    images = data.images[:IMAGES].cuda().contiguous(memory_format=torch.channels_last)  # as ours are laid out
    labels = data.labels[:IMAGES].cuda()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-5, fused=True, capturable=True)
    return captured(lambda: plain_update(net, optimizer, images, labels))


def plain_update(
    net: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor
) -> torch.Tensor:
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(net(images), labels)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    optimizer.step()
    return loss


def captured(step: Callable[[], object]) -> Callable[[], object]:
    """One CUDA graph of a step."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def conditional_step(name: str, stage: Stage, spec: GeneratorSpec) -> Callable[[], object]:
    data = photographs()
    space = bhc.ClassSubsets(10, bhc.ConsecutivePairs())
    model = bhc.wrap(network(name), space, example_input=data.images[:1], generator=spec)
    stage.prepare_(model.network.to("cuda"))
    draw = Draw.of(data, 10, device=torch.device("cuda"), seed=0)
    step = make_step(stage, model.network, draw, precision=torch.bfloat16)
    step.leave_out(GONE)
    return step


def network(name: str) -> nn.Module:
    return bhc.models.build(name, image_shape=(3, 32, 32), num_classes=10)


def photographs() -> Split:
    generator = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2_000, 3, 32, 32), dtype=torch.uint8, generator=generator)
    return Split(images, torch.arange(2_000) % 10)


if __name__ == "__main__":
    raise SystemExit(main())
