"""``bhc pretrain`` and ``bhc train``: a network to start from, and the hypernetwork."""

import pickle
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import nn

import bhc.data as datasets
import bhc.models as models
from bhc.cli.console import (
    Calibration,
    DataDir,
    Force,
    Given,
    Json,
    LeaveOut,
    Seed,
    program,
    refuse_existing,
    say,
    show,
    with_options,
)
from bhc.compressor import fit, wrap
from bhc.contexts import ContextSpace, Joint, SingleContext, request_options, spaces_for, training_options
from bhc.errors import BhcError
from bhc.hypernet import FEW_LAYERS, GENERATORS, Initial, LowRank, generator_from_dict
from bhc.posterior import FAMILIES, check_family
from bhc.pretraining import (
    BatchNormPretraining,
    Pretraining,
    build_for,
    error_of,
    load_weights,
    pretrain,
    save_weights,
    usual_recipe,
)
from bhc.training import (
    Consolidate,
    Learn,
    Narrow,
    Processes,
    Recipe,
    RunFolder,
    Stage,
    default_progress,
    default_recipe,
    find_device,
    is_rank_zero,
    two_stage_budget,
)


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
    try:
        checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except (OSError, RuntimeError, ValueError, EOFError, pickle.UnpicklingError) as error:
        raise BhcError(f"{path} cannot be read as a checkpoint: {str(error).splitlines()[0]}") from error
    if not isinstance(checkpoint, dict):
        raise BhcError(f"{path} holds a {type(checkpoint).__name__}, not named tensors")
    net = build_for(dataset, model)
    models.load_public_resnet_(net, checkpoint)
    return net.eval().requires_grad_(False)


LEARN, NARROW, CONSOLIDATE = Learn(), Narrow(), Consolidate()
CONDITIONS = ", ".join(option.name for option in request_options())


