"""A training step on a GPU beside a plain step of the same network, both captured as one graph, in one run.

    python benchmarks/gpu_step.py

Whole steps of both stages: contexts and examples drawn on the device, noise, divergence, update. The plain step has its
batch at hand. Our own kernels launched one by one take turns with them. Needs CUDA.
"""

import sys
from collections.abc import Callable

import torch
from plain import PlainStep, captured
from timing import NO_GPU, Results, options, take_turns, write

import bhc
from bhc.data import Split
from bhc.hypernet import GeneratorSpec
from bhc.training import TrainingConfig, computing
from bhc.training.batches import BatchSource
from bhc.training.stages import Stage
from bhc.training.step import make_step

GENERATORS: tuple[GeneratorSpec, ...] = (bhc.ScalesOnly(), bhc.LowRank())
STAGES: tuple[Stage, ...] = (bhc.Learn(steps=100_000), bhc.Consolidate(steps=100_000))
CALLS = 20
IMAGES = 256
MODELS = ("lenet-300-100", "lenet-5-caffe")


@computing(torch.device("cuda"), repeatable=False)  # as in training
def main() -> int:
    arguments = options(__file__, __doc__, rounds=15).parse_args()
    if not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)
        return NO_GPU
    device = torch.device("cuda")
    rounds = 2 if arguments.quick else arguments.rounds
    rows: list[Results] = []
    for name in MODELS:
        plain = plain_step(name)
        for spec in GENERATORS:
            for stage in STAGES:
                rivals = {"plain": plain} | {
                    kind: step_of(name, stage, spec, capture=kind == "captured") for kind in ("eager", "captured")
                }
                times = take_turns(rivals, rounds=rounds, calls=CALLS, device=device)
                row: Results = {"model": name, "generator": spec.kind, "stage": stage.kind}
                row |= {f"{kind}_ms": time for kind, time in times.items()}
                row |= {"ratio": times["eager"] / times["captured"], "plain_ratio": times["captured"] / times["plain"]}
                rows.append(row)
                shown = ", ".join(f"{kind} {time:.3f} ms" for kind, time in times.items())
                print(f"{name}, {spec.kind}, {stage.kind}: {shown}; {row['plain_ratio']:.1f} x plain", flush=True)
    write(arguments, {"images": IMAGES, "rows": rows}, device=device)
    return 0


def digits() -> Split:
    images = torch.randint(0, 256, (10_000, 1, 28, 28), dtype=torch.uint8)
    return Split(images, torch.arange(10_000) % 10)


def plain_step(name: str) -> Callable[[], object]:
    data = digits()
    images, labels = data.inputs[:IMAGES].cuda(), data.labels[:IMAGES].cuda()
    return captured(PlainStep(bhc.models.BUILDERS[name]().cuda(), images, labels, fused=True, capturable=True))


def step_of(name: str, stage: Stage, spec: GeneratorSpec, *, capture: bool) -> Callable[[], object]:
    data = digits()
    model = bhc.wrap(
        bhc.models.BUILDERS[name](), bhc.ClassSubsets(10), example_input=data.inputs[:1], weight_generator=spec
    )
    stage.prepare_(model.network.to("cuda"))
    draw = BatchSource.of(data, 10, device=torch.device("cuda"), seed=0)
    return make_step(stage, model.network, draw, TrainingConfig(capture=capture))


if __name__ == "__main__":
    raise SystemExit(main())
