"""What a run is told: what ``bhc.fit`` was given, packed once; where it is and on which device it computes; and the
processes that train one model together: what they share, and what each does by itself.

A ``Team`` of one needs nothing but torch. More run on Lightning Fabric, which is imported only then.
"""

import atexit
import ctypes
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.examples import AnyVocabulary, Augmentation, Examples, Split
from bhc.hypernet import ConditionalNetwork
from bhc.training.progress import Progress, Silent
from bhc.training.run import fits_words, words_read
from bhc.training.stages import Recipe


@dataclass(frozen=True)
class TrainingSets:
    train: Examples
    validation: Examples
    calibration: Split | None = None  # put into the model and not looked at: that is what guarantees rest on


@dataclass(frozen=True)
class TrainingConfig:
    """How a run is carried out; beside the recipe, nothing here changes what is learned but seed and augmentation."""

    recipe: Recipe = ()
    seed: int = 0
    run: Path | None = None
    resume: bool = False
    overwrite: bool = False
    checkpoint_every: int = 500
    log_every: int = 50
    class_names: tuple[str, ...] | None = None
    vocabulary: AnyVocabulary | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    deterministic: bool = False
    capture: bool = True  # on a GPU: the step as one CUDA graph
    augment: Augmentation | None = None  # what is done to images before they are learned from
    autocast: torch.dtype | None = None  # of the products; None: that of the weights
    progress: Progress = field(default_factory=Silent)

    def check(self, network: ConditionalNetwork) -> None:
        """Raise if a run of this network makes no sense."""
        if not any(stage.steps or stage.looks for stage in self.recipe):
            raise BhcError("the recipe has no steps", hint="give at least one stage with steps, for example Learn()")
        for stage in self.recipe:
            stage.check(network)
        words = words_read(network)
        if self.vocabulary is not None and not fits_words(self.vocabulary, words):
            raise BhcError(
                f"a vocabulary of {len(self.vocabulary):,} words for a network that does not read just those"
            )
        if self.run is None and self.resume:
            raise BhcError("there is no run to resume: no folder was given", hint="give run=... or --out")


@dataclass
class Position:
    """Where a run is: steps in all, the stage at work and its steps, steps skipped, curves and seconds so far, the part
    of the units that a stage has let go, and how large its gradients are as a rule (``SpikeLimit.state``)."""

    step: int = 0
    stage: int = 0
    stage_step: int = 0
    skipped: int = 0
    curves: dict[str, Any] | None = None
    seconds: float = 0.0
    dropped_fraction: float | None = None
    norms: Sequence[float] = (0.0, 0.0)

    def enter(self, stage: int) -> None:
        """Begin a stage: what belongs to the one before is over."""
        self.stage, self.stage_step, self.dropped_fraction, self.norms = stage, 0, None, (0.0, 0.0)


def find_device(name: str | torch.device) -> torch.device:
    """The device of that name, if this machine has it."""
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise BhcError(
            f"cannot compute on {str(name)!r}: {reason}", hint="use cpu, or cuda where there is a GPU"
        ) from error
    return device


def describe_device(device: torch.device) -> str:
    """A device in words: what a time was measured on."""
    if device.type == "cuda":
        return f"cuda: {torch.cuda.get_device_name(device)}"
    return f"{device.type}, {torch.get_num_threads()} threads"


# Of glibc's mallopt: memory from this size on is asked of the system piece by piece, and this much that is free at
# the end of the heap is given back.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
LARGEST_PIECE, LARGEST_REST = 1 << 25, (1 << 31) - 1


def configure_process() -> None:
    """Set a process up for training on a CPU; to be called before its first parallel operation.

    Variances of pruned weights run into denormal numbers, which a CPU handles a hundred times slower: they become
    zero, in worker threads too, which inherit it. And memory that a step has freed is kept for the next, where the C
    library can be told so (glibc); by itself it gives it back and gets it again, page by page, in every step.
    """
    torch.set_flush_denormal(True)
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None:
        mallopt(MMAP_THRESHOLD, LARGEST_PIECE)
        mallopt(TRIM_THRESHOLD, LARGEST_REST)


@contextmanager
def computing(device: torch.device, *, repeatable: bool) -> Iterator[None]:
    """On CUDA: the same bits again while inside, or else the fastest convolutions. A CPU is left alone.

    Products round their inputs to ten bits behind the point (TF32), as torch has convolutions do unless told otherwise:
    beside the noise of a step that is nothing, and small ones are spared the kernels that take ten times as long. All
    these are settings of the whole process; who has chosen how products round is not overruled.
    """
    if device.type != "cuda":
        yield
        return
    exact, warned = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    search, exact_products = torch.backends.cudnn.benchmark, _exact_products()
    if exact_products:
        torch.set_float32_matmul_precision("high")
    if repeatable:
        # cuBLAS reads this when it starts, so it must be there before the first product.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = not torch.are_deterministic_algorithms_enabled()  # shapes stay the same
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(exact, warn_only=warned)
        torch.backends.cudnn.benchmark = search
        if exact_products:
            torch.set_float32_matmul_precision("highest")


def _exact_products() -> bool:
    """Whether products of float32 are exact because nobody has said otherwise."""
    try:
        return torch.get_float32_matmul_precision() == "highest"
    except RuntimeError:  # said in torch's newer way, which its older one does not read
        return False


T = TypeVar("T")

ENVIRONMENT = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what torchrun sets
SEED_STEP = 0x9E3779B1  # odd, so that ranks differ in the 32 bits that a CPU's generator takes
INSTALL = "pip install 'bhc[parallel]'"


