"""What two networks say to one input, side by side: the small one and the one it was cut from.

Where a task has answers to choose among, each says a label, with probabilities. Where it has none, what each gives is
shown as it is:

``numbers``  (O,): one number an output.
``series``   (O, T): a line for each output.
``map``      (O, H, W) where outputs belong to classes: which output is the highest at each place.
``several``  (O, H, W) else: a grey picture of each output.

All but maps are of the small network's own outputs alone, on the scale of both, so that they can be compared.
"""

import base64
from collections.abc import Sequence
from colorsys import hls_to_rgb
from dataclasses import asdict, dataclass
from math import ceil
from typing import Annotated, Any, Literal

import torch
from pydantic import BaseModel, Field
from torch import Tensor

from bhc.compressor import Compressor
from bhc.emission import Compressed
from bhc.graph import Inputs
from bhc.studio.drawings import (
    MOST_PIXELS,
    MOST_VALUES,
    ImageRenderer,
    LineRenderer,
    Lines,
    Nothing,
    Several,
    SeveralRenderer,
    plain,
    png,
)
from bhc.tasks import checked_errors, widened

MOST_PICTURES, MOST_PARTS = 8, 10  # of outputs over places, and lines of a legend
GREY, TURN = (0.62, 0.62, 0.62), 0.618034  # of outputs of no class; between the hues of two that follow each other


class Cost(BaseModel):
    """What an answer costs."""

    weights: int
    bytes: int
    flops: int


class Told(Cost):
    """What a network says to an input, and what it costs."""

    label: int
    name: str
    classes: list[int]
    probabilities: list[float] = Field(description="Of these classes.")


class ToldByTailored(Told):
    """What the network of the context says."""

    outside: bool | None = Field(description="Null unless flag_outside was asked for.")
    outside_score: float


@dataclass(frozen=True)
class Numbers:
    """At most 64 outputs, null where they are not finite; those beyond are left out."""

    values: list[float | None]
    left_out: int
    kind: Literal["numbers"] = "numbers"


@dataclass(frozen=True)
class Part:
    """What an output has of a map: its colour, and the part of the places where it is the highest."""

    output: int
    colour: str
    part: float


@dataclass(frozen=True)
class Map:
    """The highest output at each place by its colour, a PNG file in base64; and the ten with the most places."""

    png: str
    parts: list[Part]
    kind: Literal["map"] = "map"


Shown = Numbers | Map | Lines | Several | Nothing


class Given(Cost):
    """What a network gives for an input where its task has no answers to choose among."""

    outputs: list[int] = Field(description="The outputs it has, by their numbers; GET /v1/model names them.")
    shown: Annotated[Shown, Field(discriminator="kind")]
    error: float | None = Field(
        description="Percent, of this very example; null where what is right is unknown, or it is of another class."
    )


class Answer(BaseModel):
    """What both networks say to an input; outputs in the place of labels where the task has none to choose among."""

    tailored: ToldByTailored | Given
    full: Told | Given | None = Field(description="Null where the model began untrained.")


def output_names(model: Compressor) -> tuple[str, ...]:
    """What outputs are called: as the class that has one of its own, and else by their numbers."""
    count, names = model.network.num_outputs, model.model.class_names or ()
    by_class = model.network.task.class_outputs(count)
    if by_class is None and len(names) == count:
        return names
    own = {places[0]: label for label, places in enumerate(by_class or ()) if len(places) == 1}
    said = names or tuple(map(str, range(count)))
    return tuple(said[own[place]] if place in own else f"output {place}" for place in range(count))


@dataclass(frozen=True)
class Said:
    """What a network gives for a batch of one, and which of the outputs it has."""

    values: Tensor  # (1, O, ...)
    outputs: tuple[int, ...]


def answer(model: Compressor, small: Compressed, x: Inputs, example: int | None = None) -> dict[str, Any]:
    """What both say to ``x``, a batch of one, and what each costs; ``example`` is its number in the run's sample."""
    report, network = small.report, model.network
    both = _labels(model, small, x) if report.has_answers else _outputs(model, small, x, example)
    costs: tuple[dict[str, Any], ...] = (
        {"weights": report.weights_after, "bytes": report.file_bytes, "flops": report.flops_after},
        {"weights": network.num_weights, "bytes": report.parameter_bytes_before, "flops": report.flops_before},
    )
    told = [said | cost for said, cost in zip(both, costs, strict=False)]
    return {"tailored": told[0], "full": told[1] if len(told) > 1 else None}


