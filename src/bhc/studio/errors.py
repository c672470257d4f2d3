"""What is answered when something is wrong: one form for all of it, and never a trace."""

import sys
import traceback
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from bhc.errors import BhcError
from bhc.studio import schemas
from bhc.studio.middleware import Refusal
from bhc.studio.workers import Busy, TookTooLong, WorkerFault

USUAL = 'send a JSON object, such as {"classes": [3, 4]}, with Content-Type: application/json'


def answer_troubles(app: FastAPI) -> None:
    """Give every exception its answer."""
    answers: dict[type[Exception], Callable[[Request, Any], Response]] = {
        BhcError: lambda _, error: _problem(422, error.problem, error.hint),
        Refusal: lambda _, error: JSONResponse(error.body, error.status, error.headers),
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
