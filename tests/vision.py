"""A small vision transformer on the digits, of which heads, channels of the stream and whole branches go."""

import torch
from torch import Tensor, nn

import bhc
from bhc.data import DataSet
from bhc.training import TrainedModel
from tests.emission.networks import spread_

WIDTH, HEADS, BLOCKS = 12, 3, 4


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.attend = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        normal = self.before(x)
        x = x + self.attend(normal, normal, normal, need_weights=False)[0]
        return x + self.narrow(torch.relu(self.wide(self.after(x))))


class VisionTransformer(nn.Module):
    """(N, 1, 8, 8) -> (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.places = nn.Conv2d(1, WIDTH, 2, 2), nn.Parameter(torch.randn(16, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.end = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x / 16.0).flatten(2).transpose(1, 2) + self.places
        return self.end(self.norm(self.blocks(x)).mean(1))


def vision_model(digits: DataSet) -> bhc.Compressor:
    """Never trained; its dropout rates are spread, so that thresholds cut it differently."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = VisionTransformer().eval()
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1], pretrained=False)
    network = spread_(model.network, "io-gnj")
    return bhc.Compressor(TrainedModel(network, validation=digits.validation))
