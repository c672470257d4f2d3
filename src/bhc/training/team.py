"""The processes that train one model together: what they share, and what each does by itself.

A ``Team`` of one needs nothing but torch. More run on Lightning Fabric, which is imported only then.
"""

import atexit
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from bhc.errors import BhcError

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
