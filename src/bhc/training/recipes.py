"""The stages there are, variational learning and consolidation, and those that suit a network."""

from dataclasses import dataclass, replace
from math import sqrt
from typing import Any

import torch
from torch import Tensor

from bhc.contexts import Budgets, ContextBatch
from bhc.curvature import measured
from bhc.errors import BhcError
from bhc.examples import batches
from bhc.hypernet import FEW_LAYERS, ConditionalNetwork, check_readable, context_nll
from bhc.tasks import Task, checked_loss, distillation
from bhc.training import optimiser
from bhc.training.batches import BatchSource, Drawn, MemorySource
from bhc.training.evaluation import threshold_for
from bhc.training.stages import (
    FreezeOffsets,
    Loss,
    MeasureCurvature,
    Recipe,
    Stage,
    StepScalars,
    blend,
    check_budget,
    check_numbers,
    groups,
    negative_elbo,
    restrict,
)


@dataclass(frozen=True)
class Learn(Stage):
    """Variational learning: the noisy network under the objective of Eq. 3.

    ``num_data`` is N in the objective; by default ``|D_t|``, the training examples of each context's classes.
    ``budget`` fixes c_w for the whole stage; by default it is drawn. Log-variances start far from where they
    end and move by about a rate a step, hence a rate of their own. What depends on the context, the embedder
    and the maps that read it, moves more slowly than what all contexts share (``map_slowdown``). Means of weights take
    smaller steps in deep networks and where they are small (``bhc.training.optimiser``).

    ``context_weight`` is that of ``-log p(c | z)``, the term of Eq. 2 that the paper leaves out: a decoder learns
    beside the hypernetwork to read the context back from the masks, and is dropped when training ends.
    """

    steps: int = 4000
    kl_weight: float = 2.0
    warm_up: float = 0.5  # fraction of the steps over which the weight rises from zero
    rate: float = 3e-3
    logvar_rate: float = 3e-2
    map_slowdown: float = 3.0
    contexts: int = 16
    examples: int = 16
    budget: float | None = None
    num_data: float | None = None
    context_weight: float = 0.0
    kind = "learn"
    title = "learning"

    def __post_init__(self) -> None:
        positive = ("rate", "logvar_rate", "map_slowdown", "num_data")
        check_numbers(self, positive=positive, not_negative=("kl_weight", "context_weight"))
        if not 0 <= self.warm_up <= 1:
            raise BhcError(f"warm_up is a fraction of the steps, 0 to 1, given {self.warm_up}")

    def check(self, network: ConditionalNetwork) -> None:
        check_budget(self.budget, network.space)
        if self.context_weight:
            check_readable(network.layers, network.space, network.hypernet.family, network.find_masks.outputs)
            if self.budget is not None and isinstance(network.space, Budgets):
                raise BhcError(
                    f"a stage at budget {self.budget:g} has one context, and nothing to read back",
                    hint="leave context_weight at 0, or let budgets be drawn",
                )

    def prepare_(self, network: ConditionalNetwork) -> None:
        network.hypernet.thaw_()

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        factors, others = optimiser.of_weights(network), optimiser.of_vectors(network)
        by_parameter = {}
        for name, parameter in network.hypernet.named_parameters():
            rate = self.logvar_rate if "logvar" in name else self.rate * factors.get(parameter, others)
            by_parameter[parameter] = rate if name.endswith("offset") else rate / self.map_slowdown
        if self.context_weight and network.decoder is not None:
            by_parameter |= dict.fromkeys(network.decoder.parameters(), self.rate / self.map_slowdown)
        return groups(by_parameter)

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        drawn = draw.next(network, self)
        batch, task = drawn.batch, network.task
        outputs, posteriors = network.noisy(drawn.x, batch, noise=draw.noise, dropped_fraction=self.left_out(scalars))
        targets = teacher_of(network, draw, drawn) if drawn.targets is None else drawn.targets
        expected = checked_loss(task, restrict(outputs, network.outputs_of(batch)), targets).mean()
        divergence = network.hypernet.kl(posteriors)
        num_data = draw.index.context_sizes(batch)
        if self.num_data is not None:
            num_data = torch.full_like(num_data, self.num_data)
        weight = network.space.divergence_weights(batch) * self.kl_weight * scalars.warmth
        total = negative_elbo(expected, divergence, num_data=num_data, kl_weight=weight)
        terms = {fit_term(task): expected, "kl": (divergence / num_data).mean()}
        if self.context_weight:
            terms["context_nll"] = context_nll(network, posteriors, batch, noise=draw.noise).mean()
            total = total + self.context_weight * terms["context_nll"]
        return Loss(total, terms)

    def left_out(self, scalars: StepScalars) -> Tensor | None:
        """Which part of the units a step does without; None where none is left out."""
        return None

    def warmth(self, step: int) -> float:
        warm_steps = self.warm_up * self.steps
        return 1.0 if warm_steps <= 0 else min(1.0, step / warm_steps)