def _labels(model: Compressor, small: Compressed, x: Inputs) -> list[dict[str, Any]]:
    names, prediction = output_names(model), small.predict(x)
    tailored = {
        **_label(prediction.labels, prediction.probabilities, small.classes, names),
        "outside": None if prediction.outside is None else bool(prediction.outside[0]),
        "outside_score": float(prediction.outside_score[0]),
    }
    full = [torch.softmax(said.values, dim=1) for said in _full(model, x)]
    return [tailored, *(_label(each.argmax(1), each, range(len(names)), names) for each in full)]


def _label(labels: Tensor, probabilities: Tensor, classes: Sequence[int], names: Sequence[str]) -> dict[str, Any]:
    label = int(labels[0])
    return {
        "label": label,
        "name": names[label],
        "classes": list(classes),
        "probabilities": [round(value, 6) for value in probabilities[0].tolist()],
    }


@torch.no_grad()
def _full(model: Compressor, x: Inputs) -> list[Said]:
    """What the network says that others are cut from; nothing where it knew nothing."""
    network = model.network
    return [Said(network.base_model.run(x), tuple(range(network.num_outputs)))] if network.pretrained else []


def _outputs(model: Compressor, small: Compressed, x: Inputs, example: int | None) -> list[dict[str, Any]]:
    network = model.network
    both = [Said(small.outputs(x), small.classes), *_full(model, x)]
    by_class = network.task.class_outputs(network.num_outputs)
    of_none = None if by_class is None else set(range(network.num_outputs)).difference(*by_class)
    shown = draw(both, output_names(model), of_none)
    return [
        {"outputs": list(said.outputs), "shown": asdict(drawing), "error": _error(model, said, example)}
        for said, drawing in zip(both, shown, strict=True)
    ]


def _error(model: Compressor, said: Said, example: int | None) -> float | None:
    """That of an example of the sample, in percent; None where nobody has said what is right, or of another class."""
    sample, network = model.model.validation, model.network
    if example is None or sample is None or (sample.labels is None and sample.targets is None):
        return None
    one, members = sample.at(slice(example, example + 1)), network.task.membership(network.num_outputs)
    if members is not None and one.labels is not None:
        wanted = members[int(one.labels[0])].nonzero().flatten().tolist()
        if not set(wanted) <= set(said.outputs):
            return None
    own = network.task.of_kept(one.wanted, torch.tensor(said.outputs))
    outputs = widened(said.values, said.outputs, network.num_outputs) if own is None else said.values
    return 100 * float(checked_errors(network.task, outputs, one.wanted if own is None else own)[0])


def draw(both: Sequence[Said], names: Sequence[str], of_none: set[int] | None = None) -> list[Shown]:
    """What each gives, by names of all outputs; ``of_none`` are those of no class, None where there are no classes."""
    first, axes = both[0], both[0].values.dim()
    if axes == 4 and of_none is not None and len(first.outputs) > 1:
        return [_map(said, of_none) for said in both]
    kept = torch.tensor(first.outputs)
    values = torch.cat([first.values, *(said.values.index_select(1, kept) for said in both[1:])]).float()
    places = range(len(values))
    match axes:
        case 2:
            rows, left = values[:, :MOST_VALUES].tolist(), max(values.shape[1] - MOST_VALUES, 0)
            return [Numbers(list(map(plain, row)), left) for row in rows]
        case 3 if values.numel():
            return list(map(LineRenderer(values).draw, places))
        case 4 if values.numel():
            own = [names[output] for output in first.outputs[:MOST_PICTURES]]
            renderers = {name: ImageRenderer(values[:, place, None]) for place, name in enumerate(own)}
            return list(map(SeveralRenderer(renderers).draw, places))
    return [Nothing(f"the studio cannot draw outputs of shape {tuple(first.values.shape[1:])}") for _ in both]


def _map(said: Said, of_none: set[int]) -> Map:
    highest = torch.tensor(said.outputs)[said.values[0].argmax(0)]  # (H, W)
    counts = highest.flatten().bincount()
    most = [output for output in counts.argsort(descending=True).tolist() if counts[output]][:MOST_PARTS]
    colours = torch.tensor([_colour(output, of_none) for output in range(len(counts))], dtype=torch.uint8)
    step = ceil(max(highest.shape) / MOST_PIXELS)
    picture = colours[highest[::step, ::step]].movedim(2, 0)
    parts = [Part(output, _hex(colours[output]), float(counts[output] / highest.numel())) for output in most]
    return Map(base64.b64encode(png(picture)).decode(), parts)


def _colour(output: int, of_none: set[int]) -> tuple[int, ...]:
    """Of outputs that follow each other far apart; the same for both networks."""
    red, green, blue = GREY if output in of_none else hls_to_rgb(output * TURN % 1, 0.55, 0.6)
    return tuple(round(255 * part) for part in (red, green, blue))


def _hex(colour: Tensor) -> str:
    return "#" + bytes(colour.tolist()).hex()
