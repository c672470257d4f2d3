"""How far a domain lies from those that training has seen."""

from dataclasses import dataclass
from math import sqrt

import torch
from torch import Tensor

from bhc.contexts import ClassSubsets, Context, ContextSpace, InputDomains
from bhc.examples import Split

MOST_DOMAINS = 64
FAR = 1.25  # of the usual distance: domains of training stay under 0.9, classes in new company near 1


@dataclass(frozen=True)
class SeenDomains:
    """Means of training domains, and how far apart such means usually are."""

    means: Tensor  # (R, *domain shape)
    gap: float  # the largest distance of one of them from its nearest neighbour
    spread: float  # mean squared distance of an input from the mean of its domain

    @classmethod
    def of(cls, space: ContextSpace, train: Split, num_classes: int) -> "SeenDomains | None":
        """Those that a space draws from a training set; None where it has no domains.

        Beside classes a domain is that of the drawn classes.
        """
        domains = space.find(InputDomains)
        if domains is None:
            return None
        if domains.num_sources is not None:
            sources = domains.sampler.examples(domains.num_sources, MOST_DOMAINS)
            samples = (train.from_sources(subset) for subset in sources)
        else:
            drawn = space.find(ClassSubsets) or domains
            samples = (train.restricted_to(subset) for subset in drawn.sampler.examples(num_classes, MOST_DOMAINS))
        return cls.among([domains.told.of(sample.inputs) for sample in samples])

    @classmethod
    def among(cls, domains: list[Tensor]) -> "SeenDomains":
        """Of what samples of domains tell, each (n, *domain shape)."""
        means = torch.stack([images.float().mean(0) for images in domains])
        spreads = [float(images.float().flatten(1).var(0).sum()) for images in domains]
        apart = torch.cdist(means.flatten(1), means.flatten(1)).fill_diagonal_(torch.inf)
        gap = float(apart.amin(1).max()) if len(means) > 1 else 0.0
        return cls(means, gap, sum(spreads) / len(spreads))

    def distance(self, context: Context, space: ContextSpace) -> float | None:
        """To the nearest of them, where 1 is usual; None if the context says nothing of its domain.

        ``|m - m_r| / sqrt(gap^2 + spread / n)``: neighbours are a gap apart, and the mean of n inputs is off by
        ``spread / n``. Features that are not there count nowhere.
        """
        if context.domain is None or context.domain_size is None:
            return None
        apart = self.means - context.domain
        there = space.presence.mask(context.inputs, tuple(context.domain.shape))
        if there is not None:
            apart = apart * there
        nearest = float(apart.flatten(1).norm(dim=1).min())
        usual = sqrt(self.gap**2 + self.spread / context.domain_size)
        return nearest / usual if usual else 0.0
