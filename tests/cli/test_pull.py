"""``bhc pull`` against real services, and against one that lies."""

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from click.testing import Result
from typer.testing import CliRunner

import bhc
from bhc.cli import app
from bhc.data import DataSet
from tests.studio.serving import Serving, serving


@pytest.fixture(scope="module")
def run(quick_model: bhc.Compressor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "digits"
    quick_model.save(folder)
    return folder


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    secret = tmp_path_factory.mktemp("secrets") / "token"
    secret.write_text("s3cret\n")
    with serving(run, "--token-file", str(secret)) as started:
        started.secret = secret  # type: ignore[attr-defined]
        yield started


def pull(server: Serving, *words: str) -> Result:
    return CliRunner().invoke(app, ["pull", server.url, "--token-file", str(server.secret), *words])  # type: ignore[attr-defined]


# A moment's training may take a lower threshold for 2,000 bytes than it was consolidated for.
@pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")
def test_what_is_pulled_is_what_compress_writes(server: Serving, quick_model: bhc.Compressor, tmp_path: Path) -> None:
    path = tmp_path / "net.bhc"
    ended = pull(server, "--classes", "3,4", "--max-bytes", "2000", "--out", str(path), "--json")
    assert ended.exit_code == 0, ended.stderr
    assert path.read_bytes() == quick_model.compress(classes=[3, 4], max_bytes=2000).to_bytes()
    assert json.loads(ended.stdout)["file_bytes"] == path.stat().st_size <= 2000
    assert ended.stderr.endswith(f"wrote {path}\n")


def test_other_forms_run(server: Serving, digits: DataSet, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    assert "context       classes 3, 4" in pull(server, "--classes", "3,4", "--out", str(path)).stdout
    images = digits.test.restricted_to([3, 4]).inputs[:5].float().numpy()
    assert onnxruntime.InferenceSession(path).run(None, {"input": images})[0].shape == (5, 2)
    assert pull(server, "--classes", "3,4", "--out", str(tmp_path / "net.h")).exit_code == 0
    assert "network_predict" in (tmp_path / "net.h").read_text()


def test_errors_are_those_of_compress(server: Serving, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.bhc"
    for given in ("--classes 3,14", "--classes 3,4 --max-bytes 20", "--classes 3,4 --budget 1"):
        words = given.split()
        pulled = pull(server, *words, "--out", str(path))
        compressed = CliRunner().invoke(app, ["compress", str(run), *words])
        assert pulled.exit_code == compressed.exit_code == 2
        assert pulled.stderr == compressed.stderr
    assert not path.exists()


def test_an_existing_file_stays(server: Serving, tmp_path: Path) -> None:
    path = tmp_path / "net.bhc"
    path.write_text("mine")
    assert "exists already" in pull(server, "--classes", "3,4", "--out", str(path)).stderr
    assert path.read_text() == "mine"
    assert pull(server, "--classes", "3,4", "--out", str(path), "--force").exit_code == 0
    assert bhc.read(path).classes == (3, 4)


def test_without_its_token_nothing_is_given(server: Serving, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["pull", server.url, "--classes", "3,4", "--out", str(tmp_path / "net.bhc")])
    assert ended.exit_code == 2
    assert "asks for a token" in ended.stderr


@pytest.mark.long
def test_a_domain_is_told_by_its_samples(digits: DataSet, tmp_path: Path, domain_model: bhc.Compressor) -> None:
    domain_model.save(tmp_path / "run")
    samples = digits.train.restricted_to([1, 2]).inputs[:50]
    np.save(tmp_path / "samples.npy", samples.numpy())
    with serving(tmp_path / "run") as server:
        words = ["--domain", str(tmp_path / "samples.npy"), "--threshold", "0", "--out", str(tmp_path / "net.bhc")]
        ended = CliRunner().invoke(app, ["pull", server.url, *words])
    assert ended.exit_code == 0, ended.stderr
    expected = domain_model.compress(domain=samples, threshold=0.0).to_bytes()
    assert (tmp_path / "net.bhc").read_bytes() == expected


@pytest.fixture
def domain_model(digits: DataSet, pretrained: bhc.Compressor) -> bhc.Compressor:
    space = bhc.InputDomains((1, 8, 8), full_scale=16.0)
    return bhc.wrap(pretrained, space, example_input=digits.train.inputs[:1])  # type: ignore[arg-type]


class Liar(BaseHTTPRequestHandler):
    """A service of which each answer is one of a list."""

    answers: list[tuple[int, dict[str, str], bytes]]

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        status, headers, content = self.answers.pop(0)
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: object) -> None:
        return


def told(answers: list[tuple[int, dict[str, str], bytes]], path: Path) -> Result:
    """What pull makes of these answers."""
    handler = type("Handler", (Liar,), {"answers": answers})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            return CliRunner().invoke(app, ["pull", url, "--classes", "3,4", "--out", str(path)])
        finally:
            server.shutdown()
            thread.join()


def whole(content: bytes) -> dict[str, str]:
    return {"Repr-Digest": f"sha-256=:{base64.b64encode(hashlib.sha256(content).digest()).decode()}:"}


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ((200, whole(b"other"), b"content"), "its checksum is another"),
        ((200, {}, b"content"), "sent no checksum"),
        ((200, whole(b"content"), b"content"), "sent no report"),
        ((200, whole(b"content") | {"Bhc-Report": "{}"}, b"content"), "was not written by bhc, or is damaged"),
        ((200, {"Content-Length": "100"}, b"content"), "does not answer"),
        ((500, {}, b'{"error": "the service failed", "hint": "", "id": "abc"}'), "the service failed (id abc)"),
        ((418, {}, b"<html>"), "answered with status 418"),
    ],
)
def test_what_does_not_arrive_as_it_should_is_not_written(
    tmp_path: Path, answer: tuple[int, dict[str, str], bytes], problem: str
) -> None:
    ended = told([answer] * 4, tmp_path / "net.bhc")
    assert ended.exit_code == 2
    assert problem in ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_busy_service_is_asked_again(quick_model: bhc.Compressor, tmp_path: Path) -> None:
    small = quick_model.compress(classes=[3, 4])
    content = small.to_bytes()
    report = {"Bhc-Report": json.dumps(small.report.to_dict())}
    busy = (429, {"Retry-After": "0"}, b'{"error": "too many requests are waiting", "hint": ""}')
    ended = told([busy, (200, whole(content) | report, content)], tmp_path / "net.bhc")
    assert ended.exit_code == 0, ended.stderr
    assert (tmp_path / "net.bhc").read_bytes() == content


@pytest.mark.parametrize(
    "url", ["http://", "ftp://host", "host:80", "http://me:word@host", "http://[::1", "http://h:x"]
)
def test_what_is_no_address_is_refused(url: str, tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["pull", url, "--classes", "3,4", "--out", str(tmp_path / "net.bhc")])
    assert ended.exit_code == 2
    assert "address" in ended.stderr


def test_nobody_there_is_said(tmp_path: Path) -> None:
    ended = CliRunner().invoke(app, ["pull", "http://127.0.0.1:1", "--classes", "3", "--out", str(tmp_path / "n.bhc")])
    assert ended.exit_code == 2
    assert "nobody answers at http://127.0.0.1:1" in ended.stderr
