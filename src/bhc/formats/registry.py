"""All formats there are, by name and by what files end in; users add their own."""

import inspect
from pathlib import Path

from bhc.errors import BhcError
from bhc.formats.c_header import CHeader
from bhc.formats.deployed import Deployed
from bhc.formats.exported_program import Program
from bhc.formats.file import Packed
from bhc.formats.format import Format
from bhc.formats.onnx_model import Onnx

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


for _kind in (Packed, Onnx, CHeader, Program):
    register_format(_kind)


def formats() -> tuple[Format, ...]:
    """Every format, ours first."""
    return tuple(_FORMATS.values())


def format_named(name: str) -> Format:
    """A format by its name; BhcError lists what there is."""
    for each in formats():
        if name in (each.name, *each.aliases):
            return each
    raise BhcError(f"there is no format {name!r}"[:200], hint=f"choose one of {', '.join(_FORMATS)}")


def format_of(path: Path) -> Format | None:
    """The format that a file's name ends in."""
    return next((each for each in formats() if path.suffix == each.suffix), None)


def open_deployed(path: str | Path) -> Deployed:
    """Open a file by what its name ends in, and any other as a ``.bhc`` file."""
    path = Path(path)
    if not path.exists():
        raise BhcError(f"{path} does not exist")
    return (format_of(path) or _FORMATS[Packed.name]).open(path)
