"""The linear maps of layers, for K contexts at once.

A batch is K contexts x B examples, contexts outermost, flattened to (K * B, ...) between layers. When all
contexts share the weights this is one product; otherwise one product a context, batched.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from bhc.layers import Embed, transpose_convolve
from bhc.posterior.beliefs import Noise, Scales, WeightMean
from bhc.posterior.products import ConvolvedMoments, MeanAndVariance


def sample_scales(scales: Scales, h: Tensor, *, noise: Noise) -> Tensor:  # (K, B, n)
    """Scales (K, n) drawn anew for each example of ``h`` (K * B, ...)."""
    mean = scales.mean
    return scales.sample(noise.normal((len(mean), len(h) // len(mean), mean.shape[1]), like=mean))


def scale_units_noisy(h: Tensor, scales: Scales, *, noise: Noise) -> Tensor:
    """``h z``, scales (K, n) drawn anew for each example and spread over what they cover."""
    mean = scales.mean
    apart = _by_unit(h, mean)
    shape = (*apart.shape[:2], mean.shape[1])
    return scales.scale_units(apart, noise.normal(shape, like=mean)).reshape(h.shape)


def mask_units(h: Tensor, keep: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) of a unit that its context keeps, (K, n); zero, whatever it was, for others."""
    return _by_unit(h, keep).masked_fill(~keep[:, None, :, None], 0.0).reshape(h.shape)


def scale_units(h: Tensor, values: Tensor) -> Tensor:
    """Each activation (K * B, n, ...) times its unit's number in its context, (K or 1, n)."""
    return (_by_unit(h, values) * values.to(h.dtype)[:, None, :, None]).reshape(h.shape)


def scale_and_shift_units(h: Tensor, factors: Tensor, values: Tensor) -> Tensor:
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


class Operator(ABC):
    """How a layer type applies weights to inputs.

    Before that inputs are multiplied by numbers of their units. What comes of that is for the operator alone to read.
    """

    @property
    @abstractmethod
    def has_parts(self) -> bool:
        """Whether some of the inputs and outputs can be computed with as if the others were not there."""

    def mask_units(self, h: Any, keep: Tensor) -> Any:
        """Inputs of units that their context keeps, (K, n); zero, whatever they were, for others."""
        return mask_units(h, keep)

    def scale_units(self, h: Any, values: Tensor) -> Any:
        """Inputs times their unit's number in their context, (K or 1, n)."""
        return scale_units(h, values)

    def scale_units_noisy(self, h: Any, scales: Scales, *, noise: Noise) -> Any:
        """Inputs times scales of their units that are drawn anew for each example."""
        return scale_units_noisy(h, scales, noise=noise)

    def draw(self, product: Tensor, noise: Noise) -> Tensor:
        """Standard normal numbers for a sample of the output, one each."""
        return noise.normal(product.shape, like=product)

    @abstractmethod
    def apply(self, h: Any, weight: Tensor) -> Tensor:
        """``h`` (K * B, ...) times ``weight`` (K or 1, O, I, ...)."""

    def mean_and_variance(self, h: Any, weight: WeightMean, variance: Tensor) -> tuple[Tensor, Tensor]:
        """Moments of the output over the weights: ``h`` times the mean, ``h^2`` times the variance."""
        return apply_mean(self, h, weight), self.apply(h * h, variance)

    @abstractmethod
    def add_low_rank(self, product: Tensor, h: Any, left: Tensor, right: Tensor) -> Tensor:
        """``product`` plus ``h`` times ``left right^T`` (K, O, R), (I * kernel area, R), never multiplied out."""


def apply_mean(operator: Operator, h: Any, weight: WeightMean) -> Tensor:
    """``h`` times a mean, with its low-rank part where it has one."""
    product = operator.apply(h, weight.base)
    if weight.left is not None and weight.right is not None:
        product = operator.add_low_rank(product, h, weight.left, weight.right)
    return product


