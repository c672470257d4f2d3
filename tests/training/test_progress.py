import sys

import pytest

from bhc.training import Bars, Lines, default_progress
from bhc.training.progress import format_terms

TERMS = {"cross_entropy": 0.1234, "kl": 20.06, "kl_weight": 2.0, "ratio": 57.3}


def test_terms_are_few_and_short() -> None:
    assert format_terms(TERMS) == "loss 0.123  kl 20.1  57.3 x smaller"


def test_lines_say_where_a_run_is(capsys: pytest.CaptureFixture[str]) -> None:
    progress = Lines(every_seconds=0.0)
    progress.begin("learning", 100)
    progress.update(50, TERMS)
    progress.update(100, TERMS)
    progress.end()
    captured = capsys.readouterr()
    assert captured.out == ""
    first, last = captured.err.splitlines()
    assert first.startswith("learning: 50/100  loss 0.123")
    assert "s left" in first
    assert last.startswith("learning: 100/100")
    progress = Lines(every_seconds=60.0)  # quiet in between
    progress.begin("learning", 100)
    progress.update(50, TERMS)
    assert capsys.readouterr().err == ""


def test_bars_run_and_stop(capsys: pytest.CaptureFixture[str]) -> None:
    with Bars() as progress:
        for title in ("learning", "consolidating"):
            progress.begin(title, 10)
            progress.update(10, TERMS)
            progress.end()
    shown = capsys.readouterr().err
    assert "learning" in shown
    assert "consolidating" in shown


def test_bars_are_for_terminals(monkeypatch: pytest.MonkeyPatch) -> None:
    assert isinstance(default_progress(), Lines)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert isinstance(default_progress(), Bars)
