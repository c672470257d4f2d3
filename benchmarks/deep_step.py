"""A training step of a deep network on a GPU: time and memory beside plain training at equal batch, in one run.

    python benchmarks/deep_step.py

Plain is the same network, its batch norms folded, with the same optimiser and the same precision: no scales, no noise,
no divergence. Needs CUDA.
"""

import sys
from collections.abc import Callable
from functools import partial
from statistics import median
from time import perf_counter

import torch
from memory import peak_mib
from plain import PlainStep, captured
from timing import NO_GPU, Results, options, write
from torch import nn

import bhc
from bhc.data import Split
from bhc.hypernet import GeneratorSpec
from bhc.training import TrainingConfig, computing
from bhc.training.batches import BatchSource
from bhc.training.stages import Stage
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
WARM_UP = 2


@computing(torch.device("cuda"), repeatable=False)  # as in training
def main() -> int:
    arguments = options(__file__, __doc__, rounds=6).parse_args()
    if not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)
        return NO_GPU
    rounds = 1 if arguments.quick else arguments.rounds
    rows: list[Results] = []
    for name in MODELS:
        plain = measured(partial(plain_step, name), rounds)
        plain["mib"] = measured(partial(plain_step, name, capture=False), rounds)["mib"]  # captured it needs more
        rows.append({"model": name, "training": "plain", **plain})
        for generator in GENERATORS:
            for stage in STAGES:
                own = measured(
                    lambda name=name, stage=stage, spec=generator: conditional_step(name, stage, spec), rounds
                )
                ratios = {"time_ratio": own["ms"] / plain["ms"], "memory_ratio": own["mib"] / plain["mib"]}
                rows.append({"model": name, "training": f"{generator.kind}, {stage.kind}", **own, **ratios})
        for row in rows:
            if row["model"] == name:
                ratios = [f"{row[key]:.2f} x" for key in ("time_ratio", "memory_ratio") if key in row]
                print(name, row["training"], f"{row['ms']:.2f} ms, {row['mib']:.0f} MiB", *ratios, flush=True)
    write(arguments, {"images": IMAGES, "precision": "bfloat16", "rows": rows}, device=torch.device("cuda"))
    return 0


def measured(build: Callable[[], Callable[[], object]], rounds: int) -> Results:
    """Median milliseconds and the most memory held at once, network, gradients and optimiser included."""
    times: list[float] = []

    def work() -> None:
        step = build()
        for _ in range(rounds + WARM_UP):
            torch.cuda.synchronize()
            began = perf_counter()
            for _ in range(CALLS):
                step()
            torch.cuda.synchronize()
            times.append(1e3 * (perf_counter() - began) / CALLS)

    mib = peak_mib(work, torch.device("cuda"))
    return {"ms": median(times[WARM_UP:]), "mib": mib}


def plain_step(name: str, *, capture: bool = True) -> Callable[[], object]:
    """The folded network under Adam, captured like the others."""
    data = photographs()
    net = bhc.wrap(network(name), bhc.SingleContext(), example_input=data.inputs[:1]).network.base_model
    net.to("cuda").requires_grad_(True)
    images = data.inputs[:IMAGES].cuda().contiguous(memory_format=torch.channels_last)  # as ours are laid out
    labels = data.labels[:IMAGES].cuda()
    step = PlainStep(net, images, labels, autocast=torch.bfloat16, lr=1e-5, fused=True, capturable=True)
    return captured(step) if capture else step


def conditional_step(name: str, stage: Stage, spec: GeneratorSpec) -> Callable[[], object]:
    data = photographs()
    space = bhc.ClassSubsets(10, bhc.ConsecutivePairs())
    model = bhc.wrap(network(name), space, example_input=data.inputs[:1], weight_generator=spec)
    stage.prepare_(model.network.to("cuda"))
    draw = BatchSource.of(data, 10, device=torch.device("cuda"), seed=0)
    step = make_step(stage, model.network, draw, TrainingConfig(autocast=torch.bfloat16))
    step.leave_out(GONE)
    return step


def network(name: str) -> nn.Module:
    return bhc.models.build(name, image_shape=(3, 32, 32), num_classes=10)


def photographs() -> Split:
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2_000, 3, 32, 32), dtype=torch.uint8, generator=rng)
    return Split(images, torch.arange(2_000) % 10)


if __name__ == "__main__":
    raise SystemExit(main())
