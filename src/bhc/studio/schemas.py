"""The contract of the service: what a request may say, and what is answered; ``/openapi.json`` is made from it, with
examples that this very service answers, and a page that shows it.

Values of a request are checked where the command line's are, so that the words are the same. Whatever is left out or
null is not asked for. The page is plain HTML, made here: it loads nothing from anywhere.
"""

import json
from html import escape
from math import prod
from typing import Annotated, Any, Literal, TypeVar

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation
from pydantic_core import PydanticCustomError

from bhc.contexts import request_options
from bhc.errors import BhcError
from bhc.formats import format_named, formats
from bhc.studio.answers import Answer as Answer
from bhc.studio.drawings import Drawing

T = TypeVar("T")
Unchecked = Annotated[T | None, SkipValidation]
REFUSED = "refused"  # the type of what is refused in words of our own


def _format(name: Any) -> str:
    try:
        return format_named(name).name
    except BhcError as error:
        raise PydanticCustomError(REFUSED, "{problem}", {"problem": error.problem, "hint": error.hint}) from None


def _list_formats(schema: dict[str, Any]) -> None:
    schema["enum"] = [each.name for each in formats()]


def _list_conditions(schema: dict[str, Any]) -> None:
    """Conditions are extras, which the model's space checks; unknown names are refused as the command line does."""
    conditions = {option.name: {"description": option.help, "default": None} for option in request_options()}
    schema["properties"] = conditions | schema["properties"]
    schema["additionalProperties"] = False


FormatName = Annotated[str, BeforeValidator(_format), Field(json_schema_extra=_list_formats)]


class Asked(BaseModel):
    """A context and limits, as ``compress`` takes them. Which conditions there are ``GET /v1/model`` says."""

    model_config = ConfigDict(extra="allow", json_schema_extra=_list_conditions)  # conditions are those of the model

    threshold: Unchecked[float] = Field(None, description="Cut the hypernetwork's network here; lower is smaller.")
    max_bytes: Unchecked[float] = Field(None, description="Largest .bhc file, everything in it.")
    max_flops: Unchecked[float] = Field(None, description="Most operations for one input, two a multiply-add.")
    max_error: Unchecked[float] = Field(
        None, description="Highest validation error, percent. Alone: the smallest network under it."
    )
    max_ram_bytes: Unchecked[float] = Field(None, description="Most bytes of constants and activations in the C form.")
    max_latency_ms: Unchecked[float] = Field(
        None, description="Slowest median in onnxruntime on the server, one input, one thread."
    )
    max_weights: Unchecked[float] = Field(None, description="Most weights that stay, as pruning ratios count them.")
    margin: Unchecked[float] = Field(
        None,
        description="Without limits: points of error that may be lost, by a paired test; 0.5 if not said.",
    )
    confidence: Unchecked[float] = Field(
        None, description="Prove max_error for new data on the run's calibration images, such as 0.95 sure."
    )
    flag_outside: Unchecked[float] = Field(
        None, description="Flag inputs outside the context, at this rate of false alarms, such as 0.05."
    )
    round_to: Unchecked[int | dict[str, int]] = Field(
        None, description='Keep channels in multiples, such as 8, rounded up; of some layers {"fc1": 16}.'
    )
    float32: bool = Field(False, description="Prune only; keep 32-bit weights.")

    def given(self) -> dict[str, Any]:
        """What was said, nothing for what was not."""
        return {name: value for name, value in self if name in self.model_fields_set and value is not None}


class NetworkAsked(Asked):
    """A network as a file."""

    format: FormatName = Field("bhc", description="One of GET /v1/model's formats: bhc, onnx, c (a header), pt2 ...")


class AnswerAsked(Asked):
    """An input for the network of a context: its values, or the number of an example."""

    input: Unchecked[list[Any] | dict[str, Any] | float] = Field(
        None, description="Raw values, nested as GET /v1/model's inputs say, or flat; of several a list, or by name."
    )
    example: Unchecked[int] = Field(None, description="In their place: the number of an example of the run's sample.")
    image: Unchecked[list[Any]] = Field(None, description="The old name of input.")
    text: Unchecked[str] = Field(None, description="In their place: a text, where GET /v1/model says texts.")


class Problem(BaseModel):
    """Why there is no answer, and what to do."""

    error: str
    hint: str = ""
    id: str | None = Field(None, description="Of a fault of the service: what its log calls it.")


class Layer(BaseModel):
    """A layer of the network that networks are cut from."""

    name: str
    kind: Literal["linear", "convolution"]
    inputs: int = Field(alias="in")
    outputs: int = Field(alias="out")
    weights: int


