"""Where the networks of a context come from: the hypernetwork, or the pretrained network and its curvature.

The pretrained network is there already: who may keep much of it need not learn anything. So a context has two families
of networks. Those that the hypernetwork writes were trained to be small; those of the curvature are the pretrained
network with less and less of it, and what makes up for that. Validation data says which is better at which size.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import log
from numbers import Real
from typing import Any, ClassVar, Protocol

import numpy as np
import torch
from torch import Tensor

from bhc.contexts import ContextBatch
from bhc.curvature import ContextCurvature, LayerCurvature, eliminated
from bhc.emission.cut import Cut, Cutter, LayerCut
from bhc.emission.weights import SlimLayer, Slimmer
from bhc.errors import BhcError
from bhc.graph import Layer
from bhc.posterior import Multiples
from bhc.training import TrainedModel

UNCONSOLIDATED = (-2.0, 2.0)  # the range for a model that was not consolidated
BELOW = (0.5, 1.0, 2.0, 4.0, 8.0, 1e5)  # how far under it to look when nothing inside it fits
LARGEST_HALF = 65_504.0  # of 16-bit floats
COARSEST_ALONE, COARSEST_BESIDE = 2.0**-1, 2.0**-5  # of the hypernetwork's: as it was before there was a curvature
FINENESS = 2  # thresholds of the curvature for each of the hypernetwork's: a fifth smaller from one to the next
WHOLE = 1.0  # a threshold at which curvature takes nothing away
USUAL_RATIO, LARGEST_RATIO = 256.0, 2048.0  # times smaller: as far as networks of the curvature are of use, and beyond

SMALLEST_PRECISION = 1e-12  # of the largest


class Weights(Protocol):
    """Who has the numbers of a cut."""

    def layers(self, cut: Cut) -> Sequence[SlimLayer]: ...


class Origin(ABC):
    """Networks of one context, each at a threshold; the lower it is, the smaller they are."""

    name: ClassVar[str]
    # Scales of steps up to which rounding may be found to be harmless. A sample of a thousand sees two points in a
    # thousand at best: beyond these, errors that it did not see were found on fifteen thousand.
    coarsest: float = 2.0**-3

    def __init__(self, cutter: Cutter, weights: Weights) -> None:
        self.cutter, self.weights = cutter, weights

    @abstractmethod
    def inside(self, count: int) -> list[float]:
        """Thresholds of use, from the largest network to the smallest."""

    @abstractmethod
    def below(self) -> list[float]:
        """Where to look when none of these is small enough."""

    def rounded_to(self, multiples: Multiples | None) -> "Origin":
        """The same with channels in these multiples."""
        return type(self)(self.cutter.rounded_to(multiples), self.weights)


class Generated(Origin):
    """What the hypernetwork writes."""

    name = "hypernetwork"

    def __init__(self, cutter: Cutter, weights: Weights, covered: tuple[float, float] | None = None) -> None:
        super().__init__(cutter, weights)
        self.covered = covered or UNCONSOLIDATED

    @classmethod
    def of(cls, model: TrainedModel, cutter: Cutter) -> "Generated":
        own = cls(cutter, Slimmer(cutter.scales), model.thresholds)
        own.coarsest = COARSEST_ALONE if model.curvature is None else COARSEST_BESIDE
        return own

    def inside(self, count: int) -> list[float]:
        low, high = self.covered
        return [min(max(brief(threshold), low), high) for threshold in np.linspace(high, low, count).tolist()]

    def below(self) -> list[float]:
        return [brief(self.inside(2)[-1] - far) for far in BELOW]

    def rounded_to(self, multiples: Multiples | None) -> "Generated":
        twin = Generated(self.cutter.rounded_to(multiples), self.weights, self.covered)
        twin.coarsest = self.coarsest
        return twin


class CompensatedWeights:
    """``W_S + W_R A_RS A_SS^-1``: of all weights at the kept inputs S those that change the answers least, where the
    inputs R are gone; the bias takes on what R has in the mean. It is Laplace's posterior mean, given that R has none.
    """

    def __init__(self, known: ContextCurvature) -> None:
        self.known = known

    @torch.no_grad()
    def layers(self, cut: Cut) -> tuple[SlimLayer, ...]:
        """Every layer, at its kept rows and columns."""
        count = max(1, cut.num_weights)
        return tuple(self._layer(own, count) for own in cut.layers)

    def _layer(self, cut: LayerCut, count: int) -> SlimLayer:
        layer, known = cut.layer, self.known.layers.get(cut.layer.name)
        weight, bias = layer.module.weight.detach().cpu(), layer.module.bias
        rows, kept = cut.kept_outputs.cpu(), cut.columns.cpu()
        weight = weight.index_select(0, rows)
        bias = None if bias is None else bias.detach().cpu().index_select(0, rows)
        if known is None:
            own = cut.at_columns(weight.index_select(1, kept))
            return SlimLayer(cut, own, bias, partial(torch.full_like, own, 1 / count))
        weight, bias = _made_up(weight, bias, kept, known)
        return SlimLayer(cut, weight, bias, partial(_variance, layer, weight, rows, kept, known, count))


def _made_up(
    weight: Tensor, bias: Tensor | None, kept: Tensor, known: LayerCurvature
) -> tuple[Tensor, Tensor | None]:  # (O', I, *kernel), (O',)
    stays = torch.zeros(weight.shape[1], dtype=torch.bool)
    stays[kept] = True
    gone = (~stays).nonzero().flatten()
    own = weight.index_select(1, kept)
    if not len(gone) or not len(kept):
        return own, bias
    # Without a bias the mean has to be made up for too.
    moments = known.covariance if bias is not None else known.covariance + torch.outer(known.mean, known.mean)
    between = moments.index_select(0, kept)
    share = torch.linalg.solve(between.index_select(1, kept).double(), between.index_select(1, gone).double())
    lost = weight.index_select(1, gone)
    own = own + torch.einsum("og...,kg->ok...", lost, share.float())
    if bias is None:
        return own, None
    shift = known.mean[gone] - known.mean[kept] @ share.float()
    return own, bias + torch.einsum("og,g->o", lost.flatten(2).sum(2) if lost.dim() > 2 else lost, shift)


def _variance(
    layer: Layer, weight: Tensor, rows: Tensor, kept: Tensor, known: LayerCurvature, count: int
) -> Tensor:  # like the weight
    """``1 / (n G_oo E[a_i^2])`` with n weights in all: rounding by as much changes the answers by one in all."""
    read = known.covariance.diagonal()[kept] + known.mean[kept].square()
    told = known.output_precision[rows]
    precision = count * layer.output_area * _floored(told)[:, None] * _floored(read)[None]
    return (1 / precision).reshape(*precision.shape, *[1] * (weight.dim() - 2)).expand_as(weight)


def _floored(values: Tensor) -> Tensor:
    return values.clamp(min=SMALLEST_PRECISION * float(values.amax().clamp(min=SMALLEST_PRECISION)))


class Curved(Origin):
    """The pretrained network without the units that the curvature can spare."""

    name = "curvature"

    @classmethod
    def of(cls, model: TrainedModel, cutter: Cutter) -> "Curved | None":
        """None where a run knows no curvature, or not that of such a context: of a domain, or with features missing."""
        context, network = cutter.context, cutter.network
        if model.curvature is None or context.domain is not None or context.inputs is not None:
            return None
        known = ContextCurvature.of(model.curvature, network, context)
        outputs = network.outputs_of(ContextBatch.of([context], network.num_classes).to(network.device))[0]
        rates = eliminated(network, known, outputs)
        scales = replace(cutter.scales, rates=rates, dropouts=rates)
        return cls(Cutter(network, context, scales, multiples=cutter.multiples), CompensatedWeights(known))

    def inside(self, count: int) -> list[float]:
        places = np.linspace(0, -log(USUAL_RATIO), FINENESS * count).tolist()
        return [WHOLE, *(brief(place) for place in places)]

    def below(self) -> list[float]:
        return [brief(threshold) for threshold in np.linspace(-log(USUAL_RATIO), -log(LARGEST_RATIO), 4).tolist()]


def smallest_ratio(model: TrainedModel) -> float:
    """How many times smaller networks are at budget 1: as far as the trained curve goes, or the curvature's."""
    points = model.training.get("curves", {}).get("after", [])
    return max([USUAL_RATIO, *(point["ratio_harmonic"] for point in points)])


def has_dial(model: TrainedModel) -> bool:
    """Whether a budget says how large networks are, and not how the hypernetwork was to write them."""
    return model.curvature is not None and "budget" not in model.network.space.conditions


def weights_for(model: TrainedModel, budget: Any) -> int:
    """The most weights at a budget: of the original at 0, then fewer by equal factors."""
    if isinstance(budget, bool) or not isinstance(budget, Real) or not 0 <= float(budget) <= 1:
        raise BhcError(
            f"budget {budget!r} is not from 0 to 1", hint="0 is as good as the original, 1 is the smallest network"
        )
    return max(1, int(model.network.num_weights / smallest_ratio(model) ** float(budget)))


def brief(threshold: float) -> float:
    """A number next to it that takes few bytes in a file."""
    return float(np.float16(threshold)) if abs(threshold) <= LARGEST_HALF else threshold
