"""A network of your own: define it, train it, wrap it, and take small networks out of it.

    python examples/own_network.py [--out DIR] [--data NAME] [--steps N]

Handwritten digits, a residual network with batch norm, a few minutes on a laptop. Nothing in the network is ours.
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
    """Images as floats in, ten logits out."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 16, 5, stride=2)
        self.blocks = nn.Sequential(Block(16), Block(16))
        self.classify = nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 2)
        return self.classify(self.blocks(x).mean((2, 3)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own-network"))
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--steps", type=int, default=1000)
    options = parser.parse_args()
    data = bhc.data.load(options.data)
    parts = (data.train, data.validation, data.test)
    train, validation, test = ((part.tensor.float() / data.full_scale - 0.5, part.known_labels) for part in parts)
    torch.manual_seed(0)
    net = Digits()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(600):
        places = torch.randint(len(train[0]), (128,))
        optimizer.zero_grad()
        F.cross_entropy(net(train[0][places]), train[1][places]).backward()
        optimizer.step()

    model = bhc.wrap(net.eval(), bhc.ClassSubsets(10, bhc.ConsecutivePairs()), example_input=train[0][:1])
    learn, narrow = bhc.Learn(steps=options.steps // 2), bhc.Narrow(steps=options.steps // 2, final_ratio=8)
    recipe = (learn, narrow, bhc.Consolidate(steps=options.steps // 2, ratios=(6, 10)))
    bhc.fit(model, train, validation, recipe=recipe)
    for classes in ([3, 4], [8, 9]):
        small, name = model.compress(classes=classes), "-".join(map(str, classes))
        small.save(options.out / f"{name}.bhc", overwrite=True).to_onnx(options.out / f"{name}.onnx", overwrite=True)
        own = torch.isin(test[1], torch.tensor(classes))
        wrong = (small.predict(test[0][own]).labels != test[1][own]).float().mean()
        print(small.report)
        print(f"test error {100 * wrong:.2f} %, files {options.out / name}.bhc and .onnx\n")


if __name__ == "__main__":
    main()
