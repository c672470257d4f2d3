"""The process that emits: a model, a pipe, and one request after the other.

What goes through the pipe comes from this program's own processes alone. HTTP stays on the other side, so that a worker
may be stopped at any moment and its request be given to the next.
"""

import gc
import signal
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from operator import methodcaller
from pathlib import Path
from typing import Any

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
