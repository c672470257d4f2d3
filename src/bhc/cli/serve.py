"""``bhc serve``: the service and the studio."""

from pathlib import Path
from typing import Annotated

import typer

from bhc.cli.console import say
from bhc.compressor import load


def serve_command(
    run: Annotated[Path, typer.Argument(help="Run folder (bhc train).")],
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0 takes a free one.")] = 8765,
) -> None:
    """Hand out networks over HTTP, with a web page to see them."""
    import torch
    import uvicorn

    from bhc.studio.app import build_app
    from bhc.studio.service import Service, named

    torch.set_num_threads(1)
    service = Service(load(run), named(run))
    say(f"serving {run} on http://{host}:{port}")
    uvicorn.run(build_app(service), host=host, port=port, log_level="warning")
