"""Who writes the weights: three generators behind one interface, and the values that they start from.

``Full``: the paper's, a linear map from the embedding to every mean and log-variance.
``LowRank``: shared mean and log-variance, plus a change of low rank for each context.
``ScalesOnly``: shared mean and log-variance; a context speaks through its scales and biases alone.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import log, sqrt
from typing import Any, ClassVar

import torch
from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.graph import Layer
from bhc.posterior import WeightMean, clip_variance, log_dropout

HEADROOM = 3.0  # of a log-variance at the start under the prior's


@dataclass(frozen=True)
class Initial:
    """Starting values: the pretrained weights in the offsets, and maps that add a little noise to them.

    The paper's: maps from Kaiming's uniform distribution with gain 0.5, log-variances from N(-9, 1e-4), scale
    means from N(1, 1e-8) (variances). ``Initial.exact()`` has zero maps and scale means of exactly one: the
    first network is the pretrained one, bit for bit.
    """

    map_gain: float = 0.5
    logvar: float = -9.0
    logvar_std: float = 1e-2
    scale_std: float = 1e-4

    def under(self, prior_std: float) -> "Initial":
        """The same, with noise that starts well under what a prior of this width allows."""
        return replace(self, logvar=min(self.logvar, 2 * log(prior_std) - HEADROOM))

    @classmethod
    def exact(cls) -> "Initial":
        return cls(map_gain=0.0, scale_std=0.0)

    def map(self, rows: int, width: int, *, rng: Generator | None) -> Tensor:  # (rows, E)
        """A linear map from the embedding."""
        return kaiming_uniform(rows, width, gain=self.map_gain, rng=rng)

    def log_variance(self, *shape: int, rng: Generator | None) -> Tensor:
        return torch.randn(*shape, generator=rng).mul_(self.logvar_std).add_(self.logvar)


def kaiming_uniform(rows: int, width: int, *, gain: float, rng: Generator | None) -> Tensor:
    """``U(-b, b)`` with ``b = gain sqrt(3 / width)``."""
    bound = gain * sqrt(3 / width) if width else 0.0
    return torch.empty(rows, width).uniform_(-bound, bound, generator=rng) if bound else torch.zeros(rows, width)


class Map(nn.Module):
    """``offset + matrix e``, shaped like the offset. At a zero embedding it gives the offset, bit for bit."""

    def __init__(self, offset: Tensor, width: int, initial: Initial, *, rng: Generator | None) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset.detach().clone())
        self.matrix = nn.Parameter(initial.map(offset.numel(), width, rng=rng))

    def forward(self, embedding: Tensor) -> Tensor:  # (K, E) -> (K, *shape)
        flat = F.linear(embedding, self.matrix, self.offset.flatten())
        return flat.reshape(len(embedding), *self.offset.shape)

    def at(
        self, embedding: Tensor, rows: Tensor, columns: Tensor
    ) -> Tensor:  # (K, E), (K, R), (K, C) -> (K, R, C, ...)
        """In each context ``forward(embedding)[rows][:, columns]``, computing only those entries."""
        (count, height), width, shape = rows.shape, columns.shape[1], self.offset.shape
        matrix = self.matrix.view(shape[0] * shape[1], -1).index_select(0, _places(rows, columns, shape[1]))
        change = matrix.view(count, -1, embedding.shape[1]) @ embedding[:, :, None]
        return at(self.offset, rows, columns) + change.view(count, height, width, *shape[2:])


class Constant(nn.Module):
    """The same tensor for every context."""

    def __init__(self, offset: Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset.detach().clone())

    def forward(self, embedding: Tensor) -> Tensor:  # (K, E) -> (1, *shape)
        return self.offset[None]


def at(tensor: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (K, R), (K, C) -> (K, R, C, ...)
    """In each of K contexts ``tensor[rows][:, columns]``."""
    if rows.shape[0] == 1:  # several times faster than by both indices at once
        kept = {0: rows[0], 1: columns[0]}
        first, second = sorted(kept, key=lambda axis: kept[axis].shape[0] / tensor.shape[axis])
        tensor = tensor.index_select(first, kept[first])  # a copy of its own, of as little as can be
        is_whole = kept[second].shape[0] == tensor.shape[second]  # each stands there once, in order
        return (tensor if is_whole else tensor.index_select(second, kept[second]))[None]
    flat = tensor.flatten(0, 1).index_select(0, _places(rows, columns, tensor.shape[1]))
    return flat.view(*rows.shape, columns.shape[1], *tensor.shape[2:])


def _places(rows: Tensor, columns: Tensor, width: int) -> Tensor:  # (K * R * C,)
    """Where the entries are in a tensor whose first two dimensions are one."""
    return (rows[:, :, None] * width + columns[:, None]).flatten()


class WeightHead(nn.Module, ABC):
    """Means and log-variances of one layer's weights as functions of the embedding."""

    largest_std: float | None = None  # the standard deviation of a weight stays under it

    @abstractmethod
    def mean(self, embedding: Tensor) -> WeightMean:
        """Means in K contexts; (K, E) in."""

    @abstractmethod
    def logvar(self, embedding: Tensor) -> Tensor:
        """Log-variances, (K or 1, O, I, *kernel)."""

    def log_dropout(self, embedding: Tensor) -> Tensor:  # (K or 1, O, I, *kernel)
        """``log sigma_ij^2 - log mu_ij^2``: the rates of single weights."""
        return log_dropout(self.mean(embedding).dense(), self.logvar(embedding))

    def clip_(self) -> None:
        """Bring parameters that an optimiser step has moved back under the limit; nothing to do by default."""
        return

    @abstractmethod
    def kept(self, embedding: Tensor) -> "KeptWeights":
        """The weights of K contexts, (K, E) in, to be generated where they stay."""


