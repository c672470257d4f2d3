"""What a request may say. Its values are checked where the command line's are, so that the words are the same."""

from typing import Annotated, Any, TypeVar

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