def _in_working_precision(*tensors: Tensor) -> tuple[Tensor, ...]:
    """What autocast would make of them: a hand-written gradient has to see it happen."""
    device = tensors[0].device.type
    if not torch.is_autocast_enabled(device):
        return tensors
    return tuple(tensor.to(torch.get_autocast_dtype(device)) for tensor in tensors)


class Linear(Operator):
    """``h W^T``; at many places, (K * B, I, places), each place by itself."""

    has_parts = True

    def mean_and_variance(self, h: Tensor, weight: WeightMean, variance: Tensor) -> tuple[Tensor, Tensor]:
        if weight.base.shape[0] > 1 or variance.shape[0] > 1:
            return super().mean_and_variance(h, weight, variance)
        rows, shared, variance = _in_working_precision(_rows(h), weight.base.squeeze(0), variance.squeeze(0))
        if weight.left is None or weight.right is None:
            moments = MeanAndVariance.apply(rows, shared, variance)
        else:
            low_rank = _in_working_precision(weight.left, weight.right)
            moments = MeanAndVariance.apply(rows, shared, variance, *low_rank)
        return _columns(moments[0], h), _columns(moments[1], h)

    def apply(self, h: Tensor, weight: Tensor) -> Tensor:
        contexts, rows = weight.shape[0], _rows(h)
        if contexts == 1:
            return _columns(rows @ weight.squeeze(0).mT, h)
        return _columns(torch.bmm(rows.reshape(contexts, -1, h.shape[1]), weight.mT).flatten(0, 1), h)

    def add_low_rank(self, product: Tensor, h: Tensor, left: Tensor, right: Tensor) -> Tensor:
        apart, thin = (values.unflatten(0, (len(left), -1)) for values in (_rows(product), _rows(h) @ right))
        return _columns(torch.baddbmm(apart, thin, left.mT).flatten(0, 1), h)


class Driving(Linear):
    """The product that drives a recurrence: one network goes through all places of an example."""

    def draw(self, product: Tensor, noise: Noise) -> Tensor:
        return noise.normal((*product.shape[:2], 1), like=product).expand_as(product)


def _rows(h: Tensor) -> Tensor:
    """(N, I, places) as (N * places, I); (N, I) as it is."""
    return h if h.dim() == 2 else h.mT.flatten(0, 1)


def _columns(rows: Tensor, like: Tensor) -> Tensor:
    """(N * places, O) as (N, O, places)."""
    return rows if like.dim() == 2 else rows.unflatten(0, (len(like), -1)).mT


def channels_first(h: Tensor, channels: int) -> Tensor:
    """(N, ..., C) as (N, C, places), where a layer has its channels last and there are places."""
    return h.flatten(1, -2).mT if channels == -1 and h.dim() > 2 else h


def as_before(output: Tensor, h: Tensor, channels: int) -> Tensor:
    """What ``channels_first`` did to the input, undone for the output."""
    return output.mT.unflatten(1, h.shape[1:-1]) if channels == -1 and h.dim() > 2 else output


CONVOLVE: tuple[Callable[..., Tensor], ...] = (F.conv1d, F.conv2d, F.conv3d)


