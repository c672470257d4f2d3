"""Training a study's networks: once, resumed where it was interrupted, skipped where it is done."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet
from bhc.models import std_limits
from bhc.posterior import FAMILIES
from bhc.pretraining import error_of, load_weights, pretrain, save_weights
from bhc.training import Progress, Recipe, RunFolder
from study.config import Study
from study.methods import Case

CHECKPOINT_EVERY = 2000


@dataclass(frozen=True)
class Member:
    """A trained model and the cases it answers: all of them, or the one it was trained for."""

    model: bhc.Compressor
    cases: tuple[Case, ...]

    @property
    def seconds(self) -> float:
        """What its training took."""
        return self.model.model.training["seconds"]

    @property
    def device(self) -> str:
        return self.model.model.training["device"]


@dataclass(frozen=True)
class Bench:
    """Where networks are trained and kept."""

    dataset: DataSet
    runs: Path
    device: str
    progress: Progress

    def weights(self, study: Study) -> Path:
        """The pretrained network that every study of a model starts from; made where there is none, unless public."""
        model, data = study.model, self.dataset.name
        path = self.runs / f"{model}{'-public' if study.weights == 'public' else ''}-{data}.safetensors"
        if path.exists():
            return path
        if study.weights == "public":
            command = f"bhc pretrain --model {model} --data {data} --public FILE --out {path}"
            raise bhc.BhcError(
                f"{path} does not exist, and {study.name} starts from public weights",
                hint=f"make it from the public checkpoint FILE: {command}",
            )
        make_weights(path, model, self.dataset, device=self.device, progress=self.progress)
        return path

    def folder(self, study: Study, seed: int) -> Path:
        """Where a study's runs are kept."""
        return self.runs / f"{study.name}-seed{seed}"

    def train(self, study: Study, seed: int) -> list[Member]:
        """The study's models with one seed."""
        folder = self.folder(study, seed)
        cases = study.method.cases(self.dataset)
        if study.method.name != "per-context":
            return [self._member(study, study.method.space(self.dataset), folder, seed, cases)]
        return [
            self._member(
                study, bhc.SingleContext(case.test.conditions["classes"]), folder / f"pair{number}", seed, [case]
            )
            for number, case in enumerate(cases)
        ]

    def _member(self, study: Study, space: ContextSpace, folder: Path, seed: int, cases: Sequence[Case]) -> Member:
        run = RunFolder(folder)
        untrained = self.untrained(study, space, seed)
        if not run.description.exists():
            self._fit(study, untrained, folder, seed, resume=run.checkpoint.exists())
        model = bhc.load(folder)
        check_trained(model, untrained, study.recipe, seed=seed, folder=folder)
        return Member(model, tuple(cases))

    def untrained(self, study: Study, space: ContextSpace, seed: int) -> bhc.Compressor:
        """A study's model before its first step."""
        net = load_weights(self.weights(study), study.model, self.dataset)
        limits = None if FAMILIES[study.method.family].cuts_weights else std_limits(study.model)
        return bhc.wrap(
            net,
            space,
            example_input=self.dataset.train.inputs[:1],
            weight_generator=study.weight_generator,
            family=study.method.family,
            std_limits=limits,
            seed=seed,
        )

    def _fit(self, study: Study, model: bhc.Compressor, folder: Path, seed: int, *, resume: bool) -> None:
        bhc.fit(
            model,
            self.dataset.train,
            self.dataset.validation,
            recipe=study.recipe,
            run=folder,
            resume=resume,
            seed=seed,
            class_names=self.dataset.class_names,
            vocabulary=self.dataset.vocabulary,
            checkpoint_every=CHECKPOINT_EVERY,
            progress=self.progress,
            device=self.device,
            augment=bhc.data.augmentation_for(self.dataset.train.inputs) if study.augment else None,
            autocast=torch.bfloat16 if study.bf16 else None,
        )


def make_weights(
    path: Path, model: str, dataset: DataSet, *, device: str, progress: Progress, held_out: int = 0
) -> None:
    """Pretrain a network, to which the last ``held_out`` images that its data set once had are new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    net = pretrain(model, dataset, progress=progress, device=device).cpu()
    errors = {f"{part}_error": error_of(net, getattr(dataset, part)) for part in ("validation", "test")}
    save_weights(path, model, net, dataset, errors=errors, held_out=held_out)


def check_trained(model: bhc.Compressor, untrained: bhc.Compressor, recipe: Recipe, *, seed: int, folder: Path) -> None:
    """Raise unless a run that was found is what would be trained now."""
    wanted = untrained.network.to_dict() | {"recipe": [stage.to_dict() for stage in recipe], "seed": seed}
    found = model.network.to_dict() | model.model.training
    different = [key for key, value in wanted.items() if tidy(value) != tidy(found[key])]
    if different:
        raise bhc.BhcError(
            f"{folder} was trained with another {', another '.join(different)} than its configuration has now",
            hint="remove that folder to train again, or give another --runs",
        )


def tidy(settings: Any) -> Any:
    """Plain data, as a result file holds it."""
    return json.loads(json.dumps(settings))
