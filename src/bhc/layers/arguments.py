"""What a constructor's argument may be: how it is checked when it is read, and written as plain data."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

LARGEST_NUMBER = 1e15  # no product with it leaves the range of a 32-bit float
LARGEST_SIZE = 1 << 22
SMALLEST_NUMBER = 1e-15


class Argument:
    """Anything that is plain data; subclasses are stricter."""

    def checked(self, value: Any) -> Any:
        """The argument, if it is one that a file may hold; ValueError else."""
        return value

    def plain(self, value: Any) -> Any:
        """The same as plain data."""
        return list(value) if isinstance(value, tuple) else value


class Real(Argument):
    """A finite number."""

    def checked(self, value: Any) -> float:
        if type(value) is not float or not abs(value) <= LARGEST_NUMBER:
            raise ValueError(f"{brief(value)} in the place of a finite number")
        return value

    def plain(self, value: Any) -> float:
        return float(value)


class Positive(Real):
    """A number that can be divided by."""

    def checked(self, value: Any) -> float:
        if super().checked(value) < SMALLEST_NUMBER:
            raise ValueError(f"{brief(value)} in the place of a positive number")
        return value


class Size(Argument):
    """A whole number, or one for each direction."""

    def checked(self, value: Any) -> int | tuple[int, ...]:
        sizes = value if isinstance(value, list) else [value]
        if not all(type(size) is int and 0 <= size <= LARGEST_SIZE for size in sizes):
            raise ValueError(f"{brief(value)} as an argument")
        return tuple(value) if isinstance(value, list) else value


class Flag(Argument):
    """True or false."""

    def checked(self, value: Any) -> bool:
        if type(value) is not bool:
            raise ValueError(f"{brief(value)} as an argument")
        return value


@dataclass(frozen=True)
class Choice(Argument):
    """One of a few words."""

    words: Sequence[str]

    def checked(self, value: Any) -> str:
        if value not in self.words:
            raise ValueError(f"{brief(value)} as an argument")
        return str(value)


def unknown(entry: Any) -> ValueError:
    """What an entry of a file is that no kind of layer would write."""
    return ValueError(f"an unknown step, {brief(entry)}")


def brief(value: Any) -> str:
    """A value as a message may show it."""
    return str(value)[:60]