@dataclass(frozen=True)
class Convolution(Operator):
    """``h * W`` in one, two or three directions; per-context kernels run as groups of one convolution."""

    kernel_size: tuple[int, ...]
    stride: tuple[int, ...]
    padding: str | tuple[int, ...]
    dilation: tuple[int, ...]
    groups: int = 1

    @classmethod
    def of(cls, module: Any) -> "Convolution":
        return cls(module.kernel_size, module.stride, module.padding, module.dilation, module.groups)

    def mean_and_variance(self, h: Tensor, weight: WeightMean, variance: Tensor) -> tuple[Tensor, Tensor]:
        if weight.base.shape[0] > 1 or variance.shape[0] > 1 or isinstance(self.padding, str):
            return super().mean_and_variance(h, weight, variance)
        h, shared, variance = _in_working_precision(h, weight.base.squeeze(0), variance.squeeze(0))
        if weight.left is None or weight.right is None:
            return ConvolvedMoments.apply(h, shared, variance, self._geometry)
        if self.groups > 1:
            product, spread = ConvolvedMoments.apply(h, shared, variance, self._geometry)
            return self.add_low_rank(product, h, weight.left, weight.right), spread
        # The low-rank part's thin product rides along as a few more filters.
        filters = torch.cat([shared, self._kernels(weight.right, shared.shape[1]).to(shared.dtype)])
        products, spread = ConvolvedMoments.apply(h, filters, variance, self._geometry)
        product, thin = products.split([len(shared), len(filters) - len(shared)], dim=1)
        return product + self._widen(thin, weight.left), spread

    @property
    def has_parts(self) -> bool:
        return self.groups == 1

    @property
    def _geometry(self) -> dict[str, Any]:
        return {"stride": self.stride, "padding": self.padding, "dilation": self.dilation, "groups": self.groups}

    def apply(self, h: Tensor, weight: Tensor) -> Tensor:
        contexts, outputs = weight.shape[:2]
        if contexts == 1:
            return self._convolve(h, weight.squeeze(0), groups=self.groups)
        # (K * B, C, ...) -> (B, K * C, ...): each context's channels become groups of their own.
        batch = h.shape[0] // contexts
        grouped = h.reshape(contexts, batch, *h.shape[1:]).transpose(0, 1).flatten(1, 2)
        result = self._convolve(grouped, weight.flatten(0, 1), groups=contexts * self.groups)
        apart = result.reshape(batch, contexts, outputs, *result.shape[2:])
        return apart.transpose(0, 1).flatten(0, 1)

    def add_low_rank(self, product: Tensor, h: Tensor, left: Tensor, right: Tensor) -> Tensor:
        kernels = self._kernels(right, h.shape[1] // self.groups)
        thin = self._convolve(h, torch.cat([kernels] * self.groups), groups=self.groups)
        return product + self._widen(thin, left)

    def _kernels(self, right: Tensor, inputs: int) -> Tensor:
        """(I * kernel area, R) as R filters."""
        return right.mT.reshape(-1, inputs, *self.kernel_size)

    def _widen(self, thin: Tensor, left: Tensor) -> Tensor:
        """Maps (K * B, groups * R, ...) times (K, O, R), each context's examples by its own.

        One product an example and not a context: the gradient of ``left`` sums over all places that it meets, and on a
        GPU a few long sums take longer than all else in a step.
        """
        (contexts, outputs, rank), (examples, area) = left.shape, (thin.shape[0], thin.shape[2:])
        apart = (contexts, examples // contexts)
        if self.groups == 1 and thin.stride(1) == 1:  # channels last: (places, R) times (R, O), as they lie
            wide = thin.movedim(1, -1).reshape(*apart, -1, rank) @ left.mT[:, None].to(thin.dtype)
            return wide.reshape(examples, *area, -1).movedim(-1, 1)
        by_group = left.unflatten(1, (self.groups, -1))[:, None].to(thin.dtype)  # (K, 1, groups, O of a group, R)
        wide = by_group @ thin.reshape(*apart, self.groups, rank, -1)
        return wide.reshape(examples, outputs, *area)

    def _convolve(self, h: Tensor, weight: Tensor, *, groups: int) -> Tensor:
        convolve = CONVOLVE[len(self.kernel_size) - 1]
        return convolve(h, weight, stride=self.stride, padding=self.padding, dilation=self.dilation, groups=groups)


@dataclass(frozen=True)
class Transposed(Convolution):
    """A transposed convolution in one group; weights are (K or 1, O, I, *kernel) as elsewhere."""

    output_padding: tuple[int, ...] = ()

    @classmethod
    def of(cls, module: Any) -> "Transposed":
        return cls(
            module.kernel_size, module.stride, module.padding, module.dilation, output_padding=module.output_padding
        )

    def mean_and_variance(self, h: Tensor, weight: WeightMean, variance: Tensor) -> tuple[Tensor, Tensor]:
        return Operator.mean_and_variance(self, h, weight, variance)

    def _convolve(self, h: Tensor, weight: Tensor, *, groups: int) -> Tensor:
        geometry = self._geometry | {"groups": groups, "output_padding": self.output_padding}
        return transpose_convolve(h, weight, None, **geometry)


@dataclass(frozen=True)
class Picked:
    """Columns with one number each: where it stands, and what it is. Zero where a word has no row."""

    places: Tensor  # (K * B, T)
    factor: Tensor  # (K * B, T)

    def scale_units(self, values: Tensor) -> "Picked":
        """With every number times that of its place in its context, (K or 1, rows)."""
        at = self._apart(len(values))
        return replace(self, factor=self.factor * values.gather(1, at).to(self.factor.dtype).reshape(self.factor.shape))

    def scale_units_noisy(self, scales: Scales, *, noise: Noise) -> "Picked":
        """The same with scales that are drawn; for each token anew, also where a word comes twice."""
        at = self._apart(len(scales.mean))
        drawn = scales.sample_at(at, noise.normal(at.shape, like=scales.mean))
        return replace(self, factor=self.factor * drawn.reshape(self.factor.shape))

    def _apart(self, contexts: int) -> Tensor:  # (K, B * T)
        return self.places.reshape(contexts, -1)


class Lookup(Operator):
    """The operator of an embedding: ``W[:, word] z[word]`` at each token."""

    has_parts = False

    def __init__(self, module: Embed) -> None:
        self.module = module

    def mask_units(self, h: "Tensor | Picked", keep: Tensor) -> Picked:
        return self._picked(h).scale_units(keep)

    def scale_units(self, h: "Tensor | Picked", values: Tensor) -> Picked:
        return self._picked(h).scale_units(values)

    def scale_units_noisy(self, h: "Tensor | Picked", scales: Scales, *, noise: Noise) -> Picked:
        return self._picked(h).scale_units_noisy(scales, noise=noise)

    def apply(self, h: "Tensor | Picked", weight: Tensor) -> Tensor:  # (K * B, O, T)
        picked = self._picked(h)
        return self._rows(picked, weight) * picked.factor[:, None]

    def mean_and_variance(self, h: "Tensor | Picked", weight: WeightMean, variance: Tensor) -> tuple[Tensor, Tensor]:
        picked = self._picked(h)
        return apply_mean(self, picked, weight), self._rows(picked, variance) * picked.factor.square()[:, None]

    def add_low_rank(self, product: Tensor, h: "Tensor | Picked", left: Tensor, right: Tensor) -> Tensor:
        picked = self._picked(h)
        contexts, tokens = len(left), picked.places.shape[1]
        thin = F.embedding(picked.places, right) * picked.factor[..., None]  # (K * B, T, R)
        wide = torch.bmm(thin.reshape(contexts, -1, thin.shape[2]), left.mT)
        return product + wide.reshape(-1, tokens, left.shape[1]).mT

    def _rows(self, picked: Picked, weight: Tensor) -> Tensor:  # (K * B, O, T)
        contexts, outputs, rows = weight.shape
        if contexts == 1:
            return F.embedding(picked.places, weight[0].mT).mT
        own = torch.arange(contexts, device=weight.device)[:, None] * rows + picked.places.reshape(contexts, -1)
        return F.embedding(own.reshape(picked.places.shape), weight.mT.reshape(-1, outputs)).mT

    def _picked(self, h: "Tensor | Picked") -> Picked:
        if isinstance(h, Picked):
            return h
        places = self.module.rows_of(h)
        presence_mask = places < self.module.rows
        return Picked(places.clamp(max=self.module.rows - 1), presence_mask.to(self.module.weight.dtype))
