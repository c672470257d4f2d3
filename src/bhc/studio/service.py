"""What is answered: requests with what they bring along in, values and pictures out. Nothing here knows of HTTP."""

import hashlib
import io
import json
import warnings
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import isfinite, prod
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from torch import Tensor

from bhc.compressor import Compressor
from bhc.contexts import InputDomains, example_request, request_options, to_token
from bhc.emission import Compressed, Cutter, Float32, Request, emit, has_dial
from bhc.errors import BhcError
from bhc.formats import Packed, format_named, formats
from bhc.studio.answers import answer, output_names
from bhc.studio.preview import ExampleInputs, Preview, as_input, as_words, reads_texts, thresholds_of
from bhc.tasks import Task
from bhc.training import TrainedModel

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


PREVIEWS, SMALLS = 16, 64  # contexts and networks that a worker remembers for the page
C_NAME = "network"  # the prefix of <name>_predict in headers

V = TypeVar("V")


class Cache(Generic[V]):
    """At most ``entries`` values of at most ``size`` bytes in all; the one not asked for the longest goes first."""

    def __init__(self, entries: int, size: int = 64 << 20) -> None:
        self.entries, self.size = entries, size
        self.held = 0
        self._values: OrderedDict[str, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> V | None:
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: str, value: V, size: int = 0) -> None:
        """Keep a value of ``size`` bytes, and let others go for it."""
        if not self.entries or size + len(key) > self.size:
            return
        self._drop(key)
        self._values[key] = value, size + len(key)
        self.held += size + len(key)
        while len(self._values) > self.entries or self.held > self.size:
            self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        if key in self._values:
            self.held -= self._values.pop(key)[1]


@dataclass(frozen=True)
class NetworkResponse:
    """A file to be handed out, and what is known of the network in it."""

    content: bytes
    media_type: str
    file_name: str
    report: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the content, hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


# How large a network is to be, where training knew nothing of budgets.
DIAL = {
    "words": "a number from 0 to 1",
    "kind": "range",
    "low": 0.0,
    "high": 1.0,
    "step": 0.02,
    "default": None,
    "optional": True,
    "title": "How much size matters",
    "ends": ["the original", "smallest"],
}


