"""What one model for classes and budgets loses against a model a budget, and with nothing said against one for all."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import bhc
from questions.bench import Bench, Conditions, both_curves

BUDGETS = (0.0, 0.25, 0.5, 0.75, 1.0)
JUDGED = 30  # subsets


def answer(bench: Bench) -> dict[str, Any]:
    """Curves of the joint model at five budgets and of the models for each alone."""
    asked, classes = bench.config.asked, bench.dataset.num_classes
    sampler = bhc.RandomSubsets(tuple(asked["sizes"]))
    low, high = asked["kl_weights"]
    budgets = bhc.Budgets((low, high), margin=asked.get("margin", 0.0))
    subsets = sampler.examples(classes, JUDGED)
    # It takes the place of many, and may learn for as long as some of them together.
    recipe = tuple(replace(stage, steps=asked.get("longer", 1) * stage.steps) for stage in bench.config.recipe())
    joint = bench.train("joint", bhc.Joint(bhc.ClassSubsets(classes, sampler), budgets), recipe=recipe)
    groups = []
    for budget in BUDGETS:
        weight = low * (high / low) ** budget * bench.config.learn["kl_weight"]
        alone = bench.train(
            f"budget{budget:g}", bhc.ClassSubsets(classes, sampler), recipe=bench.config.recipe(kl_weight=weight)
        )
        groups.append(
            {
                "budget": budget,
                "joint": both_curves(bench, joint, _with(subsets, budget=budget)),
                "alone": both_curves(bench, alone, _with(subsets)),
            }
        )
    everything = range(classes)
    single = bench.train("single", bhc.SingleContext(), recipe=bench.config.recipe(contexts=1, examples=256))
    nothing = {
        "joint": both_curves(bench, joint, [({}, everything)]),
        "alone": both_curves(bench, single, [({}, everything)]),
    }
    return {"budgets": groups, "nothing_said": nothing}


def _with(subsets: Sequence[tuple[int, ...]], **more: Any) -> list[tuple[Conditions, tuple[int, ...]]]:
    return [({"classes": list(subset), **more}, subset) for subset in subsets]
