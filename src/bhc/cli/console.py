"""What commands share: results to stdout, all else to stderr, errors as one line and a hint; options of several."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import wraps
from inspect import Parameter, Signature, signature
from pathlib import Path
from typing import Annotated, Any, TextIO, TypeVar, cast

import typer

from bhc.contexts import Option
from bhc.data import recordings_in
from bhc.errors import BhcError
from bhc.files import make_folder
from bhc.training import is_rank_zero

WRONG_USE, INTERRUPTED = 2, 130


def show(value: Any, *, as_json: bool) -> None:
    """Print a result: a JSON value, or its text."""
    text = json.dumps(value, indent=2, default=str) if as_json else value
    _write(f"{text}", sys.stdout)


def say(text: str) -> None:
    """A word about what is going on, to stderr; where several processes train together, from the first alone."""
    if is_rank_zero():
        _write(text, sys.stderr)


def _write(text: str, stream: TextIO) -> None:
    """Written out at once: a log that both streams go to has everything in its order."""
    stream.write(text + "\n")
    stream.flush()


def program() -> str:
    """How to call this program again: by name where it is on the path, else as it was called."""
    called = Path(sys.argv[0])
    if shutil.which("bhc") or called.name != "bhc":
        return "bhc"
    here = Path.cwd()
    return str(called.relative_to(here)) if called.is_relative_to(here) else str(called)


def say_error(error: BhcError) -> None:
    """The problem in one line, then the hint. Any process may have one of its own."""
    who = "" if is_rank_zero() else f"process {os.environ.get('RANK')}: "
    _write(f"{who}error: {error.problem}", sys.stderr)
    if error.hint:
        _write(f"{who}hint: {error.hint}", sys.stderr)


def table(header: list[str], rows: list[list[str]]) -> str:
    """Columns aligned, the first to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: list[str]) -> str:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        return "  ".join([cells[0].ljust(widths[0]), *aligned[1:]]).rstrip()

    return "\n".join([line(header), line(["-" * width for width in widths]), *map(line, rows)])


DataDir = Annotated[
    Path | None,
    typer.Option(help="Folder with one folder a data set (mnist/, ...). Default: $BHC_DATA, then the cache."),
]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON.")]
Seed = Annotated[int, typer.Option(min=0, max=2**31 - 1, help="Seed of everything random.")]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing file.")]
Calibration = Annotated[
    int | None,
    typer.Option(
        min=1, help="Hold the last N training images out, for guarantees (compress --confidence).", metavar="N"
    ),
]

LeaveOut = Annotated[
    str | None, typer.Option(help="Keep a source, such as a speaker, out of all training.", metavar="NAME")
]

# What may be limited: the fields of ``bhc.emission.Limits``.
LIMITS = tuple(
    Option(name, text, value_type=kind)
    for name, kind, text in (
        ("threshold", float, "Cut the hypernetwork's network here; lower is smaller."),
        ("max_bytes", int, "Largest file, everything in it."),
        ("max_flops", int, "Most operations for one input, two a multiply-add."),
        ("max_error", float, "Highest validation error, percent. Alone: the smallest network under it."),
        ("max_ram_bytes", int, "Most bytes of constants and activations in the C form."),
        ("max_latency_ms", float, "Slowest median in onnxruntime where it is made, one input, one thread."),
        ("max_weights", int, "Most weights that stay, as pruning ratios count them."),
        ("margin", float, "Without limits: points of error that the network may lose, by a paired test (0.5)."),
        ("confidence", float, "Prove --max-error for new data on the run's calibration images, such as 0.95 sure."),
    )
)
FlagOutside = Annotated[
    float | None,
    typer.Option(help="Flag inputs outside the context, at this rate of false alarms, such as 0.05."),
]


def _multiples(typed: str) -> Any:
    """A number for all layers, or numbers by layer; the text as it is where it says neither, for that is refused."""
    if "=" not in typed:
        return _whole(typed)
    pairs = [[word.strip() for word in part.partition("=")[::2]] for part in typed.split(",")]
    by_layer = {name: _whole(multiple) for name, multiple in pairs}
    return by_layer if len(by_layer) == len(pairs) else typed


def _whole(typed: str) -> int | str:
    try:
        return int(typed)
    except ValueError:
        return typed


RoundTo = Annotated[
    Any,
    typer.Option(
        parser=_multiples,
        metavar="N",
        help="Channels in multiples, such as 8, rounded up; of what some layers write: fc1=16,conv2=8.",
    ),
]
Float32Only = Annotated[bool, typer.Option("--float32", help="Prune only; keep 32-bit weights.")]

# What a command gets of options from a table: their names with what was meant, None for what was not given.
Given = dict[str, Any]
F = TypeVar("F", bound=Callable[..., None])


def with_options(argument: str, options: Iterable[Option], *, after: str | None = None) -> Callable[[F], F]:
    """A command with the options of a table, such as those that contexts bring; it gets them as one ``argument``.

    In its help they stand ``after`` another argument, or in the place of this one.
    """
    by_name = {option.name: option for option in options}

    def decorate(command: F) -> F:
        @wraps(command)
        def call(**given: Any) -> None:
            values = {name: parsed(option, given.pop(name)) for name, option in by_name.items()}
            command(**given, **{argument: values})

        parameters: list[Parameter] = []
        for parameter in signature(command).parameters.values():
            if parameter.name != argument:
                parameters.append(parameter.replace(kind=Parameter.KEYWORD_ONLY))
            if parameter.name == (after or argument):
                parameters += map(_parameter, by_name.values())
        call.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        return cast(F, call)

    return decorate


def _parameter(option: Option) -> Parameter:
    words = Annotated[option.value_type | None, typer.Option(option.flag, help=option.help)]  # type: ignore[name-defined]
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=option.default, annotation=words)


def parsed(option: Option, typed: Any) -> Any:
    """What is meant by what was typed; a folder in the place of a file is one of recordings."""
    if typed is None:
        return None
    return recordings_in(typed) if isinstance(typed, Path) and typed.is_dir() else option.parse(typed)


def refuse_existing(path: Path, *, force: bool) -> None:
    """An existing file is replaced only on request, and this is said before any work is done."""
    if path.exists() and not force:
        raise BhcError(f"{path} exists already", hint="choose another name, or give --force")
    make_folder(path.parent)
