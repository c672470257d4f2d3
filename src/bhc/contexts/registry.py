"""All kinds of contexts there are; users add their own, which are tried when a network is wrapped for them."""

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Generator, Tensor

from bhc.contexts.context import ContextBatch
from bhc.contexts.space import ContextSpace, Option, ProbeRequest, TrainingData
from bhc.errors import BhcError, NotRegisteredError

# Names that mean something else in Python, on the command line, or in a request to the service.
RESERVED = frozenset(
    (
        *("threshold", "max_bytes", "max_flops", "max_error", "max_ram_bytes", "max_latency_ms", "confidence"),
        *("max_weights", "margin"),
        *("quantisation", "precision", "flag_outside", "float32", "format", "image", "name", "values", "none"),
        *("round_to", "run", "contexts", "out", "force", "json", "url", "token_file", "timeout", "path", "plot"),
        *("task", "network"),
    )
)
LONGEST_EXAMPLE = 1000  # characters: of what may be left out, longer ones are
WIDTH_TRIED = 8  # of an embedder; any is as good as another
# What the studio must be told of controls that any space may have.
CONTROLS = {"range": ("low", "high", "step"), "choice": ("choices",), "text": ()}

_KINDS: dict[str, type[ContextSpace]] = {}


def register_context(kind: type[ContextSpace]) -> type[ContextSpace]:
    """Make a kind of context known: runs with it are read, and the command line and the service ask for it.

    ``kind`` is a subclass of ``bhc.ContextSpace``. Returns it, so that this can be a decorator.
    """
    if not (isinstance(kind, type) and issubclass(kind, ContextSpace)):
        raise BhcError(f"{kind!r} is no kind of context", hint="give a subclass of bhc.ContextSpace")
    who = f"context {kind.__name__}"
    missing = sorted(getattr(kind, "__abstractmethods__", ())) if inspect.isabstract(kind) else []
    missing += [name for name, wanted in (("kind", str), ("conditions", tuple)) if not _has(kind, name, wanted)]
    if not missing:
        told = {option.name for option in kind.options}
        missing = [f"an option for {name}" for name in kind.conditions if name not in told]
    if missing:
        raise BhcError(f"{who} lacks {', '.join(missing)}", hint="docs/adding-a-context.md shows one")
    for name in kind.conditions:
        if not name.isidentifier() or name in RESERVED:
            raise BhcError(f"{who} has a condition called {name!r}", hint="choose a word that means nothing else")
    if kind.kind in _KINDS:
        raise BhcError(
            f"{who} cannot be registered: {kind.kind} is taken by {_KINDS[kind.kind].__name__}",
            hint="give it another kind",
        )
    _KINDS[kind.kind] = kind
    return kind


def _has(kind: type, name: str, wanted: type) -> bool:
    return isinstance(getattr(kind, name, None), wanted)


def from_dict(data: Mapping[str, Any]) -> ContextSpace:
    """The space that a ``to_dict`` described."""
    kind = data.get("kind")
    if kind not in _KINDS:
        raise NotRegisteredError(f"contexts of kind {str(kind)[:60]!r} are not registered here", "register_context")
    return _KINDS[kind].from_dict(data)


def _in_order() -> list[type[ContextSpace]]:
    return sorted(_KINDS.values(), key=lambda kind: kind.rank)


def request_options() -> tuple[Option, ...]:
    """Options of the command line for conditions, each once."""
    return _once(option for kind in _in_order() for option in kind.options)


def training_options() -> tuple[Option, ...]:
    """Options of the command line by which contexts of training are chosen, each once."""
    return _once(option for kind in _in_order() for option in kind.training_options)


def _once(options: Iterable[Option]) -> tuple[Option, ...]:
    first: dict[str, Option] = {}
    for option in options:
        first.setdefault(option.name, option)
    return tuple(first.values())


def spaces_for(names: Sequence[str], data: TrainingData, chosen: Mapping[str, Any]) -> list[ContextSpace]:
    """The usual space for each of some conditions, for a data set."""
    return [_space_for(name, data, chosen) for name in names]


