"""What is believed: scales and weights under a normal-Jeffreys prior, and the passes that use them."""

from bhc.posterior.beliefs import LayerDropout, LayerMean, LayerPosterior, WeightMean
from bhc.posterior.families import Family, GroupNormalJeffreys, InputOutputNormalJeffreys, kl
from bhc.posterior.free import FreePosterior
from bhc.posterior.kl import kl_scales, kl_weights
from bhc.posterior.masks import LayerMask, find_masks
from bhc.posterior.moments import clip_variance, log_dropout, marginal_variance, masked_mean
from bhc.posterior.network import BayesianChain
from bhc.posterior.noise import FreshNoise, Noise, PooledNoise
from bhc.posterior.operators import operator_of
from bhc.posterior.passes import masked_pass, noisy_pass

__all__ = [
    "BayesianChain",
    "Family",
    "FreePosterior",
    "FreshNoise",
    "GroupNormalJeffreys",
    "InputOutputNormalJeffreys",
    "LayerDropout",
    "LayerMask",
    "LayerMean",
    "LayerPosterior",
    "Noise",
    "PooledNoise",
    "WeightMean",
    "clip_variance",
    "find_masks",
    "kl",
    "kl_scales",
    "kl_weights",
    "log_dropout",
    "marginal_variance",
    "masked_mean",
    "masked_pass",
    "noisy_pass",
    "operator_of",
]
