"""What layers read, and what their outputs do to the network's: a sample for each class, and its moments in a context.

Around its weights a pretrained network's answers change by ``J dW a``: ``a`` is what a layer reads and ``J`` the
derivative of the network's outputs by the layer's. With ``A = E[a a^T]`` and ``G = E[J^T J]`` taken as independent, the
mean square of that change is ``tr(G dW A dW^T)``: a Kronecker-factored Gauss-Newton matrix, the precision of Laplace's
posterior. Both moments are means over examples. So those of a context are means over the examples of its classes, and a
sample of each class says what there is to know of any subset of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Generator, Tensor

from bhc.contexts import Context, ContextBatch
from bhc.examples import Examples, Inputs, each
from bhc.graph import Layer, Step
from bhc.hypernet import ConditionalNetwork

PLACES = 4  # of an example, at which what a layer with many places reads is looked at
CHUNK = 64  # examples in one pass
MOST_EXAMPLES = 8192  # of all classes together
MOST_OUTPUTS = 16  # that derivatives are kept of, for each example
SHRINKAGE = 0.2  # examples of all classes, in the width of a layer, that a context's own are mixed with
DOUBTFUL = 0.25  # of the usual distance between the first and the second answer
RIDGE = 1e-3  # of the mean variance, added to each


@dataclass(frozen=True)
class LayerSample:
    """Of one layer."""

    inputs: Tensor  # (N, places, I) float16
    derivatives: Tensor  # (M, R, O) float16: of R of the network's outputs, for the graded examples
    input_size: float = 1.0  # what the inputs were divided by, for 16 bits
    derivative_size: float = 1.0


@dataclass(frozen=True)
class Curvature:
    """Examples of every class, as the pretrained network sees them."""

    labels: Tensor  # (N,)
    graded: Tensor  # (M,): the examples of which there are derivatives
    outputs: Tensor  # (M, R): of which outputs
    answers: Tensor  # (N, O): what the network says to each example
    layers: Mapping[str, LayerSample]

    @cached_property
    def whole(self) -> "dict[str, tuple[Tensor, Tensor]]":
        """Mean and covariance of what each layer reads, all classes alike."""
        even = torch.full((len(self.labels),), 1 / len(self.labels))
        return {name: _moments(sample, even) for name, sample in self.layers.items()}

    def tensors(self) -> dict[str, Tensor]:
        """Plain tensors, as a run stores them."""
        names = ("labels", "graded", "outputs", "answers")
        stored: dict[str, Tensor] = {name: getattr(self, name) for name in names}
        for name, sample in self.layers.items():
            stored[f"inputs.{name}"], stored[f"derivatives.{name}"] = sample.inputs, sample.derivatives
            stored[f"sizes.{name}"] = torch.tensor([sample.input_size, sample.derivative_size])
        return stored

    @classmethod
    def from_tensors(cls, stored: Mapping[str, Tensor], layers: Sequence[Layer]) -> "Curvature":
        """KeyError or ValueError where they are not of these layers."""
        found = {}
        for layer in layers:
            if f"inputs.{layer.name}" not in stored:
                continue
            inputs, derivatives = stored[f"inputs.{layer.name}"], stored[f"derivatives.{layer.name}"]
            if inputs.shape[2] != layer.num_inputs or derivatives.shape[2] != layer.num_outputs:
                raise ValueError(f"the curvature of {layer.name} does not fit the network")
            found[layer.name] = LayerSample(inputs, derivatives, *stored[f"sizes.{layer.name}"].tolist())
        return cls(stored["labels"], stored["graded"], stored["outputs"], stored["answers"], found)


@dataclass(frozen=True)
class LayerCurvature:
    """Of one layer in one context."""

    mean: Tensor  # (I,) of what it reads
    variance: Tensor  # (I,)
    covariance: Tensor  # (I, I), drawn to that of all classes
    factor: Tensor  # (r, O): ``F^T F`` is G

    @cached_property
    def output_precision(self) -> Tensor:  # (O,)
        return self.factor.square().sum(0)

    def covariance_at(self, kept: Tensor) -> Tensor:
        return self.covariance.index_select(0, kept).index_select(1, kept)


@dataclass(frozen=True)
class ContextCurvature:
    """Of all layers in one context; those that have none stay as they are."""

    layers: Mapping[str, LayerCurvature]

    @classmethod
    @torch.no_grad()
    def of(cls, curvature: Curvature, network: ConditionalNetwork, context: Context) -> "ContextCurvature":
        """Classes count as often as they appear in the context."""
        batch = ContextBatch.of([context], network.num_classes)
        kept = network.outputs_of(batch.to(network.device))[0].cpu()
        doubt = _doubt(curvature.answers[:, kept].float())
        weights = _example_weights(curvature.labels, batch.class_rates[0], doubt)
        own = curvature.graded
        graded = _example_weights(curvature.labels[own], batch.class_rates[0], doubt[own])
        layers = {}
        for name, sample in curvature.layers.items():
            factor = _factor(sample, curvature.outputs, kept, graded)
            layers[name] = LayerCurvature(*_shrunk(sample, weights, curvature.whole[name]), factor)
        return cls(layers)


def _doubt(answers: Tensor) -> Tensor:  # (N, outputs) -> (N,)
    """How much an example counts: those near the border between two answers more, which small changes can turn."""
    if answers.shape[1] < 2:
        return torch.ones(len(answers))
    first, second = answers.topk(2, dim=1).values.T
    margins = first - second
    return 1 / (1 + (margins / (DOUBTFUL * margins.median()).clamp(min=1e-6)).square())


def _example_weights(labels: Tensor, rates: Tensor, doubt: Tensor) -> Tensor:  # (N,), (C,), (N,) -> (N,)
    """Sum to one; each class comes to its rate."""
    totals = torch.zeros(len(rates)).index_add_(0, labels, doubt).clamp(min=torch.finfo(torch.float32).tiny)
    weights = doubt * (rates / totals)[labels]
    return weights / weights.sum()


def _moments(sample: LayerSample, weights: Tensor) -> tuple[Tensor, Tensor]:
    """Mean (I,) and covariance (I, I) of what a layer reads."""
    own = weights > 0
    rows = sample.inputs[own].float() * sample.input_size
    shares = (weights[own] / rows.shape[1]).repeat_interleave(rows.shape[1])
    rows = rows.flatten(0, 1)
    mean = shares @ rows
    centred = (rows - mean) * shares.sqrt()[:, None]
    return mean, centred.mT @ centred


def _shrunk(sample: LayerSample, weights: Tensor, whole: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """A context's own mean and variance; its covariance drawn to that of all classes, as its examples are few."""
    mean, covariance = _moments(sample, weights)
    own, others = float(1 / weights.square().sum()) * sample.inputs.shape[1], SHRINKAGE * len(mean)
    variance = covariance.diagonal().clone()
    covariance = (own * covariance + others * whole[1]) / (own + others)
    ridge = RIDGE * covariance.diagonal().mean().clamp(min=torch.finfo(torch.float32).tiny)
    return mean, variance, covariance + ridge * torch.eye(len(mean))


