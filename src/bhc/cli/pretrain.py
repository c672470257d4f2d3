"""``bhc pretrain``: a network to start from."""

from pathlib import Path
from typing import Annotated

import typer

from bhc import data as datasets
from bhc import models
from bhc.cli.console import program, say, show
from bhc.cli.options import DataDir, Force, Json, Seed, refuse_existing
from bhc.training import Pretraining, default_progress, error_of, pretrain, save_weights


def pretrain_command(
    model: Annotated[str, typer.Option(help=f"One of: {', '.join(models.NAMES)}.")],
    data: Annotated[str, typer.Option(help=f"One of: {', '.join(datasets.NAMES)}.")],
    out: Annotated[Path, typer.Option(help="File for the weights (.safetensors).")],
    epochs: Annotated[int, typer.Option(min=1, help="Passes over the training set.")] = 10,
    seed: Seed = 0,
    data_dir: DataDir = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train a plain network and write its weights."""
    models.check(model)
    refuse_existing(out, force=force)
    dataset = datasets.load(data, data_dir=data_dir)
    net = pretrain(model, dataset, Pretraining(epochs=epochs), seed=seed, progress=default_progress())
    errors = {
        "validation_error": error_of(net, dataset.validation),
        "test_error": error_of(net, dataset.test),
    }
    save_weights(out, model, net, dataset, errors=errors)
    if json:
        show({"model": model, "data": data, "weights": str(out), **errors}, as_json=True)
        return
    for name, value in errors.items():
        show(f"{name.replace('_', ' ')}: {value:.2f} %", as_json=False)
    say(f"wrote {out}")
    say(f"next: {program()} train --model {model} --weights {out} --data {data} --context classes --out run/")
