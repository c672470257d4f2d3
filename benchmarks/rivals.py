"""What a user would do for a new context without a hypernetwork, each until it is no worse than ours or a limit is hit.

The clock of a rival runs while it trains and prunes. What it takes to look at validation images is not counted.
"""

import copy
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, log
from typing import Any

import torch
from timing import wait_for
from torch import Generator, Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.contexts import ContextBatch
from bhc.data import DataSet, Split
from bhc.emission import Cutter, Slimmer, assemble
from bhc.layers import Select, is_weighted
from bhc.models.networks import initialise_
from bhc.training.batches import BatchSource
from bhc.training.evaluation import threshold_for
from bhc.training.recipes import ratios_around
from bhc.training.step import make_step

CHUNK = 4096
TAYLOR_IMAGES = 1024  # for the gradients that units are ranked by
PART = 0.1  # of the units that goes at a time
NEAR = 1.5  # times the weights aimed at: from here on units go one by one
LEARNING = 0.6  # of the steps of BC-IO-GNJ; the rest consolidates


@dataclass(frozen=True)
class Task:
    """A context: its images, and what a network for it must come up to."""

    classes: tuple[int, ...]
    train: Split
    validation: Split
    test: Split
    weights: int  # at most
    error: float  # on validation images, percent: at most
    device: torch.device

    @classmethod
    def of(cls, data: DataSet, classes: Sequence[int], *, weights: int, error: float, device: torch.device) -> "Task":
        parts = (_numbered(split, classes, device) for split in (data.train, data.validation, data.test))
        return cls(tuple(classes), *parts, weights=weights, error=error, device=device)

    @torch.no_grad()
    def error_of(self, net: nn.Module, split: Split) -> float:
        """Percent of wrong answers; the outputs of ``net`` are the context's classes in order."""
        answers = torch.cat([net(x).argmax(1) for x in split.inputs.split(CHUNK)])
        return 100 * float((answers != split.labels).float().mean())

    def attempt(self, net: nn.Module, *, seconds: float, steps: int) -> "Attempt":
        """What has been reached by now."""
        error = self.error_of(net.eval(), self.validation)
        return Attempt(net, seconds, steps, error, error <= self.error)


@dataclass(frozen=True)
class Effort:
    """How long rivals go on."""

    limit: int  # steps
    every: int = 25  # steps between looks at the validation images
    between: int = 20  # steps between two cuts
    batch: int = 128
    rates: tuple[float, ...] = (1e-3, 1e-2)  # each is tried, and the quickest counts
    kl_weight: float = 2.0


@dataclass(frozen=True)
class Attempt:
    """A network that a rival made, and what it took."""

    net: nn.Module
    seconds: float
    steps: int
    error: float  # on validation images
    reached: bool

    def __lt__(self, other: "Attempt") -> bool:
        """Better: quicker of those that got there, or else nearer to it."""
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[bool, float]:
        return not self.reached, self.seconds if self.reached else self.error


class Clock:
    """Adds up the time spent inside."""

    def __init__(self, device: torch.device) -> None:
        self.device, self.seconds = device, 0.0

    def __enter__(self) -> None:
        wait_for(self.device)
        self._began = time.perf_counter()

    def __exit__(self, *error: object) -> None:
        wait_for(self.device)
        self.seconds += time.perf_counter() - self._began


def from_scratch(small: nn.Module, task: Task, effort: Effort) -> Attempt:
    """The architecture that we emitted, with the pixels that it reads, trained on the context's images alone."""

    def attempt(rate: float, seed: int) -> Attempt:
        net = copy.deepcopy(small)
        initialise_(net, Generator().manual_seed(seed))
        net, clock = net.to(task.device).requires_grad_(True), Clock(task.device)
        return _finished(net, task, effort, clock, rate=rate, taken=0)

    return min(attempt(rate, seed) for seed, rate in enumerate(effort.rates))


