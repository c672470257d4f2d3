"""``bhc serve``, the service and the studio, and ``bhc pull``, which fetches a network from it as a device would.

Answers of a service are verified before they are believed.
"""

import base64
import hashlib
import io
import json
import time
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection, IncompleteRead
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import numpy as np
import torch
import typer

from bhc.cli.console import (
    LIMITS,
    FlagOutside,
    Float32Only,
    Force,
    Given,
    Json,
    RoundTo,
    refuse_existing,
    say,
    show,
    with_options,
)
from bhc.cli.subject import TaskOption, own_task
from bhc.contexts import Option, request_options
from bhc.emission import Limits, Report
from bhc.errors import BhcError
from bhc.files import read_bytes, write_bytes
from bhc.formats import Packed, format_wanted, parse_network

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
    task: TaskOption = None,
) -> None:
    """Hand out networks over HTTP, with a web page to see them. Ends at Ctrl-C, once running requests are answered."""
    if find_spec("fastapi") is None or find_spec("uvicorn") is None:
        raise BhcError("the service needs packages that are not installed", hint="pip install 'bhc[studio]'")
    from bhc.studio.middleware import RequestLimits
    from bhc.studio.server import Address, ServerConfig, Settings, serve
    from bhc.studio.workers import WorkerConfig

    own_task(task)  # known to the workers too
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


LARGEST_ANSWER = 1 << 30
TRIES = 4  # a network is only made, nothing is changed: asking again does no harm
LONGEST_WAIT = 10.0  # seconds between two of them
BUSY = (429, 503)


class Client:
    def __init__(self, url: str, *, token: str | None = None, timeout: float = 60.0) -> None:
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError as error:
            raise BhcError(f"{url} is not an address: {error}", hint="such as http://127.0.0.1:8765") from None
        if parts.scheme not in ("http", "https") or not host or parts.username or parts.query or parts.fragment:
            raise BhcError(f"{url} is not the address of a service", hint="such as http://127.0.0.1:8765")
        self.url, self.host, self.port, self.path = url, host, port, parts.path.rstrip("/")
        self.kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self.headers = {} if token is None else {"Authorization": f"Bearer {token}"}
        self.timeout = timeout

    def network(self, request: dict[str, Any]) -> tuple[bytes, dict[str, Any]]:
        """The file of a network, and its report."""
        content, answer = self._post("/v1/networks", json.dumps(request).encode(), "application/json")
        _verify(content, answer)
        try:
            return content, dict(json.loads(answer.headers.get("Bhc-Report") or ""))
        except ValueError:
            raise BhcError(f"{self.url} sent no report with the network", hint="is it bhc serve?") from None

    def upload(self, path: str, array: bytes, name: str) -> str:
        """What stands for a ``.npy`` file in requests, such as the token of the domain that it is a sample of."""
        content, _ = self._post(path, array, "application/octet-stream")
        try:
            return str(json.loads(content)[name])
        except (ValueError, KeyError, TypeError):
            raise BhcError(f"{self.url} sent no {name}", hint="is it bhc serve?") from None

    def _post(self, path: str, body: bytes, kind: str) -> tuple[bytes, HTTPResponse]:
        """The answer, asked for again where the service is busy or the connection breaks."""
        for attempt in range(1, TRIES + 1):
            try:
                content, answer = self._ask(path, body, kind)
            except ConnectionRefusedError as error:
                raise BhcError(f"nobody answers at {self.url}", hint="start it: bhc serve RUN/") from error
            except (OSError, HTTPException) as error:
                if attempt == TRIES or isinstance(error, TimeoutError):
                    raise BhcError(f"{self.url} does not answer: {error or type(error).__name__}") from error
                continue
            if answer.status not in BUSY or attempt == TRIES:
                break
            time.sleep(_wait(answer))
        if answer.status != 200:
            raise _refusal(self.url, answer.status, content)
        return content, answer

    def _ask(self, path: str, body: bytes, kind: str) -> tuple[bytes, HTTPResponse]:
        connection = self.kind(self.host, self.port, timeout=self.timeout)
        try:
            connection.request("POST", self.path + path, body, self.headers | {"Content-Type": kind})
            with connection.getresponse() as answer:
                content = answer.read(LARGEST_ANSWER + 1)
                if len(content) > LARGEST_ANSWER:
                    raise BhcError(f"{self.url} sent more than {LARGEST_ANSWER:,} bytes")
                if answer.length:  # what was promised and did not come
                    raise IncompleteRead(content, answer.length)
                return content, answer
        finally:
            connection.close()