def _space_for(name: str, data: TrainingData, chosen: Mapping[str, Any]) -> ContextSpace:
    known = dict.fromkeys(option.name for option in request_options())
    if name not in known:
        hint = f"join some of these with +: {', '.join(known)}; or none by itself"
        raise NotRegisteredError(f"unknown context {name!r}", "register_context", instead=hint)
    for kind in _in_order():
        if name in getattr(kind, "conditions", ()) and (space := kind.for_data(data, chosen)) is not None:
            return space
    raise BhcError(f"there is no usual context on {name} for such data", hint="train in Python, with bhc.fit")


def example_request(space: ContextSpace, seen: Tensor | None) -> dict[str, Any]:
    """A request in JSON that a space takes; without what is long and may be left out."""
    asked: dict[str, Any] = {}
    for part in space.parts:
        own = part.example(seen)
        if not space.optional or len(json.dumps(own)) <= LONGEST_EXAMPLE:
            asked |= own
    return asked


def is_ours(space: ContextSpace) -> bool:
    """Whether a space comes with bhc: tests try those, and drawing from thousands of subsets takes seconds."""
    return _is_ours(type(space))


@cache
def _is_ours(space: type[ContextSpace]) -> bool:
    return space.__module__.startswith(f"{__package__}.")


def check_space(space: ContextSpace, num_classes: int) -> None:
    """Raise if a space's answers do not fit each other, as they would in the midst of training."""
    for part in space.parts:
        part.check_network(num_classes)
    if space.parts[0] is not space:  # what a part of a joint one does is told with the part's name
        for part in space.parts:
            check_space(part, num_classes)
    _check_description(space)
    _check_forms(space)
    try:
        drawn = _answer(space, "sample", 3, num_classes, rng=Generator().manual_seed(0))
    except BhcError as error:
        if error.__cause__ is None:  # such as subsets of more classes than there are: training says so
            return
        raise
    _check_drawn(space, drawn, 3, num_classes)
    _check_probes(space, num_classes)
    weights = _answer(space, "divergence_weights", drawn)
    if not _is_finite(weights) or weights.shape != (3,):
        raise _broken(space, f"divergence_weights gives {_described(weights)}", "give a finite number for each context")
    if not space.observes and space.parts[0] is space:  # else examples are yet to be seen
        _check_encoding(space, drawn, _asked(space, num_classes))


def checked_draw(space: ContextSpace, count: int, num_classes: int, *, rng: Generator) -> ContextBatch:
    """Contexts for a training step; those that a user's own space draws wrongly are named and not drawn from."""
    drawn = space.sample(count, num_classes, rng=rng)
    if rng.device.type == "cpu" and not all(map(is_ours, space.parts)):
        _check_drawn(space, drawn, count, num_classes)
    return drawn


def checked_encoding(space: ContextSpace, batch: ContextBatch) -> tuple[Tensor, ...]:
    """What the embedder reads, if it can be read: K rows of numbers for each part, none of them NaN.

    Numbers of our own spaces were looked at when they were asked for; on a GPU none are: that would wait for it.
    """
    encoding = space.encode(batch)
    if not isinstance(encoding, tuple) or len(encoding) != len(space.parts):
        raise _broken(space, f"encode gives {type(encoding).__name__}", "give a tuple of one tensor")
    for part, rows in zip(space.parts, encoding, strict=True):
        if not isinstance(rows, Tensor) or not rows.is_floating_point() or rows.dim() < 2 or len(rows) != len(batch):
            raise _broken(
                part, f"encode gives {_described(rows)} for {len(batch)} contexts", "give floats, a row for each"
            )
        if rows.device.type == "cpu" and not is_ours(part) and not rows.isfinite().all():
            raise _broken(part, "encode gives NaN or infinity")
    return encoding


def _answer(space: ContextSpace, question: str, *given: Any, **named: Any) -> Any:
    """What a space answers; where it fails instead, the error says whose answer that is."""
    try:
        return getattr(space, question)(*given, **named)
    except BhcError:
        raise
    except Exception as error:
        raise _broken(space, f"{question} fails with {type(error).__name__}: {error}") from error


def _asked(space: ContextSpace, num_classes: int) -> ContextBatch:
    """A space's own example as training would see it."""
    try:
        return ContextBatch.of([_answer(space, "resolve", _answer(space, "example", None))], num_classes)
    except BhcError as error:
        raise _broken(space, f"its own example is refused: {error.problem}") from error


