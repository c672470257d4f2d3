"""Files and modules that register a user's own, imported before a command runs."""

import os
import sys
from pathlib import Path

import pytest

from bhc import plugins
from bhc.errors import BhcError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_imported", set())
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    (tmp_path / "mine.py").write_text("with open('log', 'a') as log: log.write('imported ')")
    return tmp_path


def test_a_file_that_is_named_in_several_ways_is_imported_once_and_by_processes_started_later(folder: Path) -> None:
    os.environ[plugins.VARIABLE] = os.pathsep.join(["mine.py", "json", str(folder / "mine.py")])
    for _ in range(2):
        plugins.import_plugins(["./mine.py"])
    assert (folder / "log").read_text() == "imported "
    assert os.environ[plugins.VARIABLE] == os.pathsep.join([str(folder / "mine.py"), "json"])


@pytest.mark.parametrize("name", ["nothere.py", "acme.nothere", "broken.py"])
def test_what_cannot_be_imported_is_named(folder: Path, name: str) -> None:
    (folder / "broken.py").write_text("import acme.nothere")
    with pytest.raises(BhcError, match=name):
        plugins.import_plugins([name])


def test_names_are_found_on_a_command_line() -> None:
    assert plugins.named_in(["bhc", "--import", "a.py", "--import=b", "export"]) == ["a.py", "b"]
