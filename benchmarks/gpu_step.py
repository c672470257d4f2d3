"""A training step on a GPU: kernel by kernel against one captured graph, in one run.

    python benchmarks/gpu_step.py

Whole steps of both stages: contexts and examples drawn on the device, noise, divergence, update. Needs CUDA.
"""

import sys

import torch
from timing import NO_GPU, Results, options, take_turns, write

import bhc
from bhc.data import Split
from bhc.training.stages import Draw, Stage
from bhc.training.step import TrainingStep, make_step

STAGES = (bhc.Learn(steps=100_000), bhc.Consolidate(steps=100_000))
CALLS = 20
MODELS = ("lenet-300-100", "lenet-5-caffe")


def main() -> int:
    arguments = options(__file__, __doc__, rounds=15).parse_args()
    if not torch.cuda.is_available():
        print("no GPU here", file=sys.stderr)
        return NO_GPU
    device = torch.device("cuda")
    rounds = 2 if arguments.quick else arguments.rounds
    rows: list[Results] = []
    for name in MODELS:
        for stage in STAGES:
            build = bhc.models.BUILDERS[name]
            rivals = {kind: step_of(stage, build, capture=kind == "captured") for kind in ("eager", "captured")}
            times = take_turns(rivals, rounds=rounds, calls=CALLS, device=device)
            row = {"model": name, "stage": stage.kind, **{f"{k}_ms": t for k, t in times.items()}}
            row["ratio"] = row["eager_ms"] / row["captured_ms"]
            rows.append(row)
            shown = f"{row['eager_ms']:.2f} ms kernel by kernel, {row['captured_ms']:.2f} ms captured"
            print(f"{name}, {stage.kind}: {shown}, {row['ratio']:.1f} x", flush=True)
    write(arguments, {"rows": rows}, device=device)
    return 0


def step_of(stage: Stage, build: object, *, capture: bool) -> TrainingStep:
    images = torch.randint(0, 256, (10_000, 1, 28, 28), dtype=torch.uint8)
    split = Split(images, torch.arange(10_000) % 10)
    model = bhc.wrap(build(), bhc.ClassSubsets(10), example_input=images[:1])  # type: ignore[operator]
    stage.prepare_(model.network.to("cuda"))
    draw = Draw.of(split, 10, device=torch.device("cuda"), seed=0)
    return make_step(stage, model.network, draw, capture=capture)


if __name__ == "__main__":
    raise SystemExit(main())
