"""``bhc pull``: a network from a service, as a device would fetch it."""

import io
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import typer

from bhc.cli.client import Client
from bhc.cli.console import say, show
from bhc.cli.options import (
    Confidence,
    FlagOutside,
    Float32Only,
    Force,
    Given,
    Json,
    MaxBytes,
    MaxError,
    MaxFlops,
    MaxLatency,
    MaxRamBytes,
    Threshold,
    refuse_existing,
    with_options,
)
from bhc.cli.serve import read_token
from bhc.contexts import Option, request_options
from bhc.emission import Limits, Report
from bhc.errors import BhcError
from bhc.files import write_bytes
from bhc.formats import Packed, format_of, formats, parse_network


@with_options("conditions", request_options())
def pull_command(
    url: Annotated[str, typer.Argument(help="Address of the service, such as http://127.0.0.1:8765.")],
    out: Annotated[Path, typer.Option(help="File for the network: it ends as a format's files do, such as .onnx.")],
    conditions: Given,
    threshold: Threshold = None,
    max_bytes: MaxBytes = None,
    max_flops: MaxFlops = None,
    max_error: MaxError = None,
    max_ram_bytes: MaxRamBytes = None,
    max_latency_ms: MaxLatency = None,
    confidence: Confidence = None,
    flag_outside: FlagOutside = None,
    float32: Float32Only = False,
    format: Annotated[
        str | None, typer.Option(help="What to fetch, as the service calls it. Default: what the file's name ends in.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token that the service asks for.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the service.")] = 60.0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Fetch the network for a context from a service (bhc serve).

    What arrives is compared with its checksum and then written in one step.
    """
    known = format_of(out)
    wanted = format or (None if known is None else known.name)
    if wanted is None:
        suffixes = ", ".join(each.suffix for each in formats())
        raise BhcError(f"{out} does not say which format is wanted", hint=f"end it in {suffixes}, or --format")
    refuse_existing(out, force=force)
    client = Client(url, token=read_token(token_file), timeout=timeout)
    limits = Limits(threshold, max_bytes, max_flops, max_error, max_ram_bytes, max_latency_ms, confidence)
    given = vars(limits) | {"flag_outside": flag_outside, "float32": float32 or None, "format": wanted}
    asked = {name: value for name, value in given.items() if value is not None}
    for option in request_options():
        if (value := conditions[option.name]) is not None:
            asked[option.name] = _sent(value, option, client)
    content, facts = client.network(asked)
    if wanted == Packed.name:
        parse_network(content, out)
    write_bytes(out, content)
    show(facts if json else Report.from_dict(facts), as_json=json)
    say(f"wrote {out}")


def _sent(value: Any, option: Option, client: Client) -> Any:
    """A condition as JSON has it; what is uploaded, by the word that the service answers with."""
    if not isinstance(value, torch.Tensor):
        return value
    return value.tolist() if option.upload is None else client.upload(option.upload, _npy(value), option.name)


def _npy(sample: torch.Tensor) -> bytes:
    content = io.BytesIO()
    np.save(content, sample.numpy(), allow_pickle=False)
    return content.getvalue()
