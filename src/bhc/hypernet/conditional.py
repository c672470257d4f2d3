"""A pretrained network and the hypernetwork that conditions it: what training trains and emission cuts; with
``p(c | z)``, the way back from masks to the context that led to them.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.nn import init

import bhc.contexts as contexts
from bhc.contexts import ContextBatch, ContextSpace, FeatureSubsets, checked_encoding
from bhc.errors import BhcError
from bhc.graph import (
    Beside,
    Counts,
    Graph,
    Inputs,
    Layer,
    Signature,
    check_outputs,
    count,
    describe,
    find_branches,
    find_features,
    find_layers,
    find_units,
    find_whole,
    rebuild,
)
from bhc.hypernet.generators import Initial, generator_from_dict
from bhc.hypernet.hypernetwork import Design, HyperNetwork
from bhc.posterior import (
    BayesianGraph,
    Family,
    InputMask,
    LayerDropout,
    LayerPosterior,
    MaskFinder,
    NetworkMask,
    Noise,
    relaxed_mask,
)
from bhc.tasks import Classification, Task, checked_task

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


RUNGS = 9  # budgets that rates are generated at, from 0 to 1
FARTHEST = 1e30  # no threshold comes near it

Rates = tuple[LayerDropout, ...]


def climb(rates_of: Callable[[ContextBatch], Rates], batch: ContextBatch) -> Rates:
    """The largest rates on the way up from budget 0 to each context's own, linear between the rungs.

    ``r(w) = (1 - t) m_j + t m_{j+1}`` with ``m_j = max(r_0, ..., r_j)`` and w between the rungs j and j + 1. Beyond
    both ends, where only training goes, they are those of the end.
    """
    assert batch.budget is not None
    contexts = len(batch)
    rungs = torch.linspace(0, 1, RUNGS, device=batch.budget.device).repeat_interleave(contexts)[:, None]
    layers = rates_of(replace(batch.repeated(RUNGS), budget=rungs))
    return tuple(_at(layer, batch.budget) for layer in layers)


def _at(layer: LayerDropout, budget: Tensor) -> LayerDropout:
    """One layer's rates at the contexts' budgets, (K, 1)."""
    return LayerDropout(*(None if rates is None else _between(rates, budget) for rates in vars(layer).values()))


def _between(rates: Tensor, budget: Tensor) -> Tensor:  # (K, ...)
    if len(rates) == 1:  # shared by all contexts
        return rates
    finite = rates.clamp(-FARTHEST, FARTHEST)  # between two that are infinite there is no number
    largest = finite.unflatten(0, (RUNGS, len(budget))).cummax(0).values
    place = budget[:, 0].clamp(0, 1) * (RUNGS - 1)
    below = place.long().clamp(max=RUNGS - 2)
    own = torch.arange(len(budget), device=budget.device)
    part = (place - below).reshape(-1, *[1] * (rates.dim() - 1))
    return largest[below, own].lerp(largest[below + 1, own], part)


class ConditionalNetwork(nn.Module):
    """``W_t = f_phi(c_t, W_0)``: the base network stays as it was, the hypernetwork learns."""

    def __init__(
        self,
        graph: Graph,
        space: ContextSpace,
        design: Design,
        *,
        input_shape: Sequence[int],
        task: Task | None = None,
        pretrained: bool = True,
        rng: Generator | None = None,
    ) -> None:
        super().__init__()
        self.pretrained = pretrained  # whether the base model knows anything: it then teaches and is compared with
        self.base_model = graph.eval().requires_grad_(False)
        self.space = space
        self.design = design
        self.signature = Signature.of(graph, tuple(input_shape))
        self.input_shape = self.signature.shape
        kept = _check_kept(design.keep, graph)
        units = find_units(graph, self.input_shape, keep=kept)
        self.layers = find_layers(graph, self.input_shape, units, keep=kept)
        self.units = units
        self.whole = find_whole(graph, self.layers, units)
        features = space.find(FeatureSubsets)
        places = {} if features is None else find_features(graph, self.layers, self.input_shape, features.shape)
        nested = any(part.rises_with_budget for part in space.parts)
        self.branches = find_branches(graph, self.input_shape, self.layers, units)
        self.find_masks = MaskFinder(
            self.layers, units, graph.last_step, features=places, branches=self.branches, nested=nested
        )
        self.num_outputs = len(self.find_masks.outputs)
        # Whether inputs are numbers that stand for words, and not amounts.
        self.reads_words = any(layer.kind.words(layer.module) is not None for layer in self.layers)
        if space.decides_outputs:
            check_outputs(graph, self.input_shape, units)
        self.set_task_(task or Classification())
        self.hypernet = HyperNetwork(self.layers, space, design, rng=rng)
        self.decoder: ContextDecoder | None = None  # only while a stage reads contexts back
        self.bayesian = BayesianGraph(self.base_model, self.layers, units)
        self.kept_values = self.bayesian.kept_values  # moves to a device with the rest

    def set_task_(self, task: Task) -> None:
        """Say what its outputs are for; BhcError where they, or the contexts, do not fit that."""
        members = checked_task(task).membership(self.num_outputs)
        if members is None and self.space.decides_outputs:
            raise BhcError(
                f"task {task.name!r} has no classes, and {type(self.space).__name__} chooses among them",
                hint="use other contexts, such as SingleContext() or FeatureSubsets (--context none or features), or"
                " give the task class_outputs",
            )
        self.num_classes = self.num_outputs if members is None else len(members)
        for part in self.space.parts:
            part.check_network(self.num_classes)
        self.task = task
        own = members is None or torch.equal(members, torch.eye(self.num_outputs, dtype=torch.bool))
        self.register_buffer("members", None if own else members, persistent=False)

    def outputs_of(self, batch: ContextBatch) -> Tensor:  # (K, O) bool
        """The outputs that each context has: those of its classes, and those of no class."""
        members: Tensor | None = self.members  # type: ignore[assignment]
        return batch.outputs if members is None else (batch.outputs.float() @ members.float()) > 0

    @cached_property
    def counts(self) -> Counts:
        """Of the network as it was wrapped, all of it."""
        counts, original = count(self.base_model, self.input_shape), self.base_model.original
        return counts if original is None else Counts(*original, counts.flops)

    @property
    def num_weights(self) -> int:
        """All weights, also those that stay whole."""
        return self.counts.weights

    @cached_property
    def beside(self) -> Beside:
        """The steps beside the layers that are cut."""
        return Beside(self.base_model, self.input_shape, self.units)

    @property
    def device(self) -> torch.device:
        return self.layers[0].module.weight.device

    def noisy(
        self, x: Inputs, batch: ContextBatch, *, noise: Noise, dropped_fraction: Tensor | None = None
    ) -> tuple[Tensor, tuple[LayerPosterior, ...]]:
        """A sample of the logits (K * B, C) and the posterior it came from.

        With ``dropped_fraction``, (), this part of the units of the batch, those with the largest dropout rates, is
        left out of the sample; the posterior is that of all.
        """
        posteriors = self.hypernet.posterior(checked_encoding(self.space, batch))
        mask: NetworkMask | InputMask | None = self.find_masks.present_inputs(self.outputs_of(batch), batch.inputs)
        if dropped_fraction is not None:
            # Not under no_grad: what scales work out here is kept, and learned from later.
            dropouts = [layer.dropout for layer in posteriors]
            with torch.no_grad():
                threshold = self.find_masks.threshold_without(dropped_fraction, dropouts, self.outputs_of(batch))
                threshold = threshold.expand(len(batch), 1)
                mask = self.find_masks(dropouts, threshold, self.outputs_of(batch), batch.inputs)
        x = _network_input(x, batch, self.space)
        return self.bayesian.noisy(x, posteriors, mask, noise=noise), posteriors

    @torch.no_grad()
    def threshold_without(self, dropped_fraction: float, batch: ContextBatch) -> float:
        """The threshold that takes this part of the units away, all contexts of the batch together."""
        part = torch.tensor(dropped_fraction, device=self.device)
        return float(self.find_masks.threshold_without(part, self.dropouts(batch), self.outputs_of(batch)))

    @torch.no_grad()
    def fraction_above(self, threshold: float, batch: ContextBatch) -> float:
        """Which part of the units a threshold takes away, all contexts of the batch together."""
        rates = self.find_masks.noisiest_links(self.dropouts(batch), self.outputs_of(batch))
        return float((rates >= threshold).float().mean())

    def masked(self, x: Inputs, batch: ContextBatch, *, threshold: Tensor) -> Tensor:
        """Logits (K * B, C) of the deterministic networks that ``threshold`` (K, 1) leaves."""
        with torch.no_grad():
            mask = self.find_masks(self.dropouts(batch), threshold, self.outputs_of(batch), batch.inputs)
        x = _network_input(x, batch, self.space)
        return self.bayesian.masked(x, self.hypernet.means(checked_encoding(self.space, batch)), mask)

    @torch.no_grad()
    def dropouts(self, batch: ContextBatch) -> tuple[LayerDropout, ...]:
        """Log dropout rates, by which masks are found.

        Where budgets are numbers from 0 to 1 a rate never falls as the budget rises: it is the largest of those that
        the hypernetwork gives at a few budgets up to it, and linear between those. So a larger budget never keeps more
        weights.
        """
        if batch.budget is None or not self.find_masks.nested:
            return self.hypernet.dropouts(checked_encoding(self.space, batch))
        return climb(lambda rung: self.hypernet.dropouts(checked_encoding(self.space, rung)), batch)

    def add_decoder_(self, *, rng: Generator | None = None) -> None:
        """Begin to read contexts back from the masks; set ``decoder`` to None to end it."""
        decoder = ContextDecoder(self.layers, self.space, self.hypernet.family, self.find_masks.outputs, rng=rng)
        self.decoder = decoder.to(self.device)

    def to_dict(self) -> dict[str, Any]:
        """Plain data from which ``from_dict`` builds the same shapes."""
        return {
            "network": describe(self.base_model),
            "input_shape": list(self.input_shape),
            "pretrained": self.pretrained,
            "context": self.space.to_dict(),
            "generator": self.design.weight_generator.to_dict(),
            "family": self.design.family,
            "std_limits": None if self.design.std_limits is None else list(self.design.std_limits),
            "keep": list(self.design.keep),
            "prior_stds": list(self.hypernet.prior_stds),
            "counts": None if self.base_model.original is None else list(self.base_model.original),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any], task: Task | None = None) -> "ConditionalNetwork":
        """The network that ``to_dict`` described; load a state dict into it."""
        graph = rebuild(data["network"])
        if data.get("counts") is not None:  # older runs have none
            weights, parameters = data["counts"]
            graph.original = int(weights), int(parameters)
        limits: Sequence[float | None] | None = data["std_limits"]
        layers = len(set(graph.owners.values()))
        # The values are about to be replaced, so start from the cheapest.
        design = Design(
            generator_from_dict(data["generator"]),
            Initial.exact(),
            data["family"],
            None if limits is None else tuple(limits),
            tuple(data.get("keep", ())),
            tuple(data.get("prior_stds", [1.0] * layers)),  # older runs have the paper's
        )
        return cls(
            graph,
            contexts.from_dict(data["context"]),
            design,
            input_shape=data["input_shape"],
            pretrained=bool(data["pretrained"]),
            task=task,
        )


def context_nll(
    network: ConditionalNetwork, posteriors: Sequence[LayerPosterior], batch: ContextBatch, *, noise: Noise
) -> Tensor:  # (K,)
    """``-log p(c | z)`` with a sample of the masks that these beliefs imply."""
    assert network.decoder is not None, "there is no decoder yet"
    return network.decoder.nll(network.decoder.masks(posteriors, noise=noise), checked_encoding(network.space, batch))


def _check_kept(names: Sequence[str], graph: Graph) -> Sequence[str]:
    """The steps that are named; of a layer that was taken apart all of its parts."""
    known = [step.name for step in graph.steps]
    kept: list[str] = []
    for name in names:
        parts = [each for each in known if each.startswith(f"{name}_") and each.removeprefix(f"{name}_").isdigit()]
        if name not in known and not parts:
            raise BhcError(f"there is no layer {name!r} to keep", hint=f"the layers are: {', '.join(known)}")
        kept += [name] if name in known else parts
    return kept


def _network_input(x: Inputs, batch: ContextBatch, space: ContextSpace) -> Inputs:
    return space.presence.as_network_input(x, batch.inputs) if isinstance(x, Tensor) else x
