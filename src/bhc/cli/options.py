"""Options that several commands share, and their translation into values."""

import io
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer

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

LARGEST_SAMPLE = 1 << 30


def parse_classes(text: str | None) -> list[str] | None:
    """``"3,4"`` as a list; names and numbers are told apart by the context space."""
    if text is None:
        return None
    return [part.strip() for part in text.split(",") if part.strip()]


def read_domain(path: Path | None) -> torch.Tensor | None:
    """A sample of inputs from a ``.npy`` file; never pickled objects."""
    if path is None:
        return None
    content = io.BytesIO(read_bytes(path, limit=LARGEST_SAMPLE))
    try:
        array = np.load(content, allow_pickle=False)
        return torch.from_numpy(np.ascontiguousarray(array))
    except (ValueError, TypeError, EOFError, OSError, MemoryError) as error:
        raise BhcError(
            f"{path} is not an array that can be read: {error}",
            hint="write it with numpy.save(path, images), images of shape (n, channels, height, width)",
        ) from error


def refuse_existing(path: Path, *, force: bool) -> None:
    """An existing file is replaced only on request, and this is said before any work is done."""
    if path.exists() and not force:
        raise BhcError(f"{path} exists already", hint="choose another name, or give --force")
    make_folder(path.parent)
