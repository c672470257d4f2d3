"""The protocol under the service: how long it waits for a request, and how much it hears before one."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest
import uvicorn
from uvicorn.server import ServerState

from bhc.studio import server
from bhc.studio.middleware import LARGEST_HEAD
from bhc.studio.server import HurriedProtocol

GET = b"GET / HTTP/1.1\r\nHost: bhc\r\n\r\n"
CHUNKED = b"POST / HTTP/1.1\r\nHost: bhc\r\nTransfer-Encoding: chunked\r\n\r\n"
SOON, PATIENCE = 0.2, 60.0  # seconds: how long the protocol waits here, and how long a test does


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answers with the number of bytes that it was sent."""
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            return
        size, more = size + len(message.get("body", b"")), message.get("more_body", False)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": f"content: {size}".encode()})


class Wire(asyncio.Transport):
    """A connection that remembers what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.closed = self.aborted = self.paused = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        return self.closed

    def pause_reading(self) -> None:
        self.paused = True

    def resume_reading(self) -> None:
        self.paused = False


@contextmanager
def called() -> Iterator[tuple[HurriedProtocol, Wire]]:
    """Somebody has connected."""
    config = uvicorn.Config(
        echo,
        log_level="critical",
        proxy_headers=False,
        lifespan="off",
        ws="none",
        h11_max_incomplete_event_size=LARGEST_HEAD,
    )
    protocol, wire = HurriedProtocol(config, ServerState(), {}), Wire()
    protocol.connection_made(wire)
    yield protocol, wire
    protocol.connection_lost(None)


async def until(what: Callable[[], bool]) -> None:
    """Wait for something to happen."""
    async with asyncio.timeout(PATIENCE):
        while not what():
            await asyncio.sleep(0.001)


def in_a_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """A test that waits for things, as pytest can call it."""

    @wraps(test)
    def run(*given: Any, **named: Any) -> None:
        asyncio.run(test(*given, **named))

    return run


@pytest.fixture
def _hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEADER_SECONDS", SOON)
    monkeypatch.setattr(server, "READING_SECONDS", SOON)


@pytest.mark.usefixtures("_hasty")
@pytest.mark.parametrize("said", [b"", b"GET / HT", GET[:-2], GET + GET[:-2]])
@in_a_loop
async def test_who_does_not_ask_is_hung_up_on(said: bytes) -> None:
    """Before a request, in the middle of its head, and after one that was answered."""
    began = time.monotonic()
    with called() as (protocol, wire):
        for byte in said:
            protocol.data_received(bytes([byte]))
            await asyncio.sleep(0)
        await until(wire.is_closing)
        assert time.monotonic() - began > 0.9 * SOON
        assert wire.written.count(b"200 OK") == said.count(GET)


@pytest.mark.usefixtures("_hasty")
@in_a_loop
async def test_who_has_asked_may_send_as_slowly_as_the_gate_allows() -> None:
    with called() as (protocol, wire):
        protocol.data_received(CHUNKED)
        protocol.data_received(b"3\r\nab")
        await asyncio.sleep(2 * SOON)
        assert not wire.closed
        protocol.data_received(b"c\r\n0\r\n\r\n")
        await until(lambda: b"content: 3" in wire.written)


@pytest.mark.parametrize(
    ("before", "piece"),
    [
        (b"GET / HTTP/1.1\r\nX-Long: ", b"x" * 4096),
        (b"GET / HTTP/1.1\r\n", b"X-Many: x\r\n" * 400),
        (b"GET /", b"x" * 4096),
        (CHUNKED + b"1\r\nx\r\n0\r\n", b"X-After: x\r\n" * 400),
        (CHUNKED + b"1\r\nx\r\n0\r\nX-After: ", b"x" * 4096),
    ],
    ids=["a header", "headers", "a path", "trailers", "a trailer"],
)
@in_a_loop
async def test_what_is_no_content_has_a_bound(before: bytes, piece: bytes) -> None:
    with called() as (protocol, wire):
        protocol.data_received(before)
        heard = 0
        while not wire.closed:
            assert heard <= 2 * LARGEST_HEAD
            protocol.data_received(piece)
            heard += len(piece)
            await asyncio.sleep(0)
        assert b"HTTP/1.1 400" in wire.written


@pytest.mark.usefixtures("_hasty")
@in_a_loop
async def test_who_does_not_read_is_cut_off() -> None:
    """In the middle of an answer; and when it is hung up on with some left to read."""
    with called() as (protocol, wire):
        protocol.pause_writing()
        await until(lambda: wire.aborted)
    with called() as (protocol, wire):
        await until(wire.is_closing)
        assert not wire.aborted
        await until(lambda: wire.aborted)
    with called() as (protocol, wire):
        protocol.data_received(CHUNKED)
        protocol.pause_writing()
        protocol.resume_writing()
        await asyncio.sleep(2 * SOON)
        assert not wire.aborted


@in_a_loop
async def test_no_more_is_read_than_is_answered() -> None:
    """A thousand requests in one piece: those that wait are bytes, and nothing was made of them yet."""
    with called() as (protocol, wire):
        protocol.data_received(GET * 1000)
        assert wire.paused
        await until(lambda: wire.written.count(b"200 OK") == 1000)
        assert not wire.paused


@in_a_loop
async def test_content_in_many_small_chunks_is_no_head() -> None:
    with called() as (protocol, wire):
        protocol.data_received(CHUNKED)
        for _ in range(LARGEST_HEAD // 2):
            protocol.data_received(b"1\r\nx\r\n")
        protocol.data_received(b"0\r\n\r\n")
        await until(lambda: f"content: {LARGEST_HEAD // 2}".encode() in wire.written)
        assert not wire.closed