class Thresholds(BaseModel):
    """Where networks can be cut."""

    low: float = Field(description="The lower end of the range that was consolidated.")
    high: float
    default: float
    least: float = Field(description="The lower end of a slider.")
    most: float


class InputFacts(BaseModel):
    """What the network takes, and how the studio draws it."""

    kind: Literal["image", "waveform", "series", "words", "row", "several", "none"]
    reason: str | None = Field(description="Why the studio does not draw it; null where it does.")
    shape: list[int] = Field(description="Of one input; empty where there are several.")
    names: list[str] | None = Field(description="Of columns of a table, or of several inputs.")
    takes: list[dict[str, Any]] = Field(
        description="Of each input its name, shape and dtype; dynamic axes have any size."
    )
    pixels: bool = Field(description="Whether values of pictures are those of the input, channel by channel.")
    range: list[float] | None = Field(description="What is black and what is white in an image of one channel.")


class ExampleInput(BaseModel):
    """An example of the run's validation sample."""

    example: int = Field(description="Its number, which POST /v1/answers takes.")
    drawing: Annotated[Drawing, Field(discriminator="kind")]


class Measure(BaseModel):
    """How the run's task measures. Errors of this service are errors whatever their name: smaller is better."""

    name: str = Field(description="What its error is called, or else 100 % less the error, such as overlap.")
    higher_is_better: bool = Field(description="Whether 100 % less the error goes by that name.")
    has_answers: bool = Field(description="Whether outputs are there to choose one of: labels, probabilities, flags.")


class ModelFacts(BaseModel):
    """What may be asked, and what the networks are cut from."""

    model: str = Field(description="The name of the run.")
    classes: list[str] = Field(description="Their names, in the order of their numbers; empty where there are none.")
    outputs: list[str] = Field(description="What the network's outputs are called: as a class that has one of its own.")
    measure: Measure
    conditions: dict[str, str] = Field(description="Of each condition what it accepts, in words.")
    forms: dict[str, dict[str, Any]] = Field(
        description="Of each condition the kind of control that asks for it, and what that needs to know."
    )
    optional: bool = Field(description="Whether conditions may be left out.")
    thresholds: Thresholds
    error_before: float | None = Field(description="Validation error of the pretrained network, percent.")
    weights_before: int
    bytes_before: int
    flops_before: int
    image_shape: list[int] = Field(description="Of one input.")
    full_scale: float = Field(description="The largest value of an input, such as 255.")
    inputs: InputFacts
    texts: bool = Field(description="Whether POST /v1/answers takes a text.")
    pictures: int = Field(description="How many pictures there are of each class, 0 to 9.")
    examples: list[list[int]] = Field(description="Numbers of up to 9 examples of each class, or of all together.")
    examples_by_class: bool
    calibration_images: int = Field(description="0: no confidence may be asked for.")
    layers: list[Layer]
    formats: list[str]
    format_labels: dict[str, str]


class DomainToken(BaseModel):
    """The kind of inputs that an array is a sample of."""

    domain: str = Field(description="The domain of later requests; it holds all that is needed, and stays good.")
    samples: int


class CutLayer(BaseModel):
    """A layer of an emitted network."""

    name: str
    kind: str = Field(description="convolution, linear, or what else it is, such as embedding or lstm.")
    inputs_before: int
    inputs_after: int
    outputs_before: int
    outputs_after: int
    bits: int | None = Field(description="Null where the layer went with its branch.")
    weights_before: int
    weights_after: int
    kept_inputs: list[int] | None = Field(description="Places in the original layer; null where it has over 4,096.")
    kept_outputs: list[int] | None


class CutHead(BaseModel):
    """A head of attention in an emitted network; heads that share keys and values are one."""

    alive: bool
    query_keys_before: int = Field(description="Dimensions that queries meet keys in; a rotary pair is one.")
    query_keys_after: int
    values_before: int
    values_after: int


class Block(BaseModel):
    """A branch beside a shortcut: all that lies between a stream and a layer that adds to it."""

    name: str = Field(description="Of its last layer.")
    layers: list[str]
    gone: bool = Field(description="Whether all of it went, and a constant is added in its place.")
    units_before: int = Field(description="Between the stream and its last layer; heads themselves are not counted.")
    units_after: int
    heads_before: int = Field(description="Zero where it has no attention.")
    heads_after: int
    heads: list[CutHead]
    stream_before: int = Field(description="Channels of what it adds to.")
    stream_after: int


class CurvePoint(BaseModel):
    """A cut, before rounding to bits, on a bounded part of the context's validation images."""

    threshold: float | None = Field(description="Where the hypernetwork's network is cut; null: asked for by a budget.")
    budget: float | None = Field(None, description="From 0, the original, to 1; null: asked for by a threshold.")
    ratio: float
    error: float | None = Field(description="Percent; null where the context has no validation images.")
    weights: int
    flops: int


