"""Options that several commands share, and their translation into values."""

import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from bhc.data import recordings_in
from bhc.errors import BhcError
from bhc.files import make_folder, read_bytes

DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with one folder a data set (mnist/, ...). Default: $BHC_DATA, then the cache."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of everything random.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
Calibration = Annotated[
    int | None,
    typer.Option(
        min=1, help="Hold the last N training images out, for guarantees (compress --confidence).", metavar="N"
    ),
]

Classes = Annotated[str | None, typer.Option(help="Classes it will meet: 3,4, or with probabilities 3:0.9,4:0.1.")]
LeaveOut = Annotated[
    str | None, typer.Option(help="Keep a source, such as a speaker, out of all training.", metavar="NAME")
]
Domain = Annotated[Path | None, typer.Option(help="Sample of its inputs: a .npy file, or a folder of .wav files.")]
Features = Annotated[
    Path | None,
    typer.Option(help="Inputs that will be there: a .npy file, a mask or places; or a .txt file of words."),
]
Budget = Annotated[float | None, typer.Option(help="0 is accuracy first, 1 is smallest.")]

Threshold = Annotated[
    float | None, typer.Option(help="Cut here; lower is smaller. Default: chosen on validation data.")
]
MaxBytes = Annotated[int | None, typer.Option(help="Largest file, everything in it.")]
MaxFlops = Annotated[int | None, typer.Option(help="Most operations for one input, two a multiply-add.")]
MaxError = Annotated[
    float | None, typer.Option(help="Highest validation error, percent. Alone: the smallest network under it.")
]
MaxRamBytes = Annotated[int | None, typer.Option(help="Most bytes of constants and activations in the C form.")]
MaxLatency = Annotated[
    float | None, typer.Option(help="Slowest median in onnxruntime where it is made, one input, one thread.")
]
Confidence = Annotated[
    float | None,
    typer.Option(help="Prove --max-error for new data on the run's calibration images, such as 0.95 sure."),
]
FlagOutside = Annotated[
    float | None,
    typer.Option(help="Flag inputs outside the context, at this rate of false alarms, such as 0.05."),
]
Float32Only = Annotated[bool, typer.Option("--float32", help="Prune only; keep 32-bit weights.")]

LARGEST_SAMPLE = 1 << 30


def parse_classes(text: str | None) -> list[str] | dict[str, float] | None:
    """``"3,4"`` as a list, ``"3:0.9,4:0.1"`` with probabilities; names and numbers are told apart by the space."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not any(":" in part for part in parts):
        return parts
    pairs = [part.rsplit(":", 1) for part in parts]
    try:
        rates = {label.strip(): float(rate) for label, rate in pairs}
    except ValueError:
        hint = "each class with its probability, such as 3:0.9,4:0.1"
        raise BhcError(f"cannot read the classes {text!r}", hint=hint) from None
    if len(rates) < len(pairs):
        raise BhcError(f"a class is named twice in {text!r}", hint="name each class once")
    return rates


def read_array(path: Path | None, *, what: str) -> torch.Tensor | None:
    """An array from a ``.npy`` file; never pickled objects. ``what`` says what it should be."""
    if path is None:
        return None
    content = io.BytesIO(read_bytes(path, limit=LARGEST_SAMPLE))
    try:
        array = np.load(content, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array))
    except (ValueError, TypeError, EOFError, OSError, MemoryError) as error:
        raise BhcError(
            f"{path} is not an array that can be read: {error}", hint=f"write it with numpy.save(path, array), {what}"
        ) from error


def request_of(classes: str | None, domain: Path | None, features: Path | None, budget: float | None) -> dict[str, Any]:
    """The conditions that a command was given."""
    return {
        "classes": parse_classes(classes),
        "domain": _sample(domain),
        "features": _features(features),
        "budget": budget,
    }


def _sample(path: Path | None) -> torch.Tensor | None:
    if path is not None and path.is_dir():
        return recordings_in(path)
    return read_array(path, what="images of shape (n, channels, height, width)")


def _features(path: Path | None) -> torch.Tensor | list[str] | None:
    if path is None or path.suffix != ".txt":
        return read_array(path, what="a mask that is true where a feature is there, or places")
    words = read_bytes(path, limit=LARGEST_SAMPLE).decode(errors="replace").split()
    if not words:
        raise BhcError(f"{path} has no words", hint="write the words that will be there, apart by spaces or lines")
    return words


def refuse_existing(path: Path, *, force: bool) -> None:
    """An existing file is replaced only on request, and this is said before any work is done."""
    if path.exists() and not force:
        raise BhcError(f"{path} exists already", hint="choose another name, or give --force")
    make_folder(path.parent)