class LostContact(BhcError):
    """Another process has ended while this one waited for it."""


class Team:
    """One process: it is the first, and all there are."""

    rank, size = 0, 1

    @property
    def first(self) -> bool:
        """Whether this is the process that decides, measures, writes and speaks."""
        return self.rank == 0

    def seed(self, seed: int) -> int:
        """This process's own; that of the first is the one given."""
        return seed + self.rank * SEED_STEP

    def device(self, kind: torch.device) -> torch.device:
        """The one this process computes on: of several GPUs each process has its own."""
        return kind

    def together(self, loss: nn.Module) -> nn.Module:
        """A module that computes a loss, such that gradients are means over all processes."""
        return loss

    def decide(self, what: Callable[[], T]) -> T:
        """Done by the first alone; all wait for it and get what it returns, or the error it raises."""
        return what()

    def share_(self, tensors: Iterable[Tensor]) -> None:
        """Give all processes the first's values."""
        return

    def mean(self, terms: dict[str, Tensor]) -> dict[str, float]:
        """Each number's mean over all processes."""
        return {name: float(term) for name, term in terms.items()}

    def gather(self, value: T) -> list[T]:
        """What each process gives, in their order."""
        return [value]


ALONE = Team()


class FabricTeam(Team):
    """One of several processes that Fabric has connected."""

    def __init__(self, fabric: Any) -> None:
        self._fabric = fabric
        self.rank, self.size = fabric.global_rank, fabric.world_size

    def device(self, kind: torch.device) -> torch.device:
        device: torch.device = self._fabric.device
        return device

    def together(self, loss: nn.Module) -> nn.Module:
        module: nn.Module = self._fabric.setup_module(loss, move_to_device=False)
        return module

    def decide(self, what: Callable[[], T]) -> T:
        result, error = None, None
        if self.first:
            try:
                result = what()
            except BhcError as raised:
                error = raised
        result, problem, hint = self._fabric.broadcast((result, error and error.problem, error and error.hint))
        if problem is not None:
            raise error or BhcError(problem, hint=hint)
        return result

    def share_(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            values = tensor.contiguous()
            torch.distributed.broadcast(values, src=0)
            tensor.copy_(values)

    def mean(self, terms: dict[str, Tensor]) -> dict[str, float]:
        values = self._fabric.all_reduce(torch.stack([term.float() for term in terms.values()]), reduce_op="mean")
        return dict(zip(terms, values.tolist(), strict=True))

    def gather(self, value: T) -> list[T]:
        values: list[Any] = [None] * self.size
        torch.distributed.all_gather_object(values, value)
        return values


def team_size() -> int:
    """How many processes were started together with this one, as torchrun does, itself included."""
    text = os.environ.get("WORLD_SIZE", "1")
    if not text.isdecimal():
        raise BhcError(f"WORLD_SIZE is a number of processes, given {text!r}", hint="unset it to train on one")
    return int(text)


def is_rank_zero() -> bool:
    """Whether this process is the first, where there is no team yet."""
    return team_size() <= 1 or os.environ.get("RANK", "0") == "0"


@contextmanager
def joined(device: torch.device) -> Iterator[Team]:
    """This process's place among those it was started with; all must get here. The environment says where."""
    missing = [name for name in ENVIRONMENT if name not in os.environ]
    if missing:
        raise BhcError(
            f"WORLD_SIZE is {os.environ.get('WORLD_SIZE')}, but {', '.join(missing)} is not set",
            hint="start with torchrun --nproc-per-node N -m bhc train ..., or with bhc train --devices N",
        )
    fabric = _connect(device)
    try:
        yield FabricTeam(fabric)
        atexit.register(_leave)
    except RuntimeError as error:
        if not (isinstance(error, torch.distributed.DistError) or "gloo" in str(error)):
            raise
        raise LostContact(
            f"process {fabric.global_rank} of {fabric.world_size} lost contact with another, which has ended",
            hint="--resume goes on from the last checkpoint",
        ) from error


def _leave() -> None:
    """Close the connections. A process that ends with some open may be ended by their threads instead (SIGABRT)."""
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def require_fabric() -> None:
    """Raise where the package that connects processes is not installed; importing it takes seconds."""
    if find_spec("lightning_fabric") is None:
        raise BhcError("training on more than one process needs lightning-fabric, which is not installed", hint=INSTALL)


def _connect(device: torch.device) -> Any:
    require_fabric()
    from lightning_fabric.fabric import Fabric
    from lightning_fabric.plugins.environments.torchelastic import TorchElasticEnvironment
    from lightning_fabric.strategies.ddp import DDPStrategy

    logging.getLogger("lightning_fabric").setLevel(logging.WARNING)
    # The steps of a stage are all alike, as a captured one has to be; parameters without a part in its loss stay so.
    strategy = DDPStrategy(cluster_environment=TorchElasticEnvironment(), static_graph=True)
    size, here = int(os.environ["WORLD_SIZE"]), int(os.environ.get("LOCAL_WORLD_SIZE", os.environ["WORLD_SIZE"]))
    if device.type == "cuda" and here > torch.cuda.device_count():
        raise BhcError(
            f"{here} processes on this machine, but it has {torch.cuda.device_count()} GPUs",
            hint="start as many processes as there are GPUs, or train on cpu",
        )
    fabric = Fabric(
        accelerator=device.type, devices=here, num_nodes=size // here, strategy=strategy, precision="32-true"
    )
    fabric.launch()
    return fabric
