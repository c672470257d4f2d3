"""Whether moving a budget is as good as moving a threshold: one model for all classes and any budget."""

from typing import Any

import bhc
from bhc.training import largest_within
from questions.bench import Bench, both_curves, thresholds_of

STEPS = 21


def answer(bench: Bench) -> dict[str, Any]:
    """Budgets at one threshold, thresholds at a few budgets, and models trained for one weight each."""
    low, high = bench.config.asked["kl_weights"]
    model = bench.train("budgets", bhc.Budgets((low, high)))
    everything = range(bench.dataset.num_classes)
    validation = bench.dataset.validation
    points = bench.curve(model, [({"budget": 1.0}, validation)], thresholds_of(model))
    threshold = largest_within(points, bench.config.asked["error"]).threshold
    sweep = []
    for step in range(STEPS):
        budget = step / (STEPS - 1)
        trials = [
            bench.trials(model, {"budget": budget}, getattr(bench.dataset, part), [threshold])[0]
            for part in ("validation", "test")
        ]
        errors = [100 * trial.wrong / trial.images for trial in trials]
        sweep.append({"budget": budget, "ratio": trials[0].ratio, "validation_error": errors[0], "error": errors[1]})
    fixed = {f"{budget:g}": both_curves(bench, model, [({"budget": budget}, everything)]) for budget in (0.0, 0.5, 1.0)}
    alone = {}
    for budget in (0.0, 0.5, 1.0):
        weight = low * (high / low) ** budget * bench.config.learn["kl_weight"]
        recipe = bench.config.recipe(kl_weight=weight, contexts=1, examples=256)
        single = bench.train(f"alone{budget:g}", bhc.SingleContext(), recipe=recipe)
        alone[f"{budget:g}"] = both_curves(bench, single, [({}, everything)])
    return {"threshold": threshold, "sweep": sweep, "thresholds_at": fixed, "alone": alone}
