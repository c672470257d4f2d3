"""The service described: OpenAPI with examples that this very service answers, and a page that shows it.

The page is plain HTML, made here: it loads nothing from anywhere.
"""

import json
from html import escape
from math import prod
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic import BaseModel

from bhc.formats import formats
from bhc.studio.schemas import Problem

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": text}
    for status, text in {
        400: "The request is not HTTP that can be read",
        401: "A token is asked for",
        404: "There is no such thing",
        408: "The request took too long to arrive",
        413: "The request is too large",
        422: "The request is wrong, in the words of the command line",
        431: "The head of the request is too large",
        429: "The queue is full: try again after Retry-After seconds",
        500: "A fault of the service, with its id",
        504: "The answer took longer than a request may",
    }.items()
}


def files() -> dict[int | str, dict[str, Any]]:
    """A file in any of the formats that are registered."""
    schema, binary = {"type": "string"}, {"type": "string", "format": "binary"}
    content = {
        each.media_type: {"schema": schema if each.media_type.startswith("text/") else binary} for each in formats()
    }
    return {
        200: {"description": "The file", "content": content},
        304: {"description": "The file is the one named by If-None-Match"},
    }


def answered(model: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """An answer that is described and handed on as it is: to check it once more would take longer than to make it."""
    return {200: {"model": model, "description": (model.__doc__ or "").splitlines()[0]}}


SAMPLES = {
    "requestBody": {
        "required": True,
        "description": "A `.npy` file, an array of shape (n, channels, height, width).",
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}


def describe(app: FastAPI, facts: dict[str, Any], example: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description, with requests that this service answers as examples."""
    if app.openapi_schema is None:
        described = get_openapi(title=app.title, version=app.version, summary=app.summary, routes=app.routes)
        schemas = described["components"]["schemas"]
        blank = [0] * prod(facts["image_shape"])
        schemas["Asked"]["example"] = example
        schemas["NetworkAsked"]["example"] = example | {"format": "bhc"}
        schemas["AnswerAsked"]["example"] = example | {"image": blank}
        known = described["paths"]["/v1/model"]["get"]["responses"]["200"]["content"]["application/json"]
        known["example"] = facts
        app.openapi_schema = described
    return app.openapi_schema


def page_of(described: dict[str, Any]) -> str:
    """The description for reading."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
        f"<title>{escape(described['info']['title'])}: the service</title>",
        "<link rel=stylesheet href=/studio.css><main class=docs><h1>The service</h1>",
        f"<p>{escape(described['info'].get('summary', ''))}",
        "<a href=/openapi.json>openapi.json</a>, <a href=/>studio</a></p>",
    ]
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            parts.append(_operation(described, path, method, operation))
    return "\n".join([*parts, "</main></html>"])


def _operation(described: dict[str, Any], path: str, method: str, operation: dict[str, Any]) -> str:
    lines = [
        f"<section><h2><code>{method.upper()} {escape(path)}</code></h2>",
        f"<p>{escape(operation.get('summary', ''))}. {escape(operation.get('description', ''))}</p>",
    ]
    schema = _body(described, operation)
    if schema:
        rows = (
            f"<tr><td><code>{escape(name)}</code><td>{escape(field.get('description', ''))}"
            for name, field in schema.get("properties", {}).items()
        )
        lines.append(f"<table>{''.join(rows)}</table>")
        if "example" in schema:
            text = json.dumps(schema["example"])
            lines.append(f"<pre><code>{escape(text if len(text) < 500 else text[:480] + ' ...')}</code></pre>")
    answers = ", ".join(
        f"<code>{status}</code> {escape(answer.get('description', ''))}"
        for status, answer in operation.get("responses", {}).items()
    )
    return "\n".join([*lines, f"<p>{answers}</p></section>"])


def _body(described: dict[str, Any], operation: dict[str, Any]) -> dict[str, Any] | None:
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return None
    name = content["schema"]["$ref"].rsplit("/", 1)[-1]
    schema: dict[str, Any] = described["components"]["schemas"][name]
    return schema
