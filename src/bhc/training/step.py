"""One optimiser step: run as it is, or captured once as a CUDA graph and replayed from then on.

Small networks on a GPU are bound by launching kernels, not by computing; a replay launches them all at once. For
that a step must never wait for the device: contexts and examples are drawn there, rates and warmth are numbers that
live there, gradients that are too large are cut there, and a step where they are not finite is undone there.
"""

import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from math import exp, log

import torch
from torch import Tensor, nn
from torch.optim import Adam

from bhc.errors import warn
from bhc.hypernet import ConditionalNetwork
from bhc.training import optimiser
from bhc.training.batches import BatchSource
from bhc.training.config import ALONE, Team, TrainingConfig
from bhc.training.optimiser import PiecewiseAdam, SideBySide
from bhc.training.stages import Stage, StepScalars

LANES = 8  # streams that a captured step is spread over
WARM_UP = 3  # real steps before the capture: libraries set themselves up in them

LARGEST = 5.0  # norm of a step's gradients, in usual ones
LATEST = 100  # steps that tell what is usual
TINY = 1e-30  # what has no gradients has a logarithm too

Terms = dict[str, Tensor]


class CaptureWarning(UserWarning):
    """A step could not be captured and runs kernel by kernel."""


class SpikeLimit:
    """Cuts gradients down, all by one factor, to ``LARGEST`` times their usual norm.

    Noise that multiplies through the layers has heavy tails: now and then a draw gives gradients thousands of times as
    large as the others. Adam moves no farther for it at once, but its second moments remember such a step for a
    thousand others, in which everything drifts and nothing is learned; the draws get worse, and training is lost.

    Usual is the geometric mean over the latest steps, as they were cut: a single spike hardly moves it. The first
    ``LATEST`` steps of a stage tell what is usual and are never cut.
    """

    def __init__(self, device: torch.device) -> None:
        self._seen = torch.zeros((), device=device)  # norms that were finite
        self._log = torch.zeros((), device=device)  # of the usual norm

    @property
    def usual(self) -> float:
        """The usual norm; waits for the device."""
        return exp(float(self._log))

    def state(self) -> tuple[float, float]:
        """What it has to know to go on; waits for the device."""
        return float(self._seen), float(self._log)

    def restore_(self, state: Sequence[float]) -> None:
        seen, logarithm = state
        self._seen.fill_(seen)
        self._log.fill_(logarithm)

    def divisor(self, norm: Tensor, finite: Tensor) -> Tensor:
        """What to divide gradients of this norm by: 1 for nearly all. One that is not ``finite`` tells nothing."""
        limit = (self._log + log(LARGEST)).where(self._seen >= LATEST, torch.inf)  # a logarithm, too
        divisor = (norm / limit.exp()).where(finite, 1.0).clamp(min=1)
        logarithm = norm.clamp(min=TINY).log().minimum(limit).nan_to_num(nan=0, posinf=0)
        self._seen.add_(finite)
        self._log.lerp_(logarithm, finite / self._seen.clamp(1, LATEST))
        return divisor


class NoLimit(SpikeLimit):
    """Gradients as they are. Without noise the large ones are those of examples that are still wrong: most of what is
    left to learn. LeNet-5-Caffe for pairs has five times the usual in one of sixty steps of consolidation.
    """

    def divisor(self, norm: Tensor, finite: Tensor) -> Tensor:
        return torch.ones_like(norm)