class Service:
    """A trained model that answers."""

    def __init__(self, model: Compressor, name: str) -> None:
        self.model, self.name = model, name
        self._previews: Cache[Preview] = Cache(PREVIEWS)
        self._smalls: Cache[Compressed] = Cache(SMALLS)
        self._examples = ExampleInputs(model.model)

    def warmed(self) -> "Service":
        """With what is worked out once for all requests."""
        self.network(self.example())
        return self

    def request(self, given: Mapping[str, Any]) -> Request:
        """A request as JSON has it, checked."""
        said = dict(given)
        for name in {"quantisation", "precision"} & set(said):  # objects in Python, nothing that JSON could say
            self.model.space.resolve({name: said[name]})
        float32 = bool(said.pop("float32", False))
        try:
            return self.model.request(said | ({"quantisation": Float32()} if float32 else {}))
        except OverflowError as error:  # JSON has integers of any size
            raise BhcError(f"a number is too large: {error}") from None

    def emitted(self, given: Mapping[str, Any]) -> Compressed:
        return _emit(self.model, self.request(given))

    def network(self, given: Mapping[str, Any]) -> NetworkResponse:
        """A network as a file."""
        said = dict(given)
        form = format_named(said.pop("format", Packed.name))
        small = self.emitted(said)
        timeless = replace(small, report=replace(small.report, emit_ms=None))  # the same request, the same bytes
        content = timeless.content(form.name, name=C_NAME)
        return NetworkResponse(content, form.media_type, f"network{form.suffix}", small.report.to_dict())

    def report(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the network would be."""
        return self.emitted(given).report.to_dict()

    def preview(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the page shows of a network."""
        preview = self._preview(given)
        return preview.show(self._kept(given, preview.cutter))

    def answer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the network and the one it was cut from say to an input, or to an example of the validation sample."""
        said = dict(given)
        named = [name for name in ("input", "image", "example", "text") if name in said]
        if len(named) != 1:
            raise BhcError(
                f"{' and '.join(named) or 'no input'} given",
                hint="give either input, raw values, or example, a number, or text where the network reads words",
            )
        value, example = said.pop(named[0]), None
        match named:
            case ["example"]:
                x, example = self._examples.batch(value), value
            case ["text"]:
                x = as_words(value, self.model.vocabulary, self._examples.stored)
            case _:
                x = as_input(value, self._examples.stored)
        return answer(self.model, self._kept(said), x, example)

    def _preview(self, given: Mapping[str, Any]) -> Preview:
        """What is the same for all networks of a context: what the hypernetwork says of it, and its curve."""
        key = key_of(context_of(given) | {"round_to": given.get("round_to")})
        known = self._previews.get(key)
        if known is None:
            request = self.request(given)
            cutter = Cutter(self.model.network, request.context, multiples=request.multiples)
            known = Preview(self.model.model, cutter)
            self._previews.put(key, known)
        return known

    def _kept(self, given: Mapping[str, Any], cutter: Cutter | None = None) -> Compressed:
        """The network for a request, which the page will ask about again."""
        key = key_of(given)
        small = self._smalls.get(key)
        if small is None:
            small = _emit(self.model, self.request(given), cutter)
            self._smalls.put(key, small)
        return small

    def domain(self, content: bytes, most_samples: int) -> dict[str, Any]:
        """A token for the domain of an uploaded sample."""
        domains = self.model.space.find(InputDomains)
        if domains is None:
            raise BhcError(
                "this model was not trained for a condition on domain",
                hint=f"it takes: {', '.join(self.model.space.conditions) or 'none'}",
            )
        mean = domains.mean_of(sample_of(content, most_samples))
        return {"domain": to_token(mean), "samples": mean.size}

    def facts(self) -> dict[str, Any]:
        """What ``schemas.ModelFacts`` describes."""
        trained, network, space = self.model.model, self.model.network, self.model.space
        return {
            "model": self.name,
            "classes": list(_class_names(trained)),
            "outputs": list(output_names(self.model)),
            "measure": _measure(network.task),
            "conditions": space.describe(),
            "forms": space.form() | ({"budget": DIAL} if has_dial(trained) else {}),
            "optional": space.optional,
            "thresholds": thresholds_of(trained),
            "error_before": trained.training.get("original_error"),
            "weights_before": network.counts.weights,
            "bytes_before": 4 * network.counts.parameters,
            "flops_before": network.counts.flops,
            "image_shape": list(network.input_shape),
            "full_scale": _largest(self._examples.inputs),
            "inputs": self._examples.facts(),
            "pictures": min(map(len, self._examples.groups)) if self._examples.renderer.kind == "image" else 0,
            "texts": reads_texts(trained.vocabulary, self._examples.stored),
            "examples": self._examples.groups,
            "examples_by_class": self._examples.by_class,
            "calibration_images": 0 if trained.calibration is None else len(trained.calibration),
            "layers": [
                {
                    "name": layer.name,
                    "kind": "convolution" if layer.has_kernel else "linear",
                    "in": layer.num_inputs,
                    "out": layer.num_outputs,
                    "weights": layer.num_weights,
                }
                for layer in network.layers
            ],
            "formats": [form.name for form in formats()],
            "format_labels": {form.name: form.label for form in formats()},
        }

    def picture(self, label: int, number: int) -> bytes | None:
        """A PNG of the validation sample; None where there is none."""
        return self._examples.png(label, number)

    def example_input(self, number: int) -> dict[str, Any]:
        """What ``schemas.ExampleInput`` describes."""
        return {"example": number, "drawing": asdict(self._examples.draw(number))}

    def example(self) -> dict[str, Any]:
        """A request that this model answers."""
        seen = self._examples.inputs[0]
        alone = len(seen) and len(self._examples.inputs) == 1
        return example_request(self.model.space, seen if alone else None)


def _class_names(model: TrainedModel) -> tuple[str, ...]:
    """Nothing where the task has no classes."""
    network = model.network
    if network.task.class_outputs(network.num_outputs) is None:
        return ()
    return model.class_names or tuple(map(str, range(network.num_classes)))


def _measure(task: Task) -> dict[str, Any]:
    return {
        "name": task.error_name,
        "higher_is_better": task.higher_is_better,
        "has_answers": task.has_answers,
    }


def _largest(inputs: Sequence[Tensor]) -> float:
    """The largest value there is, 1 or more; 255 where there are no inputs."""
    found = [float(x.max()) for x in inputs if x.numel() and not x.is_complex()]
    return max(1.0, *filter(isfinite, found)) if found else 255.0


def _emit(model: Compressor, request: Request, cutter: Cutter | None = None) -> Compressed:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # reports carry the same words
        return emit(model.model, request, cutter=cutter)


def context_of(given: Mapping[str, Any]) -> dict[str, Any]:
    """The conditions of a request, without its limits."""
    return {option.name: given[option.name] for option in request_options() if option.name in given}


def key_of(given: Mapping[str, Any]) -> str:
    """One text for one request, however its names were ordered."""
    return json.dumps(given, sort_keys=True, default=str)


def named(run: Path) -> str:
    """What a run is called."""
    return run.resolve().name
