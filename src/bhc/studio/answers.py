"""One input, two answers: of the network for a context and of the one it was cut from."""

from math import prod
from typing import Any

import torch
from torch import Tensor

from bhc.compressor import Compressor
from bhc.emission import Compressed
from bhc.errors import BhcError


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
    told = small.predict(x)
    names = model.model.class_names or tuple(map(str, range(model.network.num_classes)))
    tailored = {
        **_told(told.labels, told.probabilities, small.classes, names),
        "weights": report.weights_after,
        "bytes": report.file_bytes,
        "flops": report.flops_after,
        "outside": None if told.outside is None else bool(told.outside[0]),
        "outside_score": float(told.outside_score[0]),
    }
    return {"tailored": tailored, "full": _full(model, small, x, names)}


@torch.no_grad()
def _full(model: Compressor, small: Compressed, x: Tensor, names: tuple[str, ...]) -> dict[str, Any] | None:
    network = model.network
    if not network.pretrained:
        return None
    probabilities = torch.softmax(network.base_model(x), dim=1)
    return {
        **_told(probabilities.argmax(1), probabilities, tuple(range(network.num_classes)), names),
        "weights": network.num_weights,
        "bytes": small.report.parameter_bytes_before,
        "flops": small.report.flops_before,
    }


def _told(labels: Tensor, probabilities: Tensor, classes: tuple[int, ...], names: tuple[str, ...]) -> dict[str, Any]:
    label = int(labels[0])
    return {
        "label": label,
        "name": names[label],
        "classes": list(classes),
        "probabilities": [round(value, 6) for value in probabilities[0].tolist()],
    }
