"""Starting the processes that train one model together, watching over them, and bringing the model back.

Each process is told its place as torchrun would tell it, gets network and data as they are here, and trains. Here
its progress and warnings are shown. When one ends before its time, the others are ended too.
"""

import os
import signal
import socket
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch import multiprocessing as mp
from torch.multiprocessing.spawn import start_processes

from bhc.errors import BhcError, warn
from bhc.hypernet import ConditionalNetwork
from bhc.plugins import import_plugins
from bhc.tasks import Task
from bhc.training.config import (
    ALONE,
    LostContact,
    Team,
    TrainingConfig,
    TrainingSets,
    computing,
    configure_process,
    joined,
    require_fabric,
    team_size,
)
from bhc.training.loop import train
from bhc.training.progress import Progress, Silent
from bhc.training.run import RunFolder, TrainedModel, load_network_, load_run, save_run

NODES_ENVIRONMENT = ("MASTER_ADDR", "MASTER_PORT", "NODE_RANK")  # where the first machine is, and which one this is
LOOK_EVERY = 0.05  # seconds
LAST_WORDS = 2.0  # seconds that others have to say why they end, and to end by themselves
FAILED, LOST = 1, 3  # exit statuses of a process: an error of its own, or that of another
GO_ON = "with a run folder, --resume (resume=True) goes on from the last checkpoint"
GUARD = (
    "each process imports the script: put what it does under if __name__ == '__main__':, and classes of data sets,"
    " tasks and networks outside of that"
)

Message = tuple[str, tuple[Any, ...]]


@dataclass(frozen=True)
class Processes:
    """How many processes train one model together: ``devices`` on each of ``nodes`` machines, one a GPU."""

    devices: int = 1
    nodes: int = 1

    def __post_init__(self) -> None:
        for name in ("devices", "nodes"):
            if getattr(self, name) < 1:
                raise BhcError(f"{name} must be 1 or more, given {getattr(self, name)}")

    @property
    def size(self) -> int:
        return self.devices * self.nodes

    @property
    def holds_first(self) -> bool:
        """Whether the first of them is on this machine."""
        return self.nodes == 1 or os.environ.get("NODE_RANK", "0") == "0"

    def check(self, device: torch.device) -> None:
        """Raise if this machine cannot start its part of them."""
        require_fabric()
        if device.type not in ("cpu", "cuda"):
            raise BhcError(f"more than one process trains on cpu or cuda, given {device.type}")
        if device.type == "cuda" and self.devices > torch.cuda.device_count():
            raise BhcError(
                f"{self.devices} devices asked for, but this machine has {torch.cuda.device_count()} GPUs",
                hint="ask for as many as there are, or train on cpu",
            )
        if self.nodes > 1:
            self._check_nodes()

    def _check_nodes(self) -> None:
        missing = [name for name in NODES_ENVIRONMENT if name not in os.environ]
        hint = (
            "start the same command on each machine with MASTER_ADDR and MASTER_PORT, an address of the first and a "
            f"free port there, and NODE_RANK, 0 to {self.nodes - 1}"
        )
        if missing:
            raise BhcError(f"{self.nodes} nodes asked for, but {', '.join(missing)} is not set", hint=hint)
        for name, end in (("NODE_RANK", self.nodes), ("MASTER_PORT", 1 << 16)):
            if not (os.environ[name].isdecimal() and int(os.environ[name]) < end):
                raise BhcError(f"{name} is a number from 0 to {end - 1}, given {os.environ[name]!r}", hint=hint)

    def environments(self) -> list[dict[str, str]]:
        """What torchrun would tell each process that this machine starts."""
        node = int(os.environ["NODE_RANK"]) if self.nodes > 1 else 0
        alone = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
        place = alone if self.nodes == 1 else {name: os.environ[name] for name in alone}
        common = {"WORLD_SIZE": self.size, "LOCAL_WORLD_SIZE": self.devices, "GROUP_RANK": node}
        return [
            {name: str(value) for name, value in common.items()}
            | {"RANK": str(node * self.devices + local), "LOCAL_RANK": str(local)}
            | place
            for local in range(self.devices)
        ]


def carry_out(
    network: ConditionalNetwork, sets: TrainingSets, config: TrainingConfig, processes: Processes
) -> TrainedModel:
    """By this process alone, by it and those that torchrun started with it, or by several that are started here."""
    if team_size() > 1:
        if processes.size not in (1, team_size()):
            raise BhcError(
                f"{processes.size} processes asked for in one of {team_size()} that were started together",
                hint="leave the number of devices and nodes to torchrun",
            )
        with joined(config.device) as team:
            return train_in_team(network, sets, config, team)
    if processes.size == 1:
        return train_in_team(network, sets, config, ALONE)
    return _launch(network, sets, config, processes)


def train_in_team(network: ConditionalNetwork, sets: TrainingSets, config: TrainingConfig, team: Team) -> TrainedModel:
    """In this process, which may be one of several."""
    network.to(team.device(config.device))
    try:
        with computing(config.device, repeatable=config.deterministic):
            return train(network, sets, config, team)
    finally:
        network.to("cpu")


def _launch(
    network: ConditionalNetwork, sets: TrainingSets, config: TrainingConfig, processes: Processes
) -> TrainedModel:
    if getattr(mp.current_process(), "_inheriting", False):
        raise BhcError("a process of the team tried to start a team of its own: it ran the script again", hint=GUARD)
    processes.check(config.device)
    if config.run is not None and processes.holds_first:
        # Said here before anything is started.
        RunFolder(config.run).open(resume=config.resume, overwrite=config.overwrite)
    network.hypernet.reset_()  # what an earlier training froze is no part of what is sent
    told = replace(config, progress=Silent())
    payload = JobPayload(network.to_dict(), dict(network.state_dict()), sets, told, network.task)
    with tempfile.TemporaryDirectory(prefix="bhc-") as folder:
        _ProcessMonitor(payload, processes, Path(folder), config.progress).go()
        return load_run(Path(folder), network.task)


