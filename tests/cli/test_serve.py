"""What ``bhc serve`` says when it cannot start; ``bhc pull`` against real services, and against one that lies."""

import base64
import hashlib
import json
import socket
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from shutil import copytree

import numpy as np
import onnxruntime
import pytest
import torch

import bhc
from bhc.data import DataSet
from tests.cli.commands import Commands, Said
from tests.studio.serving import PATIENCE, Serving, command, environment, serving


def start(*words: str) -> "subprocess.CompletedProcess[str]":
    """A service that ends by itself, or the test with it."""
    return subprocess.run(
        command("serve", *words), capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False
    )


@pytest.mark.long
def test_a_damaged_run_stops_the_start(run: Path, tmp_path: Path) -> None:
    run = copytree(run, tmp_path / "run")
    (model,) = run.glob("model-*.safetensors")
    model.write_bytes(model.read_bytes()[:1000])
    ended = start(str(run), "--port", "0", "--workers", "2")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert model.name in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""
    (run / "run.json").write_text("{")
    ended = start(str(run), "--port", "0")
    assert ended.returncode == 2
    assert "run.json is not valid JSON" in ended.stderr


def test_a_folder_without_a_run_stops_the_start(cli: Commands, tmp_path: Path) -> None:
    assert "hint: make one with: bhc train" in cli.refused("not a run folder", "serve", tmp_path, "--port", "0")


