"""``bhc evaluate``: test error of an emitted or exported network on its context."""

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

import bhc.data as datasets
from bhc.cli.console import DataDir, Json, show
from bhc.contexts import ClassSubsets, parse_classes
from bhc.data import Split
from bhc.emission import NAME, Alarm, auroc, expected_calibration_error, outside_score
from bhc.errors import BhcError
from bhc.formats import Deployed, median_ms, open_deployed

CHUNK = 1024


@dataclass(frozen=True)
class OutsideEvaluation:
    """How well a file tells images of the classes left out from its own."""

    auroc: float
    flagged: float | None  # percent of them; None: the file flags nothing
    images: int

    def __str__(self) -> str:
        flagged = "" if self.flagged is None else f", {self.flagged:.2f} % flagged"
        return f"AUROC {self.auroc:.3f}{flagged}  ({self.images:,} images of other classes)"


@dataclass(frozen=True)
class Evaluation:
    file: str
    runtime: str
    classes: tuple[int, ...]
    test_error: float  # percent, to be expected where the file's classes appear unequally often
    test_error_by_class: dict[int, float]
    test_images: int
    file_bytes: int
    latency_ms: float  # one image, one thread, median
    test_ece: float  # expected calibration error, percent
    false_alarms: float | None  # percent of the images that are flagged as outside; None: the file flags nothing
    outside: OutsideEvaluation | None  # None: no class of the data is left out
    appearance: tuple[float, ...] | None  # how often each class appears, where that is unequal

    def __str__(self) -> str:
        by_class = ", ".join(f"{label}: {error:.2f} %" for label, error in self.test_error_by_class.items())
        weights = self.appearance or ()
        named = [f"{label} ({weight / sum(weights):.3g})" for label, weight in zip(self.classes, weights, strict=False)]
        lines = [
            f"test error    {self.test_error:.2f} %  ({self.test_images:,} images of classes"
            f" {', '.join(named or map(str, self.classes))})",
            f"by class      {by_class}",
            f"calibration   {self.test_ece:.2f} %  (expected calibration error)",
        ]
        if self.false_alarms is not None:
            lines.append(f"false alarms  {self.false_alarms:.2f} %  (of these images, flagged as outside)")
        if self.outside is not None:
            lines.append(f"left out      {self.outside}")
        lines += [
            f"file          {self.file_bytes:,} bytes",
            f"latency       {self.latency_ms:.3f} ms  (one image, one thread, median; {self.runtime})",
        ]
        return "\n".join(lines)


def evaluate_command(
    file: Annotated[Path, typer.Argument(help="Emitted or exported network: .bhc, .onnx or .pt2.")],
    data: Annotated[str, typer.Option(help=f"One of: {', '.join(datasets.NAMES)}.")],
    classes: Annotated[
        str | None, typer.Option(help="Test on images of these classes only, for a domain, such as 3,4.")
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Test error, size and latency of a file on the test images of its classes."""
    network = open_deployed(file)
    test = datasets.load(data, data_dir=data_dir).test
    if len(network.signature) > 1 or not network.signature.inputs[0].fits(test.tensor):
        raise BhcError(
            f"{file} takes {network.signature}, {data} has inputs of shape {tuple(test.tensor.shape[1:])}",
            hint="evaluate it on the data set it was trained for",
        )
    only = (
        network.labels
        if classes is None
        else ClassSubsets(len(test.known_labels.unique())).resolve({"classes": parse_classes(classes)}).classes
    )
    if not set(only or ()) <= set(network.labels):
        raise BhcError(
            f"{file} was made for the classes {', '.join(map(str, network.labels))}, asked for {classes}",
            hint="leave --classes out, or name some of these",
        )
    left_out = test.tensor[~torch.isin(test.known_labels, torch.tensor(network.labels))]
    if classes is not None:  # of some classes alone, the file does not say how often they appear
        network = replace(network, appearance=None)
    result = evaluate(network, test.restricted_to(only or ()), left_out, file)
    show(asdict(result) if json else result, as_json=json)


def evaluate(network: Deployed, examples: Split, left_out: Tensor, file: Path) -> Evaluation:
    """Errors over the given images, how images of other classes are told from them, and the time for one image."""
    try:
        alarm = Alarm.of({NAME: network.alarm})
    except ValueError as damage:
        raise BhcError(f"{file} is damaged: {damage}", hint="copy or make it again") from damage
    numbering = torch.tensor(network.labels)
    logits = _logits(network, examples.tensor)
    wrong = numbering[logits.argmax(1)] != examples.known_labels
    places = (examples.known_labels[:, None] == numbering).int().argmax(1)
    present = examples.known_labels.unique().tolist()
    by_class = {label: 100 * float(wrong[examples.known_labels == label].float().mean()) for label in present}
    error = 100 * float(wrong.float().mean())
    appearance = network.appearance if tuple(present) == tuple(sorted(network.labels)) else None
    weights = None if appearance is None else torch.tensor(appearance) / places.bincount()  # of each image, by class
    if weights is not None:
        error = 100 * float((wrong * weights[places]).sum() / weights[places].sum())
    return Evaluation(
        file=str(file),
        runtime=network.runtime,
        classes=tuple(present),
        test_error=error,
        test_error_by_class=by_class,
        test_images=len(examples),
        file_bytes=network.size,
        latency_ms=_latency_ms(network, examples.tensor[:1]),
        test_ece=expected_calibration_error(torch.softmax(logits / network.temperature, dim=1), places, weights),
        false_alarms=_percent_flagged(alarm, logits, None if weights is None else weights[places]),
        outside=_outside(alarm, logits, _logits(network, left_out)) if len(left_out) else None,
        appearance=appearance,
    )


def _logits(network: Deployed, images: Tensor) -> Tensor:
    return torch.cat([network.logits(x) for x in images.split(CHUNK)])


def _outside(alarm: Alarm | None, inside: Tensor, outside: Tensor) -> OutsideEvaluation:
    score = outside_score if alarm is None else alarm.score
    return OutsideEvaluation(auroc(score(inside), score(outside)), _percent_flagged(alarm, outside), len(outside))


def _percent_flagged(alarm: Alarm | None, logits: Tensor, weights: Tensor | None = None) -> float | None:
    if alarm is None:
        return None
    counts = torch.ones(len(logits)) if weights is None else weights
    return 100 * float((alarm.flags(logits) * counts).sum() / counts.sum())


def _latency_ms(network: Deployed, image: Tensor) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return median_ms(lambda: network.logits(image))
    finally:
        torch.set_num_threads(threads)
