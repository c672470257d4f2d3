"""A loss of your own: networks that give a number, with limits on how far it may be off.

    python examples/own_loss.py [--out DIR] [--steps N]

How far diabetes went in a year, from ten measurements; the table comes with scikit-learn: pip install scikit-learn.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn

import bhc

RANGE = 321.0  # between the smallest and the largest target


class Regression(bhc.Task):
    """A number, in parts of the range that targets have."""

    name = "regression"
    error_name = "mean error"  # as reports call it

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n, 1), (n, 1) -> (n,)
        return (outputs - targets).square().mean(1) / 0.06  # twice the variance of what is left

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:  # from 0, all right, to 1
        return (outputs - targets).abs().mean(1).clamp(max=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("own-loss"))
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    table = load_diabetes()
    x, y = torch.tensor(table.data).float() * 21, torch.tensor(table.target)[:, None].float() / RANGE
    parts = [torch.arange(len(x)) % 4 == part for part in range(4)]
    train, validation, calibration = ((x[own], y[own]) for own in (parts[0] | parts[1], parts[2], parts[3]))

    torch.manual_seed(0)
    task = Regression()
    net = nn.Sequential(nn.Linear(10, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 1))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(100):
        optimizer.zero_grad()
        task.loss(net(train[0]), train[1]).mean().backward()
        optimizer.step()

    model = bhc.wrap(net.eval(), bhc.FeatureSubsets((10,)), example_input=x[:1], task=task)
    recipe = (bhc.Learn(steps=options.steps, kl_weight=0.2), bhc.Consolidate(steps=options.steps // 2))
    run = options.out / "run"
    bhc.fit(model, train, validation, calibration_set=calibration, recipe=recipe, run=run, overwrite=True)
    model = bhc.load(run, task=task)  # a run names its task; the class is yours to give
    six = [table.feature_names.index(name) for name in ("age", "sex", "bmi", "bp", "s3", "s5")]
    smallest = model.compress(features=six, max_error=20)  # percent, on the validation part
    proved = model.compress(features=six, max_error=25, confidence=0.95)  # on new people
    for name, small in {"smallest": smallest, "proved": proved}.items():
        small.save(options.out / f"{name}.bhc", overwrite=True).to_onnx(options.out / f"{name}.onnx", overwrite=True)
        print(small.report, end="\n\n")
    off = RANGE * (smallest.outputs(x[:5]) - y[:5]).abs().flatten()
    print("off by", [round(float(each)) for each in off])


if __name__ == "__main__":
    main()
