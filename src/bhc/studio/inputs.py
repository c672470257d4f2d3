"""What a request brings along: samples, one input; and examples as pictures."""

import io
import struct
import zlib
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.compressor import Compressor
from bhc.emission import Compressed
from bhc.errors import BhcError
from bhc.examples import Split

HINT = "write it with numpy.save(path, array), images of shape (n, channels, height, width)"
KINDS = "buif"  # truths, integers, floats


def sample_of(content: bytes, most: int) -> Tensor:
    """The array of a file of at most ``most`` samples; never pickled objects, never more than the file holds."""
    file = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(file)
        read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, by_column, kind = read(file)
    except (ValueError, TypeError, EOFError, SyntaxError, MemoryError, RecursionError) as error:
        raise BhcError(f"the body is not an array that can be read: {error}", hint=HINT) from None
    if kind.kind not in KINDS:
        raise BhcError(f"the body is an array of {kind}, and not of numbers", hint=HINT)
    values = content[file.tell() :]
    if len(values) != prod(shape) * kind.itemsize:
        raise BhcError(f"the body is not an array that can be read: {shape} of {kind} is not what it holds", hint=HINT)
    if shape and shape[0] > most:
        raise BhcError(
            f"a sample of {shape[0]:,} inputs, where at most {most:,} are taken", hint="some hundreds say enough"
        )
    array = np.frombuffer(values, kind).reshape(shape, order="F" if by_column else "C")
    return torch.from_numpy(np.ascontiguousarray(array.astype(np.float32 if kind.kind == "f" else np.int64)))


GREY, COLOUR = 0, 2
SIGNATURE = b"\x89PNG\r\n\x1a\n"


def is_picture(shape: tuple[int, ...]) -> bool:
    """Whether inputs of a shape can be looked at: one channel or three, rows and columns."""
    return len(shape) == 3 and shape[0] in (1, 3)


def png(image: Tensor) -> bytes:  # (1 or 3, H, W) uint8
    """The PNG file of an image."""
    channels, height, width = image.shape
    rows = image.permute(1, 2, 0).reshape(height, width * channels).numpy()
    lines = b"".join(b"\0" + row.tobytes() for row in rows)  # each begins with the filter: none
    head = struct.pack(">IIBBBBB", width, height, 8, GREY if channels == 1 else COLOUR, 0, 0, 0)
    chunks = (b"IHDR", head), (b"IDAT", zlib.compress(lines, 9)), (b"IEND", b"")
    return SIGNATURE + b"".join(_chunk(*chunk) for chunk in chunks)


def _chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


PICTURES = 9  # of each class


class Pictures:
    """Images of a validation sample to look at."""

    def __init__(self, sample: Split | None, shape: tuple[int, ...], num_classes: int) -> None:
        self.sample, self.num_classes, self.count = sample, num_classes, 0
        if sample is not None and is_picture(shape):
            self.count = min(PICTURES, int(sample.labels.bincount(minlength=num_classes).min()))

    def png(self, label: int, number: int) -> bytes | None:
        """One of a class; None where there is none."""
        if self.sample is None or not 0 <= number < self.count or not 0 <= label < self.num_classes:
            return None
        return png(self.sample.inputs[(self.sample.labels == label).nonzero().flatten()[number]])


def as_input(image: Any, shape: tuple[int, ...]) -> Tensor:  # (1, *shape)
    """Raw values, nested or flat, as a batch of one."""
    hint = f"give {' x '.join(map(str, shape))} numbers as they are stored, pixels from 0 to 255"
    try:
        values = torch.as_tensor(image, dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise BhcError(f"the image is not an array of numbers: {error}", hint=hint) from None
    if tuple(values.shape) not in (shape, (prod(shape),)):
        raise BhcError(f"an image of shape {tuple(values.shape)}", hint=hint)
    if not torch.isfinite(values).all():
        raise BhcError("the image contains NaN or infinity", hint=hint)
    return values.reshape(1, *shape)


def answer(model: Compressor, small: Compressed, x: Tensor) -> dict[str, Any]:
    """What both say to ``x``, (1, ...), and what each costs."""
    report = small.report
    prediction = small.predict(x)
    names = model.model.class_names or tuple(map(str, range(model.network.num_classes)))
    tailored = {
        **_answer(prediction.labels, prediction.probabilities, small.classes, names),
        "weights": report.weights_after,
        "bytes": report.file_bytes,
        "flops": report.flops_after,
        "outside": None if prediction.outside is None else bool(prediction.outside[0]),
        "outside_score": float(prediction.outside_score[0]),
    }
    return {"tailored": tailored, "full": _full(model, small, x, names)}


@torch.no_grad()
def _full(model: Compressor, small: Compressed, x: Tensor, names: tuple[str, ...]) -> dict[str, Any] | None:
    network = model.network
    if not network.pretrained:
        return None
    probabilities = torch.softmax(network.base_model(x), dim=1)
    return {
        **_answer(probabilities.argmax(1), probabilities, tuple(range(network.num_classes)), names),
        "weights": network.num_weights,
        "bytes": small.report.parameter_bytes_before,
        "flops": small.report.flops_before,
    }


def _answer(labels: Tensor, probabilities: Tensor, classes: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Any]:
    label = int(labels[0])
    return {
        "label": label,
        "name": names[label],
        "classes": list(classes),
        "probabilities": [round(value, 6) for value in probabilities[0].tolist()],
    }
