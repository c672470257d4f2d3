"""Users' own layers, formats and contexts, made known to our commands by importing the files that register them."""

import importlib
import importlib.util
import os
import sys
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

from bhc.errors import BhcError

VARIABLE = "BHC_IMPORT"  # modules or files, separated as in PATH; processes that we start read it too
OPTION = "--import"
_imported: set[str] = set()


def import_plugins(names: Iterable[str] = ()) -> None:
    """Import modules (``acme.formats``) or files (``acme.py``), and those that the environment names; each once."""
    said = (*os.environ.get(VARIABLE, "").split(os.pathsep), *names)
    wanted = dict.fromkeys(str(Path(name).resolve()) if name.endswith(".py") else name for name in said if name)
    for name in wanted:
        if name not in _imported:
            _import(name)
            _imported.add(name)
    if wanted:
        os.environ[VARIABLE] = os.pathsep.join(wanted)


def named_in(words: Sequence[str]) -> list[str]:
    """What ``--import`` names on a command line, before there is a command that could be asked."""
    after = [word for before, word in pairwise(words) if before == OPTION]
    return after + [word.removeprefix(f"{OPTION}=") for word in words if word.startswith(f"{OPTION}=")]


def _import(name: str) -> None:
    try:
        if not name.endswith(".py"):
            importlib.import_module(name)
            return
        path = Path(name)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        if spec is None or spec.loader is None or not path.is_file():
            raise BhcError(f"there is no file {name} to import", hint="give a .py file, or a module that is installed")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault(path.stem, module)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise BhcError(f"{name} cannot be imported: {error}", hint="give a .py file, or an installed module") from error
