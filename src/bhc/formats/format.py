"""What an export format is: one object that writes networks, and opens what it has written; and all there are."""

import inspect
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from math import inf
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

from torch import Tensor, nn

from bhc.errors import BhcError, NotRegisteredError
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import Inputs, Signature
from bhc.layers import NoForm, kind_of

Rule = Callable[..., Any]
LARGEST_FILE = 1 << 28
RUNS, WARM_UPS = 101, 10  # of a network that is timed


class WeightForm(Enum):
    """Floats run everywhere; integers are smaller; bit-packed ones smaller still and slower to read."""

    FLOATS = "floats"
    INTEGERS = "integers"
    BIT_PACKED = "bit-packed"


@dataclass(frozen=True)
class Export:
    """What a writer is told beside the network."""

    weights: WeightForm = WeightForm.FLOATS
    name: str = "network"  # of functions, in formats that are code
    metadata: Mapping[str, Any] = field(default_factory=dict)  # plain data: context, classes, report


@dataclass(frozen=True)
class Figure:
    """One number about a file that its bytes do not show."""

    key: str  # in JSON
    title: str
    value: int
    unit: str


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
    classes: tuple[int, ...] | None = None  # those of its context; None where no classes were asked for
    class_names: tuple[str, ...] | None = None  # of the labels, where they are other than the numbers
    error_name: str = "error"  # what its task measures
    has_answers: bool = True  # whether its outputs are answers, of which one is chosen


class Format(ABC):
    """One export format; ``bhc.register_format`` makes it known to the command line, the service and the page.

    ``name`` is what users type and requests say, ``label`` what a button shows, ``suffix`` what files end in, with the
    dot. ``weight_forms`` are the ways in which it can hold weights, the usual one first.

    A format brings ``rules`` for kinds of layers, by the kind's name, which know nothing of it. ``rule_for`` finds the
    one that counts: the layer's own, then the format's.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    suffix: ClassVar[str]
    media_type: ClassVar[str] = "application/octet-stream"
    weight_forms: ClassVar[tuple[WeightForm, ...]] = (WeightForm.FLOATS,)
    aliases: ClassVar[tuple[str, ...]] = ()  # other names on the command line
    rank: ClassVar[int] = 100  # its place in lists
    is_code: ClassVar[bool] = False  # whether its functions have a name that can be chosen
    rules: ClassVar[Mapping[str, Rule]] = {}

    @abstractmethod
    def write(self, network: QuantisedNetwork, export: Export) -> bytes:
        """The content of the file; BhcError says what the format cannot hold, and by which name."""

    def open(self, path: Path) -> Deployed:
        """A file, ready to answer: what ``bhc evaluate`` runs."""
        raise BhcError(f"{path} cannot be run here: it is a {self.label} file", hint="evaluate the .bhc file")

    def figures(self, network: QuantisedNetwork, export: Export) -> tuple[Figure, ...]:
        """Numbers about the file that ``bhc export`` shows beside its size."""
        return ()

    def rule_for(self, module: nn.Module, name: str) -> Rule:
        """How a step is written: as its kind says, else as this format does; NoForm where neither knows."""
        kind = kind_of(module)
        rule = kind.forms.get(self.name) or self.rules.get(kind.name)
        if rule is None:
            raise NoForm(f"step {name!r} is a {type(module).__name__}")
        return rule

    def weights_for(self, network: QuantisedNetwork, wanted: WeightForm | None) -> WeightForm:
        """The wanted form of weights, or the usual one; BhcError where the format or the network has no such."""
        if wanted is None:
            return self.weight_forms[0] if network.weights else WeightForm.FLOATS
        if not isinstance(wanted, WeightForm):
            raise BhcError(
                f"weights={wanted!r} is not a form", hint="give bhc.WeightForm.FLOATS, INTEGERS or BIT_PACKED"
            )
        if wanted not in self.weight_forms:
            raise BhcError(
                f"{self.name} files do not hold weights as {wanted.value}",
                hint=f"choose --weights {' or '.join(choice.value for choice in self.weight_forms)}",
            )
        if wanted is not WeightForm.FLOATS and not network.weights:
            raise BhcError(
                f"this network has 32-bit weights and cannot be written with {wanted.value}",
                hint="emit it with bit widths (without Float32() or --float32), or choose floats",
            )
        return wanted


_FORMATS: dict[str, Format] = {}


def register_format(kind: type[Format]) -> type[Format]:
    """Make a format known: ``bhc export``, the service and its page offer it from now on.

    ``kind`` is a subclass of ``bhc.Format``, made without arguments. Returns it, so that this can be a decorator.
    """
    if not (isinstance(kind, type) and issubclass(kind, Format)):
        raise BhcError(f"{kind!r} is no format", hint="give a subclass of bhc.Format")
    missing = [part for part in ("name", "label", "suffix") if not isinstance(getattr(kind, part, None), str)]
    missing += sorted(kind.__abstractmethods__) if inspect.isabstract(kind) else []
    if missing:
        raise BhcError(f"format {kind.__name__} lacks {', '.join(missing)}", hint="docs/adding-a-format.md shows one")
    if not kind.name.isidentifier() or not kind.suffix.startswith(".") or len(kind.suffix) < 2:
        raise BhcError(
            f"format {kind.__name__} is called {kind.name!r} and its files end in {kind.suffix!r}",
            hint='a name is a word, a suffix begins with a dot: "tflite", ".tflite"',
        )
    for other in _FORMATS.values():
        names = {other.name, *other.aliases} & {kind.name, *kind.aliases}
        taken = sorted(names) or ([kind.suffix] if kind.suffix == other.suffix else [])
        if taken:
            raise BhcError(
                f"format {kind.__name__} cannot be registered: {taken[0]} is taken by {type(other).__name__}",
                hint="choose another name and suffix",
            )
    _FORMATS[kind.name] = kind()
    return kind


def formats() -> tuple[Format, ...]:
    """Every format, ours first."""
    return tuple(sorted(_FORMATS.values(), key=lambda each: each.rank))


def format_named(name: str) -> Format:
    """A format by its name; BhcError lists what there is."""
    for each in formats():
        if name in (each.name, *each.aliases):
            return each
    names = ", ".join(each.name for each in formats())
    raise NotRegisteredError(f"there is no format {name!r}"[:200], "register_format", instead=f"choose one of {names}")


def format_wanted(path: Path, name: str | None = None) -> Format:
    """A format by its name, else by what the file's name ends in; BhcError where that says nothing."""
    found = format_of(path) if name is None else format_named(name)
    if found is None:
        suffixes = ", ".join(each.suffix for each in formats())
        problem = f"{path} does not say which format is wanted"
        raise NotRegisteredError(problem, "register_format", instead=f"end it in one of {suffixes}")
    return found