def gradient_norm(optimizer: torch.optim.Optimizer) -> Tensor:
    """That of all gradients together, infinite or no number where one of them is; stays on the device."""
    gradients = [p.grad for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    norms = torch.stack(torch._foreach_norm(gradients))
    return torch.linalg.vector_norm(norms, dtype=torch.float64).float()  # squares can be too large for less


class Schedule:
    """Warmth and rates of every step of a stage as a table on the device, and a counter that walks along it."""

    def __init__(self, stage: Stage, rates: list[float], device: torch.device, *, rising: int = 0) -> None:
        """The rates rise over the first ``rising`` steps."""
        rows = [
            [stage.warmth(step), stage.rate_factor(step) * min(1.0, (step + 1) / (rising + 1))]
            for step in range(stage.steps)
        ]
        self._table = torch.tensor(rows, dtype=torch.float32, device=device)
        self._base = torch.tensor(rates, dtype=torch.float32, device=device)
        self._next = torch.zeros(1, dtype=torch.long, device=device)
        self.rates = self._base.clone()  # of each group in the step that was begun last, (G,)

    def go_to(self, step: int) -> None:
        self._next.fill_(step)

    def advance(self) -> Tensor:
        """Begin the next step; returns its warmth, ()."""
        warmth, factor = self._table.index_select(0, self._next)[0]
        self._next.add_(1)
        torch.mul(self._base, factor, out=self.rates)
        return warmth


class StageLoss(nn.Module):
    """A stage's loss as a module, for a team to compute together: gradients of its parameters are averaged."""

    def __init__(
        self, stage: Stage, network: ConditionalNetwork, draw: BatchSource, learned: Iterable[nn.Parameter]
    ) -> None:
        super().__init__()
        self.learned = nn.ParameterList(learned)
        # In a tuple, which torch does not look into: what stays as it is needs no averaging.
        self._parts = stage, network, draw

    def forward(self, warmth: Tensor, dropped_fraction: Tensor) -> tuple[Tensor, Terms]:
        stage, network, draw = self._parts
        loss = stage.loss(network, draw, StepScalars(warmth, dropped_fraction))
        return loss.total, {name: term.detach() for name, term in loss.terms.items()}


class TrainingStep:
    """Draw, loss, gradients, update. Where there is noise, gradients far larger than usual are cut down; a step with
    some that are not finite changes nothing and is counted.

    In a team gradients are means over its processes by then: what is not finite in one is not finite in any.
    """

    adam: type[Adam] = Adam

    def __init__(
        self,
        stage: Stage,
        network: ConditionalNetwork,
        draw: BatchSource,
        config: TrainingConfig,
        *,
        first: int = 0,
        team: Team = ALONE,
    ) -> None:
        with network.bayesian.computing_in(config.autocast):
            draw = stage.equipped(network, draw)
        self.stage, self.network, self.draw, self.config = stage, network, draw, config
        self._first = first
        device = network.device
        groups = stage.parameter_groups(network)
        self._schedule = Schedule(
            stage, [group["lr"] for group in groups], device, rising=optimiser.rising_steps(network)
        )
        self._schedule.go_to(first)
        # Rates as tensors, so that a captured step reads what they are by then.
        self.optimizer = self.adam(
            [group | {"lr": rate} for group, rate in zip(groups, self._schedule.rates, strict=True)],
            fused=True,
            capturable=device.type == "cuda",
        )
        self._loss = team.together(StageLoss(stage, network, draw, [p for group in groups for p in group["params"]]))
        self.limit = SpikeLimit(device) if stage.noisy else NoLimit(device)
        self._dropped_fraction = torch.zeros((), device=device)
        self._skipped = torch.zeros((), device=device)
        self._skipped_in_a_row = torch.zeros((), device=device)
        self._begin()

    def _begin(self) -> None:
        """What a way of taking steps needs beside this."""

    def __call__(self) -> Terms:
        """Take the next step of the stage; returns the terms of its loss."""
        return self._run()

    def leave_out(self, part: float) -> None:
        """From now on so large a part of the units is gone, in stages that narrow."""
        self._dropped_fraction.fill_(part)

    def skipped(self) -> tuple[int, int]:
        """Steps skipped so far, and how many of them were the latest; waits for the device."""
        return int(self._skipped), int(self._skipped_in_a_row)

    def _run(self) -> Terms:
        warmth = self._schedule.advance()
        with self.network.bayesian.computing_in(self.config.autocast):
            loss, terms = self._loss(warmth, self._dropped_fraction)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        norm = gradient_norm(self.optimizer)
        finite = norm < torch.inf
        bad = (~finite).float()
        # The fused optimiser divides by the one and leaves everything as it is where the other is 1: gradient scaling
        # has it do so.
        self.optimizer.grad_scale = self.limit.divisor(norm, finite)  # type: ignore[attr-defined]
        self.optimizer.found_inf = bad  # type: ignore[attr-defined]
        self.optimizer.step()
        self.network.hypernet.clip_()
        self._skipped.add_(bad)
        self._skipped_in_a_row.add_(bad).mul_(bad)
        return terms


class CapturedStep(TrainingStep):
    """The same step as one CUDA graph; falls back to launching kernels where something in it cannot be captured."""

    adam = PiecewiseAdam

    def _begin(self) -> None:
        self._device = self.network.device
        self._side = torch.cuda.Stream(self._device)
        self._others = [torch.cuda.Stream(self._device) for _ in range(LANES - 1)]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._terms: Terms = {}
        self._taken = 0
        self._take: Callable[[], Terms] = self._warm_up

    def __call__(self) -> Terms:
        with torch.cuda.device(self._device):
            return self._take()

    def _warm_up(self) -> Terms:
        self._taken += 1
        if self._taken > WARM_UP:
            return self._capture_and_take()
        side = self._side
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            # The last one as it will be captured: libraries set themselves up for each stream.
            terms = self._run_side_by_side() if self._taken == WARM_UP else self._run()
        torch.cuda.current_stream().wait_stream(side)
        return terms

    def _run_side_by_side(self) -> Terms:
        with SideBySide(self._others):
            return self._run()

    def _capture_and_take(self) -> Terms:
        generators = [rng for rng in self.draw.generators.values() if rng.device.type == "cuda"]
        untouched = [rng.clone_state() for rng in generators]
        graph = torch.cuda.CUDAGraph()
        try:
            for rng in generators:
                graph.register_generator_state(rng)
            # What other threads do on the GPU meanwhile is no part of it, unless they capture too: then one falls back.
            with (
                keeping_garbage(),
                torch.cuda.graph(graph, stream=self._side, capture_error_mode="thread_local"),
            ):
                self._terms = self._run_side_by_side()
        except RuntimeError as error:
            for rng, state in zip(generators, untouched, strict=True):
                rng.graphsafe_set_state(state)
            self._schedule.go_to(self._first + WARM_UP)
            reason = str(error).splitlines()[0]
            warn(f"training runs kernel by kernel: {reason}", CaptureWarning)
            self._take = self._run
            return self._run()
        self._graph = graph
        self._take = self._replay
        return self._replay()

    def _replay(self) -> Terms:
        assert self._graph is not None
        self._graph.replay()
        return self._terms


@contextmanager
def keeping_garbage() -> Iterator[None]:
    """Among it may be the graph of an earlier step, and none can be taken apart while another is captured."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def make_step(
    stage: Stage,
    network: ConditionalNetwork,
    draw: BatchSource,
    config: TrainingConfig | None = None,
    *,
    first: int = 0,
    team: Team = ALONE,
) -> TrainingStep:
    """The steps of a stage from number ``first`` on: captured where that is wanted, on a GPU, by one process."""
    config = config or TrainingConfig()
    captured = config.capture and network.device.type == "cuda" and team.size == 1 and draw.is_in_memory
    kind = CapturedStep if captured else TrainingStep
    return kind(stage, network, draw, config, first=first, team=team)
