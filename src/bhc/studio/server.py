"""HTTP around the service: its routes, the socket, the processes behind it, and how they end."""

import asyncio
import base64
import json
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from pathlib import Path
from typing import Annotated, Any

import h11
import uvicorn
from fastapi import FastAPI, Header, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from fastapi.staticfiles import StaticFiles
from uvicorn.protocols.http.h11_impl import H11Protocol

from bhc.errors import BhcError
from bhc.studio.middleware import LARGEST_HEAD, Gate, Metrics, Refusal, RequestLimits, answer_errors
from bhc.studio.schemas import (
    PROBLEMS,
    SAMPLES,
    Answer,
    AnswerAsked,
    Asked,
    DomainToken,
    ExampleInput,
    ModelFacts,
    NetworkAsked,
    PreviewAnswer,
    answered,
    describe,
    files,
    page_of,
)
from bhc.studio.service import Cache, NetworkResponse, context_of, key_of
from bhc.studio.workers import WorkerConfig, Workers

PAGE = Path(__file__).parent / "page"
REMEMBERED = {"Cache-Control": "private, max-age=3600"}
CACHED = 256  # networks


@dataclass(frozen=True)
class Settings:
    """What a service is started with, beside its workers."""

    limits: RequestLimits = field(default_factory=RequestLimits)
    token: str | None = None
    cache: int = CACHED  # networks; 0 keeps none


class RequestHandler:
    """Where requests are taken and files handed out."""

    def __init__(self, workers: Workers, settings: Settings) -> None:
        self.workers, self.settings = workers, settings
        self.metrics = Metrics()
        self.cache: Cache[NetworkResponse] = Cache(settings.cache)

    async def network(self, given: Mapping[str, Any]) -> NetworkResponse:
        """The file of a request, made now or before."""
        key = key_of(given)
        known = self.cache.get(key)
        self.metrics.cached["miss" if known is None else "hit"] += 1
        if known is not None:
            return known
        response: NetworkResponse = await self.workers.ask("network", given)
        if "max_latency_ms" not in given:  # times are measured anew
            self.cache.put(key, response, len(response.content))
        return response

    async def ask(self, task: str, given: Mapping[str, Any]) -> Any:
        """What the page wants to know of a context; it will ask again."""
        return await self.workers.ask(task, given, about=key_of(context_of(given)))

    def status(self) -> str:
        """The counters."""
        gauges = {
            "bhc_pending_requests": ("Requests that wait or are worked on.", self.workers.pending),
            "bhc_queue_limit": ("How many of them there may be.", self.workers.config.queue),
            "bhc_workers": ("Worker processes that are alive.", self.workers.alive),
            "bhc_worker_restarts_total": ("Worker processes that took the place of another.", self.workers.restarts),
            "bhc_cache_networks": ("Networks in the cache.", len(self.cache)),
            "bhc_cache_bytes": ("Bytes of them.", self.cache.held),
        }
        return self.metrics.text(gauges, self.workers.processes())


def build_app(workers: Workers, settings: Settings) -> Gate:
    """The routes behind their gate. ``workers`` have been started."""
    handler = RequestHandler(workers, settings)
    app = FastAPI(
        title="bhc",
        summary="Networks cut to measure: say what one will meet, and take it home.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        responses=PROBLEMS,
    )
    answer_errors(app)
    _add_networks(app, handler)
    _add_page(app, handler)
    _add_watching(app, handler)
    app.openapi = partial(describe, app, workers.facts, workers.example)  # type: ignore[method-assign]
    app.mount("/", StaticFiles(directory=PAGE, html=True))
    return Gate(app, settings.limits, handler.metrics, settings.token)


