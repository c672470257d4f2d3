"""What each part of the method is worth: the same training with one thing different."""

from dataclasses import replace
from typing import Any

import bhc
from bhc.hypernet import GeneratorSpec, generator_from_dict
from bhc.training import Consolidate, Learn, Recipe, Stage
from questions.bench import Bench, both_curves

JUDGED = 30  # subsets


def answer(bench: Bench) -> dict[str, Any]:
    """A curve for each variant."""
    sampler = bhc.RandomSubsets(tuple(bench.config.asked["sizes"]))
    classes = bench.dataset.num_classes
    contexts = [({"classes": list(subset)}, subset) for subset in sampler.examples(classes, JUDGED)]
    answers = {}
    for name, variant in bench.config.asked["variants"].items():
        model = bench.train(
            name,
            bhc.ClassSubsets(classes, sampler),
            recipe=_recipe(bench.config.recipe(), variant),
            generator=_generator(variant),
            family=variant.get("family"),
        )
        answers[name] = both_curves(bench, model, contexts) | {"seconds": model.model.training["seconds"]}
    return {"variants": answers}


def _recipe(usual: Recipe, variant: dict[str, Any]) -> Recipe:
    learn, *after = usual
    assert isinstance(learn, Learn)
    stages: list[Stage] = [replace(learn, **variant.get("learn", {}))]
    for stage in after:
        if not isinstance(stage, Consolidate):
            stages.append(stage)
        elif variant.get("consolidation", True):
            stages.append(replace(stage, **variant.get("consolidate", {})))
    return tuple(stages)


def _generator(variant: dict[str, Any]) -> GeneratorSpec | None:
    return generator_from_dict(variant["generator"]) if "generator" in variant else None
