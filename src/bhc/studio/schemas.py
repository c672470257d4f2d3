"""The contract of the service: what a request may say, and what is answered; ``/openapi.json`` is made from it.

Values of a request are checked where the command line's are, so that the words are the same. Whatever is left out or
null is not asked for.
"""

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SkipValidation
from pydantic_core import PydanticCustomError

from bhc.contexts import request_options
from bhc.errors import BhcError
from bhc.formats import format_named, formats

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

    threshold: Unchecked[float] = Field(
        None, description="Cut here; lower is smaller. Default: chosen on validation data."
    )
    max_bytes: Unchecked[float] = Field(None, description="Largest .bhc file, everything in it.")
    max_flops: Unchecked[float] = Field(None, description="Most operations for one input, two a multiply-add.")
    max_error: Unchecked[float] = Field(
        None, description="Highest validation error, percent. Alone: the smallest network under it."
    )
    max_ram_bytes: Unchecked[float] = Field(None, description="Most bytes of constants and activations in the C form.")
    max_latency_ms: Unchecked[float] = Field(
        None, description="Slowest median in onnxruntime on the server, one input, one thread."
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
    """An image for the network of a context."""

    image: Annotated[list[Any], SkipValidation] = Field(
        description="Raw values of one input, nested as GET /v1/model's image_shape says, or flat."
    )


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


class ModelFacts(BaseModel):
    """What may be asked, and what the networks are cut from."""

    model: str = Field(description="The name of the run.")
    classes: list[str] = Field(description="Their names, in the order of their numbers.")
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
    pictures: int = Field(description="How many pictures there are of each class, 0 to 9.")
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
    """A cut at one threshold, before rounding to bits, on a bounded part of the context's validation images."""

    threshold: float
    ratio: float
    error: float | None = Field(description="Percent; null where the context has no validation images.")
    weights: int
    flops: int


class Here(BaseModel):
    """The network itself, on all of its validation images."""

    threshold: float
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
    threshold: float
    emit_ms: float | None


class Told(BaseModel):
    """What a network says to an input, and what it costs."""

    label: int
    name: str
    classes: list[int]
    probabilities: list[float] = Field(description="Of these classes.")
    weights: int
    bytes: int
    flops: int


class ToldByTailored(Told):
    """What the network of the context says."""

    outside: bool | None = Field(description="Null unless flag_outside was asked for.")
    outside_score: float


class Answer(BaseModel):
    """What both networks say to an input."""

    tailored: ToldByTailored
    full: Told | None = Field(description="Null where the model began untrained.")
