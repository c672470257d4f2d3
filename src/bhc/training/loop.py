"""The training loop: stages one after the other, with checkpoints, a diary and progress."""

import time
import warnings
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.contexts import ContextBatch
from bhc.errors import BhcError
from bhc.examples import Augmentation, Split, Vocabulary
from bhc.hypernet import ConditionalNetwork
from bhc.layers import check_words
from bhc.posterior import PooledNoise
from bhc.training.checkpoint import (
    Header,
    Position,
    generator_states,
    read_checkpoint,
    restore_generators_,
    restore_network_,
    restore_optimizer_,
    save_checkpoint,
)
from bhc.training.collapse import CollapseWatch
from bhc.training.consolidation import Consolidate
from bhc.training.device import describe_device
from bhc.training.domains import SeenDomains
from bhc.training.evaluation import (
    Panel,
    Point,
    base_error,
    harmonic,
    largest_ratio,
    largest_within,
    looks_for,
    pruning_ratios,
    threshold_for,
    trade_off,
)
from bhc.training.learning import Learn
from bhc.training.probes import find_probes
from bhc.training.progress import Progress, Silent
from bhc.training.recipes import ratios_around
from bhc.training.run import RunFolder, TrainedModel, cap_per_class, network_tensors, save_run, words_read
from bhc.training.stages import BatchSource, Recipe, Stage
from bhc.training.step import TrainingStep, make_step
from bhc.training.team import ALONE, Team

MOST_SKIPPED = 50
CURVE_POINTS = 13
NARROW_EVERY = 50  # steps
TOLERANCE = 0.75  # points of validation error that the default threshold may cost


@dataclass(frozen=True)
class Options:
    """How a run is carried out; nothing here changes what is learned except the seed."""

    seed: int = 0
    run: Path | None = None
    resume: bool = False
    overwrite: bool = False
    checkpoint_every: int = 500
    log_every: int = 50
    capture: bool = True  # on a GPU: the step as one CUDA graph
    augment: Augmentation | None = None  # what is done to images before they are learned from
    autocast: torch.dtype | None = None  # of the products; None: that of the weights
    progress: Progress = field(default_factory=Silent)
    team: Team = ALONE  # the processes that train together, this one among them


class ResumeWarning(UserWarning):
    """A run goes on, but not to the same bits."""


def train(
    network: ConditionalNetwork,
    train_set: Split,
    validation_set: Split,
    recipe: Recipe,
    *,
    calibration_set: Split | None = None,
    class_names: tuple[str, ...] | None = None,
    vocabulary: Vocabulary | None = None,
    options: Options,
) -> TrainedModel:
    """Run every stage and return the model with its trade-off curves and a default threshold.

    ``calibration_set`` is put into the model and not looked at: that is what guarantees rest on.
    """
    if not any(stage.steps for stage in recipe):
        raise BhcError("the recipe has no steps", hint="give at least one stage with steps, for example Learn()")
    for stage in recipe:
        stage.check(network)
    if vocabulary is not None and words_read(network) != [len(vocabulary)]:
        raise BhcError(f"a vocabulary of {len(vocabulary):,} words for a network that does not read just those")
    for count in words_read(network):
        for split in (train_set, validation_set):
            check_words(split.inputs, count)
    folder = None if options.run is None else RunFolder(options.run)
    if folder is not None:
        options.team.decide(partial(folder.open, resume=options.resume, overwrite=options.overwrite))
    elif options.resume:
        raise BhcError("there is no run to resume: no folder was given", hint="give run=... or --out")
    trainer = _Trainer(network, train_set, validation_set, recipe, options)
    try:
        trainer.go()
    finally:
        network.decoder = None  # nothing but learning has a use for it
    model = replace(trainer.finished(class_names), calibration=calibration_set, vocabulary=vocabulary)
    if folder is not None:
        options.team.decide(partial(_finish, folder, model))
    return model