def pruned_by_taylor(original: nn.Sequential, task: Task, effort: Effort) -> Attempt:
    """torch-pruning: units go by their Taylor importance, a few at a time, with steps of fine-tuning between.

    Pixels go too where a linear layer reads them, as they do with us. Units are whole, so of the last two networks it
    is the one nearer to our number of weights.
    """
    pruning = _torch_pruning()

    def attempt(rate: float) -> Attempt:
        net, clock = _restricted(original, task).train(), Clock(task.device)
        taken = 0
        with clock:
            cutter, before = _TaylorCutter(pruning, net, task.train.inputs[:2]), net
            while cutter.weights > task.weights:
                before = copy.deepcopy(net)
                if not cutter.cut(task):
                    break
                _train(net, task, effort, rate=rate, steps=effort.between, seed=taken)
                taken += effort.between
        nearest = min(net, before, key=lambda each: abs(log(weights_of(each) / task.weights)))
        return _finished(nearest, task, effort, clock, rate=rate, taken=taken)

    return min(attempt(rate) for rate in effort.rates)


def bc_io_gnj(model: bhc.Compressor, train: Split, task: Task, effort: Effort) -> Attempt:
    """Bayesian compression for this context alone, cut to our ratio.

    Its schedule needs to know its length beforehand. So ever longer ones are tried, each from the start, and the time
    is that of the first that comes up to the task, not of all. ``train`` has images of all classes; those of the
    context are drawn from it.
    """
    ratio = model.network.num_weights / task.weights
    for steps in _doubling(effort.limit):
        draw = BatchSource.of(train, model.network.num_classes, device=task.device, seed=0)
        attempt = _bayesian_attempt(model, draw, task, effort, steps=steps, ratio=ratio)
        if attempt.reached:
            break
    return attempt


def _bayesian_attempt(
    model: bhc.Compressor, draw: BatchSource, task: Task, effort: Effort, *, steps: int, ratio: float
) -> Attempt:
    network, clock = model.network, Clock(task.device)
    space, learning = bhc.SingleContext(task.classes), ceil(LEARNING * steps)
    recipe = (
        bhc.Learn(steps=learning, kl_weight=effort.kl_weight, contexts=1, examples=effort.batch),
        bhc.Consolidate(steps=steps - learning, ratios=ratios_around(ratio), contexts=1, examples=effort.batch),
    )
    with clock:
        example = torch.zeros(1, *network.input_shape, dtype=torch.uint8)
        single = bhc.wrap(
            network.base_model, space, example_input=example, std_limits=network.design.std_limits, family="io-gnj"
        ).network.to(task.device)
        context = space.resolve({})
        batch = ContextBatch.of([context], network.num_classes).to(task.device)
        taken = 0
        for stage in recipe:
            resolved = stage.resolved(single, batch)
            resolved.prepare_(single)
            step = make_step(resolved, single, draw)
            for _ in range(stage.steps):
                if isinstance(draw.noise, bhc.posterior.PooledNoise):
                    draw.noise.advance(taken)
                step()
                taken += 1
        cutter = Cutter(single, context)
        plan = cutter.cut(threshold_for(single, batch, ratio))
        net = assemble(single, plan, Slimmer(cutter.scales).layers(plan)).to(task.device)
    return task.attempt(net, seconds=clock.seconds, steps=steps)


def weights_of(net: nn.Module) -> int:
    """Biases are not counted, as in a pruning ratio."""
    return sum(module.weight.numel() for module in net.modules() if is_weighted(module))


def _finished(net: nn.Module, task: Task, effort: Effort, clock: Clock, *, rate: float, taken: int) -> Attempt:
    """Train on until the task is solved or the limit is hit."""
    optimizer = torch.optim.Adam(net.parameters(), lr=rate)
    attempt = task.attempt(net, seconds=clock.seconds, steps=taken)
    while not attempt.reached and taken < effort.limit:
        steps = min(effort.every, effort.limit - taken)
        with clock:
            _train(net, task, effort, rate=rate, steps=steps, seed=taken, optimizer=optimizer)
        taken += steps
        attempt = task.attempt(net, seconds=clock.seconds, steps=taken)
    return attempt


def _train(
    net: nn.Module,
    task: Task,
    effort: Effort,
    *,
    rate: float,
    steps: int,
    seed: int,
    optimizer: torch.optim.Optimizer | None = None,
) -> None:
    optimizer = optimizer or torch.optim.Adam(net.parameters(), lr=rate)
    draws = Generator(task.device).manual_seed(seed)
    net.train()
    for _ in range(steps):
        chosen = torch.randint(len(task.train), (effort.batch,), generator=draws, device=task.device)
        loss = F.cross_entropy(net(task.train.inputs[chosen]), task.train.labels[chosen])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()


