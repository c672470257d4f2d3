"""How a plain network is trained before any compression: optimiser, rate, batches and loss as one value."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from bhc.data import Augmentation, CropAndFlip, Split

SMALLEST_SHIFTED = 16  # moving an 8 x 8 digit by a pixel pushes it off the edge
CROP_AND_FLIP = CropAndFlip()
RISING = 0.2  # the part of the steps in which the rate goes up


class Plan(Protocol):
    """All that pretraining needs to know; data, network and generator are on one device."""

    @property
    def batch(self) -> int:
        """Images a step."""

    def steps(self, split: Split) -> int:
        """How many batches there will be."""

    def optimizer(self, net: nn.Module) -> Optimizer:
        """What changes the network's parameters."""

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """What changes the rate, after each step."""

    def batches(self, split: Split, rng: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels, step by step."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What is made small."""


@dataclass(frozen=True)
class Pretraining:
    """Adam with decoupled weight decay, one cycle of the rate, images shifted by up to a pixel or as they are told."""

    epochs: int = 10
    batch: int = 128
    rate: float = 2e-3
    weight_decay: float = 0.01
    shift: int = 1
    augmentation: Augmentation | None = None  # instead of the shift

    def steps(self, split: Split) -> int:
        return self.epochs * (len(split) // self.batch)

    def optimizer(self, net: nn.Module) -> Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=self.rate, weight_decay=self.weight_decay, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return OneCycleLR(optimizer, self.rate, total_steps=steps, pct_start=RISING)

    def batches(self, split: Split, rng: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.steps(split)):
            index = torch.randint(len(split), (self.batch,), generator=rng, device=rng.device)
            yield self._augmented(split.inputs[index], rng), split.labels[index]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels)

    def _augmented(self, images: Tensor, rng: Generator) -> Tensor:
        if self.augmentation is not None:
            return self.augmentation(images, rng=rng)
        return _shifted(images, self.shift, rng)


@dataclass(frozen=True)
class BatchNormPretraining:
    """Descent with Nesterov's momentum, one cycle of the rate, images cropped and mirrored.

    It is what networks with batch norm for photographs are customarily trained with. Each epoch has
    every image at most once; those that do not fill a batch wait for the next one.
    """

    epochs: int = 60
    batch: int = 128
    rate: float = 0.05  # at the top of the cycle
    momentum: float = 0.9
    weight_decay: float = 5e-4
    label_smoothing: float = 0.0
    augmentation: Augmentation | None = CROP_AND_FLIP

    def steps(self, split: Split) -> int:
        return self.epochs * (len(split) // self.batch)

    def optimizer(self, net: nn.Module) -> Optimizer:
        return torch.optim.SGD(
            net.parameters(),
            lr=self.rate,
            momentum=self.momentum,
            nesterov=True,
            weight_decay=self.weight_decay,
            fused=True,
        )

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return OneCycleLR(optimizer, self.rate, total_steps=steps, pct_start=RISING, cycle_momentum=False)

    def batches(self, split: Split, rng: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        full = len(split) - len(split) % self.batch
        for _ in range(self.epochs):
            order = torch.randperm(len(split), generator=rng, device=rng.device)
            for index in order[:full].split(self.batch):
                yield self._augmented(split.inputs[index], rng), split.labels[index]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def _augmented(self, images: Tensor, rng: Generator) -> Tensor:
        return images if self.augmentation is None else self.augmentation(images, rng=rng)


def _shifted(x: Tensor, most: int, rng: Generator) -> Tensor:
    """The whole batch moved by the same few pixels, zeros moving in."""
    if most == 0 or x.ndim != 4 or min(x.shape[2:]) < SMALLEST_SHIFTED:
        return x
    height, width = x.shape[2:]
    down, right = torch.randint(0, 2 * most + 1, (2,), generator=rng, device=rng.device).tolist()
    padded = F.pad(x, (most,) * 4)
    return padded[:, :, down : down + height, right : right + width]
