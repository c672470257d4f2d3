"""``bhc pretrain``: a network of ours to start from."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from torch import nn

import bhc.data as datasets
import bhc.models as models
from bhc.cli.console import Calibration, DataDir, Force, Json, LeaveOut, Seed, program, refuse_existing, say, show
from bhc.cli.subject import torch_file
from bhc.errors import BhcError
from bhc.pretraining import BatchNormPretraining, Pretraining, build_for, error_of, pretrain, save_weights, usual_recipe
from bhc.training import default_progress, find_device


def pretrain_command(
    model: Annotated[str, typer.Option(help=f"One of: {', '.join(models.NAMES)}.")],
    data: Annotated[str, typer.Option(help=f"One of: {', '.join(datasets.NAMES)}.")],
    out: Annotated[Path, typer.Option(help="File for the weights (.safetensors).")],
    epochs: Annotated[
        int | None,
        typer.Option(
            min=1,
            help=f"Passes over the training set. Default: {Pretraining().epochs}; "
            f"{BatchNormPretraining().epochs} for networks with batch norm (vgg, resnet-...), "
            "40 and 15 for speech-cnn and text-cnn.",
            show_default=False,
        ),
    ] = None,
    public: Annotated[
        Path | None,
        typer.Option(help="Take the weights of a public checkpoint (resnet-...) instead of training."),
    ] = None,
    calibration: Calibration = None,
    leave_out: LeaveOut = None,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    seed: Seed = 0,
    data_dir: DataDir = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Train a plain network, or take a public one, and write its weights."""
    models.check(model)
    refuse_existing(out, force=force)
    find_device(device)
    dataset = datasets.load(data, data_dir=data_dir)
    if leave_out is not None:
        dataset, _ = dataset.without_source(leave_out)
    if public is not None and calibration is not None:
        raise BhcError("nobody knows what a public network has learned from", hint="leave --calibration out")
    if calibration is not None:
        dataset, _ = dataset.held_out(calibration)
    if public is None:
        plan = usual_recipe(model)
        plan = plan if epochs is None else replace(plan, epochs=epochs)
        net = pretrain(model, dataset, plan, seed=seed, progress=default_progress(), device=device)
    else:
        net = _public(public, model, dataset).to(find_device(device))
    errors = {"validation_error": error_of(net, dataset.validation), "test_error": error_of(net, dataset.test)}
    save_weights(out, model, net, dataset, errors=errors, held_out=calibration or 0)
    if json:
        show({"model": model, "data": data, "weights": str(out), **errors}, as_json=True)
        return
    for name, value in errors.items():
        show(f"{name.replace('_', ' ')}: {value:.2f} %", as_json=False)
    say(f"wrote {out}")
    more = "" if calibration is None else f" --calibration {calibration}"
    say(f"next: {program()} train --model {model} --weights {out} --data {data} --context classes{more} --out run/")


def _public(path: Path, model: str, dataset: datasets.DataSet) -> nn.Sequential:
    """A network of ours with the weights of a torch checkpoint, of which nothing but tensors is read."""
    checkpoint = torch_file(path)
    if not isinstance(checkpoint, dict):
        raise BhcError(f"{path} holds a {type(checkpoint).__name__}, not named tensors")
    net = build_for(dataset, model)
    models.load_public_resnet_(net, checkpoint)
    return net.eval().requires_grad_(False)