class KeptWeights(ABC):
    """One layer's weights in K contexts, generated for k of them at outputs (k, O') and inputs (k, I') of their own."""

    numbers_a_weight: int = 1  # that are gathered to generate it

    @abstractmethod
    def mean(self, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The means, (k, O', I', *kernel)."""

    @abstractmethod
    def logvar(self, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        """The log-variances there."""


class GeneratorSpec(ABC):
    """A choice of generator: what the user passes in and a run folder stores."""

    kind: ClassVar[str]

    @abstractmethod
    def head(self, layer: Layer, width: int, initial: Initial, *, rng: Generator | None) -> WeightHead:
        """Build the head of one layer for embeddings of ``width`` numbers."""

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, **asdict(self)}  # type: ignore[call-overload]


@dataclass(frozen=True)
class Full(GeneratorSpec):
    """The paper's linear maps: 2 E times the network's weights, each context with weights of its own."""

    kind = "full"

    def head(self, layer: Layer, width: int, initial: Initial, *, rng: Generator | None) -> WeightHead:
        return _FullHead(layer, width, initial, rng=rng)


@dataclass(frozen=True)
class LowRank(GeneratorSpec):
    """``M(c) = M + U(c) V^T``: little more than one Bayesian layer, and still weights of its own.

    V is shared: the input side is conditioned already, by z(c), and a V(c) would cost most of the time.
    """

    rank: int = 4
    kind = "low-rank"

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise BhcError(f"the rank must be 1 or more, given {self.rank}", hint="use ScalesOnly() for none")

    def head(self, layer: Layer, width: int, initial: Initial, *, rng: Generator | None) -> WeightHead:
        return _LowRankHead(layer, width, initial, rank=self.rank, rng=rng)


@dataclass(frozen=True)
class ScalesOnly(GeneratorSpec):
    """One set of weights for all contexts, scaled and cut for each."""

    kind = "scales-only"

    def head(self, layer: Layer, width: int, initial: Initial, *, rng: Generator | None) -> WeightHead:
        return _SharedHead(layer, initial, rng=rng)


GENERATORS: dict[str, type[GeneratorSpec]] = {spec.kind: spec for spec in (Full, LowRank, ScalesOnly)}


def generator_from_dict(data: Mapping[str, Any]) -> GeneratorSpec:
    options = dict(data)
    kind = options.pop("kind", None)
    if kind not in GENERATORS:
        raise BhcError(f"unknown generator {kind!r}", hint=f"choose one of: {', '.join(GENERATORS)}")
    return GENERATORS[kind](**options)


class _FullHead(WeightHead):
    def __init__(self, layer: Layer, width: int, initial: Initial, *, rng: Generator | None) -> None:
        super().__init__()
        weight = layer.module.weight.detach()
        logvar = initial.log_variance(*weight.shape, rng=rng)
        self.mean_map = Map(weight, width, initial, rng=rng)
        self.logvar_map = Map(logvar, width, initial, rng=rng)

    def mean(self, embedding: Tensor) -> WeightMean:
        return WeightMean(self.mean_map(embedding))

    def logvar(self, embedding: Tensor) -> Tensor:
        logvar = self.logvar_map(embedding)
        return logvar if self.largest_std is None else clip_variance(logvar, self.largest_std)

    def kept(self, embedding: Tensor) -> KeptWeights:
        return _KeptFull(self, embedding)


@dataclass(frozen=True)
class _KeptFull(KeptWeights):
    head: _FullHead
    embedding: Tensor

    @property
    def numbers_a_weight(self) -> int:  # type: ignore[override]
        return self.embedding.shape[1]

    def mean(self, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return self.head.mean_map.at(self.embedding[own], rows, columns)

    def logvar(self, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        logvar = self.head.logvar_map.at(self.embedding[own], rows, columns)
        return logvar if self.head.largest_std is None else clip_variance(logvar, self.head.largest_std)


class _SharedHead(WeightHead):
    def __init__(self, layer: Layer, initial: Initial, *, rng: Generator | None) -> None:
        super().__init__()
        weight = layer.module.weight.detach()
        self.shared_mean = Constant(weight)
        self.shared_logvar = Constant(initial.log_variance(*weight.shape, rng=rng))

    def mean(self, embedding: Tensor) -> WeightMean:
        return WeightMean(self.shared_mean(embedding))

    def logvar(self, embedding: Tensor) -> Tensor:
        return self.shared_logvar(embedding)

    @torch.no_grad()
    def clip_(self) -> None:
        if self.largest_std is not None:
            self.shared_logvar.offset.clamp_(max=2 * log(self.largest_std))

    def kept(self, embedding: Tensor) -> KeptWeights:
        return _KeptShared(self)


@dataclass(frozen=True)
class _KeptShared(KeptWeights):
    head: _SharedHead

    def mean(self, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return at(self.head.shared_mean.offset, rows, columns)

    def logvar(self, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        return at(self.head.shared_logvar.offset, rows, columns)


class _LowRankHead(_SharedHead):
    """``left`` has no offset, so a zero embedding gives the shared mean; ``right`` starts at random, so that
    ``left`` receives a gradient from the first step on even with zero maps."""

    def __init__(self, layer: Layer, width: int, initial: Initial, *, rank: int, rng: Generator | None) -> None:
        super().__init__(layer, initial, rng=rng)
        columns = layer.num_inputs * layer.kernel_area
        self.rank = rank
        self.left_matrix = nn.Parameter(initial.map(layer.num_outputs * rank, width, rng=rng))
        self.right = Constant(kaiming_uniform(rank, columns, gain=1.0, rng=rng).mT.contiguous())

    def left(self, embedding: Tensor) -> Tensor:  # (K, O, R)
        """``U(c)``."""
        return F.linear(embedding, self.left_matrix).reshape(len(embedding), -1, self.rank)

    def mean(self, embedding: Tensor) -> WeightMean:
        return WeightMean(self.shared_mean(embedding), self.left(embedding), self.right.offset)

    def kept(self, embedding: Tensor) -> KeptWeights:
        return _KeptLowRank(self, self.left(embedding))


@dataclass(frozen=True)
class _KeptLowRank(_KeptShared):
    head: _LowRankHead
    left: Tensor

    def mean(self, own: slice | Tensor, rows: Tensor, columns: Tensor) -> Tensor:
        shared = super().mean(own, rows, columns)
        left, rank = self.left[own], self.head.rank
        right = self._right.index_select(0, columns.flatten()).view(len(columns), -1, rank)  # (k, I' * kernel, R)
        if len(rows) == 1:
            change = torch.addmm(shared[0].flatten(1), left[0].index_select(0, rows[0]), right[0].mT)
        else:
            left = left.gather(1, rows[:, :, None].expand(-1, -1, rank))
            change = torch.baddbmm(shared.flatten(2), left, right.mT)
        return change.view(shared.shape)

    @cached_property
    def _right(self) -> Tensor:  # (I, kernel area * R)
        return self.head.right.offset.detach().view(self.head.shared_mean.offset.shape[1], -1)
