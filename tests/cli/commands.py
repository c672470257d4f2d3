"""The commands as a user calls them, in this process."""

import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from bhc.cli import main

PNG = b"\x89PNG\r\n\x1a\n"
LENET = ("--model", "lenet-300-100", "--data", "digits")


@dataclass(frozen=True)
class Said:
    """How a command ended, and what it said."""

    status: int
    out: str
    err: str


@dataclass(frozen=True)
class Commands:
    """``bhc``, called with words."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def ended(self, *words: object) -> Said:
        """What comes of a command, whatever it is."""
        self.monkeypatch.setattr(sys, "argv", ["bhc", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        return Said(int(ended.value.code or 0), *self.capsys.readouterr())

    def __call__(self, *words: object) -> Said:
        """A command that does what it is told."""
        said = self.ended(*words)
        assert said.status == 0, said.err
        return said

    def json(self, *words: object) -> Any:
        return json.loads(self(*words, "--json").out)

    def refused(self, message: str, *words: object) -> str:
        """Exit status 2, one line of error, nothing on stdout."""
        said = self.ended(*words)
        assert (said.status, said.out) == (2, "")
        assert message in said.err
        assert "Traceback" not in said.err
        return said.err
