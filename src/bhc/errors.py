"""The one exception the library raises on purpose, how it warns, and old names of arguments, of which it does."""

import sys
import warnings
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from traceback import walk_stack
from typing import Any, ParamSpec, TypeVar

OURS = str(Path(__file__).parent)


class BhcError(Exception):
    """Something the caller can mend: what was given, what is allowed, and what to do.

    The first part of the text states the problem; ``hint`` says what to do about it.
    The command line prints both and exits with status 2.
    """

    def __init__(self, problem: str, *, hint: str = "") -> None:
        super().__init__(f"{problem}\n  hint: {hint}" if hint else problem)
        self.problem = problem
        self.hint = hint


class NotRegisteredError(BhcError):
    """A layer, format or context of the user's own that is asked for, or that a file holds, and that is not known here.

    The hint says what to import. A file with one is whole: it must not be called damaged.
    """

    def __init__(self, problem: str, register: str, *, instead: str = "") -> None:
        how = f"import the file that calls bhc.{register} for it first, on the command line: bhc --import FILE"
        super().__init__(problem, hint=f"{instead}; for one of your own {how}" if instead else how)


def warn(message: str | Warning, kind: type[Warning] = UserWarning) -> None:
    """Warn of the line that called the library, however many functions of its and of torch's lie between."""
    frames = [frame.f_code.co_filename for frame, _ in walk_stack(sys._getframe())]
    outermost = max(depth for depth, file in enumerate(frames) if file.startswith(OURS))
    warnings.warn(message, kind, stacklevel=outermost + 2)


P = ParamSpec("P")
R = TypeVar("R")


def renamed(**names: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """A function that also takes arguments by their old names: ``@renamed(old="new")``."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return function(*args, **renamed_in(kwargs, function.__name__, names))

        return call

    return decorate


def renamed_in(given: dict[str, Any], who: str, names: dict[str, str]) -> dict[str, Any]:
    """Arguments with new names in the place of old ones."""
    for old, new in names.items():
        if old in given:
            if new in given:
                raise TypeError(f"{who}() got {new} twice: as {old}= too, which is its old name")
            warn(f"{who}({old}=) is {new}= now", DeprecationWarning)
            given = {new if name == old else name: value for name, value in given.items()}
    return given