@dataclass(frozen=True)
class JobPayload:
    """What is sent to a process: the network as plain data and tensors, the examples, and how to train."""

    description: dict[str, Any]
    tensors: dict[str, Tensor]
    sets: TrainingSets
    config: TrainingConfig
    task: Task

    def network(self) -> ConditionalNetwork:
        network = ConditionalNetwork.from_dict(self.description, self.task)
        load_network_(network, self.tensors, gates=False, source=Path("network"), hint="")
        return network


class _ProcessMonitor:
    """Over the processes of one machine."""

    def __init__(self, payload: JobPayload, processes: Processes, result: Path, progress: Progress) -> None:
        self.progress, self.result = progress, result
        self.errors: list[BhcError] = []
        self.tracebacks: list[str] = []
        self.size = processes.size
        environments = processes.environments()
        self.ranks = [int(environment["RANK"]) for environment in environments]
        self.post: SimpleQueue[Message] = mp.get_context("spawn").SimpleQueue()
        threads = max(1, torch.get_num_threads() // processes.devices)
        self.context = start_processes(
            _take_part,
            args=(payload, environments, self.post, threads, result),
            nprocs=processes.devices,
            join=False,
            start_method="spawn",
        )

    def go(self) -> None:
        try:
            while any(process.is_alive() for process in self.context.processes):
                self._read_post()
                if any(process.exitcode for process in self.context.processes):
                    self._wait_for_last_words()
                    break
                time.sleep(LOOK_EVERY)
            self._read_post()
            self._raise_if_failed()
        except BaseException:
            self.progress.end()
            raise
        finally:
            self._end_all()

    def _read_post(self) -> None:
        receivers: dict[str, Callable[..., None]] = {
            "begin": self.progress.begin,
            "update": self.progress.update,
            "end": self.progress.end,
            "warn": warn,
            "error": lambda problem, hint: self.errors.append(BhcError(problem, hint=hint)),
            "traceback": self.tracebacks.append,
        }
        while not self.post.empty():
            kind, content = self.post.get()
            receivers[kind](*content)

    def _wait_for_last_words(self) -> None:
        """Whoever lost contact ends by itself; one that waits for a GPU may not."""
        deadline = time.monotonic() + LAST_WORDS
        while time.monotonic() < deadline and any(process.is_alive() for process in self.context.processes):
            self._read_post()
            time.sleep(LOOK_EVERY)

    def _raise_if_failed(self) -> None:
        """A process that was killed is the cause; others can only have lost contact, of which some abort."""
        ends = zip(self.ranks, self.context.processes, strict=True)
        killed = [(rank, -process.exitcode) for rank, process in ends if process.exitcode and process.exitcode < 0]
        for rank, number in sorted(killed, key=lambda end: end[1] == signal.SIGABRT):
            how = signal.Signals(number).name
            raise BhcError(f"process {rank} of {self.size} was killed ({how}); the others were ended", hint=GO_ON)
        if self.errors:
            raise self.errors[0]
        if self.tracebacks:
            raise RuntimeError(f"a process of the team failed:\n{self.tracebacks[0]}")
        for rank, process in zip(self.ranks, self.context.processes, strict=True):
            if process.exitcode not in (None, 0, LOST):
                raise BhcError(f"process {rank} of {self.size} ended with status {process.exitcode}", hint=GUARD)
        if any(process.exitcode for process in self.context.processes):
            raise BhcError("the processes lost contact with each other, or with another machine", hint=GO_ON)
        if not RunFolder(self.result).description.exists():
            raise BhcError("the processes were interrupted", hint=GO_ON)

    def _end_all(self) -> None:
        for process in self.context.processes:
            if process.is_alive():
                process.kill()  # one that waits for another does not hear anything gentler
        for process in self.context.processes:
            process.join()


class _QueuedProgress:
    """Progress that is shown where the processes were started."""

    def __init__(self, post: "SimpleQueue[Message]") -> None:
        self._post = post

    def begin(self, title: str, total: int, done: int = 0) -> None:
        self._post.put(("begin", (title, total, done)))

    def update(self, done: int, terms: dict[str, float]) -> None:
        self._post.put(("update", (done, terms)))

    def end(self) -> None:
        self._post.put(("end", ()))


def _take_part(
    local: int,
    payload: JobPayload,
    environments: list[dict[str, str]],
    post: "SimpleQueue[Message]",
    threads: int,
    result: Path,
) -> None:
    """What each process does from its start to its end."""
    os.environ.update(environments[local])
    torch.set_num_threads(threads)
    configure_process()
    import_plugins()
    warnings.showwarning = lambda warning, *place, **more: post.put(("warn", (warning,)))
    try:
        config = replace(payload.config, progress=_QueuedProgress(post))
        with joined(config.device) as team:
            if not team.first:
                warnings.simplefilter("ignore")
            model = train_in_team(payload.network(), payload.sets, config, team)
            if local == 0:
                save_run(RunFolder(result), model)
    except LostContact:
        sys.exit(LOST)
    except BhcError as error:
        post.put(("error", (error.problem, error.hint)))
        sys.exit(FAILED)
    except Exception:
        post.put(("traceback", (traceback.format_exc(),)))
        sys.exit(FAILED)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])
