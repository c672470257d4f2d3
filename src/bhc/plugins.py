"""Users' own layers, formats, contexts and functions: files and modules that are imported by name.

A file is imported as a submodule of this one, such as ``bhc.plugins.acme_1a2b3c4d``. Another process can therefore
unpickle what the file defines before it has imported anything: it imports this module first, whose finder knows the
files that the environment names. Workers that a ``DataLoader`` spawns do so.
"""

import difflib
import hashlib
import importlib
import importlib.util
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from importlib.machinery import ModuleSpec
from inspect import signature
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

from bhc.errors import BhcError

VARIABLE = "BHC_IMPORT"  # modules or files, separated as in PATH; processes that we start read it too
OPTION = "--import"
FUNCTION_FORMS = "package.module:function, or path/to/file.py:function"
_OFFERED = 5  # names in a hint
_imported: set[str] = set()


def import_plugins(names: Iterable[str] = ()) -> None:
    """Import modules (``acme.formats``) or files (``acme.py``), and those that the environment names; each once."""
    wanted = dict.fromkeys(_absolute(name) for name in (*_said(), *names) if name)
    for name in wanted:
        if name not in _imported:
            _import(name)
    if wanted:
        os.environ[VARIABLE] = os.pathsep.join(wanted)


def load_function(where: str) -> Callable[..., Any]:
    """The function that ``package.module:function`` or ``path/to/file.py:function`` names; a class is one too.

    A module must be installed or on ``PYTHONPATH``. A file may import what lies beside it. Each is imported once, and
    also in processes that are started later, where instances of its classes can be unpickled.
    """
    source, _, name = where.rpartition(":")
    if not source or not name:
        raise BhcError(f"{where!r} does not name a function", hint=f"write {FUNCTION_FORMS}")
    import_plugins([source])
    module = sys.modules[module_name(_absolute(source))]
    try:
        function = getattr(module, name)
    except AttributeError as error:
        raise BhcError(f"{source} has no function {name}", hint=_names_like(name, module)) from error
    if not callable(function):
        raise BhcError(f"{name} in {source} is no function: it is of type {type(function).__name__}")
    return function


def made_by(where: str) -> Any:
    """What a function that is named gives, called without arguments: of a class, an instance."""
    function = load_function(where)
    try:
        signature(function).bind()
    except TypeError as error:
        raise BhcError(
            f"{where} cannot be called without arguments: {error}", hint="name a function that needs none"
        ) from error
    except ValueError:  # one that does not say what it takes
        pass
    try:
        return function()
    except BhcError:
        raise
    except (Exception, SystemExit) as error:
        raise BhcError(f"{where} fails: {type(error).__name__}: {error}{_line_of(error)}") from error


def found_anywhere(where: str) -> str:
    """The name of a function for processes that work in another folder."""
    source, _, name = where.rpartition(":")
    return f"{_absolute(source)}:{name}"


def named_in(words: Sequence[str]) -> list[str]:
    """What ``--import`` names on a command line, before there is a command that could be asked."""
    after = [word for before, word in pairwise(words) if before == OPTION]
    return after + [word.removeprefix(f"{OPTION}=") for word in words if word.startswith(f"{OPTION}=")]


def module_name(name: str) -> str:
    """What a module is called in ``sys.modules``; a file by its name and its whole path, in every process alike."""
    if not name.endswith(".py"):
        return name
    stem = re.sub(r"\W", "_", Path(name).stem)
    return f"{__name__}.{stem}_{hashlib.sha256(os.fsencode(name)).hexdigest()[:8]}"


class _FileFinder:
    """Finds files among those that were named, here or by the process that started this one."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        if not name.startswith(f"{__name__}."):
            return None
        files = (file for file in (*_imported, *_said()) if file.endswith(".py") and module_name(file) == name)
        file = next(files, None)
        return importlib.util.spec_from_file_location(name, file) if file else None


__path__: list[str] = []  # makes this module one that has submodules
sys.meta_path.append(_FileFinder())


def _said() -> list[str]:
    return os.environ.get(VARIABLE, "").split(os.pathsep)


def _absolute(name: str) -> str:
    return str(Path(name).expanduser().resolve()) if name.endswith(".py") else name


def _import(name: str) -> None:
    _imported.add(name)
    try:
        if name.endswith(".py"):
            _import_file(name)
        else:
            _import_module(name)
    except BhcError:
        _imported.discard(name)
        raise
    except (Exception, SystemExit) as error:
        _imported.discard(name)
        reason = str(error) if isinstance(error, ImportError) else f"{type(error).__name__}: {error}"
        raise BhcError(f"{name} cannot be imported: {reason}{_line_of(error)}", hint=_mend(error)) from error


def _import_file(name: str) -> None:
    path = Path(name)
    if not path.is_file():
        raise BhcError(f"there is no file {name} to import", hint="give a .py file, or a module that is installed")
    if os.pathsep in name:
        raise BhcError(f"{name} has a {os.pathsep!r} in its path, which {VARIABLE} sets between files", hint="move it")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # last, where it hides no other module
    module = importlib.import_module(module_name(name))
    sys.modules.setdefault(path.stem, module)  # another file may import it by its own name


def _import_module(name: str) -> None:
    parents = {name.rsplit(".", cut)[0] for cut in range(name.count(".") + 1)}
    try:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ModuleNotFoundError(name=name)
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name not in parents:  # the module is there, and what it imports is not
            raise
        hint = "give a .py file, or a module that is installed or on PYTHONPATH"
        raise BhcError(f"there is no module {name} to import", hint=hint) from error


def _line_of(error: BaseException) -> str:
    """The last line that was run of the user's own files: those beside the first that was run, or below it."""
    if isinstance(error, SyntaxError):  # says it itself
        return ""
    ours = (__file__, importlib.__file__, "<frozen")
    users = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(ours)]
    own = [frame for frame in users if Path(frame.filename).is_relative_to(Path(users[0].filename).parent)]
    return f" (line {own[-1].lineno} of {own[-1].filename})" if own else ""


def _mend(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        return "put what a script does under: if __name__ == '__main__':"
    if isinstance(error, ImportError) and (error.name or "").startswith(__name__):  # from .other import name
        return "name a file of a package by its module: package.module:function"
    return "it must be possible to import it by itself"


def _names_like(name: str, module: ModuleType) -> str:
    """What a module has that may have been meant: names like this one, or else what it defines."""
    public = {own: value for own, value in vars(module).items() if callable(value) and not own.startswith("_")}
    near = difflib.get_close_matches(name, public, n=_OFFERED)
    defined = [own for own, value in public.items() if getattr(value, "__module__", None) == module.__name__]
    offered = near or defined[:_OFFERED]
    return f"it has {', '.join(offered)}" if offered else "it defines no function"
