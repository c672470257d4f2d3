"""Worker processes: what each does, the queue before them, and what becomes of those that die.

A process that emits is a model, a pipe, and one request after the other. What goes through the pipe comes from this
program's own processes alone. HTTP stays on the other side, so that a worker may be stopped at any moment and its
request be given to the next.
"""

import asyncio
import gc
import multiprocessing
import os
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from operator import methodcaller
from pathlib import Path
from typing import Any
from zlib import crc32

import torch

from bhc.compressor import load
from bhc.errors import BhcError
from bhc.plugins import import_plugins
from bhc.studio.service import Service, named


@dataclass(frozen=True)
class Done:
    value: Any


@dataclass(frozen=True)
class Refused:
    """A request was wrong, in the words of the command line."""

    problem: str
    hint: str


@dataclass(frozen=True)
class Fault:
    """Something that should not have happened."""

    trace: str


Outcome = Done | Refused | Fault


def work(connection: Connection, run: Path) -> None:
    """Load a run, say so, and answer until the other end is closed."""
    # A signal to all processes of a group is for the first one, which lets requests finish and then closes the pipe.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    torch.set_num_threads(1)  # workers share the cores
    torch.set_flush_denormal(True)
    import_plugins()
    with suppress(EOFError, ConnectionError):
        loaded = _outcome(lambda: Service(load(run), named(run)).warmed())
        if not isinstance(loaded, Done):
            connection.send(loaded)
            return
        service: Service = loaded.value
        connection.send(_outcome(lambda: {"facts": service.facts(), "example": service.example()}))
        # What an emission leaves behind are few objects with much memory, of which the collector sees the number only:
        # it is called after each, and does not look at what was there before the first.
        gc.disable()
        modules = _at_rest()
        while True:
            task, arguments = connection.recv()
            connection.send(_outcome(methodcaller(task, *arguments), service))
            gc.collect()
            if len(sys.modules) > modules:  # a format was asked for the first time: what it imports is there to stay
                modules = _at_rest()


def _at_rest() -> int:
    """Have the collector pass over all that is there; how many modules that are."""
    gc.freeze()
    return len(sys.modules)


def _outcome(task: Callable[..., Any], *arguments: Any) -> Outcome:
    try:
        return Done(task(*arguments))
    except BhcError as error:
        return Refused(error.problem, error.hint)
    except Exception:
        return Fault(traceback.format_exc())


TRIES = 3  # a request that ends so many workers is not given to another
PATIENCE = 5.0  # seconds between attempts to start a worker that does not start


class Busy(Exception):
    """The queue is full."""


class TookTooLong(Exception):
    """A request was not answered in time."""


class WorkerFault(Exception):
    """A worker failed where it should not; the text is its trace."""


class WorkerDied(Exception):
    """A process is gone, or said nothing that makes sense."""


@dataclass(frozen=True)
class WorkerConfig:
    """How requests are taken: by how many processes, how many may wait, and for how many seconds."""

    workers: int = 1
    queue: int = 64
    time_limit: float = 30.0


