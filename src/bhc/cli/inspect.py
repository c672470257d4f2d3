"""``bhc inspect``: what a run accepts and holds, or what is in an emitted file."""

from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Annotated, Any

import typer

from bhc.cli.console import Force, Given, Json, refuse_existing, say, show, table, with_options
from bhc.cli.plots import file_figure, run_figure, save_figure
from bhc.cli.subject import TaskOption, own_task
from bhc.compressor import Compressor, load
from bhc.contexts import Context, ContextSpace, example_request, request_options
from bhc.emission import Compressed, SizeCurve, from_file, in_order, streams
from bhc.errors import BhcError
from bhc.examples import Split, several
from bhc.formats import NetworkFile, StoredLayer, read_network
from bhc.graph import MOST_WHOLE
from bhc.hypernet import ConditionalNetwork
from bhc.tasks import Task

PRIOR, WEIGHTS = "prior of the weights", "weights"


@with_options("conditions", request_options())
def inspect_command(
    path: Annotated[Path, typer.Argument(help="Run folder, or emitted network (.bhc).")],
    conditions: Given,
    plot: Annotated[Path | None, typer.Option(help="Write a picture (.png).")] = None,
    threshold: Annotated[float | None, typer.Option(help="Where the picture cuts. Default: the run's.")] = None,
    task: TaskOption = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Show a run (contexts, trade-off, log dropout rates) or a file (layers, what each byte is for).

    The context is that of a run's picture.
    """
    if plot is not None:
        refuse_existing(plot, force=force)
    if not path.exists():
        raise BhcError(f"{path} does not exist", hint="give a run folder or a .bhc file")
    if not path.is_dir():
        file = read_network(path)
        small = from_file(file, path)
        show(file_facts(small, file, path) if json else file_text(small, file, path), as_json=json)
        if plot is not None:
            save_figure(file_figure(small, file.parts), plot)
    else:
        model = load(path, task=own_task(task))
        if plot is not None and "curves" not in model.model.training:
            raise BhcError(
                f"{path} was never trained, so there is nothing to draw", hint="leave --plot out, or train it"
            )
        show(_run_facts(model, path) if json else _run_text(model, path), as_json=json)
        if plot is not None:
            cut = model.model.default_threshold if threshold is None else threshold
            context = _context(model, conditions)
            save_figure(run_figure(model.network, model.model.training, context, cut, str(context)), plot)
    if plot is not None:
        say(f"wrote {plot}")


def _context(model: Compressor, conditions: Given) -> Context:
    """The context asked for; where none is, one to look at."""
    if all(value is None for value in conditions.values()):
        sample = model.model.validation
        seen = None if sample is None or len(several(sample.inputs)) > 1 else sample.tensor
        conditions = example_request(model.space, seen)
    return model.space.resolve(conditions)


def _run_facts(model: Compressor, path: Path) -> dict[str, Any]:
    trained, network = model.model, model.network
    return {
        "run": str(path),
        "input_shape": list(network.input_shape),
        "inputs": network.signature.to_list(),
        "task": network.task.describe(),
        "layers": {layer.name: list(layer.weight_shape) for layer in network.layers},
        "weights": network.num_weights,
        "parameters": network.counts.parameters,
        "whole": [{"name": each.name, "weights": each.weights, "reason": each.reason} for each in network.whole],
        "heads": [len(heads.rows) for heads in network.units.attention],
        "branches": [branch.ends[-1].layer for branch in in_order(network)],
        "streams": list(streams(network)),
        "conditions": model.space.describe(),
        "context": model.space.to_dict(),
        "generator": network.design.weight_generator.to_dict(),
        "family": network.design.family,
        "class_names": None if trained.class_names is None else list(trained.class_names),
        "thresholds": trained.thresholds,
        "default_threshold": trained.default_threshold,
        "validation_images": 0 if trained.validation is None else len(trained.validation),
        "sample": None if trained.validation is None else vars(Sample.of(trained.validation)),
        "calibration_images": 0 if trained.calibration is None else len(trained.calibration),
        "training": trained.training,
    }


def _run_text(model: Compressor, path: Path) -> str:
    trained, network = model.model, model.network
    layers = ", ".join(f"{layer.name} {' x '.join(map(str, layer.weight_shape))}" for layer in network.layers)
    lines = [
        f"run           {path}",
        f"task          {network.task.name}; reported is the {network.task.error_name}",
        f"takes         {network.signature}",
        f"network       {network.num_weights:,} weights: {layers}",
        *_block_lines(network),
        *_whole_lines(network),
        *_accepted(model.space),
        f"generator     {network.design.weight_generator.to_dict()['kind']}, family {network.design.family}",
        f"threshold     {trained.default_threshold:g} by default"
        + (f", {trained.thresholds[0]:g} to {trained.thresholds[1]:g} covered" if trained.thresholds else ""),
    ]
    if trained.validation is not None:
        lines.append(f"sample        {Sample.of(trained.validation)}")
    if trained.calibration is not None:
        lines.append(f"calibration   {len(trained.calibration):,} images for guarantees (compress --confidence)")
    training, task = trained.training, network.task
    if isinstance(training.get("images"), dict):
        lines.append(f"reads images  {_reading_text(training['images'])}")
    if training:
        if training["original_error"] is not None:
            before = f"{task.shown(training['original_error']):.2f} % validation {task.error_name}"
            lines.append(f"pretrained    {before} on the contexts below")
        if "size_curve" in training:
            lines += ["", str(SizeCurve.from_dict(training["size_curve"]))]
        count = len(training["curve_contexts"])
        contexts = "one context" if count == 1 else f"{count} contexts"
        lines += [
            "",
            f"the hypernetwork's own networks over {contexts}, validation data",
            _curve_table(training["curves"], task),
        ]
    return "\n".join(lines)


@dataclass(frozen=True)
class Sample:
    """What a run keeps of its validation set."""

    examples: int
    bytes: int  # in memory
    dtypes: list[str]
    labelled: bool

    @classmethod
    def of(cls, split: Split) -> "Sample":
        tensors = several(split.inputs)
        size = sum(tensor.nelement() * tensor.element_size() for tensor in tensors)
        dtypes = [str(tensor.dtype).removeprefix("torch.") for tensor in tensors]
        return cls(len(split), size, dtypes, split.labels is not None)

    def __str__(self) -> str:
        classes = "" if self.labelled else ", of no class"
        return f"{self.examples:,} validation examples{classes}: {self.bytes:,} bytes, {', '.join(self.dtypes)}"


def _reading_text(images: dict[str, Any]) -> str:
    """How folders of images were read."""
    size, channels = images.get("size"), images.get("channels")
    sides = size if isinstance(size, list) else [size, size]
    texts = ["as large as they are" if size is None else " x ".join(map(str, sides))]
    texts += [] if channels is None else ["grey" if channels == 1 else "in colour"]
    for name in ("mean", "std"):
        if images.get(name) is not None:
            texts.append(f"{name} {', '.join(f'{number:g}' for number in images[name])}")
    return "; ".join(texts)


def _block_lines(network: ConditionalNetwork) -> list[str]:
    """Heads of attention, branches beside shortcuts, and the streams that these add to."""
    heads = [len(each.rows) for each in network.units.attention]
    texts = [f"attention: {_times(heads)} head{'' if sum(heads) == 1 else 's'}"] if heads else []
    if network.branches:
        count, widths = len(network.branches), [f"{width:,}" for width in streams(network)]
        texts.append(f"{count} branch{'' if count == 1 else 'es'} may go")
        texts.append(f"stream{'' if len(widths) == 1 else 's'} of {', '.join(widths)} channels")
    return [f"blocks        {'; '.join(texts)}"] if texts else []


def _times(counts: list[int]) -> str:
    """``12 x 3``; those that differ one by one, ``4, 2 x 8``."""
    runs = [(number, len(list(same))) for number, same in groupby(counts)]
    return ", ".join(f"{number}" if times == 1 else f"{times} x {number}" for number, times in runs)


def _whole_lines(network: ConditionalNetwork) -> list[str]:
    """What cannot get smaller, the largest first."""
    shown = [str(each) for each in network.whole[:MOST_WHOLE]]
    if len(network.whole) > MOST_WHOLE:
        rest = sum(each.weights for each in network.whole[MOST_WHOLE:])
        shown.append(f"and {len(network.whole) - MOST_WHOLE} more ({rest:,} weights)")
    return [f"{'stays whole' if not place else '':<13} {text}" for place, text in enumerate(shown)]


def _accepted(space: ContextSpace) -> list[str]:
    """What a request may say, a line a condition."""
    texts = [f"{name}: {text}" for name, text in space.describe().items()] or ["nothing: it was made for one context"]
    if space.optional:
        texts.append("each of these may be left out")
    return [f"{'accepts' if not place else '':<13} {text}" for place, text in enumerate(texts)]


def _curve_table(curves: dict[str, Any], task: Task) -> str:
    before = {point["threshold"]: point["error"] for point in curves.get("before", [])}
    what = task.error_name
    rows = [
        [
            f"{point['threshold']:.2f}",
            f"{point['ratio_mean']:,.1f}",
            f"{point['ratio_harmonic']:,.1f}",
            f"{task.shown(before[point['threshold']]):.2f}" if point["threshold"] in before else "-",
            f"{task.shown(point['error']):.2f}",
            f"{task.shown(point['error_max']):.2f}",
        ]
        for point in curves["after"]
    ]
    return table(["threshold", "ratio", "harmonic", f"{what} before %", "after %", "worst context %"], rows)


def file_facts(small: Compressed, file: NetworkFile, path: Path) -> dict[str, Any]:
    """The report, the layers and the parts as plain data."""
    return {
        "file": str(path),
        "version": file.version,
        **small.report.to_dict(),
        "stored_layers": [_layer_facts(layer) for layer in file.network.layers],
        "parts": [vars(part) for part in file.parts],
        "weight_stream": weight_stream(file),
    }


def file_text(small: Compressed, file: NetworkFile, path: Path) -> str:
    """The same for reading."""
    header = ["layer", "weights", "bits", "step", "codes", "bytes", "entropy"]
    coded = {part.layer: part.bytes for part in file.parts if part.name == WEIGHTS}
    layers = table(header, [_layer_row(layer, coded) for layer in file.network.layers])
    sections = [f"path          {path}  (version {file.version})", str(small.report), "", layers]
    if file.parts:
        total = sum(part.bytes for part in file.parts)
        rows = [
            [part.name, part.layer or "", f"{part.bytes:.1f}", f"{100 * part.bytes / total:.0f} %"]
            for part in file.parts
        ]
        rows.append(["all", "", f"{total:,.0f}", ""])
        stream = weight_stream(file)
        text = (
            f"coded weights {stream['coded_bytes']:.0f} bytes and {stream['prior_bytes']:.0f} for their priors; the"
            f" zero-order entropy of the codes is {stream['entropy_bytes']:.1f} bytes"
        )
        sections += ["", table(["part", "of layer", "bytes", "share"], rows), "", text]
    return "\n".join(sections)


def weight_stream(file: NetworkFile) -> dict[str, float]:
    """The coded weights with their priors against the per-layer zero-order entropy of the codes."""
    bytes_of = {name: sum(part.bytes for part in file.parts if part.name == name) for name in (WEIGHTS, PRIOR)}
    return {
        "coded_bytes": bytes_of[WEIGHTS],
        "prior_bytes": bytes_of[PRIOR],
        "entropy_bytes": sum(codes.entropy_bytes for codes in file.network.weights.values()),
    }


def _layer_facts(layer: StoredLayer) -> dict[str, Any]:
    codes = layer.weight
    return {
        "name": layer.name,
        "shape": list(layer.module.weight.shape),
        "bits": layer.bits,
        "step": None if codes is None else codes.step,
        "lowest": None if codes is None else int(codes.codes.min()),
        "highest": None if codes is None else int(codes.codes.max()),
        "entropy_bytes": None if codes is None else codes.entropy_bytes,
    }


def _layer_row(layer: StoredLayer, coded: dict[str | None, float]) -> list[str]:
    shape = " x ".join(map(str, layer.module.weight.shape))
    codes = layer.weight
    if codes is None:
        return [layer.name, shape, "32", "floats", "", f"{4 * layer.num_weights:,}", ""]
    return [
        layer.name,
        shape,
        str(layer.bits),
        f"{codes.step:.3g}",
        f"{codes.codes.min()} to {codes.codes.max()}",
        f"{coded.get(layer.name, 0.0):.1f}",
        f"{codes.entropy_bytes:.1f}",
    ]
