"""What samplers of masks and of class subsets have in common: they are frozen values, described by plain data."""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, ClassVar, TypeVar

from bhc.errors import BhcError

LATER = ("never_together", "shares")  # fields that data of older releases lacks

S = TypeVar("S", bound="Sampler")


class Sampler(ABC):
    """Something that contexts are drawn by. A dataclass need not say more of itself than its ``kind``."""

    kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Plain data that describes the sampler."""
        return {"kind": self.kind} | {each.name: _plain(getattr(self, each.name)) for each in fields(self)}  # type: ignore[arg-type]

    @abstractmethod
    def describe(self) -> str:
        """What can be drawn, in words."""


def sampler_of(kinds: Mapping[str, type[S]], data: dict[str, Any], *, what: str) -> S:
    """The sampler that ``to_dict`` described, of one of these kinds."""
    kind = kinds.get(data["kind"])
    if kind is None:
        raise BhcError(f"unknown kind of {what} sampler: {data['kind']!r}")
    names = [each.name for each in fields(kind) if each.name in data or each.name not in LATER]  # type: ignore[arg-type]
    return kind(**{name: _tuples(data[name]) for name in names})


def _plain(value: Any) -> Any:
    if isinstance(value, Sampler):
        return value.to_dict()
    return [_plain(each) for each in value] if isinstance(value, list | tuple) else value


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list | tuple) else value
