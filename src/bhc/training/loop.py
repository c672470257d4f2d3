"""The training loop: stages one after the other, with checkpoints, a diary and progress.

A checkpoint is everything a run needs to go on to the same bits, in one file that is replaced whole.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from bhc.curvature import measure_curvature
from bhc.errors import BhcError, warn
from bhc.examples import Examples, Inputs, Split, several
from bhc.files import read_tensors, write_tensors
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import PooledNoise
from bhc.tasks import Classification
from bhc.training.batches import BatchSource
from bhc.training.config import ALONE, Position, Team, TrainingConfig, TrainingSets, describe_device
from bhc.training.loading import DatasetExamples, LoadedSource
from bhc.training.measuring import CollapseWatch, Measurements
from bhc.training.progress import Silent
from bhc.training.recipes import Consolidate, Learn
from bhc.training.run import RunFolder, SeenDomains, TrainedModel, load_network_, save_run
from bhc.training.stages import MeasureCurvature, Stage
from bhc.training.step import TrainingStep, make_step

MOST_SKIPPED = 50
NARROW_EVERY = 50  # steps


class ResumeWarning(UserWarning):
    """A run goes on, but not to the same bits."""


def train(network: ConditionalNetwork, sets: TrainingSets, config: TrainingConfig, team: Team = ALONE) -> TrainedModel:
    """Run every stage and return the model with its trade-off curves and a default threshold."""
    config.check(network)
    folder = None if config.run is None else RunFolder(config.run)
    if folder is not None:
        team.decide(partial(folder.open, resume=config.resume, overwrite=config.overwrite))
    trainer = _Trainer(network, sets, config, team)
    try:
        trainer.go()
    finally:
        network.decoder = None  # nothing but learning has a use for it
    model = trainer.finished()
    if folder is not None:
        team.decide(partial(_finish, folder, model))
    return model


def _finish(folder: RunFolder, model: TrainedModel) -> None:
    save_run(folder, model)
    folder.checkpoint.unlink(missing_ok=True)


@dataclass(frozen=True)
class Header:
    """What a checkpoint says beside its tensors."""

    position: Position
    gates: bool  # whether they were frozen
    processes: int = 1  # that trained together


def save_checkpoint(
    folder: RunFolder,
    network: ConditionalNetwork,
    optimizer: Optimizer,
    states: Sequence[dict[str, Tensor]],  # of each process's generators
    header: Header,
    *,
    settings: dict[str, Any],
) -> None:
    tensors = {f"network.{name}": tensor for name, tensor in network.state_dict().items()}
    tensors |= {f"optimizer.{name}": tensor for name, tensor in _optimizer_tensors(optimizer, network).items()}
    for rank, own in enumerate(states):
        tensors |= {_generators_of(rank) + name: state for name, state in own.items()}
    write_tensors(folder.checkpoint, tensors, asdict(header) | {"settings": settings})


def read_checkpoint(folder: RunFolder, *, settings: dict[str, Any]) -> tuple[dict[str, Tensor], Header]:
    tensors, header = read_tensors(folder.checkpoint)
    saved, wanted = header.get("settings", {}), json.loads(json.dumps(settings))
    different = [name for name in wanted if saved.get(name) != wanted[name]]
    if different:
        raise BhcError(
            f"{folder.checkpoint} belongs to a run with another {', another '.join(different)}",
            hint="resume with the options of the first call, or choose another folder",
        )
    try:
        told = dict(header["position"])
        if "gone" in told:  # as it was called before
            told["dropped_fraction"] = told.pop("gone")
        position = Position(**told)
        return tensors, Header(position, bool(header["gates"]), int(header.get("processes", 1)))
    except (KeyError, TypeError, ValueError) as error:
        raise BhcError(f"{folder.checkpoint} is damaged: {error!r}") from error


def restore_network_(
    network: ConditionalNetwork, tensors: dict[str, Tensor], *, gates: bool, folder: RunFolder
) -> None:
    hint = "use the model, generator and context it was made with"
    load_network_(network, _part(tensors, "network."), gates=gates, source=folder.checkpoint, hint=hint)


def restore_optimizer_(optimizer: Optimizer, tensors: dict[str, Tensor], network: ConditionalNetwork) -> None:
    """Put moments and step counts back, parameter by parameter."""
    parameters = dict(network.named_parameters())
    for key, value in _part(tensors, "optimizer.").items():
        name, _, part = key.rpartition(":")
        if name not in parameters:
            raise BhcError(
                f"the checkpoint has an optimiser's {key!r}, which belongs to nothing here",
                hint="it was written by another version; start again with overwrite=True",
            )
        optimizer.state[parameters[name]][part] = value.to(parameters[name].device)


def restore_generators_(generators: dict[str, Generator], tensors: dict[str, Tensor], *, rank: int = 0) -> None:
    """Those of one process; where it had no part in the run before, they stay as they are."""
    for name, state in _part(tensors, _generators_of(rank)).items():
        if name in generators:
            generators[name].set_state(state)


def _generators_of(rank: int) -> str:
    return f"generator.{rank}." if rank else "generator."


def _optimizer_tensors(optimizer: Optimizer, network: ConditionalNetwork) -> dict[str, Tensor]:
    """By the names of parameters: their order among the optimiser's groups follows from their rates."""
    return {
        f"{name}:{part}": torch.as_tensor(value)
        for name, parameter in network.named_parameters()
        for part, value in optimizer.state.get(parameter, {}).items()
    }


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name[len(prefix) :]: tensor for name, tensor in tensors.items() if name.startswith(prefix)}


