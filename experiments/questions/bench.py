"""What questions have in common: a configuration, models trained for it, and networks tried on a device."""

import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from study.stages import after_learning
from study.training import check_trained, make_weights
from torch import nn

import bhc
from bhc import models
from bhc.contexts import ContextSpace
from bhc.data import Augmentation, DataSet, DropWords, Shift, ShiftAndNoise, Split
from bhc.hypernet import GeneratorSpec, generator_from_dict
from bhc.pretraining import load_weights
from bhc.results import exact_convolutions
from bhc.training import Point, Progress, Recipe, RunFolder, ThresholdTrial, pooled, try_thresholds

CURVE_POINTS = 25
CHECKPOINT_EVERY = 4000
AUGMENTATIONS: dict[str, Augmentation] = {"shift": Shift(), "sound": ShiftAndNoise(), "words": DropWords()}
Conditions = Mapping[str, Any]


@dataclass(frozen=True)
class Config:
    """One question about one network."""

    name: str
    question: str
    model: str
    data: str
    seeds: tuple[int, ...]
    weight_generator: GeneratorSpec
    family: str
    augment: Augmentation | None
    learn: dict[str, Any]
    narrow: dict[str, Any] | None
    consolidate: dict[str, Any] | None
    asked: dict[str, Any]  # what the question itself takes
    settings: dict[str, Any] = field(repr=False)  # the file as it was read

    @classmethod
    def read(cls, path: Path) -> "Config":
        """The configuration in a TOML file."""
        try:
            data = tomllib.loads(path.read_text())
            models.check(data["model"])
            return cls(
                name=path.stem,
                question=data["question"],
                model=data["model"],
                data=data["data"],
                seeds=tuple(data["seeds"]),
                weight_generator=generator_from_dict(data.get("generator", {"kind": "scales-only"})),
                family=data.get("family", "io-gnj"),
                augment=_augmentation(data.get("augment")),
                learn=data["learn"],
                narrow=data.get("narrow"),
                consolidate=data.get("consolidate"),
                asked=data.get("asked", {}),
                settings=data,
            )
        except (OSError, ValueError, KeyError) as error:
            raise bhc.BhcError(f"{path} cannot be read as a question: {error!r}") from error

    def recipe(self, **learn: Any) -> Recipe:
        """The stages, with what is different for one of several models."""
        given = self.learn | learn
        first = bhc.Learn(**given)
        size = {"contexts": first.contexts, "examples": first.examples}
        return (first, *after_learning(size, given, narrow=self.narrow, consolidate=self.consolidate))


@dataclass(frozen=True)
class Bench:
    """Where the models of one seed are trained and kept."""

    config: Config
    seed: int
    dataset: DataSet
    runs: Path
    device: str
    progress: Progress

    def train(
        self,
        name: str,
        space: ContextSpace,
        *,
        recipe: Recipe | None = None,
        generator: GeneratorSpec | None = None,
        family: str | None = None,
        calibration: int | None = None,
        taught: DataSet | None = None,
    ) -> bhc.Compressor:
        """The model of a name: as it was trained before, from where that was interrupted, or anew.

        The last ``calibration`` training images are kept from all training, that of the pretrained network too. With
        ``taught`` it learns from this data set, and only the pretrained network from the bench's own.
        """
        folder = self.runs / f"{self.config.name}-seed{self.seed}" / name
        run, recipe = RunFolder(folder), recipe or self.config.recipe()
        dataset, held_out = (self.dataset, None) if calibration is None else self.dataset.held_out(calibration)
        untrained = bhc.wrap(
            self._pretrained(dataset, calibration or 0),
            space,
            example_input=self.dataset.train.inputs[:1],
            weight_generator=generator or self.config.weight_generator,
            family=family or self.config.family,
            std_limits=models.std_limits(self.config.model),
            seed=self.seed,
        )
        if run.description.exists():
            model = bhc.load(folder)
            check_trained(model, untrained, recipe, seed=self.seed, folder=folder)
            return model
        return bhc.fit(
            untrained,
            (taught or dataset).train,
            (taught or dataset).validation,
            calibration_set=held_out,
            recipe=recipe,
            run=folder,
            resume=run.checkpoint.exists(),
            seed=self.seed,
            class_names=self.dataset.class_names,
            vocabulary=self.dataset.vocabulary,
            checkpoint_every=CHECKPOINT_EVERY,
            augment=self.config.augment,
            progress=self.progress,
            device=self.device,
        )

    def _pretrained(self, dataset: DataSet, held_out: int) -> nn.Sequential:
        """The network that everything starts from, to which so many images are new; made where there is none."""
        name = self.config.model
        path = self.runs / f"{name}-{dataset.name}{f'-without-{held_out}' if held_out else ''}.safetensors"
        if not path.exists():
            make_weights(path, name, dataset, device=self.device, progress=self.progress, held_out=held_out)
        return load_weights(path, name, dataset, held_out=held_out)

    def trials(
        self, model: bhc.Compressor, conditions: Conditions, examples: Split, thresholds: Sequence[float]
    ) -> list[ThresholdTrial]:
        """Ratio and wrong answers of one context at each threshold."""
        with self.on_device(model), exact_convolutions():
            return try_thresholds(model.network, model.space.resolve(dict(conditions)), examples, thresholds)

    def curve(
        self, model: bhc.Compressor, cases: Iterable[tuple[Conditions, Split]], thresholds: Sequence[float]
    ) -> list[Point]:
        """Error against ratio over contexts, each with its labelled examples."""
        with self.on_device(model):
            return pooled(thresholds, [self.trials(model, asked, examples, thresholds) for asked, examples in cases])

    @contextmanager
    def on_device(self, model: bhc.Compressor) -> Iterator[None]:
        """The model is where things are computed, and back again afterwards; a large one takes long to move."""
        before = model.network.device
        model.network.to(self.device)
        try:
            yield
        finally:
            model.network.to(before)


def _augmentation(name: str | None) -> Augmentation | None:
    if name is not None and name not in AUGMENTATIONS:
        raise bhc.BhcError(f"unknown augment {name!r}", hint=f"choose one of: {', '.join(AUGMENTATIONS)}")
    return None if name is None else AUGMENTATIONS[name]


def most_accurate(points: Sequence[Point], *, ratio: float) -> Point:
    """The smallest error among those at least so many times smaller, harmonic; where there is none, the smallest."""
    enough = [point for point in points if point.ratio_harmonic >= ratio]
    return min(enough, key=lambda point: point.error) if enough else max(points, key=lambda point: point.ratio_harmonic)


def thresholds_of(model: bhc.Compressor) -> list[float]:
    """Where curves are drawn: over what consolidation covered."""
    low, high = model.model.thresholds or model.network.hypernet.family.thresholds
    return torch.linspace(low, high, CURVE_POINTS).tolist()


def both_curves(
    bench: Bench, model: bhc.Compressor, contexts: Sequence[tuple[Conditions, Sequence[int]]]
) -> dict[str, list[dict[str, float]]]:
    """Curves on validation and on test images; each context with the classes whose images it is tried on."""
    thresholds = thresholds_of(model)
    return {
        part: [
            point.to_dict()
            for point in bench.curve(
                model, [(asked, getattr(bench.dataset, part).restricted_to(own)) for asked, own in contexts], thresholds
            )
        ]
        for part in ("validation", "test")
    }
