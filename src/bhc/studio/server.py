"""The socket, the processes behind it, and how they end."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from bhc.errors import BhcError
from bhc.studio.app import Settings, build_app
from bhc.studio.middleware import LARGEST_HEAD
from bhc.studio.workers import WorkerConfig, Workers

HEADER_SECONDS = 10.0  # until the head of a request has arrived
READING_SECONDS = 30.0  # that a client may leave what it was told unread
KEEP_ALIVE_SECONDS = 15
CONNECTIONS = 512
BACKLOG = 512


@dataclass(frozen=True)
class Address:
    host: str = "127.0.0.1"
    port: int = 8765

    def open(self) -> socket.socket:
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        listening = socket.socket(family, socket.SOCK_STREAM)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((self.host, self.port))
            listening.listen(BACKLOG)
        except (OSError, OverflowError) as error:
            listening.close()
            raise BhcError(
                f"cannot listen on {self.host}, port {self.port}: {getattr(error, 'strerror', None) or error}",
                hint="choose another --port (0 takes a free one) or --host",
            ) from error
        return listening


class HurriedProtocol(H11Protocol):
    """HTTP/1.1 with clients that may not take for ever to say what they want, nor to read what they are told."""

    patience: asyncio.TimerHandle | None = None
    unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._mind()

    def resume_writing(self) -> None:
        self._stop_minding()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        self._hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_minding()
        super().connection_lost(exc)

    def _wait(self) -> None:
        """Begin to wait for a head, or end it where it is there."""
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self.patience is None:
            self.patience = self.loop.call_later(HEADER_SECONDS, self._hang_up)

    def _stop_waiting(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None

    def _hang_up(self) -> None:
        if not self.transport.is_closing():
            self.transport.close()
            self._mind()

    def _mind(self) -> None:
        """Wait for what was written to be read, but not for ever: closing alone would."""
        self.unread = self.unread or self.loop.call_later(READING_SECONDS, self.transport.abort)

    def _stop_minding(self) -> None:
        if self.unread is not None:
            self.unread.cancel()
            self.unread = None


class QuietServer(uvicorn.Server):
    """A server that ends when it is told to, and says no more than that: requests that run are finished."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        numbers = (signal.SIGINT, signal.SIGTERM)
        before = {number: signal.signal(number, self.handle_exit) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


@dataclass(frozen=True)
class ServerConfig:
    run: Path
    place: Address = field(default_factory=Address)
    config: WorkerConfig = field(default_factory=WorkerConfig)
    settings: Settings = field(default_factory=Settings)


def serve(plan: ServerConfig, ready: Callable[[str], None]) -> None:
    """Serve until a signal; ``ready`` is told the address once requests are answered."""
    asyncio.run(_serve(plan, ready))


async def _serve(plan: ServerConfig, ready: Callable[[str], None]) -> None:
    listening = plan.place.open()
    workers = Workers(plan.run, plan.config)
    try:
        await workers.start()
        config = uvicorn.Config(
            build_app(workers, plan.settings),
            http=HurriedProtocol,
            ws="none",
            lifespan="off",
            log_level="error",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=ceil(plan.config.time_limit + READING_SECONDS),
            limit_concurrency=CONNECTIONS,
            h11_max_incomplete_event_size=LARGEST_HEAD,
        )
        host, port = listening.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await QuietServer(config).serve(sockets=[listening])
    finally:
        listening.close()
        await workers.close()