def format_of(path: Path) -> Format | None:
    """The format that a file's name ends in."""
    return next((each for each in formats() if path.suffix == each.suffix), None)


def open_deployed(path: str | Path) -> Deployed:
    """Open a file by what its name ends in, and any other as a ``.bhc`` file."""
    path = Path(path)
    if not path.exists():
        raise BhcError(f"{path} does not exist")
    known = format_of(path)
    try:
        return (known or format_named("bhc")).open(path)
    except BhcError as error:
        if known is not None:
            raise
        problem = f"{path} is of no format that is registered here: {error.problem}"
        raise NotRegisteredError(problem, "register_format") from error


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
        if tuple(answer.shape[:2]) != (batch, len(labels)):  # beyond them may lie places, as of pixels
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
        **said_in(path, known, labels, _measure_in(known)),
    )


def _measure_in(known: Mapping[str, Any]) -> Any:
    match known.get("report"):
        case {"error_name": name, "has_answers": answers}:
            return [name, None, answers]
    return None


def said_in(path: Path, known: Mapping[str, Any], labels: Sequence[int], measure: Any) -> dict[str, Any]:
    """What a file says of its classes and its task, as fields of ``Deployed``; ``measure`` is as in a card."""
    context, names = known.get("context"), known.get("class_names")
    classes = context.get("classes") if isinstance(context, Mapping) else None
    lists = _is_list(classes, int) and _is_list(names, str) and (names is None or len(names) == len(labels))
    match ["error", False, True] if measure is None else measure:
        case [str(error_name), _, bool(has_answers)] if lists and error_name.isprintable():
            return {
                "classes": None if classes is None else tuple(classes),
                "class_names": None if names in (None, [str(label) for label in labels]) else tuple(names),
                "error_name": error_name,
                "has_answers": has_answers,
            }
    words = ", ".join(str(part)[:60] for part in (classes, names, measure))
    raise BhcError(f"{path} is damaged: {words} as its classes, their names and what its error is")


def _is_list(value: Any, kind: type) -> bool:
    return value is None or (isinstance(value, list) and all(type(each) is kind for each in value))


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


def median_ms(call: Callable[[], object]) -> float:
    """Median milliseconds of a call, once it is warm."""
    times = []
    for run in range(WARM_UPS + RUNS):
        began = time.perf_counter()
        call()
        if run >= WARM_UPS:
            times.append(1e3 * (time.perf_counter() - began))
    return median(times)
