"""From the noisy network to the one that is used."""

from dataclasses import dataclass, replace
from typing import Any

import torch

from bhc.contexts import ContextBatch
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.training import optimiser
from bhc.training.batches import blend
from bhc.training.evaluation import threshold_for
from bhc.training.objective import distillation, restrict
from bhc.training.stages import (
    BatchSource,
    Loss,
    Stage,
    StepScalars,
    check_budget,
    check_numbers,
    draw_places,
    groups,
    show,
)

CHUNK = 2048


@dataclass(frozen=True)
class Consolidate(Stage):
    """Train the means with the masks on and the noise off, over all contexts and a range of thresholds.

    The mean of a noisy ReLU network is not the network of the means; this closes the gap. Masks are frozen
    first. The threshold is drawn anew for each context of each step, so that emission may choose any in the
    range. The range is ``thresholds``, or those that make networks ``ratios`` times smaller, harmonic over contexts:
    which these are is known when learning has ended. Budgets beyond both ends become the ends, which can be asked for.
    Offsets frozen for a budget stay as they are.

    The pretrained network is a free teacher. It knows the labels of its training images by heart, so its answers say
    little beyond them; of a blend of two images it says how it sees it. ``blended`` is the part of the examples that
    are blends, each of two images of one context.
    """

    steps: int = 3500
    thresholds: tuple[float, float] | None = None  # those of the family unless ratios are given
    ratios: tuple[float, float] | None = None
    rate: float = 2e-3
    contexts: int = 16
    examples: int = 16
    teacher_weight: float = 0.7
    temperature: float = 2.0
    blended: float = 0.0
    budget: float | None = None
    kind = "consolidate"
    title = "consolidating"
    noisy = False

    def __post_init__(self) -> None:
        check_numbers(self, positive=("rate", "temperature"), not_negative=())
        for name in ("teacher_weight", "blended"):
            if not 0 <= getattr(self, name) <= 1:
                raise BhcError(f"{name} is a part of a whole, 0 to 1, given {getattr(self, name)}")
        if self.thresholds is not None and self.ratios is not None:
            raise BhcError("consolidation covers thresholds or ratios, given both", hint="leave one of them out")
        for name in ("thresholds", "ratios"):
            if (limits := getattr(self, name)) is not None:
                low, high = map(float, limits)
                if not low <= high:
                    raise BhcError(f"the range of {name} must ascend, given {limits}")
                object.__setattr__(self, name, (low, high))
        if self.ratios is not None and self.ratios[0] < 1:
            raise BhcError(f"a network cannot become less than 1 times smaller, given ratios {self.ratios}")

    def check(self, network: ConditionalNetwork) -> None:
        check_budget(self.budget, network.space)
        if self.blended and network.reads_words:
            raise BhcError("numbers of words cannot be blended", hint="leave blended at 0")

    @property
    def largest_ratio(self) -> float | None:
        return None if self.ratios is None else self.ratios[1]

    def resolved(self, network: ConditionalNetwork, contexts: ContextBatch) -> "Consolidate":
        """With thresholds, whatever was given; the dropout rates of the network are final by now."""
        if self.ratios is None:
            return replace(self, thresholds=self.thresholds or network.hypernet.family.thresholds)
        least, most = self.ratios
        thresholds = threshold_for(network, contexts, most), threshold_for(network, contexts, least)
        return replace(self, thresholds=thresholds, ratios=None)

    def prepare_(self, network: ConditionalNetwork) -> None:
        if network.hypernet.gates is None:
            network.hypernet.freeze_gates_()
        network.hypernet.freeze_variances_()

    @torch.no_grad()
    def equipped(self, network: ConditionalNetwork, draw: BatchSource) -> BatchSource:
        """With the teacher's answers, where it is asked about the same images again and again."""
        images = draw.data.inputs
        altered = self.blended > 0 or draw.augment is not None
        if altered or not self._taught(network) or self.steps * self.contexts * self.examples < len(images):
            return draw
        return replace(draw, teacher=torch.cat([network.bayesian.plain(part) for part in images.split(CHUNK)]))

    def _taught(self, network: ConditionalNetwork) -> bool:
        return network.pretrained and self.teacher_weight > 0

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        factors = optimiser.of_weights(network)
        others = 1 / optimiser.slowdown(network)  # nothing has a long way to go any more
        return groups({p: self.rate * factors.get(p, others) for p in network.hypernet.parameters()})

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        batch, places, labels = draw_places(network, draw, self.contexts, self.examples, self.budget)
        batch, x = show(network, draw, batch.askable(), places)
        assert self.ratios is None, "ratios are settled before the first step"
        low, high = self.thresholds or network.hypernet.family.thresholds
        threshold = low + (high - low) * torch.rand(self.contexts, 1, generator=draw.rng, device=x.device)
        if self.blended:
            every = torch.arange(network.num_classes, device=x.device)
            x, labels = blend((x, labels[:, None] == every), self.contexts, part=self.blended, rng=draw.rng)
        logits = network.masked(x, batch, threshold=threshold)
        with torch.no_grad():
            teacher = network.bayesian.plain(x) if draw.teacher is None else draw.teacher[places]
        total = distillation(
            restrict(logits, batch.outputs),
            labels,
            restrict(teacher, batch.outputs),
            teacher_weight=self.teacher_weight if self._taught(network) else 0.0,
            temperature=self.temperature,
        )
        return Loss(total, {"distillation": total})
