"""What is answered: requests in, values out. Nothing here knows of HTTP."""

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from bhc.compressor import Compressor
from bhc.contexts import BinaryBudget, Budgets, ClassSubsets, FeatureSubsets, InputDomains
from bhc.emission import Compressed, Cutter, Float32, Request, emit
from bhc.errors import BhcError
from bhc.studio.answers import answer, as_input
from bhc.studio.asked import FileFormat
from bhc.studio.pictures import is_picture, png
from bhc.studio.preview import Preview, thresholds_of
from bhc.studio.tokens import from_token, to_token

PICTURES = 9  # of each class
C_NAME = "network"  # the prefix of <name>_predict in headers

MEDIA_TYPES = {
    FileFormat.BHC: "application/octet-stream",
    FileFormat.ONNX: "application/octet-stream",
    FileFormat.C: "text/x-c",
    FileFormat.PT2: "application/octet-stream",
}
SUFFIXES = {FileFormat.BHC: ".bhc", FileFormat.ONNX: ".onnx", FileFormat.C: ".h", FileFormat.PT2: ".pt2"}
WRITERS: dict[FileFormat, Callable[[Compressed], bytes]] = {
    FileFormat.BHC: Compressed.to_bytes,
    FileFormat.ONNX: Compressed.onnx_content,
    FileFormat.C: lambda small: small.c_content(C_NAME),
    FileFormat.PT2: Compressed.torch_content,
}


@dataclass(frozen=True)
class Parcel:
    """A file to be handed out, and what is known of the network in it."""

    content: bytes
    media_type: str
    file_name: str
    report: dict[str, Any]

    @property
    def digest(self) -> str:
        """SHA-256 of the content, hexadecimal."""
        return hashlib.sha256(self.content).hexdigest()


class Service:
    """A trained model that answers."""

    def __init__(self, model: Compressor, name: str) -> None:
        self.model, self.name = model, name

    def request(self, given: Mapping[str, Any]) -> Request:
        """A request as JSON has it, checked."""
        said = dict(given)
        float32 = bool(said.pop("float32", False))
        if isinstance(said.get("domain"), str) and "domain" in self.model.space.conditions:
            said["domain"] = from_token(said["domain"], self.model.network.input_shape)
        return self.model.request(said | ({"precision": Float32()} if float32 else {}))

    def emitted(self, given: Mapping[str, Any]) -> Compressed:
        """The network for a request."""
        asked = self.request(given)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # reports carry the same words
            return emit(
                self.model.model, asked.context, limits=asked.limits, precision=asked.precision, watch=asked.watch
            )

    def network(self, given: Mapping[str, Any]) -> Parcel:
        """A network as a file."""
        said = dict(given)
        form = FileFormat(said.pop("format", FileFormat.BHC))
        small = self.emitted(said)
        timeless = replace(small, report=replace(small.report, emit_ms=None))  # the same request, the same bytes
        return Parcel(WRITERS[form](timeless), MEDIA_TYPES[form], f"network{SUFFIXES[form]}", small.report.to_dict())

    def report(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the network would be."""
        return self.emitted(given).report.to_dict()

    def preview(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the page shows of a network."""
        small = self.emitted(given)
        cutter = Cutter(self.model.network, self.request(given).context)
        return Preview(self.model.model, cutter).show(small)

    def answer(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """What the network and the one it was cut from say to an image."""
        said = dict(given)
        x = as_input(said.pop("image", None), self.model.network.input_shape)
        return answer(self.model, self.emitted(said), x)

    def domain(self, content: bytes, most_samples: int) -> dict[str, Any]:
        """A token for the domain of an uploaded sample."""
        spaces = [part for part in self.model.space.parts if isinstance(part, InputDomains)]
        if not spaces:
            raise BhcError(
                "this model was not trained for a condition on domain",
                hint=f"it takes: {', '.join(self.model.space.conditions) or 'none'}",
            )
        try:
            sample = torch.from_numpy(np.ascontiguousarray(np.load(io.BytesIO(content), allow_pickle=False)))
        except (ValueError, TypeError, EOFError, OSError, MemoryError) as error:
            raise BhcError(
                f"the body is not an array that can be read: {error}",
                hint="write it with numpy.save(path, array), images of shape (n, channels, height, width)",
            ) from error
        mean = spaces[0].mean_of(sample)
        return {"domain": to_token(mean), "samples": mean.size}

    def facts(self) -> dict[str, Any]:
        """What may be asked, and what the networks are cut from."""
        trained, network, space = self.model.model, self.model.network, self.model.space
        names = trained.class_names or tuple(map(str, range(network.num_classes)))
        biases = sum(layer.num_outputs for layer in network.layers if layer.module.bias is not None)
        return {
            "model": self.name,
            "classes": list(names),
            "conditions": space.describe(),
            "optional": space.optional,
            **self._conditions(),
            "thresholds": thresholds_of(trained),
            "error_before": trained.training.get("original_error"),
            "weights_before": network.num_weights,
            "bytes_before": 4 * (network.num_weights + biases),
            "flops_before": sum(layer.num_flops for layer in network.layers),
            "image_shape": list(network.input_shape),
            "pictures": self._pictures(),
            "calibration_images": 0 if trained.calibration is None else len(trained.calibration),
            "layers": [
                {
                    "name": layer.name,
                    "kind": "convolution" if layer.is_convolution else "linear",
                    "in": layer.num_inputs,
                    "out": layer.num_outputs,
                    "weights": layer.num_weights,
                }
                for layer in network.layers
            ],
            "formats": [form.value for form in FileFormat],
        }

    def _conditions(self) -> dict[str, Any]:
        """Of each condition what a form for it needs to know."""
        known: dict[str, Any] = {}
        for part in self.model.space.parts:
            match part:
                case ClassSubsets():
                    known["appearance"] = part.concentration is not None
                case Budgets():
                    known["budget"] = {"low": 0.0, "high": 1.0, "step": 0.05, "default": part.unsaid}
                case BinaryBudget():
                    known["budget"] = {"low": 0.0, "high": 1.0, "step": 1.0, "default": 1.0}
                case FeatureSubsets():
                    known["features"] = {"shape": list(part.shape)}
                case InputDomains():
                    known["domain"] = {"shape": list(part.image_shape), "full_scale": part.full_scale}
        return known

    def _pictures(self) -> int:
        """How many pictures of each class there are to look at."""
        sample = self.model.model.validation
        if sample is None or not is_picture(self.model.network.input_shape):
            return 0
        counts = sample.labels.bincount(minlength=self.model.network.num_classes)
        return min(PICTURES, int(counts.min()))

    def picture(self, label: int, number: int) -> bytes | None:
        """A PNG of the validation sample; None where there is none."""
        sample = self.model.model.validation
        if sample is None or not 0 <= number < self._pictures():
            return None
        places = (sample.labels == label).nonzero().flatten()
        return png(sample.images[places[number]]) if number < len(places) else None


def key_of(given: Mapping[str, Any]) -> str:
    """One text for one request, however its names were ordered."""
    return json.dumps(given, sort_keys=True, default=str)


def named(run: Path) -> str:
    """What a run is called."""
    return run.resolve().name


__all__ = ["Parcel", "Service", "key_of", "named"]
