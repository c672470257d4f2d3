"""``bhc evaluate``: test error of an emitted network on its context."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import torch
import typer

from bhc import data as datasets
from bhc.cli.console import show
from bhc.cli.options import DataDir, Json, parse_classes
from bhc.contexts import ClassSubsets
from bhc.data import Split
from bhc.emission import Compressed, read
from bhc.errors import BhcError

TIMED_CALLS = 50


@dataclass(frozen=True)
class Evaluation:
    """Test figures of one file."""

    file: str
    classes: tuple[int, ...]
    test_error: float  # percent
    test_error_by_class: dict[int, float]
    test_images: int
    file_bytes: int
    latency_ms: float  # one image, median

    def __str__(self) -> str:
        by_class = ", ".join(f"{label}: {error:.2f} %" for label, error in self.test_error_by_class.items())
        return "\n".join(
            [
                f"test error    {self.test_error:.2f} %  ({self.test_images:,} images of classes"
                f" {', '.join(map(str, self.classes))})",
                f"by class      {by_class}",
                f"file          {self.file_bytes:,} bytes",
                f"latency       {self.latency_ms:.3f} ms  (one image, torch)",
            ]
        )


def evaluate_command(
    file: Annotated[Path, typer.Argument(help="Emitted network (.bhc).")],
    data: Annotated[str, typer.Option(help=f"One of: {', '.join(datasets.NAMES)}.")],
    classes: Annotated[
        str | None, typer.Option(help="Test on images of these classes only, for a domain, such as 3,4.")
    ] = None,
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Test error of a file on the test images of its classes."""
    small = read(file)
    test = datasets.load(data, data_dir=data_dir).test
    if tuple(test.images.shape[1:]) != small.input_shape:
        raise BhcError(
            f"{file} takes inputs of shape {small.input_shape}, {data} has {tuple(test.images.shape[1:])}",
            hint="evaluate it on the data set it was trained for",
        )
    only = (
        small.classes
        if classes is None
        else ClassSubsets(len(test.labels.unique())).resolve({"classes": parse_classes(classes)}).classes
    )
    result = evaluate(small, test.restricted_to(only or ()), file)
    show(asdict(result) if json else result, as_json=json)


def evaluate(small: Compressed, examples: Split, file: Path) -> Evaluation:
    """Errors over the given images, and the time for one image."""
    wrong = small.predict(examples.images).labels != examples.labels
    return Evaluation(
        file=str(file),
        classes=tuple(examples.labels.unique().tolist()),
        test_error=100 * float(wrong.float().mean()),
        test_error_by_class={
            label: 100 * float(wrong[examples.labels == label].float().mean())
            for label in examples.labels.unique().tolist()
        },
        test_images=len(examples),
        file_bytes=file.stat().st_size,
        latency_ms=_latency_ms(small, examples),
    )


@torch.no_grad()
def _latency_ms(small: Compressed, examples: Split) -> float:
    image = examples.images[:1]
    times = []
    for _ in range(TIMED_CALLS):
        began = time.perf_counter()
        small.module(image)
        times.append(time.perf_counter() - began)
    return 1e3 * sorted(times)[len(times) // 2]
