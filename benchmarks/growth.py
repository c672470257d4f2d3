"""What it costs as networks grow and as contexts grow in number.

    python benchmarks/growth.py [--device cuda] [--largest 1e8]

Networks: three linear layers of 10^5 to 10^8 weights, and a transformer of 1.1 x 10^8 whose attention and norms stay
whole. A whole learning step (`ScalesOnly`, `LowRank`) takes turns with a plain fused Adam step of the same network on
as many images; each also runs by itself for its peak memory. Wrapping a network and emitting from it, one unit in
sixteen kept, are given in plain steps of the same network.

Contexts: one to 10,000 class subsets emitted one by one, and 1 to 64 contexts in a training step of 256 images.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial
from math import sqrt
from statistics import median

import torch
from emission import emit, prune_
from encoder import Transformer
from memory import peak_mib
from plain import PlainStep, captured
from timing import CPU, Results, options, take_turns, wait_for, write
from torch import nn

import bhc
from bhc.contexts import Context
from bhc.data import Split
from bhc.models import Normalise
from bhc.training import computing, find_device
from bhc.training.batches import BatchSource
from bhc.training.step import make_step

GENERATORS = {"scales-only": bhc.ScalesOnly(), "low-rank": bhc.LowRank()}
TRAININGS = ("plain", *GENERATORS)
SIZES = (10**5, 10**6, 10**7, 10**8)
SHAPE, CLASSES = (3, 32, 32), 100
INPUTS = 3 * 32 * 32
IMAGES, CONTEXTS = 256, 16
CONTEXT_COUNTS = (1, 10, 100, 1_000, 10_000)
CONTEXTS_A_STEP = (1, 4, 16, 64)
LATEST = 1_000  # contexts whose median is compared with that of the first ten
MEMORY_STEPS = 3
STEPS = 100_000  # of a stage that is never finished here


@dataclass(frozen=True)
class Subject:
    """A network of some size, and how many images it learns from at once."""

    name: str
    build: Callable[[], nn.Module]
    images: int = IMAGES


@cache
def data() -> Split:
    """Noise with labels: what it looks like does not change what a step costs."""
    rng = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (2_000, *SHAPE), dtype=torch.uint8, generator=rng)
    return Split(images, torch.arange(2_000) % CLASSES)


def mlp(weights: int) -> nn.Module:
    """Linear layers of 3072-w-w-100 with about so many weights."""
    ends = INPUTS + CLASSES
    width = max(1, round((sqrt(ends**2 + 4 * weights) - ends) / 2))
    return bhc.models.networks.named(
        normalise=Normalise(128.0, 64.0),
        flatten=nn.Flatten(),
        fc1=nn.Linear(INPUTS, width),
        relu1=nn.ReLU(),
        fc2=nn.Linear(width, width),
        relu2=nn.ReLU(),
        fc3=nn.Linear(width, CLASSES),
    )


def transformer(width: int, depth: int) -> nn.Module:
    return Transformer(width=width, depth=depth, classes=CLASSES)


def subjects(largest: float) -> dict[str, Subject]:
    """By name; those of up to ``largest`` weights, and a transformer, small where 10^8 are too many."""
    sized = [Subject(f"mlp-{size:.0e}".replace("+0", ""), partial(mlp, size)) for size in SIZES if size <= largest]
    width, depth = (1024, 9) if largest >= SIZES[-1] else (128, 2)
    sized.append(Subject("transformer", partial(transformer, width, depth), images=32))
    return {subject.name: subject for subject in sized}


def wrapped(net: nn.Module, kind: str) -> bhc.Compressor:
    return bhc.wrap(net, bhc.ClassSubsets(CLASSES), example_input=data().inputs[:1], weight_generator=GENERATORS[kind])


def step_of(subject: Subject, kind: str, device: torch.device, *, contexts: int = CONTEXTS) -> Callable[[], object]:
    """A step of a kind of training, ready to be taken."""
    if kind == "plain":
        return plain_step(subject, device)
    examples = subject.images // contexts
    stage = bhc.Learn(steps=STEPS, contexts=contexts, examples=examples, kl_weight=1e-3)
    return learning_step(wrapped(subject.build(), kind), stage, device)


def learning_step(model: bhc.Compressor, stage: bhc.Learn, device: torch.device) -> Callable[[], object]:
    stage.prepare_(model.network.to(device))
    draw = BatchSource.of(data(), model.network.num_classes, device=device, seed=0)
    return make_step(stage, model.network, draw)


def plain_step(subject: Subject, device: torch.device, *, capture: bool = True) -> Callable[[], object]:
    net, split = subject.build().to(device), data()
    x, labels = split.inputs[: subject.images].to(device), split.labels[: subject.images].to(device)
    step = PlainStep(net, x, labels, lr=1e-5, fused=True, capturable=device.type == "cuda")
    return captured(step) if capture and device.type == "cuda" else step


def grown(subject: Subject, arguments: argparse.Namespace, device: torch.device) -> Results:
    """Steps, memory, wrapping and emission of one network."""
    net = subject.build()
    began = time.perf_counter()
    model = wrapped(net, "scales-only")
    wrap_ms = 1e3 * (time.perf_counter() - began)
    parameters = sum(parameter.numel() for parameter in net.parameters())
    steps = {kind: step_of(subject, kind, device) for kind in TRAININGS}
    times = take_turns(steps, rounds=arguments.rounds, warm_up=5 if device.type == "cuda" else 1, device=device)
    steps.clear()
    prune_(model.network)
    emitting = take_turns({"emit": partial(emit, model.network.to(device))}, rounds=arguments.rounds, device=device)
    memory = {kind: memory_of(subject, kind, arguments, device) for kind in TRAININGS}
    plain_mib = memory["plain"]
    return {
        "network": subject.name,
        "parameters": parameters,
        "weights_that_can_go": model.network.num_weights,
        "images": subject.images,
        "step_ms": times,
        "step_ratio": {kind: times[kind] / times["plain"] for kind in GENERATORS},
        "peak_mib": memory,
        "memory_ratio": {kind: None if plain_mib is None else memory[kind] / plain_mib for kind in GENERATORS},
        "wrap_in_plain_steps": wrap_ms / times["plain"],
        "emission_in_plain_steps": emitting["emit"] / times["plain"],
    }


def memory_of(subject: Subject, kind: str, arguments: argparse.Namespace, device: torch.device) -> float | None:
    """The peak of a few steps; on a CPU in a process of their own."""
    if device.type == "cuda":
        return peak_mib(partial(few_steps, subject, kind, device), device)
    command = [sys.executable, __file__, "--alone", subject.name, kind, "--largest", str(arguments.largest)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    mib: float | None = json.loads(done.stdout)
    return mib


def few_steps(subject: Subject, kind: str, device: torch.device) -> None:
    """As they are taken, but for plain ones: these need least if they are not captured."""
    step = plain_step(subject, device, capture=False) if kind == "plain" else step_of(subject, kind, device)
    for _ in range(MEMORY_STEPS + (3 if device.type == "cuda" else 0)):
        step()
    wait_for(device)


def emitted(counts: tuple[int, ...]) -> Iterator[Results]:
    """So many different contexts, one by one: what each costs beside the first few, and what memory is kept."""
    network = wrapped(mlp(10**6), "scales-only").network
    prune_(network)
    draws = torch.Generator().manual_seed(0)
    rows = bhc.RandomSubsets((2, 3)).draw(2 * max(counts), CLASSES, rng=draws).tolist()
    subsets = list(dict.fromkeys(tuple(place for place, inside in enumerate(row) if inside) for row in rows))
    for warm_up in range(3):
        emit(network, Context(classes=subsets[-1 - warm_up]))
    every: list[float] = []
    kept = peak_mib(lambda: every.extend(timed_emission(network, subset) for subset in subsets[: max(counts)]), CPU)
    alone = median(every[:10])
    for count in counts:
        row: Results = {"contexts": count, "seconds": sum(every[:count]) / 1e3}
        yield row | {"latest_beside_the_first_ten": median(every[max(0, count - LATEST) : count]) / alone}
    yield {"contexts": max(counts), "more_resident_mib": kept}


def timed_emission(network: bhc.hypernet.ConditionalNetwork, classes: tuple[int, ...]) -> float:
    began = time.perf_counter()
    emit(network, Context(classes=classes))
    return 1e3 * (time.perf_counter() - began)


def contexts_a_step(rounds: int, device: torch.device) -> list[Results]:
    """The same images in few or many contexts."""
    subject = Subject("mlp-1e6", partial(mlp, 10**6))
    rows = []
    for kind in GENERATORS:
        steps = {f"K={count}": step_of(subject, kind, device, contexts=count) for count in CONTEXTS_A_STEP}
        times = take_turns({"plain": plain_step(subject, device)} | steps, rounds=rounds, device=device)
        ratios = {str(count): times[f"K={count}"] / times["plain"] for count in CONTEXTS_A_STEP}
        rows.append({"generator": kind, "step_ratio": ratios})
    return rows


def main() -> None:
    parser = options(__file__, __doc__, rounds=5, device=True)
    parser.add_argument("--largest", type=float, default=1e8, help="weights of the largest network")
    parser.add_argument("--alone", nargs=2, metavar=("NETWORK", "TRAINING"), help="only its peak memory, in MiB")
    arguments = parser.parse_args()
    if arguments.alone:
        name, kind = arguments.alone
        subject = subjects(arguments.largest)[name]
        few_steps(Subject("tiny", partial(mlp, 10_000)), kind, CPU)  # what libraries hold from their first use on
        print(json.dumps(peak_mib(partial(few_steps, subject, kind, CPU), CPU)))
        return
    torch.manual_seed(0)
    device, counts = find_device(arguments.device), CONTEXT_COUNTS
    if arguments.quick:
        arguments.rounds, arguments.largest, counts = 1, min(arguments.largest, 1e6), CONTEXT_COUNTS[:3]
    rows = []
    with computing(device, repeatable=False):  # as in training
        for subject in subjects(arguments.largest).values():
            rows.append(grown(subject, arguments, device))
            print(rows[-1], flush=True)
        steps = contexts_a_step(arguments.rounds, device)
    *by_count, kept = emitted(counts)
    print(by_count, kept, steps, sep="\n")
    results = {"networks": rows, "contexts_emitted": by_count, "memory_of_contexts": kept, "contexts_a_step": steps}
    write(arguments, results, device=device)


if __name__ == "__main__":
    main()
