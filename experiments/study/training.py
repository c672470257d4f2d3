"""Training a study's networks: once, resumed where it was interrupted, skipped where it is done."""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import bhc
from bhc.contexts import ContextSpace
from bhc.data import DataSet
from bhc.files import read_json, write_json
from bhc.models import std_limits
from bhc.posterior import FAMILIES
from bhc.training import Progress, RunFolder, error_of, load_weights, pretrain, save_weights
from study.config import Study
from study.methods import Case

CHECKPOINT_EVERY = 4000


@dataclass(frozen=True)
class Member:
    """A trained model and the cases it answers: all of them, or the one it was trained for."""

    model: bhc.Compressor
    cases: tuple[Case, ...]
    seconds: float
    device: str


@dataclass(frozen=True)
class Bench:
    """Where networks are trained and kept."""

    dataset: DataSet
    runs: Path
    device: str
    progress: Progress

    def weights(self, model: str) -> Path:
        """The pretrained network that every study of a model starts from, made where there is none."""
        path = self.runs / f"{model}-{self.dataset.name}.safetensors"
        if not path.exists():
            self.runs.mkdir(parents=True, exist_ok=True)
            net = pretrain(model, self.dataset, progress=self.progress)
            errors = {part: error_of(net, getattr(self.dataset, part)) for part in ("validation", "test")}
            save_weights(path, model, net, self.dataset, errors=errors)
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
        run, clock = RunFolder(folder), folder / "time.json"
        self.weights(study.model)  # not on this study's clock
        if not run.description.exists():
            resume = run.checkpoint.exists()
            before = _seconds_so_far(run, clock) if resume else 0.0
            if resume:
                write_json(clock, {"seconds": before, "device": device_name(self.device)})
            began = time.perf_counter()
            self._fit(study, space, folder, seed, resume=resume)
            write_json(clock, {"seconds": before + time.perf_counter() - began, "device": device_name(self.device)})
        return self.member(study, space, folder, seed, cases)

    def member(self, study: Study, space: ContextSpace, folder: Path, seed: int, cases: Sequence[Case]) -> Member:
        """What was trained before, if it is what the study asks for now."""
        run, clock = RunFolder(folder), folder / "time.json"
        model, wanted = bhc.load(folder), self.untrained(study, space, seed).network.to_dict()
        found = model.network.to_dict() | {key: model.model.training[key] for key in ("recipe", "seed")}
        wanted |= {"recipe": [stage.to_dict() for stage in study.recipe], "seed": seed}
        different = [key for key, value in wanted.items() if tidy(value) != tidy(found[key])]
        if different:
            raise bhc.BhcError(
                f"{folder} was trained with another {', another '.join(different)} than {study.name} has now",
                hint="remove that folder to train again, or give another --runs",
            )
        # Killed in the moment between the two files: the diary knows all but the last seconds.
        made = read_json(clock) if clock.exists() else {"seconds": _seconds_so_far(run, clock), "device": "unknown"}
        return Member(model, tuple(cases), made["seconds"], made["device"])

    def untrained(self, study: Study, space: ContextSpace, seed: int) -> bhc.Compressor:
        """A study's model before its first step."""
        net = load_weights(self.weights(study.model), study.model, self.dataset)
        limits = None if FAMILIES[study.method.family].cuts_weights else std_limits(study.model)
        return bhc.wrap(
            net,
            space,
            example_input=self.dataset.train.images[:1],
            generator=study.generator,
            family=study.method.family,
            std_limits=limits,
            seed=seed,
        )

    def _fit(self, study: Study, space: ContextSpace, folder: Path, seed: int, *, resume: bool) -> None:
        bhc.fit(
            self.untrained(study, space, seed),
            self.dataset.train,
            self.dataset.validation,
            recipe=study.recipe,
            run=folder,
            resume=resume,
            seed=seed,
            class_names=self.dataset.class_names,
            checkpoint_every=CHECKPOINT_EVERY,
            progress=self.progress,
            device=self.device,
        )


def _seconds_so_far(run: RunFolder, clock: Path) -> float:
    """What an interrupted training took: all parts but the last are on the clock, that one is in the diary."""
    lines = run.metrics.path.read_text().splitlines() if run.metrics.path.exists() else []
    before = read_json(clock)["seconds"] if clock.exists() else 0.0
    return before + (json.loads(lines[-1])["seconds"] if lines else 0.0)


def device_name(device: str) -> str:
    """A device in words."""
    if torch.device(device).type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(torch.device(device))}"
    return f"cpu, {torch.get_num_threads()} threads"


def tidy(settings: Any) -> Any:
    """Plain data, as a result file holds it."""
    return json.loads(json.dumps(settings))
