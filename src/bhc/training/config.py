"""What a run is told: what ``bhc.fit`` was given, packed once, and the device it computes on."""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import torch

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
        if not any(stage.steps for stage in self.recipe):
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
