"""What every request passes before it is looked at: who asks, how much is sent, how long that takes.

Whatever goes wrong is answered in one form, ``{"error": ..., "hint": ...}``.
"""

import asyncio
import hmac
import json
import time
from collections.abc import Awaitable, Callable, MutableMapping
from dataclasses import dataclass
from typing import Any

from bhc.studio.metrics import Metrics

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

UPLOADS = "/v1/domains"
ASKS_A_TOKEN = ("/v1/", "/metrics")
LARGEST_HEAD = 64 << 10
RESIDENT = 256 << 20  # bytes of bodies that are held at once, all requests together
PAGE_HEADERS = [
    (b"content-security-policy", b"default-src 'self'; img-src 'self' blob: data:; frame-ancestors 'none'"),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
]


@dataclass(frozen=True)
class RequestLimits:
    """What one request may send."""

    body: int = 1 << 20  # bytes of JSON
    upload: int = 16 << 20  # bytes of samples
    samples: int = 2_000
    seconds: float = 20.0  # until all of it has arrived


class Refusal(Exception):
    """An answer other than the one that was asked for."""

    def __init__(self, status: int, error: str, hint: str = "", **headers: str) -> None:
        super().__init__(error)
        self.status, self.headers = status, {name.replace("_", "-"): value for name, value in headers.items()}
        self.body = {"error": error, "hint": hint}


class Gate:
    """The application with its guard."""

    def __init__(self, app: App, bounds: RequestLimits, metrics: Metrics, token: str | None = None) -> None:
        self.app, self.bounds, self.metrics, self.token = app, bounds, metrics, token
        self.held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.perf_counter(), 500

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), *PAGE_HEADERS]
            await send(message)

        body = bytearray()
        try:
            _check_head(scope)
            self._check_token(scope)
            await self._read(scope, receive, body)
            await self.app(scope, _replay(bytes(body), receive), noting)
        except Refusal as refusal:
            await _answer(noting, refusal)
        finally:
            self.held -= len(body)
            route = getattr(scope.get("route"), "path", "other")
            self.metrics.note(route, status, time.perf_counter() - began)

    def _check_token(self, scope: Scope) -> None:
        if self.token is None or not scope["path"].startswith(ASKS_A_TOKEN):
            return
        given = dict(scope["headers"]).get(b"authorization", b"")
        if not hmac.compare_digest(given, f"Bearer {self.token}".encode()):
            hint = "send the header Authorization: Bearer TOKEN (bhc pull --token-file)"
            raise Refusal(401, "this service asks for a token", hint, www_authenticate="Bearer")

    async def _read(self, scope: Scope, receive: Receive, body: bytearray) -> None:
        """All of the body, or a refusal as soon as it is too much or too slow."""
        limit = self.bounds.upload if scope["path"] == UPLOADS else self.bounds.body
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise _too_much(limit)
        try:
            async with asyncio.timeout(self.bounds.seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] != "http.request":
                        raise Refusal(400, "the request ended before its body did")
                    part = message.get("body", b"")
                    body += part
                    self.held += len(part)
                    more = message.get("more_body", False)
                    if len(body) > limit:
                        raise _too_much(limit)
                    if self.held > RESIDENT:
                        raise Refusal(429, "too much is being sent at once", "try again in a moment", retry_after="1")
        except TimeoutError:
            raise Refusal(
                408,
                f"the request did not arrive within {self.bounds.seconds:g} s",
                "send it faster",
                connection="close",
            ) from None


def _check_head(scope: Scope) -> None:
    if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEAD:
        raise Refusal(431, f"the head of the request has more than {LARGEST_HEAD:,} bytes", connection="close")


def _too_much(limit: int) -> Refusal:
    hint = "send less, or start the service with a higher limit"
    return Refusal(413, f"the request has more than {limit:,} bytes", hint, connection="close")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, then whatever comes after it."""
    told = False

    async def again() -> Message:
        nonlocal told
        if told:
            return await receive()
        told = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


async def _answer(send: Send, refusal: Refusal) -> None:
    body = json.dumps(refusal.body).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body))} | refusal.headers
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "http.response.body", "body": body})