def test_a_port_that_is_taken_is_named(cli: Commands, run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        cli.refused(f"127.0.0.1, port {port}", "serve", run, "--port", port)


@pytest.mark.parametrize("content", [b"", b"  \n", b"two words", b"\xff\xfe"])
def test_a_file_without_a_token_is_refused(cli: Commands, run: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    cli.refused("no token", "serve", run, "--token-file", tmp_path / "token")


def test_missing_packages_are_named(cli: Commands, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bhc.cli.serve.find_spec", lambda name: None)
    cli.refused("pip install 'bhc[studio]'", "serve", run)


@pytest.fixture(scope="module")
def server(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    secret = tmp_path_factory.mktemp("secrets") / "token"
    secret.write_text("s3cret\n")
    with serving(run, "--token-file", str(secret)) as started:
        started.asked = ("pull", started.url, "--token-file", secret, "--classes", "3,4")  # type: ignore[attr-defined]
        yield started


# A moment's training may take a lower threshold for 2,000 bytes than it was consolidated for.
@pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")
def test_what_is_pulled_is_what_compress_writes(
    cli: Commands, server: Serving, quick_model: bhc.Compressor, tmp_path: Path
) -> None:
    path = tmp_path / "net.bhc"
    ended = cli(*server.asked, "--max-bytes", "2000", "--out", path, "--json")
    assert path.read_bytes() == quick_model.compress(classes=[3, 4], max_bytes=2000).to_bytes()
    assert json.loads(ended.out)["file_bytes"] == path.stat().st_size <= 2000
    assert ended.err.endswith(f"wrote {path}\n")


@pytest.mark.parametrize(("typed", "round_to"), [("8", 8), ("fc1=16,fc2=4", {"fc1": 16, "fc2": 4})])
def test_channels_in_multiples_are_pulled(
    cli: Commands, server: Serving, quick_model: bhc.Compressor, tmp_path: Path, typed: str, round_to: object
) -> None:
    path = tmp_path / "net.bhc"
    told = cli(*server.asked, "--threshold", "-1", "--round-to", typed, "--out", path).out
    expected = quick_model.compress(classes=[3, 4], threshold=-1, round_to=round_to)
    assert path.read_bytes() == expected.to_bytes()
    assert f"not rounded, this threshold has {expected.report.without_multiples}" in told


def test_other_forms_run(cli: Commands, server: Serving, digits: DataSet, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    assert "context       classes 3, 4" in cli(*server.asked, "--out", path).out
    images = digits.test.restricted_to([3, 4]).inputs[:5].float().numpy()
    assert onnxruntime.InferenceSession(path).run(None, {"input": images})[0].shape == (5, 2)
    cli(*server.asked, "--out", tmp_path / "net.h")
    assert "network_predict" in (tmp_path / "net.h").read_text()


def test_errors_are_those_of_compress(cli: Commands, server: Serving, run: Path, tmp_path: Path) -> None:
    path = tmp_path / "net.bhc"
    for words in (("--classes", "3,14"), ("--max-bytes", "20"), ("--budget", "1"), ("--round-to", "fc9=8")):
        pulled = cli.refused("error", *server.asked, *words, "--out", path)
        assert pulled == cli.refused("error", "compress", run, "--classes", "3,4", *words)
    assert not path.exists()


def test_an_existing_file_stays(cli: Commands, server: Serving, tmp_path: Path) -> None:
    path = tmp_path / "net.bhc"
    path.write_text("mine")
    cli.refused("exists already", *server.asked, "--out", path)
    assert path.read_text() == "mine"
    cli(*server.asked, "--out", path, "--force")
    assert bhc.read(path).classes == (3, 4)


def test_without_its_token_nothing_is_given(cli: Commands, server: Serving, tmp_path: Path) -> None:
    cli.refused("token", "pull", server.url, "--classes", "3,4", "--out", tmp_path / "net.bhc")


@pytest.mark.long
def test_a_domain_is_told_by_its_samples(
    cli: Commands, digits: DataSet, tmp_path: Path, pretrained: torch.nn.Module
) -> None:
    space = bhc.InputDomains((1, 8, 8), full_scale=16.0)
    domain_model = bhc.wrap(pretrained, space, example_input=digits.train.inputs[:1])
    domain_model.save(tmp_path / "run")
    samples = digits.train.restricted_to([1, 2]).inputs[:50]
    np.save(tmp_path / "samples.npy", samples.numpy())
    with serving(tmp_path / "run") as server:
        words = ("--domain", tmp_path / "samples.npy", "--threshold", "0", "--out", tmp_path / "net.bhc")
        cli("pull", server.url, *words)
    expected = domain_model.compress(domain=samples, threshold=0.0).to_bytes()
    assert (tmp_path / "net.bhc").read_bytes() == expected


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


def told(cli: Commands, answers: list[tuple[int, dict[str, str], bytes]], path: Path) -> Said:
    """What pull makes of these answers."""
    handler = type("Handler", (Liar,), {"answers": answers})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            return cli.ended("pull", url, "--classes", "3,4", "--out", path)
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
    cli: Commands, tmp_path: Path, answer: tuple[int, dict[str, str], bytes], problem: str
) -> None:
    ended = told(cli, [answer] * 4, tmp_path / "net.bhc")
    assert ended.status == 2
    assert problem in ended.err
    assert list(tmp_path.iterdir()) == []


def test_a_busy_service_is_asked_again(cli: Commands, quick_model: bhc.Compressor, tmp_path: Path) -> None:
    small = quick_model.compress(classes=[3, 4])
    content = small.to_bytes()
    report = {"Bhc-Report": json.dumps(small.report.to_dict())}
    busy = (429, {"Retry-After": "0"}, b'{"error": "too many requests are waiting", "hint": ""}')
    ended = told(cli, [busy, (200, whole(content) | report, content)], tmp_path / "net.bhc")
    assert ended.status == 0, ended.err
    assert (tmp_path / "net.bhc").read_bytes() == content


@pytest.mark.parametrize(
    "url", ["http://", "ftp://host", "host:80", "http://me:word@host", "http://[::1", "http://h:x"]
)
def test_what_is_no_address_is_refused(cli: Commands, url: str, tmp_path: Path) -> None:
    cli.refused("address", "pull", url, "--classes", "3,4", "--out", tmp_path / "net.bhc")


def test_nobody_there_is_said(cli: Commands, tmp_path: Path) -> None:
    cli.refused("nobody answers", "pull", "http://127.0.0.1:1", "--classes", "3", "--out", tmp_path / "n.bhc")