class Here(BaseModel):
    """The network itself, on all of its validation images."""

    threshold: float = Field(description="Of the pretrained network's own cuts it is minus the logarithm of the ratio.")
    ratio: float
    error: float | None
    bytes: int
    flops: int


class Histogram(BaseModel):
    """Log dropout rates of a layer, those beyond -12 and 12 in the outermost bins; left of the threshold is kept."""

    layer: str
    which: Literal["in", "out", "weight"]
    edges: list[float]
    counts: list[int]
    kept: int


class PreviewAnswer(BaseModel):
    """A network as the studio draws it."""

    report: dict[str, Any] = Field(description="What bhc compress --json prints.")
    layers: list[CutLayer]
    blocks: list[Block] = Field(description="Branches beside shortcuts in the order they run; empty where none may go.")
    curve: list[CurvePoint] = Field(description="From high thresholds to low.")
    here: Here
    histograms: list[Histogram]
    inputs_kept: list[int] | None = Field(
        description="Flat places of image_shape that the first layer reads; null where it reads other than those."
    )
    threshold: float = Field(description="Of the histograms, which are the hypernetwork's.")
    generated: bool = Field(description="Whether the hypernetwork wrote it; else the pretrained network's own.")
    emit_ms: float | None


PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The request is not HTTP that can be read",
        401: "A token is asked for",
        404: "There is no such thing",
        408: "The request took too long to arrive",
        413: "The request is too large",
        422: "The request is wrong, in the words of the command line",
        431: "The head of the request is too large",
        429: "The queue is full: try again after Retry-After seconds",
        500: "A fault of the service, with its id",
        504: "The answer took longer than a request may",
    }.items()
}


def files() -> dict[int | str, dict[str, Any]]:
    """A file in any of the formats that are registered."""
    schema, binary = {"type": "string"}, {"type": "string", "format": "binary"}
    content = {
        each.media_type: {"schema": schema if each.media_type.startswith("text/") else binary} for each in formats()
    }
    return {
        200: {"description": "The file", "content": content},
        304: {"description": "The file is the one named by If-None-Match"},
    }


def answered(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """An answer that is described and handed on as it is: to check it once more would take longer than to make it."""
    return {200: {"model": model, "description": (model.__doc__ or "").splitlines()[0]}}


SAMPLES = {
    "requestBody": {
        "required": True,
        "description": "A `.npy` file, an array of shape (n, channels, height, width).",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def describe(app: FastAPI, facts: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description, with requests that this service answers as examples."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = described["components"]["schemas"]
        schemas["Asked"]["example"] = example
        schemas["NetworkAsked"]["example"] = example | {"format": "bhc"}
        schemas["AnswerAsked"]["example"] = example | {"input": _blank(facts["inputs"])}
        known = described["paths"]["/v1/model"]["get"]["responses"]["200"]["content"]["application/json"]
        known["example"] = facts
        app.openapi_schema = described
    return app.openapi_schema


def _blank(inputs: dict[str, Any]) -> list[Any]:
    """An input of zeros."""
    zeros = [[0] * prod(each["shape"]) for each in inputs["takes"]]
    return zeros if len(zeros) > 1 else zeros[0]


def page_of(described: dict[str, Any]) -> str:
    """The description for reading."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(described['info']['title'])}: the service</title>",
        "<link rel=stylesheet href=/studio.css><main class=docs><h1>The service</h1>",
        f"<p>{escape(described['info'].get('summary', ''))}",
        "<a href=/openapi.json>openapi.json</a>, <a href=/>studio</a></p>",
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(described, path, method, operation))
    return "\n".join([*parts, "</main></html>"])


def _operation(described: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>",
        f"<p>{escape(operation.get('summary', ''))}. {escape(operation.get('description', ''))}</p>",
    ]
    schema = _body(described, operation)
    if schema:
        rows = (
            f"<tr><td><code>{escape(name)}</code><td>{escape(field.get('description', ''))}"
            for name, field in schema.get("properties", {}).items()
        )
        lines.append(f"<table>{''.join(rows)}</table>")
        if "example" in schema:
            text = json.dumps(schema["example"])
            lines.append(f"<pre><code>{escape(text if len(text) < 500 else text[:480] + ' ...')}</code></pre>")
    answers = ", ".join(
        f"<code>{status}</code> {escape(answer.get('description', ''))}"
        for status, answer in operation.get("responses", {}).items()
    )
    return "\n".join([*lines, f"<p>{answers}</p></section>"])


def _body(described: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    name = content["schema"]["$ref"].rsplit("/", 1)[-1]
    schema: dict[str, Any] = described["components"]["schemas"][name]
    return schema