def _add_networks(app: FastAPI, handler: RequestHandler) -> None:
    """What devices ask for."""

    @app.post("/v1/networks", response_class=Response, responses=files(), summary="A network as a file")
    async def network(asked: NetworkAsked, if_none_match: Annotated[str | None, Header()] = None) -> Response:
        """The same request gives the same bytes, unless it limits latency, which is measured.

        The report is in the header `Bhc-Report`, the SHA-256 of the content in `ETag` and `Repr-Digest`.
        """
        response = await handler.network(asked.given())
        handler.metrics.networks[asked.format] += 1
        etag = f'"{response.digest}"'
        headers = {
            "ETag": etag,
            "Repr-Digest": f"sha-256=:{base64.b64encode(bytes.fromhex(response.digest)).decode()}:",
            "Bhc-Report": json.dumps(response.report),
            "Content-Disposition": f'attachment; filename="{response.file_name}"',
        }
        if if_none_match is not None and etag in [tag.strip() for tag in if_none_match.split(",")]:
            return Response(status_code=304, headers=headers)
        return Response(response.content, media_type=response.media_type, headers=headers)

    @app.post("/v1/reports", summary="The report alone")
    async def report(asked: Asked) -> dict[str, Any]:
        """What `bhc compress --json` prints."""
        return (await handler.network(asked.given())).report

    @app.post("/v1/domains", openapi_extra=SAMPLES, summary="A context from samples")
    async def domain(request: Request) -> DomainToken:
        """A token for the kind of inputs that an uploaded `.npy` array is a sample of.

        It is the `domain` of later requests, holds all that is needed of the samples, and stays good.
        """
        limit = handler.settings.limits.samples
        return DomainToken(**await handler.workers.ask("domain", await request.body(), limit))

    @app.get("/v1/model", responses=answered(ModelFacts), summary="What may be asked")
    async def model() -> Response:
        """Conditions, thresholds, and what networks are cut from."""
        return JSONResponse(handler.workers.facts)


def _add_page(app: FastAPI, handler: RequestHandler) -> None:
    """What the studio shows."""

    @app.post("/v1/previews", responses=answered(PreviewAnswer), summary="A network as the studio draws it")
    async def preview(asked: Asked) -> Response:
        """Layers, trade-off curve, and histograms of log dropout rates."""
        return JSONResponse(await handler.ask("preview", asked.given()))

    @app.post(
        "/v1/answers", responses=answered(Answer), summary="What a network and the one it was cut from say to an input"
    )
    async def answer(asked: AnswerAsked) -> Response:
        """Labels, probabilities and what each costs."""
        return JSONResponse(await handler.ask("answer", asked.given()))

    @app.get("/v1/examples/{number}", responses=answered(ExampleInput), summary="An example of what networks are given")
    async def example(number: int) -> Response:
        """An input of the run's validation sample, as the studio draws it; `GET /v1/model` lists some of each class."""
        try:
            shown = await handler.workers.ask("example_input", number)
        except BhcError as error:
            raise Refusal(404, error.problem, error.hint) from None
        return JSONResponse(shown, headers=REMEMBERED)

    @app.get("/v1/pictures/{label}/{number}.png", response_class=Response, summary="An example of a class")
    async def picture(label: int, number: int) -> Response:
        """An image of the run's validation sample. Where it has no classes, all are of class 0."""
        content = await handler.workers.ask("picture", label, number)
        if content is None:
            problem = f"there is no picture {number} of class {label}"
            raise Refusal(404, problem, "GET /v1/model says how many there are")
        return Response(content, media_type="image/png", headers=REMEMBERED)


def _add_watching(app: FastAPI, handler: RequestHandler) -> None:
    """What those who run it ask for."""

    @app.get("/healthz", summary="Whether it works")
    async def health() -> Response:
        """200 where a worker is alive, else 503."""
        alive = handler.workers.alive
        body = {"status": "ok" if alive else "no worker", "workers": alive}
        return JSONResponse(body, 200 if alive else 503)

    @app.get("/metrics", response_class=PlainTextResponse, summary="Counters for Prometheus")
    async def metrics() -> Response:
        """Requests, times, queue, cache, and memory of each process."""
        return PlainTextResponse(handler.status(), media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> Response:
        return HTMLResponse(page_of(app.openapi()))


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