@dataclass(frozen=True)
class Narrow(Learn):
    """Learning that goes on while units go, until networks are ``final_ratio`` times smaller.

    Wide layers share what they know among many units: each is of little use, none of no use, and cutting nine of ten
    at once leaves nothing. Here those with the largest dropout rates go first, a few at a time, and the rates of the
    others fall as they take over, so that no layer runs dry. The ratio, harmonic over contexts, rises from 1 by equal
    factors over ``closing`` of the steps.
    """

    warm_up: float = 0.0
    final_ratio: float = 10.0
    closing: float = 0.7  # fraction of the steps
    kind = "narrow"
    title = "narrowing"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.final_ratio < float("inf"):
            raise BhcError(f"final_ratio is how many times smaller networks become, given {self.final_ratio}")
        if not 0 <= self.closing <= 1:
            raise BhcError(f"closing is a fraction of the steps, 0 to 1, given {self.closing}")

    def check(self, network: ConditionalNetwork) -> None:
        super().check(network)
        if network.hypernet.family.cuts_weights:
            raise BhcError(
                "narrowing takes units away, and this family has scales for single weights alone",
                hint="leave Narrow out of the recipe, or wrap with another family",
            )

    def ratio(self, step: int) -> float:
        closing = self.closing * self.steps
        return float(self.final_ratio ** (1.0 if closing <= 0 else min(1.0, step / closing)))

    @property
    def largest_ratio(self) -> float:
        return self.final_ratio

    def left_out(self, scalars: StepScalars) -> Tensor:
        return scalars.dropped_fraction


def two_stage_budget(low: Learn, high: Learn) -> Recipe:
    """The paper's c_w recipe: learn at budget 0, freeze what that generates, learn at budget 1."""
    return (replace(low, budget=0.0), FreezeOffsets(), replace(high, budget=1.0))


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
    within_ends = True

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
        if self.blended and (network.reads_words or not network.task.has_answers or len(network.signature) > 1):
            raise BhcError(
                "only classifications of one input of amounts can be blended: no words, no several inputs",
                hint="leave blended at 0",
            )

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
        altered = self.blended > 0 or draw.augment is not None
        seen = self.steps * self.contexts * self.examples
        if altered or not self._taught(network) or not isinstance(draw, MemorySource) or seen < len(draw.data):
            return draw
        answers = [network.bayesian.plain(part) for part in batches(draw.data.inputs, CHUNK)]
        return replace(draw, teacher=torch.cat(answers))

    def _taught(self, network: ConditionalNetwork) -> bool:
        return network.pretrained and self.teacher_weight > 0

    def parameter_groups(self, network: ConditionalNetwork) -> list[dict[str, Any]]:
        factors = optimiser.of_weights(network)
        others = 1 / optimiser.slowdown(network)  # nothing has a long way to go any more
        return groups({p: self.rate * factors.get(p, others) for p in network.hypernet.parameters()})

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        drawn = draw.next(network, self)
        batch, x, targets = drawn.batch, drawn.x, drawn.targets
        assert self.ratios is None, "ratios are settled before the first step"
        low, high = self.thresholds or network.hypernet.family.thresholds
        threshold = low + (high - low) * torch.rand(self.contexts, 1, generator=draw.rng, device=drawn.places.device)
        if self.blended:
            x, targets = self._blended(network, draw, drawn)
        outputs, kept = network.masked(x, batch, threshold=threshold), network.outputs_of(batch)
        taught = self._taught(network)
        teacher = teacher_of(network, draw, replace(drawn, x=x)) if taught or targets is None else outputs.detach()
        total = distillation(
            network.task,
            restrict(outputs, kept),
            teacher if targets is None else targets,
            restrict(teacher, kept),
            teacher_weight=self.teacher_weight if taught else 0.0,
            temperature=self.temperature,
        ).mean()
        return Loss(total, {"distillation": total})

    def _blended(self, network: ConditionalNetwork, draw: BatchSource, drawn: Drawn) -> tuple[Tensor, Tensor | None]:
        """Mixtures of the drawn examples, and of what is to be said of them."""
        assert isinstance(drawn.x, Tensor)
        if drawn.targets is None:
            (x,) = blend((drawn.x,), self.contexts, part=self.blended, rng=draw.rng)
            return x, None
        parts = drawn.targets
        if parts.dim() == 1:
            parts = parts[:, None] == torch.arange(network.num_classes, device=parts.device)
        x, targets = blend((drawn.x, parts), self.contexts, part=self.blended, rng=draw.rng)
        return x, targets


