"""``bhc demo``: the whole story in about two minutes; and ``bhc pretrain``: a network of ours to start from."""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from torch import nn

import bhc.data as datasets
import bhc.models as models
from bhc.cli.console import (
    Calibration,
    DataDir,
    Force,
    Json,
    LeaveOut,
    Seed,
    program,
    refuse_existing,
    say,
    show,
    table,
)
from bhc.cli.plots import contexts_figure, run_figure, save_figure
from bhc.cli.subject import torch_file
from bhc.compressor import Compressor, wrap
from bhc.contexts import ClassSubsets, RandomSubsets, all_subsets
from bhc.contexts.subsets import Subset
from bhc.data import DataSet
from bhc.emission import SizeCurve, as_floats
from bhc.errors import BhcError
from bhc.files import make_folder, write_json
from bhc.fitting import fit
from bhc.pretraining import BatchNormPretraining, Pretraining, build_for, error_of, pretrain, save_weights, usual_recipe
from bhc.results import Outcome, environment, judge, summarise
from bhc.training import Consolidate, Learn, MeasureCurvature, default_progress, find_device

MODEL = "lenet-300-100"
RATIO = 100  # times fewer weights: the smaller of the two networks that every context gets
GOOD, SMALL = "as good", "small"
# Larger steps than usual and fewer of them, for about two minutes on two cores. The curvature has the networks that
# keep much; what is learned is for those that keep little: benchmarks/NOTES.md has what was tried.
LEARN = Learn(steps=2800, rate=5e-3, logvar_rate=4.8e-2, map_slowdown=4.0, kl_weight=4.0)
CONSOLIDATE = Consolidate(steps=2800, rate=3e-3, ratios=(20.0, 500.0))
SIZES = (2, 3)  # of the subsets
TRIPLE: Subset = (3, 5, 8)
HELD_OUT_EVERY = 7
SHOWN_UNSEEN = 6