class _Trainer:
    def __init__(self, network: ConditionalNetwork, sets: TrainingSets, config: TrainingConfig, team: Team) -> None:
        self.network, self.sets, self.config, self.team = network, sets, config, team
        self.folder = None if config.run is None else RunFolder(config.run)
        self.progress = config.progress if team.first else Silent()
        self.position = Position(curves={})
        self.draw = _source(network, sets, config, seed=team.seed(config.seed))
        self.domains = SeenDomains.of(network.space, sets.train, network.num_classes)
        self.measured = Measurements(network, sets, config, team, self.progress)
        self.settings = self._settings()
        self.collapse = CollapseWatch(self.measured.probes)
        self.seconds_before, self.began = 0.0, time.monotonic()

    def go(self) -> None:
        """All stages, from wherever the run is."""
        self.measured.check_ratios()
        restored = self._open_folder()
        self.team.share_(self.network.state_dict().values())
        first = self.position.stage
        for index in range(first, len(self.config.recipe)):
            if index > self.position.stage:
                self.position.enter(index)
            stage = self.measured.resolve(index)
            if isinstance(stage, Consolidate) and not self.position.stage_step:
                self._measure("before")
            stage.prepare_(self.network)
            if stage.steps:
                self._run_stage(stage, restored if index == first else None)
        self._measure("after")

    def _measure(self, name: str) -> None:
        assert self.position.curves is not None
        self.position.curves[name] = self.measured.curve(self.position)

    def finished(self) -> TrainedModel:
        """The model, with what there is to know of it."""
        found = self.team.decide(partial(self.measured.findings, self.position))
        looks = next((stage for stage in self.config.recipe if isinstance(stage, MeasureCurvature)), None)
        if looks is not None:
            options = {"per_class": looks.per_class, "graded": looks.graded, "seed": self.config.seed}
            found["curvature"] = measure_curvature(self.network, self.sets.train, **options)
        how = {
            "recipe": [stage.to_dict() for stage in self.config.recipe],
            "seed": self.config.seed,
            "steps": self.position.step,
            "skipped_steps": self.position.skipped,
            "seconds": self._seconds(),
            "device": describe_device(self.network.device),
            **({"processes": self.team.size} if self.team.size > 1 else {}),
        }
        return TrainedModel(
            self.network,
            validation=self.measured.validation,
            calibration=self.sets.calibration,
            class_names=self.config.class_names,
            vocabulary=self.config.vocabulary,
            domains=self.domains,
            **found | {"training": how | found["training"]},
        )

    def _run_stage(self, stage: Stage, restored: dict[str, Any] | None) -> None:
        first = self.position.stage_step
        self.draw.begin(self.network, stage, range(self.position.step, self.position.step + stage.steps - first))
        take = make_step(stage, self.network, self.draw, self.config, first=first, team=self.team)
        if restored is not None:
            restore_optimizer_(take.optimizer, restored, self.network)
        if self.position.dropped_fraction is not None:
            take.leave_out(self.position.dropped_fraction)
        take.limit.restore_(self.position.norms)
        skipped_before = self.position.skipped
        self.progress.begin(stage.title, stage.steps, self.position.stage_step)
        try:
            while self.position.stage_step < stage.steps:
                if isinstance(self.draw.noise, PooledNoise):
                    self.draw.noise.advance(self.position.step)
                self._narrow(stage, take)
                terms = take()
                self.position.step += 1
                self.position.stage_step += 1
                last = self.position.stage_step == stage.steps
                if self.position.step % self.config.log_every == 0 or last:
                    self._check(take, skipped_before)
                    self._log(stage, self.team.mean(terms))
                if self.folder and self.position.step % self.config.checkpoint_every == 0:
                    self._check(take, skipped_before)
                    self._save(take.optimizer)
        finally:
            self.progress.end()
            self.draw.end()
        if self.folder:
            self._save(take.optimizer)

    def _narrow(self, stage: Stage, take: TrainingStep) -> None:
        """Now and then let units go: as many as are to be gone when it is looked at again."""
        every = max(1, min(NARROW_EVERY, stage.steps // 20))
        ratio = stage.ratio(min(self.position.stage_step + every, stage.steps))
        if ratio is not None and self.position.stage_step % every == 0:
            self.position.dropped_fraction = self.measured.part_for(ratio, stage)
            take.leave_out(self.position.dropped_fraction)

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
            if self.network.task.has_answers:
                self.collapse.look(terms["cross_entropy"])
            terms["kl_weight"] = stage.kl_weight * stage.warmth(self.position.stage_step)
        terms["ratio"] = self.measured.ratio(self.position)
        if self.position.skipped:
            terms["skipped"] = float(self.position.skipped)
        self.progress.update(self.position.stage_step, terms)
        if self.folder:
            seconds = round(self._seconds(), 2)
            self.folder.metrics.append({"step": self.position.step, "stage": stage.kind, **terms, "seconds": seconds})

    def _seconds(self) -> float:
        """What the run has taken, the parts before an interruption included."""
        return self.seconds_before + time.monotonic() - self.began

    def _open_folder(self) -> dict[str, Any] | None:
        """Start the folder, or go back to its checkpoint; returns the tensors of a resumed run."""
        self.network.hypernet.reset_()
        self.network.decoder = None
        if any(stage.context_weight for stage in self.config.recipe):
            self.network.add_decoder_(rng=torch.Generator().manual_seed(self.config.seed))
        if self.folder is None:
            return None
        if not self.config.resume:
            self.team.decide(self.folder.clear)
            return None
        tensors, header = self.team.decide(partial(self._read, self.folder))
        self.position = header.position
        self.seconds_before = self.position.seconds
        for finished in self.config.recipe[: self.position.stage]:
            finished.prepare_(self.network)  # what it froze is not in a checkpoint
        restore_network_(self.network, tensors, gates=header.gates, folder=self.folder)
        for index in range(self.position.stage):
            self.measured.resolve(index)
        restore_generators_(self.draw.generators, tensors, rank=self.team.rank)
        return tensors

    def _read(self, folder: RunFolder) -> tuple[dict[str, Tensor], Header]:
        tensors, header = read_checkpoint(folder, settings=self.settings)
        if header.processes != self.team.size:
            warn(
                f"the checkpoint was written by a run on {header.processes} processes and goes on with "
                f"{self.team.size}: it does not end at the same bits",
                ResumeWarning,
            )
        folder.metrics.cut_back_(header.position.step)
        return tensors, header

    def _save(self, optimizer: torch.optim.Optimizer) -> None:
        assert self.folder is not None
        self.position.seconds = self._seconds()
        header = Header(self.position, self.network.hypernet.gates is not None, self.team.size)
        states = self.team.gather({name: rng.get_state() for name, rng in self.draw.generators.items()})
        self.team.decide(
            partial(save_checkpoint, self.folder, self.network, optimizer, states, header, settings=self.settings)
        )

    def _settings(self) -> dict[str, Any]:
        return {
            **self.network.to_dict(),
            "recipe": [stage.to_dict() for stage in self.config.recipe],
            "seed": self.config.seed,
            "data": fingerprint(self.sets.train),
            "device": self.network.device.type,  # its generators' states fit no other
            "augment": None if self.config.augment is None else str(self.config.augment),
            "precision": None if self.config.autocast is None else str(self.config.autocast),
            **({} if type(self.network.task) is Classification else {"task": self.network.task.name}),
        }


def _source(network: ConditionalNetwork, sets: TrainingSets, config: TrainingConfig, *, seed: int) -> BatchSource:
    if isinstance(sets.train, DatasetExamples):
        return LoadedSource(sets.train, network, seed=seed, augment=config.augment)
    return BatchSource.of(
        sets.train.loaded(), network.num_classes, device=network.device, seed=seed, augment=config.augment
    )


def fingerprint(examples: Examples) -> int | str:
    """What tells a training set from another: a run goes on with the one that it began with."""
    if not isinstance(examples, Split):
        return f"{len(examples)} {hashed(examples.labels)} {hashed(examples.at(slice(0, 1)).loaded().inputs)}"
    whole = isinstance(examples.inputs, Tensor) and not examples.inputs.is_floating_point()
    return int(examples.tensor.long().sum()) if whole else hashed(examples.inputs)


def hashed(inputs: Inputs | None) -> str:
    digest = hashlib.sha256()
    for tensor in () if inputs is None else several(inputs):
        digest.update(tensor.cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
