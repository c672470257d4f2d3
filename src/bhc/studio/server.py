"""The socket, the processes behind it, and how they end."""

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from bhc.errors import BhcError
from bhc.studio.app import Settings, build_app
from bhc.studio.gate import LARGEST_HEAD
from bhc.studio.workers import Manner, Workers

HEADER_SECONDS = 10.0  # until the head of a request has arrived
KEEP_ALIVE_SECONDS = 15
CONNECTIONS = 512
BACKLOG = 512


@dataclass(frozen=True)
class Place:
    """Where to listen."""

    host: str = "127.0.0.1"
    port: int = 8765

    def open(self) -> socket.socket:
        """The listening socket."""
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


class HurriedProtocol(HttpToolsProtocol):
    """HTTP/1.1 with clients that may not take for ever to say what they want, nor say too much before they do."""

    patience: asyncio.TimerHandle | None = None
    around = 0  # bytes since the last that were content: of a head, or of whatever follows a body

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._wait()

    def data_received(self, data: bytes) -> None:
        self.around += len(data)
        super().data_received(data)
        if self.transport.is_closing():
            return
        if self.around > LARGEST_HEAD:
            self._end_what_goes_on()
        elif self.asked:
            self._stop_waiting()
        else:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_body(self, body: bytes) -> None:
        self.around = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.around = 0
        super().on_message_complete()

    @property
    def asked(self) -> bool:
        """Whether there is a request that is not answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _end_what_goes_on(self) -> None:
        if self.asked:
            self.transport.abort()
        else:
            self.send_400_response(f"The head of a request has at most {LARGEST_HEAD:,} bytes.")

    def _wait(self) -> None:
        if self.patience is None:
            self.patience = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self.patience is not None:
            self.patience.cancel()
            self.patience = None


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
class Plan:
    """A service to be started."""

    run: Path
    place: Place = field(default_factory=Place)
    manner: Manner = field(default_factory=Manner)
    settings: Settings = field(default_factory=Settings)


def serve(plan: Plan, ready: Callable[[str], None]) -> None:
    """Serve until a signal; ``ready`` is told the address once requests are answered."""
    asyncio.run(_serve(plan, ready))


async def _serve(plan: Plan, ready: Callable[[str], None]) -> None:
    listening = plan.place.open()
    workers = Workers(plan.run, plan.manner)
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
            limit_concurrency=CONNECTIONS,
        )
        host, port = listening.getsockname()[:2]
        ready(f"http://{f'[{host}]' if ':' in host else host}:{port}")
        await QuietServer(config).serve(sockets=[listening])
    finally:
        listening.close()
        await workers.close()