def _factor(sample: LayerSample, outputs: Tensor, kept: Tensor, weights: Tensor) -> Tensor:  # (r, O)
    """Derivatives of the context's outputs, less their mean over these: what moves all alike changes nothing."""
    own = weights > 0
    rows, there = sample.derivatives[own].float() * sample.derivative_size, kept[outputs[own]]
    counts = there.sum(1, keepdim=True)
    mean = (rows * there[:, :, None]).sum(1, keepdim=True) / counts.clamp(min=1)[:, :, None]
    centred = torch.where((counts > 1)[:, :, None], rows - mean, rows) * there[:, :, None]
    stacked = (centred * weights[own].sqrt()[:, None, None])[there]
    if len(stacked) <= stacked.shape[1]:
        return stacked
    return torch.linalg.qr(stacked, mode="r").R


def measured(network: ConditionalNetwork) -> tuple[Layer, ...]:
    """The layers that have a curvature: linear ones and convolutions that are called once and have no groups."""
    return tuple(
        layer
        for layer in network.layers
        if layer.kind.has_curvature and layer.groups == 1 and not layer.is_shared and not layer.kept
    )


def measure_curvature(
    network: ConditionalNetwork, train: Examples, *, per_class: int = 256, graded: int = 64, seed: int = 0
) -> Curvature:
    """Of the pretrained network, on examples of every class; derivatives are found for fewer of them."""
    rng = Generator().manual_seed(seed)
    per_class = max(1, min(per_class, MOST_EXAMPLES // network.num_classes))
    labels, places = _chosen(train, network.num_classes, per_class, rng)
    number = torch.cat([torch.arange(int(count)) for count in labels.bincount(minlength=network.num_classes)])
    own = (number < graded).nonzero().flatten()
    layers = measured(network)
    parts: list[_Seen] = []
    for first in range(0, len(places), CHUNK):
        at = torch.arange(first, min(first + CHUNK, len(places)))
        x = each(train.at(places[at]).loaded().inputs, lambda tensor: tensor.to(network.device))
        parts.append(_Seen.of(network, layers, x, own[(own >= first) & (own <= at[-1])] - first, rng))
    samples = {}
    for layer in layers:
        inputs, input_size = _halved(torch.cat([part.inputs[layer.name] for part in parts]))
        derivatives, size = _halved(torch.cat([part.derivatives[layer.name] for part in parts]))
        samples[layer.name] = LayerSample(inputs, derivatives, input_size, size)
    outputs, answers = (torch.cat([getattr(part, name) for part in parts]) for name in ("outputs", "answers"))
    return Curvature(labels, own, outputs, answers.half(), samples)


def _chosen(train: Examples, num_classes: int, per_class: int, rng: Generator) -> tuple[Tensor, Tensor]:
    """Classes and places of the examples, class by class."""
    if train.labels is None:
        places = torch.randperm(len(train), generator=rng)[: per_class * num_classes]
        return torch.zeros(len(places), dtype=torch.long), places
    order = torch.randperm(len(train), generator=rng)
    shuffled = train.labels.cpu()[order]
    own = [order[shuffled == label][:per_class] for label in range(num_classes)]
    places = torch.cat(own)
    return train.labels.cpu()[places], places


def _halved(values: Tensor) -> tuple[Tensor, float]:
    """In 16 bits, and what they were divided by."""
    size = float(values.abs().amax().clamp(min=torch.finfo(torch.float32).tiny)) if values.numel() else 1.0
    return (values / size).half(), size


@dataclass(frozen=True)
class _Seen:
    """Of some examples."""

    inputs: dict[str, Tensor]  # (B, places, I)
    derivatives: dict[str, Tensor]  # (graded of them, R, O)
    outputs: Tensor  # (graded of them, R)
    answers: Tensor  # (B, O)

    @classmethod
    def of(
        cls, network: ConditionalNetwork, layers: Sequence[Layer], x: Inputs, graded: Tensor, rng: Generator
    ) -> "_Seen":
        watch = _Watch({layer.name: layer for layer in layers}, rng)
        watch.grading = False
        with torch.no_grad():
            answers = _told(network.base_model.run(x, watch)).cpu()
        inputs = dict(watch.inputs)
        again, watch.grading = torch.empty(0), True
        if len(graded):
            with torch.enable_grad():
                own = each(x, lambda tensor: tensor[graded.to(tensor.device)])
                again = _told(network.base_model.run(own, watch))
        return cls(inputs, *_derivatives(network, layers, watch, again, len(graded)), answers)


def _told(outputs: Tensor) -> Tensor:  # (B, O)
    """Of maps the mean over their places."""
    return outputs.flatten(2).mean(2) if outputs.dim() > 2 else outputs


class _Watch:
    """Runs steps and notes what layers read and write."""

    grading = False

    def __init__(self, layers: Mapping[str, Layer], rng: Generator) -> None:
        self.layers, self.rng = layers, rng
        self.inputs: dict[str, Tensor] = {}
        self.leaving: dict[str, Tensor] = {}

    def __call__(self, step: Step, *values: Tensor) -> Tensor:
        output: Tensor = step.module(*values)
        layer = self.layers.get(step.name)
        if layer is None:
            return output
        if not self.grading:
            self.inputs[step.name] = self._some_places(values[0], layer.kind.in_axis)
            return output
        if not output.requires_grad:
            output = output.detach().requires_grad_()
        self.leaving[step.name] = output
        return output

    def _some_places(self, h: Tensor, axis: int) -> Tensor:  # (B, places, I)
        rows = h.movedim(axis, -1).flatten(1, -2) if h.dim() > 2 else h[:, None]
        if rows.shape[1] > PLACES:
            rows = rows[:, torch.randint(rows.shape[1], (PLACES,), generator=self.rng).to(rows.device)]
        return rows.float().cpu()


def _derivatives(
    network: ConditionalNetwork, layers: Sequence[Layer], watch: _Watch, told: Tensor, count: int
) -> tuple[dict[str, Tensor], Tensor]:
    """Of each graded example's strongest outputs by what layers write, (M, R, O), and which they are, (M, R)."""
    rank = min(MOST_OUTPUTS, network.num_outputs)
    if not count:
        return {layer.name: torch.empty(0, rank, layer.num_outputs) for layer in layers}, torch.empty(
            0, rank, dtype=torch.long
        )
    outputs = told.detach().topk(rank, dim=1).indices
    rows: dict[str, list[Tensor]] = {layer.name: [] for layer in layers}
    signs: dict[str, Tensor] = {}
    for place in range(rank):
        total = told.gather(1, outputs[:, place : place + 1]).sum()
        found = torch.autograd.grad(
            total, [watch.leaving[layer.name] for layer in layers], retain_graph=place + 1 < rank, allow_unused=True
        )
        for layer, derivative in zip(layers, found, strict=True):
            rows[layer.name].append(_summed(layer, watch.leaving[layer.name], derivative, signs, watch.rng))
    return {name: torch.stack(own, dim=1) for name, own in rows.items()}, outputs.cpu()


def _summed(
    layer: Layer, leaving: Tensor, derivative: Tensor | None, signs: dict[str, Tensor], rng: Generator
) -> Tensor:  # (M, O)
    """Over places, each with a sign of its own: the mean of squares is then the sum of those of the places."""
    if derivative is None:
        return torch.zeros(len(leaving), layer.num_outputs)
    if derivative.dim() == 2:
        return derivative.cpu()
    apart = derivative.movedim(layer.kind.out_axis, -1).flatten(1, -2)  # (M, places, O)
    if layer.name not in signs:
        signs[layer.name] = torch.randint(0, 2, apart.shape[:2], generator=rng) * 2.0 - 1
    return torch.einsum("mp,mpo->mo", signs[layer.name].to(apart.device), apart).cpu()