class _TaylorCutter:
    """Cuts a chain by torch-pruning's dependency graph and importance, all units ranked together."""

    def __init__(self, pruning: Any, net: nn.Sequential, images: Tensor) -> None:
        self.pruning, self.net = pruning, net
        self.layers = [module for module in net.modules() if is_weighted(module)]
        self.select = next((module for module in net.modules() if isinstance(module, Select)), None)
        self.importance = pruning.importance.TaylorImportance()
        self.graph = pruning.DependencyGraph().build_dependency(net, example_inputs=images)

    @property
    def weights(self) -> int:
        return weights_of(self.net)

    def cut(self, task: Task) -> bool:
        """Let the least important go; whether any could."""
        self.net.zero_grad()
        images, labels = task.train.inputs[:TAYLOR_IMAGES], task.train.labels[:TAYLOR_IMAGES]
        F.cross_entropy(self.net(images), labels).backward()
        groups = list(self._groups())
        scores = [self.importance(group).cpu() for group in groups]
        ranked = sorted(
            (float(score), place, unit)
            for place, each in enumerate(scores)
            for unit, score in enumerate(each / each.mean())
        )
        count = 1 if self.weights < NEAR * task.weights else max(1, int(PART * len(ranked)))
        going: dict[int, list[int]] = {}
        for _, place, unit in ranked:
            units = going.setdefault(place, [])
            if len(units) < len(scores[place]) - 1 and sum(map(len, going.values())) < count:
                units.append(unit)
        for place, units in going.items():
            if units:
                self._remove(groups[place], sorted(units))
        return any(going.values())

    def _groups(self) -> Iterator[Any]:
        yield from self.graph.get_all_groups(ignored_layers=[self.layers[-1]])
        if self.select is not None:
            every = list(range(len(self.select.index)))
            yield self.graph.get_pruning_group(self.layers[0], self.pruning.prune_linear_in_channels, every)

    def _remove(self, group: Any, units: list[int]) -> None:
        root, prune = group[0].dep.target.module, group[0].dep.handler
        self.graph.get_pruning_group(root, prune, units).prune()
        if prune == self.pruning.prune_linear_in_channels and self.select is not None:
            kept = torch.ones(len(self.select.index), dtype=torch.bool)
            kept[units] = False
            self.select.index = self.select.index[kept.to(self.select.index.device)]


def _restricted(original: nn.Sequential, task: Task) -> nn.Sequential:
    """The pretrained network with the outputs of the context's classes, and a choice of pixels that can be cut."""
    steps = dict(copy.deepcopy(original).named_children())
    names = [name for name, module in steps.items() if is_weighted(module)]
    first, last = steps[names[0]], steps[names[-1]]
    chosen = list(task.classes)
    last.weight, last.bias = nn.Parameter(last.weight[chosen]), nn.Parameter(last.bias[chosen])
    last.out_features = len(chosen)
    ordered: dict[str, nn.Module] = {}
    for name, module in steps.items():
        if module is first and isinstance(first, nn.Linear):
            ordered["select"] = Select(torch.arange(first.in_features))
        ordered[name] = module
    return bhc.models.networks.named(**ordered).to(task.device).requires_grad_(True)


def _torch_pruning() -> Any:
    try:
        import torch_pruning
    except ImportError as error:
        raise bhc.BhcError(
            "torch-pruning is not installed, which this benchmark compares with",
            hint="pip install -e '.[benchmarks]', or leave it out: --without torch-pruning",
        ) from error
    return torch_pruning


def _doubling(limit: int) -> Iterator[int]:
    steps = min(250, limit)
    while steps < limit:
        yield steps
        steps *= 2
    yield limit


def _numbered(split: Split, classes: Sequence[int], device: torch.device) -> Split:
    """The context's images, labelled by the place of their class."""
    own = split.restricted_to(classes)
    return Split(own.inputs.to(device), torch.searchsorted(torch.tensor(sorted(classes)), own.labels).to(device))
