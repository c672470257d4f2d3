"""The stages that suit a network, where nothing else is said."""

from math import sqrt

from bhc.hypernet import FEW_LAYERS, ConditionalNetwork
from bhc.training.stages import Consolidate, Learn, Narrow, Recipe

VGG_WEIGHTS, VGG_KL_WEIGHT = 1.5e7, 0.02
COVERED = (0.25, 1.25)  # of the ratio that narrowing ends at


def default_recipe(network: ConditionalNetwork) -> Recipe:
    """Few layers: learn, consolidate. In deep networks units must be made to go, so narrowing comes between."""
    family = network.hypernet.family
    if len(network.layers) <= FEW_LAYERS or family.cuts_weights:
        return Learn(kl_weight=usual_kl_weight(network)), Consolidate(thresholds=family.thresholds)
    narrow = Narrow(kl_weight=usual_kl_weight(network))
    return Learn(kl_weight=narrow.kl_weight), narrow, consolidation_after(narrow)


def consolidation_after(narrow: Narrow) -> Consolidate:
    """Over ratios around the one that was narrowed to."""
    return Consolidate(
        ratios=ratios_around(narrow.final_ratio),
        contexts=narrow.contexts,
        examples=narrow.examples,
        budget=narrow.budget,
    )


def ratios_around(ratio: float) -> tuple[float, float]:
    """Where networks that were narrowed to a ratio are of use."""
    least, most = (max(1.0, part * ratio) for part in COVERED)
    return least, most


def usual_kl_weight(network: ConditionalNetwork) -> float:
    """Less where there are many weights: what all of them cost together outweighs the data otherwise."""
    usual = Learn().kl_weight
    if len(network.layers) <= FEW_LAYERS:
        return usual
    return float(f"{min(usual, VGG_KL_WEIGHT * sqrt(VGG_WEIGHTS / network.num_weights)):.2g}")
