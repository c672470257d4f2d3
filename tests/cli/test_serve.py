"""What ``bhc serve`` says when it cannot start."""

import socket
import subprocess
from pathlib import Path

import pytest
from typer.testing import CliRunner

import bhc
from bhc.cli import app
from tests.studio.serving import PATIENCE, command, environment


@pytest.fixture
def run(quick_model: bhc.Compressor, tmp_path: Path) -> Path:
    quick_model.save(tmp_path / "run")
    return tmp_path / "run"


def start(*words: str) -> "subprocess.CompletedProcess[str]":
    """A service that ends by itself, or the test with it."""
    return subprocess.run(
        command("serve", *words), capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False
    )


@pytest.mark.long
def test_a_damaged_run_stops_the_start(run: Path) -> None:
    (model,) = run.glob("model-*.safetensors")
    model.write_bytes(model.read_bytes()[:1000])
    ended = start(str(run), "--port", "0", "--workers", "2")
    assert ended.returncode == 2
    assert ended.stderr.startswith("error: ")
    assert model.name in ended.stderr
    assert "Traceback" not in ended.stderr
    assert ended.stdout == ""


@pytest.mark.long
def test_a_description_that_is_none_stops_the_start(run: Path) -> None:
    (run / "run.json").write_text("{")
    ended = start(str(run), "--port", "0")
    assert ended.returncode == 2
    assert "run.json is not valid JSON" in ended.stderr


def test_a_folder_without_a_run_stops_the_start(tmp_path: Path) -> None:
    ended = start(str(tmp_path), "--port", "0")
    assert ended.returncode == 2
    assert "is not a run folder" in ended.stderr
    assert "hint: make one with: bhc train" in ended.stderr


def test_a_port_that_is_taken_is_named(run: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ended = CliRunner().invoke(app, ["serve", str(run), "--port", str(port)])
    assert ended.exit_code == 2
    assert f"cannot listen on 127.0.0.1, port {port}" in ended.stderr


@pytest.mark.parametrize("content", [b"", b"  \n", b"two words", b"\xff\xfe"])
def test_a_file_without_a_token_is_refused(run: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "token").write_bytes(content)
    ended = CliRunner().invoke(app, ["serve", str(run), "--token-file", str(tmp_path / "token")])
    assert ended.exit_code == 2
    assert "holds no token" in ended.stderr


def test_missing_packages_are_named(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bhc.cli.serve.find_spec", lambda name: None)
    ended = CliRunner().invoke(app, ["serve", str(run)])
    assert ended.exit_code == 2
    assert "pip install 'bhc[studio]'" in ended.stderr
