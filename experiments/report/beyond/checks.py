"""Numbers against their targets."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..numbers import NOTHING, Text, ratio_text
from ..verdicts import TOLERANCE

NONE_SET = "none set"


@dataclass(frozen=True)
class Check:
    """What was to be reached, and by how much it was not; empty where it was."""

    wanted: str
    miss: str = ""


@dataclass(frozen=True)
class Judgement:
    """What was found, and how it stands beside the targets; nothing where none was set."""

    found: str
    checks: tuple[Check, ...] = ()

    @property
    def verdict(self) -> str:
        return verdict(self.checks) if self.checks else NOTHING


def at_most(name: str, got: float, limit: float, text: Text, unit: str = "") -> Check:
    miss = f"{name} {text(got)}{unit} is {text(got - limit)}{unit} over" if got > limit + TOLERANCE else ""
    return Check(f"{name} at most {limit:g}{unit}", miss)


def at_least(name: str, got: float, limit: float, text: Text = ratio_text) -> Check:
    miss = f"{name} {text(got)} is {100 * (1 - got / limit):.1f} % short of {text(limit)}"
    return Check(f"{name} at least {limit:g}", miss if got < limit - TOLERANCE else "")


def verdict(checks: Sequence[Check]) -> str:
    misses = [check.miss for check in checks if check.miss]
    return f"**missed**: {'; '.join(misses)}" if misses else "reached"