@with_options("chosen", training_options(), after="context")
def train_command(
    model: Annotated[str, typer.Option(help=f"One of: {', '.join(models.NAMES)}.")],
    data: Annotated[str, typer.Option(help=f"One of: {', '.join(datasets.NAMES)}.")],
    out: Annotated[Path, typer.Option(help="Run folder.")],
    chosen: Given,
    weights: Annotated[
        Path | None, typer.Option(help="Pretrained weights (bhc pretrain). Without: from scratch.")
    ] = None,
    context: Annotated[
        str,
        typer.Option(help=f"One of: {CONDITIONS}; or several joined by +; or none, for one network for all."),
    ] = "classes",
    family: Annotated[
        str, typer.Option(help=f"What goes, and under which prior; one of: {', '.join(FAMILIES)}.")
    ] = "io-gnj",
    missing: Annotated[
        float, typer.Option(min=0.0, help="With several conditions: how often each is left out, so that it may be.")
    ] = 0.1,
    weight_generator: Annotated[str, typer.Option(help=f"One of: {', '.join(GENERATORS)}.")] = "scales-only",
    generator: Annotated[str | None, typer.Option(hidden=True)] = None,
    rank: Annotated[int, typer.Option(min=1, help="Rank of the low-rank generator.")] = LowRank().rank,
    paper_init: Annotated[
        bool, typer.Option(help="Start with the paper's noise instead of exactly at the pretrained network.")
    ] = False,
    steps: Annotated[int, typer.Option(min=1, help="Steps of variational learning.")] = LEARN.steps,
    consolidation_steps: Annotated[
        int, typer.Option(min=0, help="Steps of consolidation; 0 for none.")
    ] = CONSOLIDATE.steps,
    kl_weight: Annotated[
        float | None,
        typer.Option(
            min=0.0, help="Weight of the divergence: size.", show_default=f"{LEARN.kl_weight:g}; less for deep networks"
        ),
    ] = None,
    narrow_to: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            help="Let units go while learning, until networks are this many times smaller; 1: do not.",
            show_default=f"{NARROW.final_ratio:g} for networks of more than {FEW_LAYERS} layers",
        ),
    ] = None,
    narrowing_steps: Annotated[int, typer.Option(min=1, help="Steps of narrowing.")] = NARROW.steps,
    rate: Annotated[float, typer.Option(help="Learning rate.")] = LEARN.rate,
    logvar_rate: Annotated[float, typer.Option(help="Learning rate of log-variances.")] = LEARN.logvar_rate,
    context_weight: Annotated[
        float, typer.Option(min=0.0, help="Weight of reading the context back from the masks; 0: not read.")
    ] = LEARN.context_weight,
    contexts: Annotated[int, typer.Option(min=1, help="Contexts a step.")] = LEARN.contexts,
    examples: Annotated[int, typer.Option(min=1, help="Examples a context.")] = LEARN.examples,
    two_stage: Annotated[
        bool, typer.Option("--two-stage", help="The paper's recipe for budgets: 0 first, then 1.")
    ] = False,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from the folder's last checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Start anew in a folder that holds a run.")] = False,
    checkpoint_every: Annotated[int, typer.Option(min=1, help="Steps between checkpoints.")] = 500,
    calibration: Calibration = None,
    augment: Annotated[
        bool,
        typer.Option(
            "--augment", help="Alter what is learned from: crop and mirror images, shift sounds, drop words of texts."
        ),
    ] = False,
    leave_out: LeaveOut = None,
    speeds: Annotated[
        str | None, typer.Option(help="Learn from recordings at such speeds too, as voices of their own: 0.8,1.25.")
    ] = None,
    bf16: Annotated[bool, typer.Option("--bf16", help="Products in bfloat16: faster on a GPU.")] = False,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    devices: Annotated[
        int, typer.Option(help="Processes to start on this machine, one a GPU; each draws contexts of its own.")
    ] = 1,
    nodes: Annotated[
        int,
        typer.Option(help="Machines; start the same command on each, with MASTER_ADDR, MASTER_PORT and NODE_RANK set."),
    ] = 1,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="The same bits again on CUDA too, at some cost in speed.")
    ] = False,
    seed: Seed = 0,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Train one hypernetwork for all contexts of a kind.

    On more than one process with --devices, or started as: torchrun --nproc-per-node N -m bhc train ...
    """
    processes = Processes(devices, nodes)
    models.check(model)
    check_family(family)
    if generator is not None:
        say("--generator is --weight-generator now")
    kind = generator or weight_generator
    spec = generator_from_dict({"kind": kind} | ({"rank": rank} if kind == LowRank.kind else {}))
    first = is_rank_zero() and processes.holds_first
    if first:
        RunFolder(out).open(resume=resume, overwrite=force)
    dataset = datasets.load(data, data_dir=data_dir)
    if leave_out is not None:
        dataset, _ = dataset.without_source(leave_out)
    held_out = None
    if calibration is not None:
        dataset, held_out = dataset.held_out(calibration)
    if speeds is not None:
        dataset = datasets.with_voices(dataset, _speeds(speeds))
    names = [] if context == "none" else context.split("+")
    space = joined(spaces_for(names, dataset, chosen | {"two_stage": two_stage}), missing=missing)
    if weights is None:
        say("no --weights given: training from scratch")
        net = build_for(dataset, model, rng=torch.Generator().manual_seed(seed))
    else:
        net = load_weights(weights, model, dataset, held_out=calibration or 0)
    if context == "none":  # one context: all examples are its own
        contexts, examples = 1, contexts * examples
    compressor = wrap(
        net,
        space,
        example_input=dataset.train.inputs[:1],
        weight_generator=spec,
        initial=Initial() if paper_init else Initial.exact(),
        family=family,
        std_limits=None if FAMILIES[family].cuts_weights else models.std_limits(model),
        pretrained=weights is not None,
        seed=seed,
    )
    sizes = {"contexts": contexts, "examples": examples}
    fit(
        compressor,
        dataset.train,
        dataset.validation,
        calibration_set=held_out,
        recipe=make_recipe(
            default_recipe(compressor.network, ratio=narrow_to, kl_weight=kl_weight),
            {"rate": rate, "logvar_rate": logvar_rate, "context_weight": context_weight, **sizes},
            steps=steps,
            narrowing_steps=narrowing_steps,
            consolidation_steps=consolidation_steps,
            two_stage=two_stage,
        ),
        run=out,
        resume=resume,
        overwrite=force,
        seed=seed,
        class_names=dataset.class_names,
        vocabulary=dataset.vocabulary,
        checkpoint_every=checkpoint_every,
        progress=default_progress(),
        device=device,
        deterministic=deterministic,
        augment=datasets.augmentation_for(dataset.train.tensor) if augment else None,
        autocast=torch.bfloat16 if bf16 else None,
        processes=processes,
    )
    if not first:
        return
    training = compressor.model.training
    result = {
        "run": str(out),
        "default_threshold": compressor.model.default_threshold,
        "original_error": training["original_error"],
        "skipped_steps": training["skipped_steps"],
        "curve": training["curves"]["after"],
    }
    show(result if json else describe_curve(training, compressor.model.default_threshold), as_json=json)
    say(f"wrote {out}")
    say(" ".join(["next:", program(), "compress", str(out), *example_request(space), "--out small.bhc"]))


def make_recipe(
    usual: Recipe,
    common: dict[str, Any],
    *,
    steps: int,
    narrowing_steps: int,
    consolidation_steps: int,
    two_stage: bool,
) -> Recipe:
    """The usual stages with the numbers that were given; ``common`` is what those that learn have in common."""
    # After two stages the network of budget 0 is fixed, so only that of budget 1 can change.
    budget = 1.0 if two_stage else None
    recipe: list[Stage] = []
    for stage in usual:
        match stage:
            case Narrow():
                recipe.append(replace(stage, steps=narrowing_steps, budget=budget, **common))
            case Learn():
                learn = replace(stage, steps=steps, **common)
                recipe += two_stage_budget(learn, learn) if two_stage else (learn,)
            case Consolidate() if consolidation_steps:
                size = {name: common[name] for name in ("contexts", "examples")}
                recipe.append(replace(stage, steps=consolidation_steps, budget=budget, **size))
    return tuple(recipe)


def joined(spaces: Sequence[ContextSpace], *, missing: float) -> ContextSpace:
    """One space of all; of none, that of one network for all."""
    if not spaces:
        return SingleContext()
    return spaces[0] if len(spaces) == 1 else Joint(*spaces, missing=missing)


def describe_curve(training: dict[str, Any], default_threshold: float) -> str:
    """The trade-off after training in a few lines."""
    lines = []
    if training["original_error"] is not None:
        lines.append(f"pretrained network on the same contexts: {training['original_error']:.2f} % validation error")
    for point in training["curves"]["after"]:
        mark = "  <- default" if point["threshold"] == default_threshold else ""
        lines.append(
            f"threshold {point['threshold']:5.2f}: {point['ratio_harmonic']:8.1f} x smaller,"
            f" {point['error']:5.2f} % error{mark}"
        )
    return "\n".join(lines)


def example_request(space: ContextSpace) -> list[str]:
    """Options of a request this space accepts."""
    return [f"{each.flag} {each.example}" for each in request_options() if each.name in space.conditions]


def _speeds(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BhcError(f"cannot read the speeds {text!r}", hint="numbers around 1, such as 0.8,1.25") from None
