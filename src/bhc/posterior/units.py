"""Activations times, plus or without the numbers of their units, for K contexts at once."""

import torch
from torch import Tensor

from bhc.posterior.noise import Noise
from bhc.posterior.scales import Scales


def drawn(scales: Scales, h: Tensor, *, noise: Noise) -> Tensor:  # (K, B, n)
    """Scales (K, n) drawn anew for each example of ``h`` (K * B, ...)."""
    mean = scales.mean
    return scales.draw(noise.normal((len(mean), len(h) // len(mean), mean.shape[1]), like=mean))


def times_noisy(h: Tensor, scales: Scales, *, noise: Noise) -> Tensor:
    """``h z``, scales (K, n) drawn anew for each example and spread over what they cover."""
    mean = scales.mean
    apart = _by_unit(h, mean)
    shape = (*apart.shape[:2], mean.shape[1])
    return scales.times(apart, noise.normal(shape, like=mean)).reshape(h.shape)


def only(h: Tensor, keep: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) of a unit that its context keeps, (K, n); zero, whatever it was, for others."""
    return _by_unit(h, keep).masked_fill(~keep[:, None, :, None], 0.0).reshape(h.shape)


def times(h: Tensor, values: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) times its unit's number in its context, (K or 1, n)."""
    return (_by_unit(h, values) * values.to(h.dtype)[:, None, :, None]).reshape(h.shape)


def times_plus(h: Tensor, factors: Tensor, values: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) times one and plus another number of its unit in its context, (K, n) both."""
    factor, value = (numbers.to(h.dtype)[:, None, :, None] for numbers in (factors, values))
    return torch.addcmul(value, _by_unit(h, factors), factor).reshape(h.shape)


def _by_unit(h: Tensor, values: Tensor) -> Tensor:
    """A view (K, B, n, places): what one of the ``values`` (K, n) belongs to lies along B and the places.

    One number for a whole map stays so, (K, B, channels, places): with channels last in memory no other is a view.
    """
    contexts, count = values.shape
    units = h.shape[1] if count == 1 else count
    return h.reshape(contexts, h.shape[0] // contexts, units, -1)
