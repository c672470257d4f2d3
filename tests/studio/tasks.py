"""Runs of tasks other than classification, trained for a few steps."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.studio.service import Service
from bhc.training import Silent

COUNT, SIDE, KINDS = 64, 8, 10
RECIPE = (bhc.Learn(steps=20, contexts=4, examples=4), bhc.Consolidate(steps=10, contexts=4, examples=4))
NAMES = ("length", "width", "height")


class Regression(bhc.Task):
    name = "studio-regression"
    error_name = "absolute error"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).square().mean(1)

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean(1).clamp(max=1)


class Segmentation(bhc.Task):
    """Output 0 is the background, and of no class."""

    name = "studio-segmentation"
    error_name = "pixel error"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return F.cross_entropy(outputs, targets, reduction="none").mean((1, 2))

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) != targets).float().mean((1, 2))

    def distance(self, outputs: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        return bhc.tasks.softened_divergence(outputs, teacher, temperature=temperature).mean((1, 2))

    def class_outputs(self, num_outputs: int) -> list[list[int]]:
        return [[label + 1] for label in range(num_outputs - 1)]

    def labels(self, targets: Tensor) -> Tensor:
        return targets.flatten(1).amax(1) - 1


class Overlap(Segmentation):
    """The same, told by what is right."""

    name = "studio-overlap"
    error_name = "overlap"
    higher_is_better = True


for task in (Regression(), Segmentation(), Overlap()):
    bhc.register_task(task)


def rows() -> tuple[Tensor, Tensor]:  # (N, 6), (N, 3)
    x = torch.randn(COUNT, 6)
    return x, torch.stack([x[:, :2].mean(1), x[:, 2:4].mean(1), x[:, 4:].mean(1)], 1) / 4


def scenes() -> tuple[Tensor, Tensor]:  # (N, 1, H, W) uint8, (N, H, W): a square of one kind each
    labels = torch.arange(COUNT) % KINDS
    targets = torch.zeros(COUNT, SIDE, SIDE, dtype=torch.int64)
    for place, label in enumerate(labels.tolist()):
        top, left = place % 4, place // 4 % 4
        targets[place, top : top + 4, left : left + 4] = label + 1
    return (targets[:, None] * 24).to(torch.uint8), targets


def pretrained(net: nn.Module, task: bhc.Task, x: Tensor, y: Tensor) -> nn.Module:
    optimiser = torch.optim.Adam(net.parameters(), lr=0.01)
    for _ in range(200):
        optimiser.zero_grad()
        task.loss(net(x), y).mean().backward()
        optimiser.step()
    return net.eval()


def regression() -> bhc.Compressor:
    (x, y), task = rows(), Regression()
    net = pretrained(nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 3)), task, x, y)
    model = bhc.wrap(net, bhc.Budgets(), example_input=x[:1], task=task)
    return bhc.fit(model, (x, y), (x, y), recipe=RECIPE, progress=Silent(), class_names=NAMES)


def segmentation(task: bhc.Task | None = None) -> bhc.Compressor:
    (x, y), task = scenes(), task or Segmentation()
    body = (nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU())
    net = Scaled(nn.Sequential(*body, nn.Conv2d(16, KINDS + 1, 1)))
    pretrained(net, task, x, y)
    model = bhc.wrap(net, bhc.ClassSubsets(KINDS), example_input=x[:1], task=task)
    return bhc.fit(model, (x, y), (x, y), recipe=RECIPE, progress=Silent())


class Scaled(nn.Module):
    """Pixels to numbers around one."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x.float() / 128)


def imitation() -> bhc.Compressor:
    x, _ = rows()
    net = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    model = bhc.wrap(net, bhc.ClassSubsets(4), example_input=x[:1], task=bhc.Imitation())
    return bhc.fit(model, x, x, recipe=RECIPE, progress=Silent())


MAKERS = {
    "regression": regression,
    "segmentation": segmentation,
    "overlap": lambda: segmentation(Overlap()),
    "imitation": imitation,
}


def task_service(kind: str) -> Service:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Service(MAKERS[kind](), kind)