def demo_command(
    out: Annotated[Path, typer.Option(help="Folder for everything the demo makes.")] = Path("bhc-demo"),
    data: Annotated[str, typer.Option(help="mnist, fashion-mnist or digits.")] = "mnist",
    epochs: Annotated[int, typer.Option(min=1, help="Passes of pretraining.")] = 8,
    steps: Annotated[int, typer.Option(min=1, help="Steps of variational learning.")] = LEARN.steps,
    consolidation_steps: Annotated[int, typer.Option(min=1, help="Steps of consolidation.")] = CONSOLIDATE.steps,
    kl_weight: Annotated[float, typer.Option(min=0.0, help="Weight of the divergence: size.")] = LEARN.kl_weight,
    force: Annotated[bool, typer.Option("--force", help="Replace an earlier demo in that folder.")] = False,
    seed: Seed = 0,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Pretrain, train one hypernetwork, and cut networks to measure for classes it was and was not shown."""
    began = time.monotonic()
    make_folder(out)
    if not force and ((out / "run").exists() or (out / "summary.json").exists()):
        raise BhcError(f"{out} holds a demo already", hint="choose another folder with --out, or give --force")
    dataset = datasets.load(data, data_dir=data_dir)
    say(f"1. A network for all {dataset.num_classes} classes of {data}: {MODEL}.")
    net = pretrain(MODEL, dataset, Pretraining(epochs=epochs), seed=seed, progress=default_progress())
    original = {"validation_error": error_of(net, dataset.validation), "test_error": error_of(net, dataset.test)}
    save_weights(out / "pretrained.safetensors", MODEL, net, dataset, errors=original)
    say(f"   {original['test_error']:.2f} % test error with 32-bit weights.\n")

    held_out = choose_held_out(dataset.num_classes)
    sampler = RandomSubsets(SIZES, held_out)
    say(
        f"2. One hypernetwork for every subset of {' or '.join(map(str, SIZES))} classes:"
        f" {len(sampler.subsets(dataset.num_classes))} to train on, {len(held_out)} never shown."
    )
    space = ClassSubsets(dataset.num_classes, sampler, dataset.class_names)
    model = wrap(net, space, example_input=dataset.train.inputs[:1], std_limits=(0.2, None, None), seed=seed)
    learn = replace(LEARN, steps=steps, kl_weight=kl_weight)
    consolidate = replace(CONSOLIDATE, steps=consolidation_steps)
    fit(
        model,
        dataset.train,
        dataset.validation,
        recipe=(MeasureCurvature(), learn, consolidate),
        run=out / "run",
        overwrite=True,
        seed=seed,
        class_names=dataset.class_names,
        progress=default_progress(),
    )
    say(str(SizeCurve.from_dict(model.model.training["size_curve"])))
    say(f"\n3. For each the smallest that is as good as the original, and one with {RATIO} x fewer weights.\n")
    pairs = [(first, first + 1) for first in range(dataset.num_classes - 1)]
    limits = {GOOD: {}, SMALL: {"max_weights": model.network.num_weights // RATIO}}
    shown = {
        size: {
            "pairs": [_emit(model, subset, size, dataset, out, **limit) for subset in pairs],
            "triple": [_emit(model, TRIPLE, size, dataset, out, **limit)],
            "unseen": [_emit(model, subset, size, dataset, out, **limit) for subset in held_out],
        }
        for size, limit in limits.items()
    }
    _draw(model, shown, out)
    seconds = time.monotonic() - began
    result = _result(model, shown, original, seed=seed, seconds=seconds)
    write_json(out / "summary.json", result)
    show(result if json else _story(shown, seconds), as_json=json)
    say(_what_next(out, data))


def choose_held_out(num_classes: int) -> tuple[Subset, ...]:
    """Every seventh subset that is neither a consecutive pair nor the triple shown."""
    candidates = [
        subset
        for subset in all_subsets(num_classes, SIZES)
        if subset != TRIPLE and not (len(subset) == 2 and subset[1] - subset[0] == 1)
    ]
    return tuple(candidates[::HELD_OUT_EVERY])


def _emit(model: Compressor, subset: Subset, size: str, dataset: DataSet, out: Path, **limits: Any) -> Outcome:
    small = model.compress(classes=subset, **limits)
    pruned = as_floats(model.model, model.space.resolve({"classes": subset}), small.report)
    path = out / "networks" / f"{_name(subset, size)}.bhc"
    small.save(path, overwrite=True)
    small.to_onnx(path.with_suffix(".onnx"), overwrite=True)
    small.to_c(path.with_suffix(".h"), overwrite=True)
    return judge(small, pruned, model.network, dataset.test.restricted_to(small.classes))


def _name(subset: Subset, size: str) -> str:
    return f"{MODEL}-{'-'.join(map(str, subset))}-{size.replace(' ', '-')}"


Group = dict[str, list[Outcome]]  # outcomes of pairs, of the triple and of unseen subsets


def _all(group: Group) -> list[Outcome]:
    return [outcome for outcomes in group.values() for outcome in outcomes]


def _result(
    model: Compressor, shown: dict[str, Group], original: dict[str, float], *, seed: int, seconds: float
) -> dict[str, Any]:
    trained = model.space.to_dict()["sampler"]
    return {
        "experiment": "demo",
        "model": MODEL,
        "method": "bhc-cy",
        "trained_on": f"subsets of {' and '.join(map(str, SIZES))} classes, {len(trained['held_out'])} held out",
        "seed": seed,
        "config": {
            "recipe": model.model.training["recipe"],
            "generator": model.network.design.weight_generator.to_dict(),
        },
        **environment(),
        "seconds": round(seconds, 1),
        "original_error": original["test_error"],
        "summary": {
            size: {name: _summary(outcomes) for name, outcomes in (*group.items(), ("all", _all(group)))}
            for size, group in shown.items()
        },
        "contexts": [
            {"size": size, "group": name, **outcome.to_dict()}
            for size, group in shown.items()
            for name, outcomes in group.items()
            for outcome in outcomes
        ],
    }


def _summary(outcomes: list[Outcome]) -> dict[str, Any]:
    """Figures of several contexts, with the full network's error on the same images."""
    images = sum(outcome.images for outcome in outcomes)
    return summarise(outcomes) | {"original_error": 100 * sum(o.wrong_before for o in outcomes) / images}


def _story(shown: dict[str, Group], seconds: float) -> str:
    header = ["classes", "full net %"]
    for size in shown:
        header += [f"{size}: x smaller", "bytes", "error %"]
    groups = shown[GOOD]
    every = max(1, len(groups["unseen"]) // SHOWN_UNSEEN)
    by_size = shown.values()
    rows = [_row(*at) for name in ("pairs", "triple") for at in zip(*(each[name] for each in by_size), strict=True)]
    rows += [_row(*at, mark="*") for at in zip(*(each["unseen"][::every] for each in by_size), strict=True)]
    emit_ms = max(_summary(_all(group))["emit_ms_median"] for group in by_size)
    return "\n".join(
        [
            table(header, rows),
            "* never shown in training. Errors are on test images of the classes; all nets choose among these.",
            "",
            *[line for size, group in shown.items() for line in _in_all(size, group)],
            f"one network: {emit_ms:.0f} ms from context to packed file, the search for its size included (median)",
            f"the whole demo: {seconds:.0f} s",
        ]
    )


def _in_all(size: str, group: Group) -> list[str]:
    """Of one size: all contexts, then those that were and were not shown."""
    lines = []
    shown = {"contexts": _all(group), "pairs": group["pairs"], "unseen subsets": group["unseen"]}
    for name, outcomes in shown.items():
        summary = _summary(outcomes)
        lines.append(
            f"{size}, {len(outcomes)} {name}: {summary['pruning_ratio_harmonic']:.0f} x fewer weights,"
            f" {summary['file_error']:.2f} % error in all, worst {summary['error_max']:.2f} % (full network"
            f" {summary['original_error']:.2f} %; before rounding {summary['pruning_error']:.2f} %), files of"
            f" {summary['file_bytes_mean']:,.0f} bytes"
        )
    return lines


def _row(*outcomes: Outcome, mark: str = "") -> list[str]:
    """One context at every size."""
    cells = [", ".join(map(str, outcomes[0].small.classes)) + mark, f"{outcomes[0].error_before:.2f}"]
    for outcome in outcomes:
        report = outcome.small.report
        cells += [f"{report.pruning_ratio:.0f}", f"{report.file_bytes:,}", f"{outcome.error:.2f}"]
    return cells


def _draw(model: Compressor, shown: dict[str, Group], out: Path) -> None:
    """Some of the smallest networks, and the run with the cut of one of them."""
    group, training = shown[SMALL], model.model.training
    pairs, unseen = group["pairs"], group["unseen"]
    chosen = [pairs[0], pairs[3], *group["triple"], unseen[0], unseen[-1]]
    named = [
        (f"classes {', '.join(map(str, o.small.classes))}" + ("\n(never shown)" if o in unseen else "\n"), o.small)
        for o in chosen
    ]
    threshold = model.model.default_threshold
    save_figure(contexts_figure(named, training, threshold), out / "contexts.png")
    context = model.space.resolve({"classes": pairs[3].small.classes})
    save_figure(run_figure(model.network, training, context, threshold, str(context)), out / "run.png")


def _what_next(out: Path, data: str) -> str:
    network = out / "networks" / f"{_name((3, 4), SMALL)}.bhc"
    bhc = program()
    return "\n".join(
        [
            "",
            f"In {out}/: contexts.png, run.png (pictures), networks/ (.bhc, .onnx, .h), run/ (model), summary.json.",
            "Try next:",
            f"  {bhc} compress {out / 'run'} --classes 1,7 --out ones-and-sevens.bhc",
            f"  {bhc} compress {out / 'run'} --classes 1,7 --max-bytes 600      as good as 600 bytes can be",
            f"  {bhc} evaluate {network} --data {data}",
            f"  {bhc} inspect {network} --plot file.png",
            f"  {bhc} inspect {out / 'run'} --classes 4,9 --plot run-4-9.png",
            f"  {bhc} serve {out / 'run'}      the studio: see and try all of it in a browser",
        ]
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
    checkpoint = torch_file(path)
    if not isinstance(checkpoint, dict):
        raise BhcError(f"{path} holds a {type(checkpoint).__name__}, not named tensors")
    net = build_for(dataset, model)
    models.load_public_resnet_(net, checkpoint)
    return net.eval().requires_grad_(False)
