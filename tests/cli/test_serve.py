"""What ``bhc serve`` says when it cannot start."""

import socket
import subprocess
from pathlib import Path
from shutil import copytree

import pytest

from tests.cli.commands import Commands
from tests.studio.serving import PATIENCE, command, environment


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
