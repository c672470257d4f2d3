"""Old names of arguments: they work, and warn, for one version."""

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from bhc.errors import warn

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