class Worker:
    """A place for a process: when one is gone, another takes it."""

    def __init__(self, run: Path, context: BaseContext) -> None:
        self.run, self.context = run, context
        self.process: BaseProcess | None = None
        self.connection: Any = None
        self.restarts = -1
        self.known: dict[str, Any] = {}
        self._starting = asyncio.Lock()
        self._up = self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def alive(self) -> bool:
        return self._up and self.process is not None and self.process.is_alive()

    async def ready(self) -> None:
        """Make sure that there is a process; BhcError if it cannot load the run."""
        async with self._starting:
            if self.alive or self._closed:
                return
            self._forget()
            here, there = self.context.Pipe()
            process = self.context.Process(target=work, args=(there, self.run), daemon=True)  # type: ignore[attr-defined]
            await asyncio.to_thread(process.start)
            there.close()
            self.process, self.connection = process, here
            asyncio.get_running_loop().add_reader(process.sentinel, self._gone, process)
            try:
                self.known = self._value(await self._answer())
            except BaseException:
                self.kill()
                raise
            self._up = True
            self.restarts += 1

    async def ask(self, task: str, arguments: tuple[Any, ...]) -> Any:
        """One request, one answer. Whoever gives up waiting ends the process: nobody else would read its answer."""
        try:
            await self.ready()
        except BhcError as error:
            raise WorkerFault(f"a new worker cannot load the run: {error}") from error
        try:
            try:
                self.connection.send((task, arguments))
                outcome = await self._answer()
            except OSError as error:
                raise WorkerDied(str(error)) from error
        except BaseException:
            self.kill()
            raise
        return self._value(outcome)

    def kill(self) -> None:
        self._up = False
        if self.process is not None:
            self.process.kill()

    async def close(self) -> None:
        """Let the process end by itself."""
        self._closed = True
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            asyncio.get_running_loop().remove_reader(self.process.sentinel)
            await asyncio.to_thread(self.process.join, PATIENCE)
            self.process.kill()

    @staticmethod
    def _value(outcome: Outcome) -> Any:
        match outcome:
            case Done():
                return outcome.value
            case Refused():
                raise BhcError(outcome.problem, hint=outcome.hint)
            case Fault():
                raise WorkerFault(outcome.trace)

    async def _answer(self) -> Outcome:
        loop = asyncio.get_running_loop()
        arrived = asyncio.Event()
        number = self.connection.fileno()
        loop.add_reader(number, arrived.set)
        try:
            await arrived.wait()
            outcome: Outcome = self.connection.recv()
            return outcome
        except EOFError as error:
            raise WorkerDied("the process ended") from error
        finally:
            loop.remove_reader(number)

    def _gone(self, process: BaseProcess) -> None:
        """A process has ended: start another at once, so that the next request need not wait for it."""
        loop = asyncio.get_running_loop()
        loop.remove_reader(process.sentinel)
        if not self._closed:
            task = loop.create_task(self._again())
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _again(self) -> None:
        while not self._closed and not self.alive:
            try:
                await self.ready()
            except (BhcError, WorkerFault, WorkerDied, OSError):
                await asyncio.sleep(PATIENCE)

    def _forget(self) -> None:
        """Leave nothing of the process before."""
        if self.connection is not None:
            self.connection.close()
        if self.process is not None:
            asyncio.get_running_loop().remove_reader(self.process.sentinel)
            self.process.join()
            self.process.close()
            self.process = None


class Workers:
    """All of them: requests go to whoever is free, in the order they came."""

    def __init__(self, run: Path, config: WorkerConfig) -> None:
        methods = multiprocessing.get_all_start_methods()
        context = multiprocessing.get_context("forkserver" if "forkserver" in methods else "spawn")
        if "forkserver" in methods:
            context.set_forkserver_preload([work.__module__])
        self.config = config
        self.workers = [Worker(run, context) for _ in range(config.workers)]
        self.pending = 0  # requests that wait or are worked on
        self._free: list[Worker] = []
        self._waiting: deque[asyncio.Future[Worker]] = deque()

    @property
    def facts(self) -> dict[str, Any]:
        """What ``Service.facts`` says of the run."""
        return dict(self.workers[0].known["facts"])

    @property
    def example(self) -> dict[str, Any]:
        return dict(self.workers[0].known["example"])

    @property
    def alive(self) -> int:
        return sum(worker.alive for worker in self.workers)

    @property
    def restarts(self) -> int:
        return sum(max(worker.restarts, 0) for worker in self.workers)

    def processes(self) -> dict[str, int | None]:
        """The numbers of all processes, by what they do."""
        numbers = [None if worker.process is None else worker.process.pid for worker in self.workers]
        return {"front": os.getpid()} | {f"worker-{place}": number for place, number in enumerate(numbers)}

    async def start(self) -> None:
        """Start all; BhcError if the run cannot be loaded."""
        await asyncio.gather(*(worker.ready() for worker in self.workers))
        self._free = list(self.workers)

    async def ask(self, task: str, *arguments: Any, about: str = "") -> Any:
        """A method of ``Service``, in a worker. A request whose worker dies goes to the next.

        Requests ``about`` the same go to the same worker where it is free: it may remember.
        """
        if self.pending >= self.config.queue:
            raise Busy
        self.pending += 1
        try:
            async with asyncio.timeout(self.config.time_limit):
                for _ in range(TRIES):
                    worker = await self._take(about)
                    try:
                        return await worker.ask(task, arguments)
                    except WorkerDied:
                        continue
                    finally:
                        self._give(worker)
                raise WorkerFault(f"{task} ended {TRIES} workers")
        except TimeoutError:
            raise TookTooLong from None
        finally:
            self.pending -= 1

    async def _take(self, about: str) -> Worker:
        """A worker that is free, or the next that will be."""
        if self._free:
            usual = self.workers[crc32(about.encode()) % len(self.workers)]
            return self._free.pop(self._free.index(usual) if usual in self._free else 0)
        turn: asyncio.Future[Worker] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self._give(turn.result())
            raise

    def _give(self, worker: Worker) -> None:
        """Hand a worker to whoever has waited longest."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(worker)
                return
        self._free.append(worker)

    async def close(self) -> None:
        await asyncio.gather(*(worker.close() for worker in self.workers))
