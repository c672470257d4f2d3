"""``p(c | z)``: the way back from masks to the context that led to them."""

from collections.abc import Sequence

import torch
from torch import Generator, Tensor, nn
from torch.nn import init

from bhc.contexts import ContextSpace
from bhc.errors import BhcError
from bhc.graph import Layer
from bhc.posterior import Family, LayerPosterior, Noise, relaxed_mask

DECODER_WIDTH = 64


class ContextDecoder(nn.Module):
    """Reads a context back from a sample of the masks; of use in learning alone.

    Each scale is shown over its root mean square (``relaxed_mask``): a unit that surely stays is 1, one that surely
    goes is noise, and between them the dropout rate alone decides, as it does for masks. So nothing can be hidden in
    the size or the sign of a scale, and gradients reach means and variances through the rate.

    Scales that decide nothing are not shown: the one of a convolution's input and those of the network's outputs. The
    latter would spell out the classes, and no other mask would have to tell them.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        space: ContextSpace,
        family: Family,
        outputs: Tensor,  # (C,) the units that are the network's outputs
        *,
        width: int = DECODER_WIDTH,
        rng: Generator | None = None,
    ) -> None:
        super().__init__()
        check_readable(layers, space, family, outputs)
        self.likelihoods = space.likelihoods()
        self.shown = _deciding_scales(layers, family, outputs)
        self.project = nn.Linear(sum(map(sum, self.shown)), width)
        self.tell = nn.Linear(width, sum(likelihood.num_numbers for likelihood in self.likelihoods))
        init.kaiming_uniform_(self.project.weight, nonlinearity="relu", generator=rng)
        for zero in (self.project.bias, self.tell.weight, self.tell.bias):  # it starts by telling nothing
            init.zeros_(zero)

    def forward(self, masks: Tensor) -> tuple[Tensor, ...]:  # (K, scales shown)
        """The numbers that tell the distribution of each part."""
        numbers = self.tell(torch.relu(self.project(masks)))
        return numbers.split([likelihood.num_numbers for likelihood in self.likelihoods], dim=1)

    def masks(self, posteriors: Sequence[LayerPosterior], *, noise: Noise) -> Tensor:  # (K, scales shown)
        """A sample of the relaxed masks of all layers, side by side."""
        pairs = [(layer.in_scale, layer.out_scale) for layer in posteriors]
        rates = torch.cat(
            [
                scales.log_dropout
                for pair, counts in zip(pairs, self.shown, strict=True)
                for scales, count in zip(pair, counts, strict=True)
                if count and scales is not None
            ],
            dim=1,
        )
        return relaxed_mask(rates, noise.normal(rates.shape, like=rates))

    def nll(self, masks: Tensor, encoding: Sequence[Tensor]) -> Tensor:  # (K,)
        """``-log p(c | z)`` of each context, up to a constant."""
        parts = zip(self.likelihoods, self(masks), encoding, strict=True)
        return torch.stack([likelihood.nll(numbers, part) for likelihood, numbers, part in parts]).sum(0)


def check_readable(layers: Sequence[Layer], space: ContextSpace, family: Family, outputs: Tensor) -> None:
    """Raise if such contexts have nothing to be read, or such a network no masks to read them from."""
    if not space.likelihoods():
        raise BhcError(
            f"there is nothing to read back of contexts of type {type(space).__name__}",
            hint="leave context_weight at 0",
        )
    if not any(map(any, _deciding_scales(layers, family, outputs))):
        raise BhcError(
            "contexts are read back from scales that decide about units, and this network has none",
            hint="leave context_weight at 0, or wrap with another family",
        )


def _deciding_scales(layers: Sequence[Layer], family: Family, outputs: Tensor) -> list[tuple[int, int]]:
    """How many input and output scales of each layer decide about units."""
    decided = set(outputs.tolist())
    return [
        (0 if layer.has_kernel else inputs, 0 if set(layer.writes.tolist()) <= decided else written)
        for layer, (inputs, written) in zip(layers, map(family.num_scales, layers), strict=True)
    ]
