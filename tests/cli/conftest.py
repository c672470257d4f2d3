from pathlib import Path

import pytest

import bhc
from tests.cli.commands import Commands


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture(scope="session")
def run(quick_model: bhc.Compressor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; tests must not change it."""
    path = tmp_path_factory.mktemp("cli") / "run"
    quick_model.save(path)
    return path
