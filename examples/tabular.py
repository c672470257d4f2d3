"""Rows of a table: a network for some classes, and for the columns that a place can measure.

    python examples/tabular.py [--out DIR] [--steps N]

Thirteen measurements of wines from three growers, which come with scikit-learn: pip install scikit-learn.
"""

import argparse
from pathlib import Path

import torch
from sklearn.datasets import load_wine
from torch import nn
from torch.nn import functional as F

import bhc


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("tabular"))
    parser.add_argument("--steps", type=int, default=400)
    options = parser.parse_args()
    table = load_wine()
    x, y = torch.tensor(table.data, dtype=torch.float32), torch.tensor(table.target)
    held_out = torch.arange(len(x)) % 4 == 0
    x = (x - x[~held_out].mean(0)) / x[~held_out].std(0)
    train, validation = (x[~held_out], y[~held_out]), (x[held_out], y[held_out])

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(13, 48), nn.ReLU(), nn.Linear(48, 24), nn.ReLU(), nn.Linear(24, 3))
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(150):
        optimizer.zero_grad()
        F.cross_entropy(net(train[0]), train[1]).backward()
        optimizer.step()

    # The first layer is linear, so each column is a feature. With few rows the divergence outweighs the data: a small
    # kl_weight, or num_data=, says how much the rows count.
    space = bhc.Joint(bhc.ClassSubsets(3), bhc.FeatureSubsets((13,)))
    model = bhc.wrap(net.eval(), space, example_input=x[:1])
    recipe = (bhc.Learn(steps=options.steps, kl_weight=0.02), bhc.Consolidate(steps=options.steps // 2))
    bhc.fit(model, train, validation, recipe=recipe, class_names=tuple(map(str, table.target_names)))
    columns = [table.feature_names.index(name) for name in ("alcohol", "flavanoids", "color_intensity", "proline")]
    for name, context in {"two-growers": {"classes": [0, 2]}, "four-columns": {"features": columns}}.items():
        small = model.compress(**context)
        small.save(options.out / f"{name}.bhc", overwrite=True).to_onnx(options.out / f"{name}.onnx", overwrite=True)
        print(small.report, end="\n\n")


if __name__ == "__main__":
    main()
