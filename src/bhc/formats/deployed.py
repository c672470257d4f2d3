"""An exported file of any form, ready to answer: what ``bhc evaluate`` runs."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.files import read_bytes
from bhc.formats.exported_program import load_program
from bhc.formats.file import LARGEST_FILE, read_network
from bhc.formats.runtime import open_session
from bhc.graph import ONE, Input, Inputs, Signature


@dataclass(frozen=True)
class Deployed:
    """Something that turns inputs into logits."""

    labels: tuple[int, ...]  # the original number of each output
    signature: Signature
    runtime: str
    size: int
    logits: Callable[[Inputs], Tensor]  # inputs as they are stored, of any dtype
    temperature: float = 1.0  # logits are divided by it before the softmax
    alarm: Any = None  # as the file stores it, where the network flags inputs outside its context
    appearance: tuple[float, ...] | None = None  # how often each of the labels appears, where that is unequal


def open_deployed(path: Path) -> Deployed:
    """Open an ``.onnx`` or ``.pt2`` file by its suffix, and any other as a ``.bhc`` file."""
    if not path.exists():
        raise BhcError(f"{path} does not exist")
    return OPENERS.get(path.suffix, _open_packed)(path)


def _open_packed(path: Path) -> Deployed:
    file = read_network(path)
    network = file.network

    def logits(x: Inputs) -> Tensor:
        with torch.no_grad():
            return network.graph(*network.signature.cast(x))

    return Deployed(
        network.labels,
        network.signature,
        "torch",
        file.size,
        logits,
        temperature=network.temperature,
        alarm=network.card.get("alarm"),
        appearance=_appearance(path, network.card.get("context"), len(network.labels)),
    )


def _open_onnx(path: Path) -> Deployed:
    content = read_bytes(path, limit=LARGEST_FILE)
    try:
        session = open_session(content)
        sources = session.get_inputs()
        metadata = session.get_modelmeta().custom_metadata_map
        ours = {name.removeprefix("bhc."): text for name, text in metadata.items() if name.startswith("bhc.")}
        known = {name: json.loads(text) for name, text in ours.items()}
        if "inputs" not in known:
            (source,) = sources
            known["input_shape"] = source.shape[1:]
        signature = _signature(known)

        def logits(x: Inputs) -> Tensor:
            given = zip(sources, signature.cast(x), strict=True)
            return torch.from_numpy(session.run(None, {source.name: numbers.numpy() for source, numbers in given})[0])

        return _checked(known, signature, "onnxruntime", len(content), logits, path)
    except Exception as error:  # onnxruntime's exceptions share no base class
        raise _not_ours(path, error) from error


def _open_program(path: Path) -> Deployed:
    content = read_bytes(path, limit=LARGEST_FILE)
    try:
        program, metadata = load_program(content)
        signature = _signature(metadata)

        def logits(x: Inputs) -> Tensor:
            with torch.no_grad():
                return program(*signature.cast(x))

        return _checked(metadata, signature, "torch, exported program", len(content), logits, path)
    except Exception as error:  # torch's loader raises whatever its parts raise
        raise _not_ours(path, error) from error


def _signature(known: Mapping[str, Any]) -> Signature:
    """What a file takes, as it says itself."""
    if "inputs" in known:
        return Signature.from_list(known["inputs"])
    shape = known["input_shape"]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("its input shape is not made of whole numbers")
    return Signature((Input(ONE, tuple(shape)),))


def _checked(
    known: Mapping[str, Any],
    signature: Signature,
    runtime: str,
    size: int,
    logits: Callable[[Inputs], Tensor],
    path: Path,
) -> Deployed:
    """The opened file, if what is known about it fits what it answers to zeros."""
    labels, temperature = known["classes"], known.get("temperature", 1.0)
    if not all(type(number) is int and number >= 0 for number in labels):
        raise ValueError("its labels are not whole numbers")
    if type(temperature) not in (int, float) or not 0 < temperature < inf:
        raise ValueError(f"a temperature of {str(temperature)[:60]}")
    for batch in (1, 3):
        answer = logits(signature.zeros(batch))
        if tuple(answer.shape) != (batch, len(labels)):
            raise ValueError(f"{len(labels)} labels for outputs of shape {tuple(answer.shape)}")
    return Deployed(
        tuple(labels),
        signature,
        runtime,
        size,
        logits,
        temperature=float(temperature),
        alarm=known.get("alarm"),
        appearance=_appearance(path, known.get("context"), len(labels)),
    )


def _appearance(path: Path, context: Any, count: int) -> tuple[float, ...] | None:
    """How often the classes appear, as a file's context has it."""
    rates = context.get("appearance") if isinstance(context, Mapping) else None
    if rates is None:
        return None
    fine = isinstance(rates, list) and len(rates) == count
    if not fine or not all(type(rate) in (int, float) and 0 < rate <= 1 for rate in rates):
        raise BhcError(f"{path} is damaged: {str(rates)[:60]} as the appearance of {count} classes")
    return tuple(float(rate) for rate in rates)


def _not_ours(path: Path, error: Exception) -> BhcError:
    words = str(error) or type(error).__name__
    reason = f"it lacks {words}" if isinstance(error, KeyError) else words.splitlines()[0][:200]
    return BhcError(
        f"{path} is damaged, or was not written by bhc: {reason}",
        hint=f"make one with: bhc export small.bhc --to ... --out {path.name}",
    )


OPENERS = {".onnx": _open_onnx, ".pt2": _open_program}
