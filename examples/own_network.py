"""A network of your own: define it, train it, wrap it, and take small networks out of it.

    python examples/own_network.py [--out DIR]

Handwritten digits, a residual network with batch norm, a few minutes on a laptop.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.first_norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.second_norm = nn.BatchNorm2d(channels)

    def forward(self, x: Tensor) -> Tensor:
        inside = F.relu(self.first_norm(self.first(x)))
        return F.relu(x + self.second_norm(self.second(inside)))


class Digits(nn.Module):
    """Raw pixels in, ten logits out."""

    def __init__(self, full_scale: float) -> None:
        super().__init__()
        self.scale = bhc.models.Normalise(0.0, full_scale)
        self.stem = nn.Conv2d(1, 16, 5, stride=2)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.classify = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(self.scale(x))), 2)
        return self.classify(self.blocks(x).mean((2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own-network"))
    out = parser.parse_args().out
    data = bhc.data.load("mnist")
    torch.manual_seed(0)
    net = Digits(data.full_scale)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(600):
        index = torch.randint(len(data.train), (128,))
        loss = F.cross_entropy(net(data.train.inputs[index]), data.train.labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    model = bhc.wrap(net, bhc.ClassSubsets(10, bhc.ConsecutivePairs()), example_input=data.train.inputs[:1])
    recipe = (bhc.Learn(steps=1000, kl_weight=1.0), bhc.Consolidate(steps=500))
    bhc.fit(model, data.train, data.validation, recipe=recipe)
    out.mkdir(parents=True, exist_ok=True)
    for classes in ([3, 4], [8, 9]):
        small = model.compress(classes=classes)
        name = "-".join(map(str, classes))
        small.save(out / f"{name}.bhc", overwrite=True).to_onnx(out / f"{name}.onnx", overwrite=True)
        test = data.test.restricted_to(classes)
        wrong = (small.predict(test.inputs).labels != test.labels).float().mean()
        print(small.report)
        print(f"test error {100 * wrong:.2f} %, files {out / name}.bhc and .onnx\n")


if __name__ == "__main__":
    main()
