"""Series of several sensors: a network for a machine that lacks some of them, and has only some of its states.

    python examples/sensors.py [--out DIR] [--steps N]

The series are made here: six sensors of a motor in four states, as floats. Nothing else has to be installed.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc

SENSORS, STATES, LENGTH = 6, ("idle", "steady", "worn", "blocked"), 64


def series(count: int, *, seed: int) -> tuple[Tensor, Tensor]:  # (n, sensors, time), (n,)
    """In each state a sensor swings with a frequency and a strength of its own, under noise."""
    rng = torch.Generator().manual_seed(0)
    frequency = 1 + 7 * torch.rand(len(STATES), SENSORS, 1, generator=rng)
    strength = 0.5 + torch.rand(len(STATES), SENSORS, 1, generator=rng)
    rng.manual_seed(seed)
    state = torch.randint(len(STATES), (count,), generator=rng)
    phase = torch.rand(count, SENSORS, 1, generator=rng)
    time = torch.linspace(0, 1, LENGTH)
    swing = strength[state] * torch.sin(2 * torch.pi * (frequency[state] * time + phase))
    return swing + 0.7 * torch.randn(swing.shape, generator=rng), state


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(SENSORS, 24, 7, padding=3)
        self.second = nn.Conv1d(24, 32, 5, stride=2, padding=2)
        self.classify = nn.Linear(32, len(STATES))

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.second(F.relu(self.first(x))))
        return self.classify(x.amax(2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("sensors"))
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    train, validation = series(2_000, seed=1), series(500, seed=2)

    torch.manual_seed(0)
    net = Network()
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(200):
        places = torch.randint(len(train[0]), (64,))
        optimizer.zero_grad()
        F.cross_entropy(net(train[0][places]), train[1][places]).backward()
        optimizer.step()

    # The first layer is a convolution, so its channels are the features: one a sensor.
    space = bhc.Joint(bhc.ClassSubsets(len(STATES)), bhc.FeatureSubsets((SENSORS,)))
    model = bhc.wrap(net.eval(), space, example_input=train[0][:1])
    recipe = (bhc.Learn(steps=options.steps, kl_weight=0.6), bhc.Consolidate(steps=options.steps // 2))
    bhc.fit(model, train, validation, recipe=recipe, class_names=STATES)
    asked = {"all": {}, "without-3": {"features": [0, 1, 2, 4, 5]}, "worn": {"classes": [1, 2], "features": [0, 5]}}
    for name, context in asked.items():
        small = model.compress(**context)
        small.save(options.out / f"{name}.bhc", overwrite=True).to_onnx(options.out / f"{name}.onnx", overwrite=True)
        print(small.report, end="\n\n")


if __name__ == "__main__":
    main()
