"""``bhc evaluate``: test error of an emitted or exported network on its context."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer
from torch import Tensor

from bhc import data as datasets
from bhc.cli.console import show
from bhc.cli.options import DataDir, Json, parse_classes
from bhc.contexts import ClassSubsets
from bhc.data import Split
from bhc.errors import BhcError
from bhc.formats import Deployed, median_ms, open_deployed

CHUNK = 1024


@dataclass(frozen=True)
class Evaluation:
    """Test figures of one file."""

    file: str
    runtime: str
    classes: tuple[int, ...]
    test_error: float  # percent
    test_error_by_class: dict[int, float]
    test_images: int
    file_bytes: int
    latency_ms: float  # one image, one thread, median

    def __str__(self) -> str:
        by_class = ", ".join(f"{label}: {error:.2f} %" for label, error in self.test_error_by_class.items())
        return "\n".join(
            [
                f"test error    {self.test_error:.2f} %  ({self.test_images:,} images of classes"
                f" {', '.join(map(str, self.classes))})",
                f"by class      {by_class}",
                f"file          {self.file_bytes:,} bytes",
                f"latency       {self.latency_ms:.3f} ms  (one image, one thread, median; {self.runtime})",
            ]
        )


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
    if tuple(test.images.shape[1:]) != network.input_shape:
        raise BhcError(
            f"{file} takes inputs of shape {network.input_shape}, {data} has {tuple(test.images.shape[1:])}",
            hint="evaluate it on the data set it was trained for",
        )
    only = (
        network.labels
        if classes is None
        else ClassSubsets(len(test.labels.unique())).resolve({"classes": parse_classes(classes)}).classes
    )
    if not set(only or ()) <= set(network.labels):
        raise BhcError(
            f"{file} was made for the classes {', '.join(map(str, network.labels))}, asked for {classes}",
            hint="leave --classes out, or name some of these",
        )
    result = evaluate(network, test.restricted_to(only or ()), file)
    show(asdict(result) if json else result, as_json=json)


def evaluate(network: Deployed, examples: Split, file: Path) -> Evaluation:
    """Errors over the given images, and the time for one image."""
    wrong = torch.cat([network.answer(x) for x in examples.images.split(CHUNK)]) != examples.labels
    return Evaluation(
        file=str(file),
        runtime=network.runtime,
        classes=tuple(examples.labels.unique().tolist()),
        test_error=100 * float(wrong.float().mean()),
        test_error_by_class={
            label: 100 * float(wrong[examples.labels == label].float().mean())
            for label in examples.labels.unique().tolist()
        },
        test_images=len(examples),
        file_bytes=network.size,
        latency_ms=_latency_ms(network, examples.images[:1]),
    )


def _latency_ms(network: Deployed, image: Tensor) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return median_ms(lambda: network.logits(image))
    finally:
        torch.set_num_threads(threads)
