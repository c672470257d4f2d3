"""The two forward passes of a layer and of a graph: noisy for learning (paper, algorithms 1 and 2), masked for use.

A recurrence has passes of its own, its noise drawn once a sequence.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from bhc.graph import Graph, Inputs, Layer, Step, Units
from bhc.layers import Recurrence, kind_of
from bhc.layers.linear import TiedKind
from bhc.layers.sequences import CELLS
from bhc.posterior.beliefs import LayerMean, LayerPosterior, Noise, Scales, WeightMean
from bhc.posterior.operators import (
    Convolution,
    Driving,
    Linear,
    Lookup,
    Operator,
    Transposed,
    apply_mean,
    as_before,
    channels_first,
    mask_units,
    sample_scales,
    scale_and_shift_units,
    scale_units,
)
from bhc.posterior.products import VARIANCE_FLOOR, Sampled
from bhc.posterior.pruning import InputMask, LayerMask, NetworkMask

LARGEST_PART = 0.5  # of a layer's weights: a larger part is hardly cheaper than all of it


class Recurrent:
    """Passes of a recurrence, of a drive (K * B, G H, T); ``product`` is how weights (K or 1, G H, H) are applied.

    It is no linear map of what it reads, so that it takes the place of a pass, and not of an operator alone.
    """

    def __init__(self, module: Recurrence, product: Operator) -> None:
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


def operator_of(layer: Layer) -> Operator | Recurrent:
    return layer.kind.operator(layer.module, _Operators())


def operators_of(graph: Graph, layers: Sequence[Layer]) -> tuple[Operator | Recurrent, ...]:
    """One for each layer; what drives a recurrence draws its noise once a sequence, as that does."""
    driving = {name for step in graph.steps if isinstance(step.module, Recurrence) for name in step.reads}
    found = [(not driving.isdisjoint(layer.calls), operator_of(layer)) for layer in layers]
    return tuple(Driving() if drives and isinstance(operator, Linear) else operator for drives, operator in found)


class _Operators:
    """Those there are, for kinds of layers to choose from (``layers.protocols.Operators``)."""

    def linear(self) -> Linear:
        return Linear()

    def convolution(self, module: Any) -> Convolution:
        return Convolution.of(module)

    def transposed_convolution(self, module: Any) -> Transposed:
        return Transposed.of(module)

    def lookup(self, module: Any) -> Lookup:
        return Lookup(module)

    def recurrence(self, module: Recurrence) -> Recurrent:
        return Recurrent(module, Linear())


@dataclass(frozen=True)
class LayerPart:
    """Outputs and inputs that at least one of K contexts keeps, and what there is of a layer at these.

    A few contexts that keep a hundredth of the weights each use not many more together, and what none of them uses
    adds nothing to any output or gradient.
    """

    outputs: Tensor  # ascending
    inputs: Tensor

    @classmethod
    def of(cls, mask: LayerMask) -> "LayerPart | None":
        """What is used under a mask; None where that is about everything, or nothing."""
        part = cls(*(keep.any(0).nonzero().flatten() for keep in (mask.keep_out, mask.keep_in)))
        whole = mask.keep_out.shape[1] * mask.keep_in.shape[1]
        return part if 0 < len(part.outputs) * len(part.inputs) < LARGEST_PART * whole else None

    def read(self, h: Tensor) -> Tensor:  # (K * B, I', ...)
        return h.index_select(1, self.inputs)

    def written(self, output: Tensor, width: int) -> Tensor:  # (K * B, O, ...)
        """Outputs of the part among all, zero where nobody keeps one."""
        whole = output.new_zeros(len(output), width, *output.shape[2:])
        return whole.index_copy(1, self.outputs, output)

    def mask(self, mask: LayerMask) -> LayerMask:
        weights = None if mask.keep_weight is None else self._weights(mask.keep_weight)
        keep_in, keep_out = mask.keep_in.index_select(1, self.inputs), mask.keep_out.index_select(1, self.outputs)
        return LayerMask(keep_in, keep_out, mask.rescued, weights)

    def mean(self, mean: LayerMean) -> LayerMean:
        base, left, right = mean.weight.base, mean.weight.left, mean.weight.right
        if left is not None and right is not None:
            by_input = right.unflatten(0, (base.shape[2], -1))  # (I, kernel area, R)
            left, right = left.index_select(1, self.outputs), by_input.index_select(0, self.inputs).flatten(0, 1)
        return LayerMean(
            WeightMean(self._weights(base), left, right),
            _at(mean.bias, self.outputs),
            _at(mean.in_scale, self.inputs),
            _at(mean.out_scale, self.outputs),
        )

    def _weights(self, weights: Tensor) -> Tensor:  # (K or 1, O, I, *kernel) -> (K or 1, O', I', *kernel)
        return weights.index_select(1, self.outputs).index_select(2, self.inputs)


def _at(values: Tensor | None, units: Tensor) -> Tensor | None:
    """The numbers of some units; a convolution has one for all of its input."""
    return values if values is None or values.shape[1] == 1 else torch.index_select(values, 1, units)


def noisy_pass(
    operator: Operator | Recurrent,
    h: Tensor,  # (K * B, I, ...)
    posterior: LayerPosterior,
    mask: LayerMask | None = None,
    *,
    noise: Noise,
) -> Tensor:  # (K * B, O, ...)
    """A sample of the layer's output, scales drawn once an example, weights by local reparameterisation.

    Algorithms 1 and 2 return ``M S + sqrt(V S^2) E``. This computes ``(M + sqrt(V) E) S``, which has the same
    distribution, one multiplication fewer, and a finite gradient where a sampled S crosses zero.
    The bias sits under the output scale: a unit that is switched off gives zero. So does one that a ``mask`` has not.
    """
    if isinstance(operator, Recurrent):
        return operator.noisy(h, posterior, mask, noise=noise)
    if mask is not None:
        h = operator.mask_units(h, mask.keep_in)
    weights, in_scale, late_scale = posterior.weights, posterior.in_scale, None
    if in_scale is not None:
        if _can_scale_output(in_scale.mean, h):
            late_scale = sample_scales(in_scale, h, noise=noise)
        else:
            h = operator.scale_units_noisy(h, in_scale, noise=noise)
    product, variance = operator.mean_and_variance(h, weights.mean, weights.variance)
    normal = operator.draw(product, noise)
    after = None if posterior.out_scale is None else sample_scales(posterior.out_scale, product, noise=noise)
    output = Sampled.apply(product, variance, normal, VARIANCE_FLOOR, late_scale, posterior.mean.bias, after)
    return output if mask is None else mask_units(output, mask.keep_out)


def masked_pass(
    operator: Operator | Recurrent,
    h: Tensor,  # (K * B, I, ...)
    mean: LayerMean,
    mask: LayerMask,
) -> Tensor:  # (K * B, O, ...)
    """The deterministic layer of Eq. 4: masks times means, the bias under the output's mask and scale.

    ``(W h z + b) s`` as ``(W h) z s + b s`` where z is one number for all inputs.

    On a CPU only the part is computed that any of the contexts keeps. Elsewhere a shape that follows from a mask would
    have to be waited for in every step, and could not be captured.
    """
    if isinstance(operator, Recurrent):
        return operator.masked(h, mean, mask)
    if operator.has_parts and mask.keep_in.device.type == "cpu":
        part = LayerPart.of(mask)
        if part is not None:
            narrow = _whole_pass(operator, part.read(h), part.mean(mean), part.mask(mask))
            return part.written(narrow, mask.keep_out.shape[1])
    return _whole_pass(operator, h, mean, mask)


def _whole_pass(operator: Operator, h: Tensor, mean: LayerMean, mask: LayerMask) -> Tensor:
    outputs = mask.keep_out if mean.out_scale is None else mask.keep_out * mean.out_scale
    shift = None if mean.bias is None else mean.bias * outputs
    if mean.in_scale is None:
        h = operator.scale_units(h, mask.keep_in)
    elif _can_scale_output(mean.in_scale, h):
        h, outputs = operator.scale_units(h, mask.keep_in), outputs * mean.in_scale
    else:
        h = operator.scale_units(h, mask.keep_in * mean.in_scale)
    weight = mean.weight if mask.keep_weight is None else WeightMean(mean.weight.dense() * mask.keep_weight)
    product = apply_mean(operator, h, weight)
    return scale_units(product, outputs) if shift is None else scale_and_shift_units(product, outputs, shift)


def _can_scale_output(scale: Tensor, h: Tensor) -> bool:
    """Whether an input scale can come after the product: one covers all inputs, and they need no gradient."""
    return scale.shape[1] == 1 and not h.requires_grad


class KeptValues(nn.Module):
    """Which numbers of a value are there, for steps that sum over what is kept: norms, means, products of values."""

    def __init__(self, graph: Graph, units: Units) -> None:
        super().__init__()
        self.units = units
        self.steps = {step.name: step.reads for step in graph.steps if self._counts(step)}
        cut = {name for reads in self.steps.values() for name in reads if not units.always[units.carried[name]].all()}
        self.places = {name: place for place, name in enumerate(sorted(cut))}
        for name, place in self.places.items():
            self.register_buffer(f"units_{place}", torch.from_numpy(units.carried[name]), persistent=False)

    def _counts(self, step: Step) -> bool:
        axes = [self.units.axes[name] for name in step.reads]
        dimensions = [self.units.dimensions[name] for name in step.reads]
        cut = any(not self.units.always[self.units.carried[name]].all() for name in step.reads)
        return cut and kind_of(step.module).counts_kept(step.module, axes, dimensions)

    def run(self, step: Step, values: Sequence[Tensor], alive: Tensor) -> Tensor:
        keeps = [self._keep(name, h, alive) for name, h in zip(step.reads, values, strict=True)]
        return kind_of(step.module).masked(step.module, keeps, *values)

    def only(self, step: Step, h: Tensor, alive: Tensor) -> Tensor:
        """What a layer reads, with zeros where nothing is."""
        keep = self._keep(step.reads[0], h, alive) if step.name in self.steps else None
        return h if keep is None else h.masked_fill(~keep, 0.0)

    def _keep(self, name: str, h: Tensor, alive: Tensor) -> Tensor | None:  # broadcast to h, (K * B, ...)
        if name not in self.places:
            return None
        axes, keep = self.units.axes[name], alive[:, getattr(self, f"units_{self.places[name]}")]  # (K, n) or (K, H, n)
        sizes = [1] * h.dim()
        for axis, size in zip(axes, keep.shape[1:], strict=True):
            sizes[axis] = size
        keep = keep.transpose(1, -1) if list(axes) != sorted(axes) else keep
        contexts = len(alive)
        return keep.repeat_interleave(len(h) // contexts if contexts > 1 else 1, 0).reshape(-1, *sizes[1:])


class PassLayer(Protocol):
    """Runs a layer by its place, or the transpose of its weights."""

    def __call__(self, index: int, h: Tensor, *, transposed: bool) -> Tensor: ...


class BayesianGraph:
    """Runs a graph with each weighted layer replaced by a pass over what is believed of it.

    Batches are K contexts x B examples, contexts outermost, flattened to (K * B, ...). With ``autocast`` products
    are done in that dtype, everything else as it is.
    """

    autocast: torch.dtype | None = None

    def __init__(self, graph: Graph, layers: Sequence[Layer], units: Units | None = None) -> None:
        self.graph = graph
        self.kept_values = None if units is None else KeptValues(graph, units)
        self.layers = tuple(layers)
        self.operators = operators_of(graph, layers)
        self._place = {name: index for index, layer in enumerate(layers) for name in layer.calls}
        self._transposed = {name: index for index, layer in enumerate(layers) for name in layer.transposed}
        self._channels = [layer.kind.in_axis for layer in layers]

    def noisy(
        self,
        x: Inputs,
        posteriors: Sequence[LayerPosterior],
        mask: NetworkMask | InputMask | None = None,
        *,
        noise: Noise,
    ) -> Tensor:  # (K * B, C)
        """A sample of the network's output, of what a ``mask`` leaves of it."""

        def sample(index: int, h: Tensor, *, transposed: bool) -> Tensor:
            own = None if mask is None else mask.layers[index]
            if transposed:
                own = None if own is None else own.transposed
                return noisy_pass(Linear(), h, posteriors[index].transposed, own, noise=noise)
            return noisy_pass(self.operators[index], h, posteriors[index], own, noise=noise)

        return self._run(x, sample, mask.alive if isinstance(mask, NetworkMask) else None)

    def masked(self, x: Inputs, means: Sequence[LayerMean], mask: NetworkMask) -> Tensor:  # (K * B, C)
        """The deterministic network with masks on; outputs outside the context are zero."""

        def pass_layer(index: int, h: Tensor, *, transposed: bool) -> Tensor:
            if transposed:
                return masked_pass(Linear(), h, means[index].transposed, mask.layers[index].transposed)
            return masked_pass(self.operators[index], h, means[index], mask.layers[index])

        return self._run(x, pass_layer, mask.alive)

    def _run(self, x: Inputs, pass_layer: PassLayer, alive: Tensor | None) -> Tensor:
        counted = None if alive is None else self.kept_values

        def apply(step: Step, *values: Tensor) -> Tensor:
            transposed = step.name in self._transposed
            index = self._transposed[step.name] if transposed else self._place.get(step.name)
            if index is None:
                if counted is not None and alive is not None and step.name in counted.steps:
                    return counted.run(step, values, alive)
                return step.module(*values)
            (h,), axis = values, TiedKind.axis if transposed else self._channels[index]
            if counted is not None and alive is not None:
                h = counted.only(step, h, alive)
            return as_before(pass_layer(index, channels_first(h, axis), transposed=transposed), h, axis)

        return self._on_device(x, lambda images: self.graph.run(images, apply))

    def plain(self, x: Inputs) -> Tensor:
        """The network as it was pretrained."""
        return self._on_device(x, self.graph.run)

    @contextmanager
    def computing_in(self, autocast: torch.dtype | None) -> Iterator[None]:
        """Within this, products of activations and weights are done in ``autocast``."""
        before, self.autocast = self.autocast, autocast
        try:
            yield
        finally:
            self.autocast = before

    def _on_device(self, x: Inputs, run: Callable[[Inputs], Tensor]) -> Tensor:
        """In the wanted dtype and in the device's favourite layout: channels last for images on a GPU.

        What follows keeps it; only weights of each context's own (``Full``) go through channels first.
        """
        x = _in_device_layout(x) if isinstance(x, Tensor) else tuple(map(_in_device_layout, x))
        if self.autocast is None:
            return run(x)
        device = x.device if isinstance(x, Tensor) else x[0].device
        with torch.autocast(device.type, dtype=self.autocast):
            return run(x).float()


def _in_device_layout(x: Tensor) -> Tensor:
    return x.contiguous(memory_format=torch.channels_last) if x.is_cuda and x.dim() == 4 else x
