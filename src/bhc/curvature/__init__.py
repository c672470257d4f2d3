"""The curvature of the pretrained network's loss around its weights: what it can lose for a context, and what then
makes up for it, without a step of training."""

from bhc.curvature.elimination import EliminationRates, eliminated
from bhc.curvature.sample import ContextCurvature, Curvature, LayerCurvature, LayerSample, measure_curvature, measured

__all__ = [
    "ContextCurvature",
    "Curvature",
    "EliminationRates",
    "LayerCurvature",
    "LayerSample",
    "eliminated",
    "measure_curvature",
    "measured",
]
