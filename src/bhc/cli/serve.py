"""``bhc serve``: the service and the studio."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from bhc.cli.console import say
from bhc.errors import BhcError
from bhc.files import read_bytes

LONGEST_TOKEN = 4096
TokenFile = Annotated[Path | None, typer.Option(help="File with the token that requests must carry.")]


def serve_command(
    run: Annotated[Path, typer.Argument(help="Run folder (bhc train).")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8765,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that emit networks, one core each.")] = 1,
    token_file: TokenFile = None,
    queue: Annotated[int, typer.Option(min=1, help="Requests that may wait or run; more are answered 429.")] = 64,
    time_limit: Annotated[float, typer.Option(min=0.1, help="Seconds for one request, waiting included.")] = 30.0,
    max_body: Annotated[int, typer.Option(min=1, help="Most bytes of a request.")] = 1 << 20,
    max_upload: Annotated[int, typer.Option(min=1, help="Most bytes of an upload of samples.")] = 16 << 20,
    max_samples: Annotated[int, typer.Option(min=16, help="Most samples of an upload.")] = 2_000,
    cache: Annotated[int, typer.Option(min=0, help="Networks to remember; 0 makes each anew.")] = 256,
) -> None:
    """Hand out networks over HTTP, with a web page to see them. Ends at Ctrl-C, once running requests are answered."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise BhcError("the service needs packages that are not installed", hint="pip install 'bhc[studio]'")
    from bhc.studio.middleware import RequestLimits
    from bhc.studio.server import Address, ServerConfig, Settings, serve
    from bhc.studio.workers import WorkerConfig

    plan = ServerConfig(
        run,
        Address(host, port),
        WorkerConfig(workers, queue, time_limit),
        Settings(RequestLimits(max_body, max_upload, max_samples), read_token(token_file), cache),
    )
    serve(plan, ready=lambda address: say(f"serving {run} at {address} (studio), {address}/docs (service)"))


def read_token(path: Path | None) -> str | None:
    """The token of a file: its text without white space around it."""
    if path is None:
        return None
    try:
        token = read_bytes(path, limit=LONGEST_TOKEN).decode("ascii").strip()
    except UnicodeDecodeError:
        token = ""
    if not token or not token.isprintable() or " " in token:
        raise BhcError(f"{path} holds no token", hint="write one line of letters and digits into it")
    return token