def _verify(content: bytes, answer: HTTPResponse) -> None:
    """Compare the content with its SHA-256, which came in a header."""
    digest = base64.b64encode(hashlib.sha256(content).digest()).decode()
    stated = answer.headers.get("Repr-Digest", "")
    if stated != f"sha-256=:{digest}:":
        raise BhcError(
            "the network did not arrive as it was sent: its checksum is another"
            if stated
            else "the service sent no checksum with the network",
            hint="try again; nothing was written",
        )


def _wait(answer: HTTPResponse) -> float:
    stated = answer.headers.get("Retry-After", "")
    return min(float(stated), LONGEST_WAIT) if stated.isdigit() else 1.0


def _refusal(url: str, status: int, content: bytes) -> BhcError:
    """What the service said, in its own words."""
    try:
        said = json.loads(content)
        error, hint = str(said["error"]), str(said.get("hint", ""))
    except (ValueError, KeyError, TypeError, AttributeError):
        return BhcError(f"{url} answered with status {status}", hint="is it bhc serve?")
    if status == 500:
        return BhcError(f"{url}: {error} (id {said.get('id')})", hint=hint)
    return BhcError(error, hint=hint)


@with_options("conditions", request_options())
@with_options("limits", LIMITS)
def pull_command(
    url: Annotated[str, typer.Argument(help="Address of the service, such as http://127.0.0.1:8765.")],
    out: Annotated[Path, typer.Option(help="File for the network: it ends as a format's files do, such as .onnx.")],
    conditions: Given,
    limits: Given,
    flag_outside: FlagOutside = None,
    round_to: RoundTo = None,
    float32: Float32Only = False,
    format: Annotated[
        str | None, typer.Option(help="What to fetch, as the service calls it. Default: what the file's name ends in.")
    ] = None,
    token_file: Annotated[Path | None, typer.Option(help="File with the token that the service asks for.")] = None,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds to wait for the service.")] = 60.0,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Fetch the network for a context from a service (bhc serve).

    What arrives is compared with its checksum and then written in one step.
    """
    wanted = format or format_wanted(out).name  # a name that only the service knows is for it to take
    refuse_existing(out, force=force)
    client = Client(url, token=read_token(token_file), timeout=timeout)
    given = vars(Limits(**limits)) | {"flag_outside": flag_outside, "round_to": round_to}
    given |= {"float32": float32 or None, "format": wanted}
    request = {name: value for name, value in given.items() if value is not None}
    for option in request_options():
        if (value := conditions[option.name]) is not None:
            request[option.name] = _sent(value, option, client)
    content, facts = client.network(request)
    if wanted == Packed.name:
        parse_network(content, out)
    write_bytes(out, content)
    show(facts if as_json else Report.from_dict(facts), as_json=as_json)
    say(f"wrote {out}")


def _sent(value: Any, option: Option, client: Client) -> Any:
    """A condition as JSON has it; what is uploaded, by the word that the service answers with."""
    if not isinstance(value, torch.Tensor):
        return value
    if option.upload is None:
        return value.tolist()
    content = io.BytesIO()
    np.save(content, value.numpy(), allow_pickle=False)
    return client.upload(option.upload, content.getvalue(), option.name)
