"""What ``fit`` costs beside training: seconds in passes of the network over the same examples.

    python benchmarks/fixed_costs.py

A ResNet-18 at 224 x 224 and at 64 x 64 and a MobileNetV2 at 224 x 224, random weights, ten classes, twenty examples,
and recipes of a single step and of a step in each of three stages. What is not a step is measured by what it takes in
forward passes of the whole network over the twenty examples, timed before and after in the same process. What torch
loads with the first optimiser of a process, a second or two, is loaded before.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from statistics import median

import torch
from timing import Results, options, write
from torch import Tensor, nn

import bhc
from bhc.models import Normalise
from bhc.training import Silent
from bhc.training.step import TrainingStep

EXAMPLES, CLASSES = 20, 10


class Basic(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.one, self.norm1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)
        self.two, self.norm2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs)
        self.relu, self.shortcut = nn.ReLU(), nn.Sequential()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm2(self.two(self.relu(self.norm1(self.one(x)))))
        return self.relu(y + self.shortcut(x))


def resnet_18() -> nn.Module:
    stem = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
    widths = [(64, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2), (256, 256, 1), (256, 512, 2)]
    blocks = [Basic(*block) for block in (*widths, (512, 512, 1))]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, CLASSES)]
    return nn.Sequential(Normalise(128.0, 64.0), *stem, *blocks, *head)


class Inverted(nn.Module):
    """A wide depthwise convolution between two narrow ones."""

    def __init__(self, inputs: int, outputs: int, stride: int, expand: int) -> None:
        super().__init__()
        wide, steps = inputs * expand, []
        if expand > 1:
            steps += [nn.Conv2d(inputs, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
        steps += [nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.ReLU6()]
        steps += [nn.Conv2d(wide, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        self.steps, self.beside = nn.Sequential(*steps), stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        return x + self.steps(x) if self.beside else self.steps(x)


def mobilenet_v2() -> nn.Module:
    blocks, width = [], 32
    for expand, outputs, count, stride in (
        (1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1),
    ):  # fmt: skip
        for number in range(count):
            blocks.append(Inverted(width, outputs, stride if number == 0 else 1, expand))
            width = outputs
    stem = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU6()]
    head = [nn.Conv2d(320, 1280, 1, bias=False), nn.BatchNorm2d(1280), nn.ReLU6()]
    end = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1280, CLASSES)]
    return nn.Sequential(Normalise(128.0, 64.0), *stem, *blocks, *head, *end)


NETWORKS = {
    "ResNet-18, 224": (resnet_18, 224),
    "MobileNetV2, 224": (mobilenet_v2, 224),
    "ResNet-18, 64": (resnet_18, 64),
}


SMALL = {"steps": 1, "contexts": 4, "examples": 4}  # the steps are not what is measured
LEARN = bhc.Learn(**SMALL)
RECIPES = {
    "one step": (LEARN,),
    "a step of each stage": (
        LEARN,
        bhc.Narrow(**SMALL, final_ratio=2.0),
        bhc.Consolidate(**SMALL, ratios=(1.0, 2.0)),
    ),
}


def measure(name: str, what: str) -> Results:
    make, size = NETWORKS[name]
    torch.manual_seed(0)
    torch.optim.SGD([nn.Parameter(torch.zeros(1))]).zero_grad()
    net = make().eval()
    images = torch.randint(0, 256, (EXAMPLES, 3, size, size), dtype=torch.uint8)
    labels = torch.arange(EXAMPLES) % CLASSES
    model = bhc.wrap(net, bhc.ClassSubsets(CLASSES), example_input=images[:1])
    before = _passes(net, images)
    with _time_steps() as stepping:
        began = time.perf_counter()
        bhc.fit(model, (images, labels), (images, labels), recipe=RECIPES[what], progress=Silent())
        seconds = time.perf_counter() - began
    a_pass, steps = median([*before, *_passes(net, images)]), sum(stepping)
    return {
        "network": f"{name}, {what}",
        "pass_s": a_pass,
        "fit_s": seconds,
        "steps_s": steps,
        "passes_beside_training": (seconds - steps) / a_pass,
    }


@torch.no_grad()
def _passes(net: nn.Module, images: Tensor) -> list[float]:
    times = []
    for _ in range(5):
        began = time.perf_counter()
        net(images.float())
        times.append(time.perf_counter() - began)
    return times


@contextmanager
def _time_steps() -> Iterator[list[float]]:
    """Seconds of every training step while inside."""
    times: list[float] = []
    call = TrainingStep.__call__

    def timed(self: TrainingStep) -> object:
        began = time.perf_counter()
        try:
            return call(self)
        finally:
            times.append(time.perf_counter() - began)

    TrainingStep.__call__ = timed  # type: ignore[method-assign]
    try:
        yield times
    finally:
        TrainingStep.__call__ = call  # type: ignore[method-assign]


def main() -> None:
    arguments = options(__file__, __doc__).parse_args()
    rows = []
    for name, what in product(list(NETWORKS)[-1:] if arguments.quick else NETWORKS, RECIPES):
        rows.append(row := measure(name, what))
        print(
            f"{row['network']}: a pass {row['pass_s']:.2f} s, fit {row['fit_s']:.1f} s, its steps {row['steps_s']:.1f};"
            f" beside them {row['passes_beside_training']:.1f} passes",
            flush=True,
        )
    write(arguments, {"examples": EXAMPLES, "rows": rows})


if __name__ == "__main__":
    main()
