"""Recurrences whose weights are believed: the passes of one layer in one direction, its noise drawn once a sequence."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from torch import Tensor

from bhc.layers import Recurrence
from bhc.layers.recurrent import CELLS
from bhc.posterior.beliefs import LayerMean, LayerPosterior, Noise, Scales, WeightMean
from bhc.posterior.products import VARIANCE_FLOOR, Sampled
from bhc.posterior.pruning import LayerMask

if TYPE_CHECKING:
    from bhc.posterior.operators import Operator


class Recurrent:
    """Passes of a recurrence, of a drive (K * B, G H, T); ``product`` is how weights (K or 1, G H, H) are applied.

    It is no linear map of what it reads, so that it takes the place of a pass, and not of an operator alone.
    """

    def __init__(self, module: Recurrence, product: "Operator") -> None:
        self.cell, self.reverse, self.product = CELLS[module.cell], module.reverse, product

    def noisy(
        self, drive: Tensor, posterior: LayerPosterior, mask: LayerMask | None = None, *, noise: Noise
    ) -> Tensor:  # (K * B, H, T)
        """``p_t = (M (h_(t-1) z) + sqrt(V (h_(t-1) z)^2) E + b) s``, every step with the same z, E and s.

        One network goes through a sequence: weights that were others at each step would be averaged out, and what is
        noise to one step would be none to all.
        """
        keep_in, keep_out = (None, None) if mask is None else (mask.keep_in, mask.keep_out)
        z = _drawn(posterior.in_scale, keep_in, len(drive), noise)
        s = _drawn(posterior.out_scale, keep_out, len(drive), noise)
        mean, variance = WeightMean(posterior.weights.mean.dense()), posterior.weights.variance
        normal = noise.normal(drive.shape[:2], like=variance)

        def recur(h: Tensor) -> Tensor:
            moments = self.product.mean_and_variance(h if z is None else h * z.flatten(0, 1), mean, variance)
            exact = (each.to(normal.dtype) for each in moments)  # products may be of lower precision, states are not
            return Sampled.apply(*exact, normal, VARIANCE_FLOOR, None, posterior.mean.bias, s)

        return self._unrolled(drive, recur)

    def masked(self, drive: Tensor, mean: LayerMean, mask: LayerMask) -> Tensor:  # (K * B, H, T)
        """The deterministic recurrence of Eq. 4. Its weights are multiplied out: every step uses them."""
        rows = mask.keep_out if mean.out_scale is None else mask.keep_out * mean.out_scale
        columns = mask.keep_in if mean.in_scale is None else mask.keep_in * mean.in_scale
        weight = mean.weight.dense() * rows[:, :, None] * columns[:, None]
        weight = weight if mask.keep_weight is None else weight * mask.keep_weight
        shift = rows.new_zeros(()) if mean.bias is None else (mean.bias * rows)[:, None]

        def recur(h: Tensor) -> Tensor:
            return (self.product.apply(h, weight).unflatten(0, (len(rows), -1)) + shift).flatten(0, 1)

        return self._unrolled(drive, recur)

    def _unrolled(self, drive: Tensor, recur: Callable[[Tensor], Tensor]) -> Tensor:
        return self.cell.unrolled(drive.mT, recur, reverse=self.reverse).mT


def _drawn(scales: Scales | None, keep: Tensor | None, examples: int, noise: Noise) -> Tensor | None:  # (K, B, n)
    """Scales, one draw for each example, zero where a unit is not kept; None for ones."""
    if scales is None:
        return None if keep is None else keep[:, None].float().expand(-1, examples // len(keep), -1)
    contexts, units = scales.mean.shape
    drawn = scales.sample(noise.normal((contexts, examples // contexts, units), like=scales.mean))
    return drawn if keep is None else drawn.masked_fill(~keep[:, None], 0.0)
