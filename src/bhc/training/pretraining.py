"""A plain, well-trained network to start from."""

from pathlib import Path
from typing import Any

import torch
from torch import Generator, nn

from bhc.data import DataSet, DropWords, ShiftAndNoise, Split
from bhc.errors import BhcError
from bhc.models import build, outline
from bhc.tensors import read_tensors, write_tensors
from bhc.training.device import find_device
from bhc.training.plans import BatchNormPretraining, Plan, Pretraining
from bhc.training.progress import Progress, Silent

CHUNK = 2048
DEFAULT_PLAN = Pretraining()
DEFAULT_BATCH_NORM_PLAN = BatchNormPretraining()
# Small data sets of sounds and texts: more passes, and no example the same twice.
SPEECH_PLAN = Pretraining(epochs=40, batch=64, augmentation=ShiftAndNoise())
TEXT_PLAN = Pretraining(epochs=15, batch=64, weight_decay=0.1, augmentation=DropWords())
OWN_PLANS = {"speech-cnn": SPEECH_PLAN, "text-cnn": TEXT_PLAN}


def default_plan(name: str) -> Pretraining | BatchNormPretraining:
    """What trains a network of ``bhc.models`` well."""
    if name in OWN_PLANS:
        return OWN_PLANS[name]
    has_batch_norm = any(isinstance(module, nn.BatchNorm2d) for module in outline(name).modules())
    return DEFAULT_BATCH_NORM_PLAN if has_batch_norm else DEFAULT_PLAN


def pretrain(
    name: str,
    data: DataSet,
    plan: Plan | None = None,
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
    net = build(
        name,
        image_shape=data.image_shape,
        num_classes=data.num_classes,
        full_scale=data.full_scale,
        rng=rng,
    ).to(place)
    if place.type != "cpu":
        rng = Generator(place).manual_seed(seed)
    train_plainly_(net, data.train, plan or default_plan(name), rng=rng, progress=progress)
    return net.eval().requires_grad_(False)


def train_plainly_(
    net: nn.Module, split: Split, plan: Plan, *, rng: Generator, progress: Progress | None = None
) -> None:
    """Follow a plan on the generator's device, where the network is and the images go once, as bytes."""
    split = split.to(rng.device)
    steps = plan.steps(split)
    if steps < 1:
        raise BhcError(
            f"{len(split):,} training images do not fill a batch of {plan.batch:,}", hint="use smaller batches"
        )
    progress = progress or Silent()
    optimizer = plan.optimizer(net)
    schedule = plan.schedule(optimizer, steps)
    progress.begin("pretraining", steps)
    net.train()
    for step, (x, labels) in enumerate(plan.batches(split, rng), start=1):
        loss = plan.loss(net(x), labels)
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
    answers = torch.cat([net(x.to(device)).argmax(1).cpu() for x in split.inputs.split(CHUNK)])
    return 100 * float((answers != split.labels.cpu()).float().mean())


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
    net = build(name, image_shape=data.image_shape, num_classes=data.num_classes, full_scale=data.full_scale)
    net.load_state_dict(tensors)
    return net.eval().requires_grad_(False)