@torch.no_grad()
def teacher_of(network: ConditionalNetwork, draw: BatchSource, drawn: Drawn) -> Tensor:
    """What the pretrained network says of drawn examples; worked out beforehand where that could be."""
    return network.bayesian.plain(drawn.x) if draw.teacher is None else draw.teacher[drawn.places]


def fit_term(task: Task) -> str:
    """What the loss is called where it is shown."""
    return "cross_entropy" if task.has_answers else "loss"


VGG_WEIGHTS, VGG_KL_WEIGHT = 1.5e7, 0.02
COVERED = (0.5, 1.25)  # of the ratio that narrowing ends at
RATE_AFTER = 1e-2  # of consolidation: narrowed networks already work, so larger steps do no harm
LEAST = 1.05  # at 1 a threshold may be as high as the noisiest unit's rate, and most of the range would be of no use


def default_recipe(
    network: ConditionalNetwork, *, ratio: float | None = None, kl_weight: float | None = None
) -> Recipe:
    """Few layers: learn, consolidate. In deep networks units must be made to go, so narrowing comes between. The
    curvature of the pretrained network comes first, for networks that keep much of it.

    ``ratio`` says how small networks shall be by then, 1 for no narrowing.
    """
    weight = usual_kl_weight(network) if kl_weight is None else kl_weight
    ratio = usual_ratio(network) if ratio is None else ratio
    first = (MeasureCurvature(),) if has_curvature(network) else ()
    if ratio == 1:
        return *first, Learn(kl_weight=weight), Consolidate()
    narrow = Narrow(kl_weight=weight, final_ratio=ratio)
    return *first, Learn(kl_weight=weight), narrow, Consolidate(ratios=ratios_around(ratio), rate=RATE_AFTER)


def has_curvature(network: ConditionalNetwork) -> bool:
    """Whether cutting by it is of use: of a trained network, by units, for classes or one task. What each layer loses
    adds up: of a residual network of 20 layers a third is all that can be spared without learning.
    """
    few, spoken = len(network.layers) <= FEW_LAYERS, set(network.space.conditions) <= {"classes"}
    return (
        network.pretrained and few and spoken and not network.hypernet.family.cuts_weights and bool(measured(network))
    )


def ratios_around(ratio: float) -> tuple[float, float]:
    """Where networks that were narrowed to a ratio are of use."""
    low, high = COVERED
    return max(LEAST, low * ratio), max(LEAST, high * ratio)


def usual_ratio(network: ConditionalNetwork) -> float:
    """What is narrowed to: nothing where layers are few, or where single weights go."""
    few = len(network.layers) <= FEW_LAYERS
    return 1.0 if few or network.hypernet.family.cuts_weights else Narrow().final_ratio


def usual_kl_weight(network: ConditionalNetwork) -> float:
    """Less where there are many weights: what all of them cost together outweighs the data otherwise."""
    usual = Learn().kl_weight
    if len(network.layers) <= FEW_LAYERS:
        return usual
    learned = sum(layer.num_weights for layer in network.layers)
    return float(f"{min(usual, VGG_KL_WEIGHT * sqrt(VGG_WEIGHTS / learned)):.2g}")
