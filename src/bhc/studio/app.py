"""HTTP around the service."""

import json
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import FileResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles

from bhc.errors import BhcError
from bhc.studio.asked import AnswerAsked, Asked, NetworkAsked
from bhc.studio.service import Service

PAGE = Path(__file__).parent / "page"


def build_app(service: Service) -> FastAPI:
    """The routes."""
    app = FastAPI(title="bhc", docs_url=None, redoc_url=None)

    @app.exception_handler(BhcError)
    async def refuse(_: Request, error: BhcError) -> Response:
        return JSONResponse({"error": error.problem, "hint": error.hint}, 422)

    @app.get("/v1/model")
    async def model() -> Any:
        return service.facts()

    @app.get("/v1/pictures/{label}/{number}.png")
    async def picture(label: int, number: int) -> Response:
        content = service.picture(label, number)
        if content is None:
            return JSONResponse({"error": "there is no such picture", "hint": ""}, 404)
        return Response(content, media_type="image/png")

    @app.post("/v1/previews")
    async def preview(asked: Asked) -> Any:
        return await run_in_threadpool(service.preview, asked.given())

    @app.post("/v1/answers")
    async def answer(asked: AnswerAsked) -> Any:
        return await run_in_threadpool(service.answer, asked.given())

    @app.post("/v1/reports")
    async def report(asked: Asked) -> Any:
        return await run_in_threadpool(service.report, asked.given())

    @app.post("/v1/networks")
    async def network(asked: NetworkAsked) -> Response:
        parcel = await run_in_threadpool(service.network, asked.given())
        headers = {
            "ETag": f'"{parcel.digest}"',
            "Bhc-Report": json.dumps(parcel.report),
            "Content-Disposition": f'attachment; filename="{parcel.file_name}"',
        }
        return Response(parcel.content, media_type=parcel.media_type, headers=headers)

    @app.post("/v1/domains")
    async def domain(request: Request) -> Any:
        return await run_in_threadpool(service.domain, await request.body(), 10_000)

    @app.get("/", include_in_schema=False)
    async def index() -> Response:
        return FileResponse(PAGE / "index.html")

    app.mount("/", StaticFiles(directory=PAGE))
    return app
