import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import bhc
from bhc import plugins, tasks
from bhc.data import DataSet
from tests.cli.commands import Commands
from tests.cli.own import fill


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Commands:
    return Commands(monkeypatch, capsys)


@pytest.fixture(scope="session")
def run(quick_model: bhc.Compressor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run; tests must not change it."""
    path = tmp_path_factory.mktemp("cli") / "run"
    quick_model.save(path)
    return path


@pytest.fixture(scope="session")
def home(digits: DataSet, pretrained: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a user with files of their own; tests must not change it."""
    return fill(tmp_path_factory.mktemp("home"), digits, pretrained)


@pytest.fixture
def at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in that folder, and forget what was imported from it."""
    monkeypatch.chdir(home)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setenv(tasks.VARIABLE, "")
    monkeypatch.setattr(plugins, "_imported", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield home
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(home)):
            del sys.modules[name]
