"""What every request passes before it is looked at: who asks, how much is sent, how long that takes; and its counters.

Whatever goes wrong is answered in one form, ``{"error": ..., "hint": ...}``, and never with a trace. Counters have the
text form that Prometheus reads. One process speaks HTTP, so its counters are those of all.
"""

import asyncio
import hmac
import os
import sys
import time
import traceback
import uuid
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from bhc.errors import BhcError
from bhc.studio import schemas
from bhc.studio.workers import Busy, TookTooLong, WorkerFault

EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds


class Metrics:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.networks: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(EDGES) + 1))

    def note(self, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self.requests[route, status] += 1
        self.seconds[route] += seconds
        self.buckets[route][bisect_left(EDGES, seconds)] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]], processes: Mapping[str, int | None]) -> str:
        """Everything, with ``gauges`` (help and value by name) and the processes that are measured."""
        lines = [
            *_family("bhc_requests_total", "counter", "Requests by route and status."),
            *(
                f'bhc_requests_total{{route="{route}",status="{status}"}} {count}'
                for (route, status), count in sorted(self.requests.items())
            ),
            *_family("bhc_request_seconds", "histogram", "Time from a request to its answer."),
            *(line for route in sorted(self.buckets) for line in self._histogram(route)),
            *_family("bhc_networks_total", "counter", "Networks handed out, by format."),
            *(f'bhc_networks_total{{format="{form}"}} {n}' for form, n in sorted(self.networks.items())),
            *_family("bhc_cache_total", "counter", "Looks into the cache, by what was found."),
            *(f'bhc_cache_total{{result="{result}"}} {self.cached[result]}' for result in ("hit", "miss")),
        ]
        for name, (meaning, value) in gauges.items():
            lines += [*_family(name, "counter" if name.endswith("_total") else "gauge", meaning), f"{name} {value:g}"]
        for name, (kind, meaning, measure) in MEASURES.items():
            lines += _family(name, kind, meaning)
            for process, number in processes.items():
                measured = None if number is None else measure(number)
                if measured is not None:
                    lines.append(f'{name}{{process="{process}"}} {measured}')
        return "\n".join(lines) + "\n"

    def _histogram(self, route: str) -> list[str]:
        total, lines = 0, []
        for edge, count in zip([*map(str, EDGES), "+Inf"], self.buckets[route], strict=True):
            total += count
            lines.append(f'bhc_request_seconds_bucket{{route="{route}",le="{edge}"}} {total}')
        return [
            *lines,
            f'bhc_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}',
            f'bhc_request_seconds_count{{route="{route}"}} {total}',
        ]


def resident_bytes(process: int) -> int | None:
    """Memory of a process; None where the system does not say."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def cpu_seconds(process: int) -> float | None:
    """CPU time that a process has used; None where the system does not say."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


MEASURES: dict[str, tuple[str, str, Callable[[int], float | None]]] = {
    "bhc_resident_bytes": ("gauge", "Resident memory by process.", resident_bytes),
    "bhc_cpu_seconds_total": ("counter", "CPU time by process.", cpu_seconds),
}


def _family(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

USUAL = 'send a JSON object, such as {"classes": [3, 4]}, with Content-Type: application/json'
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

    @property
    def response(self) -> JSONResponse:
        return JSONResponse(self.body, self.status, self.headers)


class Gate:
    def __init__(self, app: App, limits: RequestLimits, metrics: Metrics, token: str | None = None) -> None:
        self.app, self.limits, self.metrics, self.token = app, limits, metrics, token
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
            if sum(len(name) + len(value) for name, value in scope["headers"]) > LARGEST_HEAD:
                raise Refusal(431, f"the head of the request has more than {LARGEST_HEAD:,} bytes", connection="close")
            self._check_token(scope)
            await self._read(scope, receive, body)
            await self.app(scope, _replay(bytes(body), receive), noting)
        except Refusal as refusal:
            await refusal.response(scope, receive, noting)
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
        limit = self.limits.upload if scope["path"] == UPLOADS else self.limits.body
        length = dict(scope["headers"]).get(b"content-length", b"0")
        if length.isdigit() and int(length) > limit:
            raise _too_much(limit)
        try:
            async with asyncio.timeout(self.limits.seconds):
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
            late = f"the request did not arrive within {self.limits.seconds:g} s"
            raise Refusal(408, late, "send it faster", connection="close") from None


def _too_much(limit: int) -> Refusal:
    hint = "send less, or start the service with a higher limit"
    return Refusal(413, f"the request has more than {limit:,} bytes", hint, connection="close")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body that was read, then whatever comes after it."""
    replayed = False

    async def again() -> Message:
        nonlocal replayed
        if replayed:
            return await receive()
        replayed = True
        return {"type": "http.request", "body": body, "more_body": False}

    return again


def answer_errors(app: FastAPI) -> None:
    answers: dict[type[Exception], Callable[[Request, Any], Response]] = {
        BhcError: lambda _, error: _problem(422, error.problem, error.hint),
        Refusal: lambda _, refusal: refusal.response,
        RequestValidationError: lambda _, error: _problem(422, *_in_words(error)),
        HTTPException: _no_route,
        Busy: lambda *_: _problem(429, "too many requests are waiting", "try again in a moment", {"Retry-After": "1"}),
        TookTooLong: lambda *_: _problem(
            504, "this took longer than a request may", "loosen the limits, or give a threshold"
        ),
        WorkerFault: lambda _, error: _fault(str(error)),
        Exception: lambda _, error: _fault("".join(traceback.format_exception(error))),
    }
    for kind, make in answers.items():
        app.add_exception_handler(kind, _handler(make))


def _handler(make: Callable[[Request, Any], Response]) -> Callable[[Request, Exception], Awaitable[Response]]:
    async def handle(request: Request, error: Exception) -> Response:
        return make(request, error)

    return handle


def _problem(status: int, error: str, hint: str = "", headers: dict[str, str] | None = None) -> Response:
    return JSONResponse({"error": error, "hint": hint}, status, headers)


def _fault(trace: str) -> Response:
    """An answer without what went wrong; the log has it, under the same name."""
    name = uuid.uuid4().hex[:12]
    sys.stderr.write(f"fault {name}\n{trace.rstrip()}\n")
    sys.stderr.flush()
    hint = "nothing is wrong with the request; the service's log says more under this id"
    return JSONResponse({"error": "the service failed", "hint": hint, "id": name}, 500)


def _no_route(request: Request, error: HTTPException) -> Response:
    texts = {
        404: (f"there is nothing at {request.url.path[:200]}", "GET /docs lists what there is"),
        405: (f"{request.method} is not for {request.url.path[:200]}", "GET /docs says what is"),
    }
    return _problem(
        error.status_code, *texts.get(error.status_code, (str(error.detail), USUAL)), dict(error.headers or {})
    )


def _in_words(error: RequestValidationError) -> tuple[str, str]:
    """The first thing that is wrong with a body's form; its values are checked elsewhere."""
    first: dict[str, Any] = error.errors()[0]
    place = [str(part) for part in first["loc"] if part not in ("body", "path", "query", "header")]
    match first["type"]:
        case "json_invalid":
            return f"the body is not JSON: {first.get('ctx', {}).get('error', '')}".rstrip(": "), USUAL
        case schemas.REFUSED:
            return first["ctx"]["problem"], first["ctx"]["hint"]
        case _ if not place:
            return "the body is not a JSON object", USUAL
        case "missing":
            return f"the request lacks {'.'.join(place)}", "GET /docs says what it takes"
    return f"{'.'.join(place)}: {first['msg']}", "GET /docs says what it takes"