def _finish(folder: RunFolder, model: TrainedModel) -> None:
    save_run(folder, model)
    folder.checkpoint.unlink(missing_ok=True)


class _Trainer:
    def __init__(
        self,
        network: ConditionalNetwork,
        train_set: Split,
        validation_set: Split,
        recipe: Recipe,
        options: Options,
    ) -> None:
        self.network, self.recipe, self.options, self.team = network, recipe, options, options.team
        self.stages = list(recipe)  # as they are run: settled by what was learned before
        self.validation = cap_per_class(validation_set)
        self.folder = None if options.run is None else RunFolder(options.run)
        self.position = Position(curves={})
        seed = self.team.seed(options.seed)
        self.draw = BatchSource.of(
            train_set, network.num_classes, device=network.device, seed=seed, augment=options.augment
        )
        self.domains = SeenDomains.of(network.space, train_set, network.num_classes)
        self.probes = find_probes(network.space, train_set, num_classes=network.num_classes)
        looks = looks_for(network, self.validation) // CURVE_POINTS
        self.panel = Panel.of(self.probes, self.validation, most=looks)
        self.settings = self._settings(train_set)
        self.collapse = CollapseWatch(self.probes)
        self.seconds_before, self.began = 0.0, time.monotonic()

    def go(self) -> None:
        """All stages, from wherever the run is."""
        self._check_ratios()
        restored = self._open_folder()
        self.team.share_(network_tensors(self.network).values())
        first = self.position.stage
        for index in range(first, len(self.recipe)):
            if index > self.position.stage:
                self.position.enter(index)
            stage = self._settle(index)
            if isinstance(stage, Consolidate) and not self.position.stage_step:
                self._measure("before")
            stage.prepare_(self.network)
            if stage.steps:
                self._run_stage(stage, restored if index == first else None)
        self._measure("after")

    def _settle(self, index: int) -> Stage:
        stage = self.recipe[index]
        self.stages[index] = self.team.decide(lambda: stage.settled(self.network, self._contexts_of(stage)))
        return self.stages[index]

    def finished(self, class_names: tuple[str, ...] | None) -> TrainedModel:
        return TrainedModel(
            self.network,
            validation=self.validation,
            class_names=class_names,
            domains=self.domains,
            **self.team.decide(self._findings),
        )

    def _findings(self) -> dict[str, Any]:
        """What was learned about using the network."""
        curves = self.position.curves or {}
        after = [Point(**point) for point in curves["after"]]
        # A base network that knows nothing is no yardstick; the best point of the curve is.
        original = base_error(self.network, self.panel) if self.network.pretrained else None
        yardstick = min(point.error for point in after) if original is None else original
        consolidated = [stage for stage in self.stages if isinstance(stage, Consolidate)]
        return {
            "thresholds": consolidated[-1].thresholds if consolidated else self._narrowed_range(),
            "default_threshold": largest_within(after, yardstick + TOLERANCE).threshold,
            "training": {
                "recipe": [stage.to_dict() for stage in self.recipe],
                "seed": self.options.seed,
                "steps": self.position.step,
                "skipped_steps": self.position.skipped,
                "seconds": self._seconds(),
                "device": describe_device(self.network.device),
                **self._team_size(),
                "original_error": original,
                "curves": curves,
                "curve_contexts": [context.to_dict() for context in self.panel.contexts],
            },
        }

    def _run_stage(self, stage: Stage, restored: dict[str, Any] | None) -> None:
        take = make_step(
            stage,
            self.network,
            self.draw,
            first=self.position.stage_step,
            capture=self.options.capture,
            autocast=self.options.autocast,
            team=self.team,
        )
        if restored is not None:
            restore_optimizer_(take.optimizer, restored, self.network)
        if self.position.gone is not None:
            take.leave_out(self.position.gone)
        take.limit.restore_(self.position.norms)
        skipped_before = self.position.skipped
        progress = self.options.progress
        progress.begin(stage.title, stage.steps, self.position.stage_step)
        try:
            while self.position.stage_step < stage.steps:
                if isinstance(self.draw.noise, PooledNoise):
                    self.draw.noise.advance(self.position.step)
                self._narrow(stage, take)
                terms = take()
                self.position.step += 1
                self.position.stage_step += 1
                last = self.position.stage_step == stage.steps
                if self.position.step % self.options.log_every == 0 or last:
                    self._check(take, skipped_before)
                    self._log(stage, self.team.mean(terms))
                if self.folder and self.position.step % self.options.checkpoint_every == 0:
                    self._check(take, skipped_before)
                    self._save(take.optimizer)
        finally:
            progress.end()
        if self.folder:
            self._save(take.optimizer)

    def _narrow(self, stage: Stage, take: TrainingStep) -> None:
        """Now and then let units go: as many as are to be gone when it is looked at again."""
        every = max(1, min(NARROW_EVERY, stage.steps // 20))
        ratio = stage.ratio(min(self.position.stage_step + every, stage.steps))
        if ratio is not None and self.position.stage_step % every == 0:
            self.position.gone = self.team.decide(lambda: self._part_for(ratio, self._contexts_of(stage)))
            take.leave_out(self.position.gone)

    def _part_for(self, ratio: float, contexts: ContextBatch) -> float:
        return self.network.fraction_above(threshold_for(self.network, contexts, ratio), contexts)

    def _check(self, take: TrainingStep, skipped_before: int) -> None:
        """Note how many steps were skipped, and stop where all are."""
        skipped, in_a_row = take.skipped()
        self.position.skipped = skipped_before + skipped
        self.position.norms = take.limit.state()
        if in_a_row >= MOST_SKIPPED:
            raise BhcError(
                f"training has diverged: the last {in_a_row} steps had gradients that are not finite",
                hint="lower the learning rates",
            )

    def _log(self, stage: Stage, terms: dict[str, float]) -> None:
        if not self.team.first:
            return
        if isinstance(stage, Learn):
            self.collapse.look(terms["cross_entropy"])
            terms["kl_weight"] = stage.kl_weight * stage.warmth(self.position.stage_step)
        terms["ratio"] = self._sparsity()
        if self.position.skipped:
            terms["skipped"] = float(self.position.skipped)
        self.options.progress.update(self.position.stage_step, terms)
        if self.folder:
            seconds = round(self._seconds(), 2)
            self.folder.metrics.append({"step": self.position.step, "stage": stage.kind, **terms, "seconds": seconds})

    def _seconds(self) -> float:
        """What the run has taken, the parts before an interruption included."""
        return self.seconds_before + time.monotonic() - self.began

    def _sparsity(self) -> float:
        """Harmonic pruning ratio over the probes: of what is gone, or at the middle of the thresholds in use."""
        contexts = self._contexts_of(self.stages[self.position.stage])
        if self.position.gone is None:
            threshold = sum(self._threshold_range()) / 2
        else:
            threshold = self.network.threshold_without(self.position.gone, contexts)
        return harmonic(pruning_ratios(self.network, contexts, threshold).tolist())

    def _measure(self, name: str) -> None:
        assert self.position.curves is not None
        self.position.curves[name] = [point.to_dict() for point in self.team.decide(self._trade_off)]

    def _trade_off(self) -> list[Point]:
        low, high = self._threshold_range()
        grid = torch.linspace(low, high, CURVE_POINTS).tolist()
        progress, done = self.options.progress, 0

        def on_look() -> None:
            nonlocal done
            progress.update(done := done + 1, {})

        progress.begin("measuring", CURVE_POINTS * self.panel.num_passes)
        try:
            return trade_off(self.network, self.panel, grid, on_look=on_look)
        finally:
            progress.end()

    def _threshold_range(self) -> tuple[float, float]:
        """That of consolidation, or around what narrowing left; where neither is known yet, what is usual."""
        ranges = [stage.thresholds for stage in self.stages if isinstance(stage, Consolidate) and stage.thresholds]
        return ranges[-1] if ranges else self._narrowed_range() or self.network.hypernet.family.thresholds

    def _narrowed_range(self) -> tuple[float, float] | None:
        stage = self.stages[self.position.stage]
        if self.position.gone is None or stage.largest_ratio is None:
            return None
        covered = Consolidate(ratios=ratios_around(stage.largest_ratio))
        return covered.settled(self.network, self._contexts_of(stage)).thresholds

    def _contexts_of(self, stage: Stage) -> ContextBatch:
        """The probes, but for those of a budget that the stage does not train for."""
        own = [p.context for p in self.probes if stage.budget is None or p.context.budget in (None, stage.budget)]
        contexts = own or [probe.context for probe in self.probes]
        return ContextBatch.of(contexts, self.network.num_classes).to(self.network.device)

    def _check_ratios(self) -> None:
        for stage in self.recipe:
            if stage.largest_ratio is not None:
                most = largest_ratio(self.network, self._contexts_of(stage))
                if stage.largest_ratio > most:
                    raise BhcError(
                        f"{stage.title} asks for networks {stage.largest_ratio:g} times smaller, "
                        f"but with one unit a layer they are {most:.4g} times smaller",
                        hint="ask for less",
                    )

    def _open_folder(self) -> dict[str, Any] | None:
        """Start the folder, or go back to its checkpoint; returns the tensors of a resumed run."""
        self.network.hypernet.reset_()
        self.network.decoder = None
        if any(stage.context_weight for stage in self.recipe):
            self.network.add_decoder_(rng=torch.Generator().manual_seed(self.options.seed))
        if self.folder is None:
            return None
        if not self.options.resume:
            self.team.decide(self.folder.clear)
            return None
        tensors, header = self.team.decide(partial(self._read, self.folder))
        self.position = header.position
        self.seconds_before = self.position.seconds
        for finished in self.recipe[: self.position.stage]:
            finished.prepare_(self.network)  # what it froze is not in a checkpoint
        restore_network_(self.network, tensors, gates=header.gates, folder=self.folder)
        for index in range(self.position.stage):
            self._settle(index)
        restore_generators_(self.draw.generators, tensors, rank=self.team.rank)
        return tensors

    def _read(self, folder: RunFolder) -> tuple[dict[str, Tensor], Header]:
        tensors, header = read_checkpoint(folder, settings=self.settings)
        if header.processes != self.team.size:
            warnings.warn(
                f"the checkpoint was written by a run on {header.processes} processes and goes on with "
                f"{self.team.size}: it does not end at the same bits",
                ResumeWarning,
                stacklevel=2,
            )
        folder.metrics.cut_back_(header.position.step)
        return tensors, header

    def _save(self, optimizer: torch.optim.Optimizer) -> None:
        assert self.folder is not None
        self.position.seconds = self._seconds()
        header = Header(self.position, self.network.hypernet.gates is not None, self.team.size)
        states = self.team.gather(generator_states(self.draw.generators))
        self.team.decide(
            partial(save_checkpoint, self.folder, self.network, optimizer, states, header, settings=self.settings)
        )

    def _team_size(self) -> dict[str, int]:
        return {"processes": self.team.size} if self.team.size > 1 else {}

    def _settings(self, train_set: Split) -> dict[str, Any]:
        return {
            **self.network.to_dict(),
            "recipe": [stage.to_dict() for stage in self.recipe],
            "seed": self.options.seed,
            "data": int(train_set.inputs.long().sum()),
            "device": self.network.device.type,  # its generators' states fit no other
            "augment": None if self.options.augment is None else str(self.options.augment),
            "precision": None if self.options.autocast is None else str(self.options.autocast),
        }
