"""An exported file of any format, ready to answer."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Any

from torch import Tensor

from bhc.errors import BhcError
from bhc.graph import Inputs, Signature

LARGEST_FILE = 1 << 28


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


def signature_in(known: Mapping[str, Any]) -> Signature:
    """What a file takes, as it says itself."""
    if "inputs" in known:
        return Signature.from_list(known["inputs"])
    shape = known["input_shape"]
    if not all(type(size) is int and size >= 0 for size in shape):
        raise ValueError("its input shape is not made of whole numbers")
    return Signature.one(tuple(shape))


def checked(
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
        appearance=appearance_in(path, known.get("context"), len(labels)),
    )


def appearance_in(path: Path, context: Any, count: int) -> tuple[float, ...] | None:
    """How often the classes appear, as a file's context has it."""
    rates = context.get("appearance") if isinstance(context, Mapping) else None
    if rates is None:
        return None
    fine = isinstance(rates, list) and len(rates) == count
    if not fine or not all(type(rate) in (int, float) and 0 < rate <= 1 for rate in rates):
        raise BhcError(f"{path} is damaged: {str(rates)[:60]} as the appearance of {count} classes")
    return tuple(float(rate) for rate in rates)


def not_ours(path: Path, error: Exception) -> BhcError:
    words = str(error) or type(error).__name__
    reason = f"it lacks {words}" if isinstance(error, KeyError) else words.splitlines()[0][:200]
    return BhcError(
        f"{path} is damaged, or was not written by bhc: {reason}",
        hint=f"make one with: bhc export small.bhc --to ... --out {path.name}",
    )
