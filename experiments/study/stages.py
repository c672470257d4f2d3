"""The stages of training after the first, as configurations describe them."""

from typing import Any

import bhc
from bhc.training import Recipe, Stage


def after_learning(
    common: dict[str, Any],  # what every stage is given
    learned: dict[str, Any],  # what learning was given
    *,
    narrow: dict[str, Any] | None,
    consolidate: dict[str, Any] | None,
) -> Recipe:
    """Narrowing, which learns on as it was but for what is said, and consolidation; each where it is described."""
    stages: list[Stage] = []
    if narrow is not None:
        kept = {name: value for name, value in learned.items() if name not in ("steps", "warm_up")}
        stages.append(bhc.Narrow(**(common | kept | narrow)))
    if consolidate is not None:
        pairs = {name: tuple(consolidate[name]) for name in ("thresholds", "ratios") if name in consolidate}
        stages.append(bhc.Consolidate(**(common | consolidate | pairs)))
    return tuple(stages)
