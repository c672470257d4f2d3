"""What is believed: scales and weights under their prior, and the passes that use them."""

from bhc.posterior.beliefs import (
    FreshNoise,
    LayerDropout,
    LayerMean,
    LayerPosterior,
    LogNormalScales,
    Noise,
    NormalScales,
    PooledNoise,
    Scales,
    WeightMean,
    clip_variance,
    kl_weights,
    log_dropout,
    marginal_variance,
    masked_mean,
    relaxed_mask,
)
from bhc.posterior.families import (
    FAMILIES,
    Family,
    GroupHorseshoe,
    GroupNormalJeffreys,
    InputOutputNormalJeffreys,
    SparseVariationalDropout,
    check_family,
    kl_gamma,
    kl_inverse_gamma,
    kl_scales,
)
from bhc.posterior.kept_together import ChannelRounding, Multiples
from bhc.posterior.passes import BayesianGraph, masked_pass, noisy_pass, operator_of
from bhc.posterior.pruning import InputMask, LayerMask, MaskFinder, NetworkMask
