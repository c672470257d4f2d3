"""``bhc train``: one hypernetwork for all contexts of a kind."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

import bhc.data as datasets
import bhc.models as models
from bhc.cli.console import (
    Calibration,
    DataDir,
    Given,
    Json,
    LeaveOut,
    Seed,
    program,
    say,
    show,
    with_options,
)
from bhc.cli.own_data import DATA_HELP, FUNCTION, READING, Data, Reading, source_of
from bhc.cli.subject import OwnNetwork, TaskOption, ours, say_error_before, task_for
from bhc.compressor import wrap
from bhc.contexts import ClassSubsets, ContextSpace, Joint, SingleContext, request_options, spaces_for, training_options
from bhc.data import Augmentation, DataSet, DatasetSplits
from bhc.emission import SizeCurve
from bhc.errors import BhcError
from bhc.fitting import fit
from bhc.hypernet import FEW_LAYERS, GENERATORS, Initial, LowRank, generator_from_dict
from bhc.posterior import FAMILIES, check_family
from bhc.tasks import Task
from bhc.training import (
    Consolidate,
    Learn,
    MeasureCurvature,
    Narrow,
    Processes,
    Recipe,
    RunFolder,
    Stage,
    default_progress,
    default_recipe,
    is_rank_zero,
    two_stage_budget,
)

LEARN, NARROW, CONSOLIDATE = Learn(), Narrow(), Consolidate()
CONDITIONS = ", ".join(option.name for option in request_options())


@with_options("chosen", training_options(), after="context")
@with_options("reading", READING, after="task")
def train_command(
    data: Annotated[str, typer.Option(help=DATA_HELP)],
    out: Annotated[Path, typer.Option(help="Run folder.")],
    chosen: Given,
    reading: Given,
    model: Annotated[str | None, typer.Option(help=f"A network of ours: {', '.join(models.NAMES)}.")] = None,
    network: Annotated[
        str | None,
        typer.Option(
            metavar=FUNCTION,
            help="A trained network of your own, in the place of --model: a function without arguments that returns a "
            "torch.nn.Module, or its class. Also package.module:FUNCTION.",
        ),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="Weights to load: of --model as bhc pretrain writes them, without: from scratch; "
            "of --network its state dict, .safetensors or a torch file."
        ),
    ] = None,
    task: TaskOption = None,
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
    check_family(family)
    if generator is not None:
        say("--generator is --weight-generator now")
    kind = generator or weight_generator
    spec = generator_from_dict({"kind": kind} | ({"rank": rank} if kind == LowRank.kind else {}))
    source, read = source_of(data, reading, data_dir=data_dir), Reading.of(reading)
    names = [] if context == "none" else context.split("+")
    first = is_rank_zero() and processes.holds_first
    with opened_run(out, resume=resume, overwrite=force, first=first):
        own_net = _own_network(model, network, weights)
        learned, splits = task_for(task, read), source.splits(read)
        if isinstance(splits, DatasetSplits) and splits.set_aside:
            say(f"{data} has no validation part: a tenth of what is learned from is set aside for it")
        dataset, held_out = altered(splits, leave_out=leave_out, calibration=calibration, speeds=speeds)
        subject = (
            ours(model or "", weights, dataset, held_out, seed=seed)
            if own_net is None
            else own_net.on(source, dataset, learned, held_out)
        )
        if learned is not None and learned.from_network and not subject.pretrained:
            raise BhcError("--labels none imitates a trained network, and this one is new", hint="give --weights")
        space = joined(spaces_for(names, subject.data, chosen | {"two_stage": two_stage}), missing=missing)
        if context == "none":  # one context: all examples are its own
            contexts, examples = 1, contexts * examples
        compressor = wrap(
            subject.net,
            space,
            example_input=subject.example,
            weight_generator=spec,
            initial=Initial() if paper_init else Initial.exact(),
            family=family,
            std_limits=None if FAMILIES[family].cuts_weights else subject.std_limits,
            task=learned,
            pretrained=subject.pretrained,
            seed=seed,
        )
        if own_net is not None and first and learned is None:
            say_error_before(compressor.network, subject.data.validation)
        sizes = {"contexts": contexts, "examples": examples}
        fit(
            compressor,
            subject.data.train,
            subject.data.validation,
            workers=read.workers,
            calibration_set=subject.held_out,
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
            class_names=subject.class_names,
            vocabulary=subject.data.vocabulary,
            checkpoint_every=checkpoint_every,
            progress=default_progress(),
            device=device,
            deterministic=deterministic,
            augment=augmentation_of(subject.example) if augment else None,
            autocast=torch.bfloat16 if bf16 else None,
            processes=processes,
        )
    if not first:
        return
    if source.has_images:
        remember_images(RunFolder(out), subject.data.train, read)
    training, shown = compressor.model.training, compressor.network.task
    result = {
        "run": str(out),
        "default_threshold": compressor.model.default_threshold,
        "original_error": training["original_error"],
        "skipped_steps": training["skipped_steps"],
        "curve": training["curves"]["after"],
    }
    curve = training.get("size_curve")
    told = describe_curve(training, compressor.model.default_threshold, shown)
    show(result | ({} if curve is None else {"size_curve": curve}) if json else told, as_json=json)
    say(f"wrote {out}")
    own = [] if task is None else ["--task", shlex.quote(task)]
    say(" ".join(["next:", program(), "compress", str(out), *own, *example_request(space), "--out small.bhc"]))


@contextmanager
def opened_run(out: Path, *, resume: bool, overwrite: bool, first: bool) -> Iterator[None]:
    """The folder of a run; one that was made here, and that nothing was written to, goes again after an error."""
    new = not out.exists()
    if first:
        RunFolder(out).open(resume=resume, overwrite=overwrite)
    try:
        yield
    except BaseException:
        if first and new:
            with suppress(OSError):
                out.rmdir()
        raise


def _own_network(model: str | None, network: str | None, weights: Path | None) -> OwnNetwork | None:
    """The network that is named; None for one of ours, which data must be there for."""
    if (model is None) == (network is None):
        given = "neither was given" if model is None else f"given {model} and {network}"
        raise BhcError(
            f"what is trained is named by --model or by --network: {given}",
            hint=f"--model {models.NAMES[0]} for one of ours, --network {FUNCTION} for your own",
        )
    if network is not None:
        return OwnNetwork.named(network, weights)
    models.check(model or "")
    return None


def altered(
    data: Data, *, leave_out: str | None, calibration: int | None, speeds: str | None
) -> tuple[Data, datasets.Split | None]:
    """A data set without what is left or held out of it, and with other voices; and what is held out."""
    if not isinstance(data, DataSet):
        for option, value in (("--leave-out", leave_out), ("--calibration", calibration), ("--speeds", speeds)):
            if value is not None:
                hint = "a function may give a part 'calibration'" if value == calibration else "leave it out"
                raise BhcError(f"{option} is for data sets by name, or a bhc.data.DataSet", hint=hint)
        return data, None
    held_out = None
    if leave_out is not None:
        data, _ = data.without_source(leave_out)
    if calibration is not None:
        data, held_out = data.held_out(calibration)
    if speeds is not None:
        data = datasets.with_voices(data, _speeds(speeds))
    return data, held_out


def augmentation_of(example: Any) -> Augmentation:
    """What suits examples like this one; floats are taken for images where they have rows and columns."""
    if isinstance(example, torch.Tensor) and (example.dtype in (torch.int16, torch.int32) or example.dim() == 4):
        return datasets.augmentation_for(example)
    raise BhcError("--augment alters images, and the data are others", hint="alter them in a torch Dataset of your own")


def remember_images(folder: RunFolder, train: Any, reading: Reading) -> None:
    """Note in a run how its images were read, for those that it will be evaluated on."""
    channels = reading.images["channels"] or (3 if train.image_shape[0] == 3 else None)
    folder.note("images", {**reading.images, "channels": channels})


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
            case MeasureCurvature():
                recipe.append(stage)
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


def describe_curve(training: dict[str, Any], default_threshold: float, task: Task) -> str:
    """The trade-off after training in a few lines."""
    lines = []
    if training["original_error"] is not None:
        before = task.shown(training["original_error"])
        lines.append(f"pretrained network on the same contexts: {before:.2f} % validation {task.error_name}")
    if "size_curve" in training:
        return "\n".join([*lines, str(SizeCurve.from_dict(training["size_curve"]))])
    for point in training["curves"]["after"]:
        mark = "  <- default" if point["threshold"] == default_threshold else ""
        lines.append(
            f"threshold {point['threshold']:5.2f}: {point['ratio_harmonic']:8.1f} x smaller,"
            f" {task.shown(point['error']):5.2f} % {task.error_name}{mark}"
        )
    return "\n".join(lines)


def example_request(space: ContextSpace) -> list[str]:
    """Options of a request this space accepts."""
    given = {each.name: each for each in request_options() if each.name in space.conditions}
    examples = {name: option.example for name, option in given.items()}
    if (classes := space.find(ClassSubsets)) is not None:
        names = classes.class_names or tuple(map(str, range(classes.num_classes)))
        usual = names == tuple(map(str, range(len(names)))) and len(names) > 4
        examples["classes"] = "3,4" if usual else shlex.quote(",".join(names[:2]))
    return [f"{option.flag} {examples[name]}" for name, option in given.items()]


def _speeds(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise BhcError(f"cannot read the speeds {text!r}", hint="numbers around 1, such as 0.8,1.25") from None
