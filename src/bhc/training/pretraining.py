"""A plain, well-trained network to start from."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.models import build
from bhc.tensors import read_tensors, write_tensors
from bhc.training.progress import Progress, Silent

CHUNK = 2048
SMALLEST_SHIFTED = 16  # moving an 8 x 8 digit by a pixel pushes it off the edge


@dataclass(frozen=True)
class Pretraining:
    """Adam with decoupled weight decay, one cycle of the rate, images shifted by up to a pixel."""

    epochs: int = 10
    batch: int = 128
    rate: float = 2e-3
    weight_decay: float = 0.01
    shift: int = 1


DEFAULT_PLAN = Pretraining()


def pretrain(
    name: str,
    data: DataSet,
    plan: Pretraining | None = None,
    *,
    seed: int = 0,
    progress: Progress | None = None,
) -> nn.Sequential:
    """Train a network of ``bhc.models`` on a data set's training split."""
    plan = plan or DEFAULT_PLAN
    generator = Generator().manual_seed(seed)
    net = build(
        name,
        image_shape=data.image_shape,
        num_classes=data.num_classes,
        full_scale=data.full_scale,
        generator=generator,
    )
    progress = progress or Silent()
    steps = plan.epochs * (len(data.train) // plan.batch)
    optimizer = torch.optim.AdamW(net.parameters(), lr=plan.rate, weight_decay=plan.weight_decay, fused=True)
    cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, plan.rate, total_steps=steps, pct_start=0.2)
    progress.begin("pretraining", steps)
    net.train()
    for step in range(steps):
        x, labels = _batch(data.train, plan, step, generator)
        loss = F.cross_entropy(net(x), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        cycle.step()
        if step % 50 == 49 or step + 1 == steps:
            progress.update(step + 1, {"loss": loss.item()})
    progress.end()
    return net.eval().requires_grad_(False)


@torch.no_grad()
def error_of(net: nn.Module, split: Split) -> float:
    """Percent of wrong answers over all classes."""
    answers = torch.cat([net(x).argmax(1) for x in split.images.split(CHUNK)])
    return 100 * float((answers != split.labels).float().mean())


def save_weights(path: Path, name: str, net: nn.Sequential, data: DataSet, *, errors: dict[str, float]) -> None:
    """Write a pretrained network as named tensors."""
    header = {
        "format": "bhc-weights",
        "model": name,
        "data": data.name,
        "image_shape": list(data.image_shape),
        "num_classes": data.num_classes,
        "errors": errors,
    }
    write_tensors(path, dict(net.state_dict()), header)


def load_weights(path: Path, name: str, data: DataSet) -> nn.Sequential:
    """Read a pretrained network of the given name for the given data set."""
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
    net = build(name, image_shape=data.image_shape, num_classes=data.num_classes)
    net.load_state_dict(tensors)
    return net.eval().requires_grad_(False)


def _batch(split: Split, plan: Pretraining, step: int, generator: Generator) -> tuple[Tensor, Tensor]:
    index = torch.randint(len(split), (plan.batch,), generator=generator)
    x, labels = split.images[index], split.labels[index]
    return _shifted(x, plan.shift, generator), labels


def _shifted(x: Tensor, most: int, generator: Generator) -> Tensor:
    """The whole batch moved by the same few pixels, zeros moving in."""
    height, width = x.shape[2:]
    if most == 0 or min(height, width) < SMALLEST_SHIFTED:
        return x
    down, right = torch.randint(0, 2 * most + 1, (2,), generator=generator).tolist()
    padded = F.pad(x, (most,) * 4)
    return padded[:, :, down : down + height, right : right + width]
