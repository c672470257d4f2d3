"""The stages that suit a network, where nothing else is said."""

from math import sqrt

from bhc.hypernet import FEW_LAYERS, ConditionalNetwork
from bhc.training.consolidation import Consolidate
from bhc.training.learning import Learn, Narrow
from bhc.training.stages import Recipe

VGG_WEIGHTS, VGG_KL_WEIGHT = 1.5e7, 0.02
COVERED = (0.5, 1.25)  # of the ratio that narrowing ends at
RATE_AFTER = 1e-2  # of consolidation: narrowed networks already work, so larger steps do no harm
LEAST = 1.05  # at 1 a threshold may be as high as the noisiest unit's rate, and most of the range would be of no use


def default_recipe(
    network: ConditionalNetwork, *, ratio: float | None = None, kl_weight: float | None = None
) -> Recipe:
    """Few layers: learn, consolidate. In deep networks units must be made to go, so narrowing comes between.

    ``ratio`` says how small networks shall be by then, 1 for no narrowing.
    """
    weight = usual_kl_weight(network) if kl_weight is None else kl_weight
    ratio = usual_ratio(network) if ratio is None else ratio
    if ratio == 1:
        return Learn(kl_weight=weight), Consolidate()
    narrow = Narrow(kl_weight=weight, final_ratio=ratio)
    return Learn(kl_weight=weight), narrow, Consolidate(ratios=ratios_around(ratio), rate=RATE_AFTER)


def ratios_around(ratio: float) -> tuple[float, float]:
    """Where networks that were narrowed to a ratio are of use."""
    low, high = COVERED
    return max(LEAST, low * ratio), max(LEAST, high * ratio)


def usual_ratio(network: ConditionalNetwork) -> float:
    """What is narrowed to: nothing where layers are few, or where single weights go."""
    few = len(network.layers) <= FEW_LAYERS
    return 1.0 if few or network.hypernet.family.cuts_weights else Narrow().final_ratio


def usual_kl_weight(network: ConditionalNetwork) -> float:
    """Less where there are many weights: what all of them cost together outweighs the data otherwise."""
    usual = Learn().kl_weight
    if len(network.layers) <= FEW_LAYERS:
        return usual
    learned = sum(layer.num_weights for layer in network.layers)
    return float(f"{min(usual, VGG_KL_WEIGHT * sqrt(VGG_WEIGHTS / learned)):.2g}")