def _check_description(space: ContextSpace) -> None:
    try:
        described = json.loads(json.dumps(_answer(space, "to_dict"), allow_nan=False))
    except (TypeError, ValueError) as error:
        raise _broken(space, f"to_dict gives what JSON cannot hold: {error}") from None
    if not isinstance(described, dict) or described.get("kind") != space.kind:
        raise _broken(space, f"to_dict does not give the kind {space.kind!r}")
    try:
        again = from_dict(described).to_dict()
    except TypeError as error:
        raise _broken(space, f"from_dict does not take what to_dict gives: {error}") from error
    if json.loads(json.dumps(again)) != described:
        raise _broken(space, "from_dict makes another space of what to_dict gives")


def _check_drawn(space: ContextSpace, batch: ContextBatch, count: int, num_classes: int) -> None:
    if not isinstance(batch, ContextBatch):
        raise _broken(space, f"refine gives {_described(batch)}", "give a ContextBatch")
    rates, outputs = batch.class_rates, batch.outputs
    if not rates.shape == outputs.shape == (count, num_classes) or outputs.dtype != torch.bool:
        raise _broken(
            space,
            f"refine gives class_rates of {tuple(rates.shape)} and outputs of {tuple(outputs.shape)}, {outputs.dtype}",
            f"for {count} contexts of {num_classes} classes they are {count, num_classes}, and outputs are truths",
        )
    if not (rates.isfinite().all() and (rates >= 0).all() and (rates.sum(1) - 1).abs().max() < 1e-3):
        raise _broken(space, "refine gives class_rates that are no probabilities", "rows are 0 or more and sum to 1")
    for name, rows in batch.values.items():
        if not _is_finite(rows) or len(rows) != count:
            raise _broken(space, f"refine gives values[{name!r}] of {_described(rows)}", "give numbers, (K, n)")


def _check_encoding(space: ContextSpace, *batches: ContextBatch) -> None:
    """Of what training draws and of what is asked for: rows of one size, which the embedder takes."""
    for batch in batches:
        _answer(space, "encode", batch)
    rows, asked = (checked_encoding(space, batch) for batch in batches)
    shapes, again = ([tuple(row.shape[1:]) for row in each] for each in (rows, asked))
    if shapes != again:
        raise _broken(space, f"encode gives {shapes} in training and {again} for its example")
    with torch.random.fork_rng(devices=()), torch.no_grad():
        embedder, width = _answer(space, "embedder_alone", WIDTH_TRIED)
        try:
            embedded = embedder(*rows)
        except Exception as error:
            raise _broken(space, f"embedder does not take what encode gives: {error}") from error
    if not _is_finite(embedded) or embedded.shape != (len(rows[0]), width):
        raise _broken(space, f"embedder({WIDTH_TRIED}) gives {_described(embedded)}", "give finite numbers, (K, width)")


def _check_probes(space: ContextSpace, num_classes: int) -> None:
    probes = _answer(space, "probes", num_classes, space.most_probes)
    if not isinstance(probes, Sequence) or not probes or not all(isinstance(each, ProbeRequest) for each in probes):
        raise _broken(space, f"probes gives {probes!r}"[:200], "give a list of one or more ProbeRequest")


def _check_forms(space: ContextSpace) -> None:
    form = _answer(space, "form")
    if not isinstance(form, dict) or set(form) != set(space.conditions):
        raise _broken(space, f"form tells of {', '.join(form or ()) or 'nothing'}", "tell of each condition")
    for name, control in form.items():
        kind = control.get("kind") if isinstance(control, dict) else None
        if kind not in CONTROLS and not (kind and is_ours(space)):
            raise _broken(space, f"form of {name} is of kind {kind!r}", f"choose one of {', '.join(CONTROLS)}")
        lacking = [part for part in ("words", *CONTROLS.get(kind, ())) if part not in control]
        if lacking:
            raise _broken(space, f"form of {name} lacks {', '.join(lacking)}")


def _is_finite(rows: Any) -> bool:
    return isinstance(rows, Tensor) and bool(rows.isfinite().all())


def _described(given: Any) -> str:
    """What was given, for an error: of a tensor its shape and type, and whether there are other things than numbers."""
    if not isinstance(given, Tensor):
        return type(given).__name__
    return f"{tuple(given.shape)} of {given.dtype}" + ("" if given.isfinite().all() else " with NaN or infinity")


def _broken(space: ContextSpace, what: str, hint: str = "") -> BhcError:
    return BhcError(f"{type(space).__name__}: {what}", hint=hint)
