"""Small models made directly: weights, rates and answers are drawn, nothing is trained."""

from dataclasses import replace
from itertools import pairwise

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.data import Split
from bhc.hypernet import ConditionalNetwork
from bhc.models import Normalise

CLASSES = 5
SHAPE = (1, 4, 4)
FAMILIES = ("io-gnj", "io-gnj", "gnj", "sparse-vd")
GENERATORS = (bhc.ScalesOnly(), bhc.LowRank(2), bhc.Full())


class Branches(nn.Module):
    """A shortcut around a convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = Normalise(128.0, 64.0)
        self.first, self.second = nn.Conv2d(1, 4, 3), nn.Conv2d(4, 4, 3, padding=1)
        self.end = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.first(self.normalise(x)))
        return self.end(torch.flatten(x + torch.sigmoid(self.second(x)), 1))


def _linear(hidden: tuple[int, ...]) -> nn.Module:
    widths = (16, *hidden, CLASSES)
    steps: list[nn.Module] = [Normalise(128.0, 64.0), nn.Flatten()]
    for before, after in pairwise(widths):
        steps += [nn.Linear(before, after, bias=after != hidden[0] or len(hidden) > 1), nn.ReLU()]
    return nn.Sequential(*steps[:-1])


def _convolutional() -> nn.Module:
    return nn.Sequential(
        Normalise(128.0, 64.0),
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 6),
        nn.Tanh(),
        nn.Linear(6, CLASSES),
    )


NETWORKS = (lambda: _linear((8,)), lambda: _linear((8, 5)), _convolutional, Branches)
SPACES = (
    lambda: bhc.ClassSubsets(CLASSES),
    lambda: bhc.ClassSubsets(CLASSES, concentration=1.0),
    lambda: bhc.Joint(bhc.ClassSubsets(CLASSES), bhc.Budgets()),
)


def draw(seed: int) -> bhc.Compressor:
    """A model; the same for the same seed."""
    rng = Generator().manual_seed(seed)
    net, space = _pick(NETWORKS, rng)(), _pick(SPACES, rng)()
    family, generator = _pick(FAMILIES, rng), _pick(GENERATORS, rng)
    with torch.no_grad():
        for parameter in net.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 4
            parameter.copy_(torch.randn(parameter.shape, generator=rng) * (2 / fan_in) ** 0.5)
    initial = bhc.Initial()
    model = bhc.wrap(
        net,
        space,
        example_input=torch.zeros(1, *SHAPE),
        weight_generator=generator,
        family=family,
        initial=initial,
        seed=seed,
    )
    _spread_(model.network, rng)
    model.network.eval()
    sample = _answered(net, 40 + _number(rng, 100), rng)
    return bhc.Compressor(
        replace(
            model.model,
            validation=None if _number(rng, 12) == 0 else sample,
            calibration=_answered(net, 400, rng),
            thresholds=None if _number(rng, 4) == 0 else (-2.0 - _number(rng, 3), 1.0 + _number(rng, 3)),
            default_threshold=float(_number(rng, 5) - 2),
        )
    )


@torch.no_grad()
def _spread_(network: ConditionalNetwork, rng: Generator) -> None:
    """Rates over a wide range, so that any threshold cuts something, and contexts that differ."""
    wide, of_weights = 1.0 + 3 * _fraction(rng), 12.0 if network.hypernet.family.cuts_weights else 2 * _fraction(rng)
    for name, parameter in network.hypernet.named_parameters():
        noise = torch.randn(parameter.shape, generator=rng)
        if "logvar" in name and name.endswith("offset"):
            parameter += (5.0 if "vectors" in name else of_weights) + wide * noise
        elif name.endswith("matrix"):
            parameter += 0.1 * noise


@torch.no_grad()
def _answered(net: nn.Module, count: int, rng: Generator) -> Split:
    """Images with the network's own answers, one in ten of them changed; every class is there."""
    images = torch.randint(0, 256, (8 * count, *SHAPE), generator=rng, dtype=torch.uint8)
    labels = net(images.float()).argmax(1)
    other = torch.rand(len(labels), generator=rng) < 0.1
    labels[other] = torch.randint(0, CLASSES, (int(other.sum()),), generator=rng)
    labels[:CLASSES] = torch.arange(CLASSES)
    kept = torch.cat([(labels == label).nonzero().flatten()[: -(-count // CLASSES)] for label in range(CLASSES)])
    return Split(images[kept], labels[kept])


def _number(rng: Generator, below: int) -> int:
    return int(torch.randint(0, below, (1,), generator=rng))


def _fraction(rng: Generator) -> float:
    return float(torch.rand(1, generator=rng))


def _pick(options, rng: Generator):  # type: ignore[no-untyped-def]
    return options[_number(rng, len(options))]
