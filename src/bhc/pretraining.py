"""A plain, well-trained network to start from: how it is trained, and where it is kept."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler, OneCycleLR

from bhc.data import CropAndFlip, DataSet, DropWords, ShiftAndNoise
from bhc.errors import BhcError, renamed
from bhc.examples import Augmentation, Split
from bhc.files import read_tensors, write_tensors
from bhc.models import build, outline
from bhc.training import Progress, Silent, find_device

SMALLEST_SHIFTED = 16  # moving an 8 x 8 digit by a pixel pushes it off the edge
CROP_AND_FLIP = CropAndFlip()
RISING = 0.2  # the part of the steps in which the rate goes up
CHUNK = 2048


class PretrainingRecipe(Protocol):
    """All that pretraining needs to know; data, network and generator are on one device."""

    epochs: int
    batch: int  # images a step

    def steps(self, split: Split) -> int:
        """How many batches there will be."""
        return self.epochs * (len(split) // self.batch)

    def optimizer(self, net: nn.Module) -> Optimizer:
        """What changes the network's parameters."""

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        """What changes the rate, after each step."""

    def batches(self, split: Split, rng: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        """Images and labels, step by step."""

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        """What is made small."""
        return F.cross_entropy(logits, labels)


@dataclass(frozen=True)
class Pretraining(PretrainingRecipe):
    """Adam with decoupled weight decay, one cycle of the rate, images shifted by up to a pixel or as they are told."""

    epochs: int = 10
    batch: int = 128
    rate: float = 2e-3
    weight_decay: float = 0.01
    shift: int = 1
    augmentation: Augmentation | None = None  # instead of the shift

    def optimizer(self, net: nn.Module) -> Optimizer:
        return torch.optim.AdamW(net.parameters(), lr=self.rate, weight_decay=self.weight_decay, fused=True)

    def schedule(self, optimizer: Optimizer, steps: int) -> LRScheduler:
        return OneCycleLR(optimizer, self.rate, total_steps=steps, pct_start=RISING)

    def batches(self, split: Split, rng: Generator) -> Iterator[tuple[Tensor, Tensor]]:
        for _ in range(self.steps(split)):
            index = torch.randint(len(split), (self.batch,), generator=rng, device=rng.device)
            yield self._augmented(split.inputs[index], rng), split.known_labels[index]

    def _augmented(self, images: Tensor, rng: Generator) -> Tensor:
        if self.augmentation is not None:
            return self.augmentation(images, rng=rng)
        return _shifted(images, self.shift, rng)


@dataclass(frozen=True)
class BatchNormPretraining(PretrainingRecipe):
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
                yield self._augmented(split.inputs[index], rng), split.known_labels[index]

    def loss(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.cross_entropy(logits, labels, label_smoothing=self.label_smoothing)

    def _augmented(self, images: Tensor, rng: Generator) -> Tensor:
        return images if self.augmentation is None else self.augmentation(images, rng=rng)


DEFAULT_RECIPE = Pretraining()
BATCH_NORM_RECIPE = BatchNormPretraining()
# Small data sets of sounds and texts: more passes, and no example the same twice.
SPEECH_RECIPE = Pretraining(epochs=40, batch=64, augmentation=ShiftAndNoise())
TEXT_RECIPE = Pretraining(epochs=15, batch=64, weight_decay=0.1, augmentation=DropWords())
OWN_RECIPES = {"speech-cnn": SPEECH_RECIPE, "text-cnn": TEXT_RECIPE}


def usual_recipe(name: str) -> Pretraining | BatchNormPretraining:
    """What trains a network of ``bhc.models`` well."""
    if name in OWN_RECIPES:
        return OWN_RECIPES[name]
    has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in outline(name).modules())
    return BATCH_NORM_RECIPE if has_batch_norm else DEFAULT_RECIPE


def build_for(data: DataSet, name: str, *, rng: Generator | None = None) -> nn.Sequential:
    """A fresh network of ``bhc.models`` that takes the inputs of a data set and tells its classes."""
    shape, full_scale = data.image_shape, data.full_scale
    return build(name, image_shape=shape, num_classes=data.num_classes, full_scale=full_scale, rng=rng)


@renamed(plan="recipe")
def pretrain(
    name: str,
    data: DataSet,
    recipe: PretrainingRecipe | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
    device: str | torch.device = "cpu",
) -> nn.Sequential:
    """Train a network of ``bhc.models`` on a data set's training split; it stays on ``device``.

    From a seed it starts with the same weights on every device; a GPU draws other batches than a CPU.
    """
    place = find_device(device)
    rng = Generator().manual_seed(seed)
    net = build_for(data, name, rng=rng).to(place)
    if place.type != "cpu":
        rng = Generator(place).manual_seed(seed)
    train_plainly_(net, data.train, recipe or usual_recipe(name), rng=rng, progress=progress)
    return net.eval().requires_grad_(False)


def train_plainly_(
    net: nn.Module, split: Split, recipe: PretrainingRecipe, *, rng: Generator, progress: Progress | None = None
) -> None:
    """Follow a recipe on the generator's device, where the network is and the images go once, as bytes."""
    split = split.to(rng.device)
    steps = recipe.steps(split)
    if steps < 1:
        raise BhcError(
            f"{len(split):,} training images do not fill a batch of {recipe.batch:,}", hint="use smaller batches"
        )
    progress = progress or Silent()
    optimizer = recipe.optimizer(net)
    schedule = recipe.schedule(optimizer, steps)
    progress.begin("pretraining", steps)
    net.train()
    for step, (x, labels) in enumerate(recipe.batches(split, rng), start=1):
        loss = recipe.loss(net(x), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 50 == 0 or step == steps:
            progress.update(step, {"loss": loss.item()})
    progress.end()


@torch.no_grad()
def error_of(net: nn.Module, split: Split) -> float:
    """Percent of wrong answers over all classes, computed where the network is."""
    device = next(net.parameters()).device
    answers = torch.cat([net(x.to(device)).argmax(1).cpu() for x in split.tensor.split(CHUNK)])
    return 100 * float((answers != split.known_labels.cpu()).float().mean())


def save_weights(
    path: Path, name: str, net: nn.Sequential, data: DataSet, *, errors: dict[str, float], held_out: int = 0
) -> None:
    """Write a pretrained network as named tensors; ``held_out`` training images, the last, are new to it."""
    header = {
        "format": "bhc-weights",
        "model": name,
        "data": data.name,
        "image_shape": list(data.image_shape),
        "num_classes": data.num_classes,
        "errors": errors,
        **({"held_out": held_out} if held_out else {}),
    }
    write_tensors(path, dict(net.state_dict()), header)


def load_weights(path: Path, name: str, data: DataSet, *, held_out: int = 0) -> nn.Sequential:
    """Read a pretrained network of the given name for the given data set, to which so many images must be new."""
    tensors, header = read_tensors(path)
    expected: dict[str, Any] = {
        "format": "bhc-weights",
        "model": name,
        "image_shape": list(data.image_shape),
        "num_classes": data.num_classes,
    }
    for key, value in expected.items():
        if header.get(key) != value:
            raise BhcError(
                f"{path} has {key.replace('_', ' ')} {header.get(key)!r}, {value!r} is needed",
                hint=f"make it with: bhc pretrain --model {name} --data {data.name} --out FILE",
            )
    if header.get("held_out", 0) < held_out:
        raise BhcError(
            f"{path} may have learned from the last {held_out:,} training images, so they can prove nothing of it",
            hint=f"hold them out there too: bhc pretrain --model {name} --data {data.name} --calibration {held_out}",
        )
    net = build_for(data, name)
    net.load_state_dict(tensors)
    return net.eval().requires_grad_(False)


def _shifted(x: Tensor, most: int, rng: Generator) -> Tensor:
    """The whole batch moved by the same few pixels, zeros moving in."""
    if most == 0 or x.ndim != 4 or min(x.shape[2:]) < SMALLEST_SHIFTED:
        return x
    height, width = x.shape[2:]
    down, right = torch.randint(0, 2 * most + 1, (2,), generator=rng, device=rng.device).tolist()
    padded = F.pad(x, (most,) * 4)
    return padded[:, :, down : down + height, right : right + width]
