"""Two tasks as users write them, small data for each, and models that were trained for them for a moment."""

from collections.abc import Sequence

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.tasks import softened_divergence
from bhc.training import Silent

Pair = tuple[Tensor, Tensor]
DIGITS, SIZE = 4, 12  # classes, and how high and wide their pictures are


class Segmentation(bhc.Task):
    """Which digit each pixel belongs to; output 0 is the background, which is of no class."""

    name = "segmentation"
    error_name = "pixel error"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n, 1 + C, H, W), (n, H, W)
        return F.cross_entropy(outputs, targets, reduction="none").mean((1, 2))

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs.argmax(1) != targets).float().mean((1, 2))

    def distance(self, outputs: Tensor, teacher: Tensor, *, temperature: float) -> Tensor:
        return softened_divergence(outputs, teacher, temperature=temperature).mean((1, 2))

    def class_outputs(self, num_outputs: int) -> Sequence[Sequence[int]]:
        return [[1 + label] for label in range(num_outputs - 1)]

    def labels(self, targets: Tensor) -> Tensor:  # one digit a picture
        return targets.flatten(1).amax(1) - 1


class Regression(bhc.Task):
    """A number in parts of the range that there is; no classes."""

    name = "regression"
    error_name = "absolute error"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n, 1), (n, 1)
        return (outputs - targets).square().mean(1)

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return (outputs - targets).abs().mean(1).clamp(max=1)


class Closeness(Regression):
    """The same the other way round."""

    name = error_name = "closeness"
    higher_is_better = True


def digits_on_noise() -> tuple[Pair, Pair]:
    """Handwritten digits somewhere on noise, and which pixels are theirs: to train with, and others."""
    table, rng = load_digits(n_class=DIGITS), torch.Generator().manual_seed(0)
    digits, labels = torch.tensor(table.images).float() / 16, torch.tensor(table.target)
    pictures = 0.3 * torch.rand(len(digits), 1, SIZE, SIZE, generator=rng)
    maps = torch.zeros(len(digits), SIZE, SIZE, dtype=torch.long)
    corners = torch.randint(0, SIZE - 8 + 1, (len(digits), 2), generator=rng).tolist()
    for picture, own, digit, label, (top, left) in zip(pictures, maps, digits, labels, corners, strict=True):
        place = slice(top, top + 8), slice(left, left + 8)
        picture[0][place] = torch.maximum(picture[0][place], digit)
        own[place] = torch.where(digit > 0.3, label + 1, 0)
    return (pictures[:520], maps[:520]), (pictures[520:], maps[520:])


def rows_of_patients() -> tuple[Pair, Pair, Pair]:
    """Ten measurements, and how far diabetes went: to train with, to validate, and to prove with."""
    table = load_diabetes()
    x, y = torch.tensor(table.data).float() * 21, torch.tensor(table.target)[:, None].float() / 321
    part = torch.arange(len(x)) % 4
    train, validation, calibration = ((x[own], y[own]) for own in (part < 2, part == 2, part == 3))
    return train, validation, calibration


def trained(net: nn.Module, task: bhc.Task, train: Pair, *, steps: int) -> nn.Module:
    optimizer = torch.optim.Adam(net.parameters(), 5e-3)
    rng = torch.Generator().manual_seed(0)
    for _ in range(steps):
        places = torch.randint(len(train[0]), (64,), generator=rng)
        optimizer.zero_grad()
        task.loss(net(train[0][places]), train[1][places]).mean().backward()
        optimizer.step()
    return net.eval()


def segmenting(task: bhc.Task) -> bhc.Compressor:
    """For any of the digits."""
    train, validation = digits_on_noise()
    layers = (nn.Conv2d(1, 12, 5, padding=2), nn.ReLU(), nn.Conv2d(12, 16, 5, padding=2), nn.ReLU())
    net = trained(nn.Sequential(*layers, nn.Conv2d(16, 1 + DIGITS, 5, padding=2)), task, train, steps=120)
    model = bhc.wrap(net, bhc.ClassSubsets(DIGITS), example_input=train[0][:1], task=task)
    learn = bhc.Learn(steps=50, kl_weight=0.01, contexts=4, examples=8)
    recipe = (learn, bhc.Consolidate(steps=30, contexts=4, examples=8))
    return bhc.fit(model, train, validation, recipe=recipe, calibration_set=validation, progress=Silent())


def regressing(task: bhc.Task) -> bhc.Compressor:
    """For any of the measurements."""
    train, validation, calibration = rows_of_patients()
    net = nn.Sequential(nn.Linear(10, 24), nn.ReLU(), nn.Linear(24, 12), nn.ReLU(), nn.Linear(12, 1))
    net = trained(net, task, train, steps=100)
    model = bhc.wrap(net, bhc.FeatureSubsets((10,)), example_input=train[0][:1], task=task)
    learn = bhc.Learn(steps=80, kl_weight=0.005, contexts=4, examples=16)
    recipe = (learn, bhc.Consolidate(steps=40, contexts=4, examples=16))
    return bhc.fit(model, train, validation, recipe=recipe, calibration_set=calibration, progress=Silent())
