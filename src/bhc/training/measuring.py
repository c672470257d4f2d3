"""What a run measures of its network on the way: sizes, errors, thresholds in use, and whether it learns at all."""

from collections.abc import Sequence
from itertools import count
from math import log
from typing import Any

import torch

from bhc.contexts import ContextBatch
from bhc.errors import BhcError, warn
from bhc.hypernet import ConditionalNetwork
from bhc.training.batches import sample_for
from bhc.training.config import Position, Team, TrainingConfig, TrainingSets
from bhc.training.evaluation import (
    Panel,
    Point,
    Probe,
    base_error,
    find_probes,
    harmonic,
    largest_ratio,
    largest_within,
    looks_for,
    pruning_ratios,
    threshold_for,
    trade_off,
)
from bhc.training.progress import Progress
from bhc.training.recipes import Consolidate, ratios_around
from bhc.training.stages import Stage

CURVE_POINTS = 13
TOLERANCE = 0.75  # points of validation error that the default threshold may cost

NEAR_CHANCE = 0.97  # of the cross-entropy of guessing
LOOKS = 5  # in a row


class Measurements:
    """Of one run, on a number of contexts and a sample of its validation set. The first of a team looks for all."""

    def __init__(
        self, network: ConditionalNetwork, sets: TrainingSets, config: TrainingConfig, team: Team, progress: Progress
    ) -> None:
        self.network, self.config, self.team, self.progress = network, config, team, progress
        self.stages = list(config.recipe)  # as they are run: resolved by what was learned before
        self.validation = sample_for(network, sets.validation)
        self.probes = find_probes(network.space, sets.train, num_classes=network.num_classes)
        looks = looks_for(network, self.validation) // CURVE_POINTS
        self.panel = Panel.of(self.probes, self.validation, most=looks)

    def resolve(self, index: int) -> Stage:
        """A stage as it is run, once all before it is done."""
        stage = self.config.recipe[index]
        self.stages[index] = self.team.decide(lambda: stage.resolved(self.network, self.contexts_of(stage)))
        return self.stages[index]

    def contexts_of(self, stage: Stage) -> ContextBatch:
        """The probes, but for those of a budget that the stage does not train for."""
        own = [p.context for p in self.probes if stage.budget is None or p.context.budget in (None, stage.budget)]
        contexts = own or [probe.context for probe in self.probes]
        return ContextBatch.of(contexts, self.network.num_classes).to(self.network.device)

    def check_ratios(self) -> None:
        """Raise if a stage asks for smaller networks than there are."""
        for stage in self.config.recipe:
            if stage.largest_ratio is not None:
                most = largest_ratio(self.network, self.contexts_of(stage))
                if stage.largest_ratio > most:
                    raise BhcError(
                        f"{stage.title} asks for networks {stage.largest_ratio:g} times smaller, "
                        f"but with one unit a layer they are {most:.4g} times smaller",
                        hint="ask for less",
                    )

    def part_for(self, ratio: float, stage: Stage) -> float:
        """The part of the units that is gone from networks which are so many times smaller."""
        network, contexts = self.network, self.contexts_of(stage)
        return self.team.decide(lambda: network.fraction_above(threshold_for(network, contexts, ratio), contexts))

    def ratio(self, position: Position) -> float:
        """Harmonic pruning ratio over the probes: of what is gone, or at the middle of the thresholds in use."""
        contexts = self.contexts_of(self.stages[position.stage])
        if position.dropped_fraction is None:
            threshold = sum(self._thresholds(position)) / 2
        else:
            threshold = self.network.threshold_without(position.dropped_fraction, contexts)
        return harmonic(pruning_ratios(self.network, contexts, threshold).tolist())

    def curve(self, position: Position) -> list[dict[str, float]]:
        """Error against size over the thresholds in use."""
        return [point.to_dict() for point in self.team.decide(lambda: self._trade_off(position))]

    def _trade_off(self, position: Position) -> list[Point]:
        low, high = self._thresholds(position)
        grid = [min(max(place, low), high) for place in torch.linspace(low, high, CURVE_POINTS).tolist()]
        looks = count(1)
        self.progress.begin("measuring", CURVE_POINTS * self.panel.num_passes)
        try:
            return trade_off(self.network, self.panel, grid, on_look=lambda: self.progress.update(next(looks), {}))
        finally:
            self.progress.end()

    def _thresholds(self, position: Position) -> tuple[float, float]:
        """Those of consolidation, or around what narrowing left; where neither is known yet, what is usual."""
        ranges = [stage.thresholds for stage in self.stages if isinstance(stage, Consolidate) and stage.thresholds]
        return ranges[-1] if ranges else self._narrowed_range(position) or self.network.hypernet.family.thresholds

    def _narrowed_range(self, position: Position) -> tuple[float, float] | None:
        stage = self.stages[position.stage]
        if position.dropped_fraction is None or stage.largest_ratio is None:
            return None
        covered = Consolidate(ratios=ratios_around(stage.largest_ratio))
        return covered.resolved(self.network, self.contexts_of(stage)).thresholds

    def findings(self, position: Position) -> dict[str, Any]:
        """What was learned about using the network: fields of a ``TrainedModel``."""
        curves = position.curves or {}
        after = [Point(**point) for point in curves["after"]]
        # A base network that knows nothing is no yardstick; the best point of the curve is.
        original = base_error(self.network, self.panel) if self.network.pretrained else None
        yardstick = min(point.error for point in after) if original is None else original
        consolidated = [stage for stage in self.stages if isinstance(stage, Consolidate)]
        return {
            "thresholds": consolidated[-1].thresholds if consolidated else self._narrowed_range(position),
            "default_threshold": largest_within(after, yardstick + TOLERANCE).threshold,
            "training": {
                "original_error": original,
                "curves": curves,
                "curve_contexts": [context.to_dict() for context in self.panel.contexts],
            },
        }


class CollapseWarning(UserWarning):
    """Learning has come to rest at the prior."""


class CollapseWatch:
    """Looks at the cross-entropy now and then, and warns once it has stayed at chance."""

    def __init__(self, probes: Sequence[Probe]) -> None:
        self.chance = sum(log(len(probe.classes)) for probe in probes) / len(probes)
        self._looks = 0

    def look(self, cross_entropy: float) -> None:
        self._looks = self._looks + 1 if self.chance > 0 and cross_entropy > NEAR_CHANCE * self.chance else 0
        if self._looks == LOOKS:
            warn(
                f"the cross-entropy stays at that of guessing ({self.chance:.2f}): the divergence outweighs the data."
                " Use a smaller kl_weight or a larger num_data, warm up longer, or lower logvar_rate.",
                CollapseWarning,
            )
