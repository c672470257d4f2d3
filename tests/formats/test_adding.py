"""``docs/adding-a-format.md`` is executed: its format is exported to, run, and offered by command line and service."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import bhc
from bhc.errors import BhcError
from bhc.formats import Export, Format, formats
from bhc.studio.schemas import files
from tests import pages
from tests.pages import blocks, executed
from tests.studio.serving import serving

PAGE = "adding-a-format.md"
CODE, _ = blocks(PAGE)


@pytest.fixture
def page(
    forgetful: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    names = executed(PAGE)
    assert capsys.readouterr().out == "True\n"
    return names


bhc_command = partial(pages.bhc_command, plugin="npz_format.py")


def small_with(activation: torch.nn.Module) -> bhc.Compressed:
    net = torch.nn.Sequential(torch.nn.Linear(4, 3), activation, torch.nn.Linear(3, 2))
    return bhc.wrap(net, bhc.ClassSubsets(2), example_input=torch.zeros(1, 4)).compress(classes=[0, 1])


def test_it_is_one_of_the_formats_and_refuses_what_it_has_no_rule_for(page: dict[str, Any], tmp_path: Path) -> None:
    assert [each.name for each in formats()] == ["bhc", "onnx", "c", "pt2", "npz"]
    small = small_with(torch.nn.GELU())
    with pytest.raises(BhcError, match="GELU"):
        small.export(tmp_path / "gelu.npz")


def test_the_command_line_lists_it_and_writes_it(page: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "npz_format.py").write_text(CODE)
    assert "[bhc|onnx|c|pt2|npz]" in bhc_command("export", "--help").stdout
    done = bhc_command("export", "small.bhc", "--to", "npz", "--out", "again.npz")
    assert done.returncode == 0, done.stderr
    x = torch.randn(3, 8)
    assert torch.equal(bhc.open_deployed("again.npz").logits(x), bhc.open_deployed("small.npz").logits(x))


def test_the_service_hands_it_out(quick_model: bhc.Compressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "npz_format.py").write_text(CODE)
    monkeypatch.setenv("BHC_IMPORT", str(tmp_path / "npz_format.py"))
    quick_model.save(tmp_path / "run")
    with serving(tmp_path / "run") as server:
        model = server.get("/v1/model").json()
        assert model["formats"][-1] == "npz"
        assert model["format_labels"]["npz"] == "NumPy"
        content = server.post("/v1/networks", {"classes": [3, 4], "format": "npz"}).content
        assert content.startswith(b"PK")


class Plain(Format):
    name, label, suffix, media_type = "plain", "Plain", ".plain", "text/plain"

    def write(self, network: Any, export: Export) -> bytes:
        return b""


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"name": "onnx"}, "onnx"),
        ({"name": "torch"}, "torch"),
        ({}, "plain is taken"),
        ({"name": "other", "suffix": ".h"}, r"\.h"),
        ({"name": "other", "suffix": "plain"}, "end in"),
        ({"name": "two words"}, "two words"),
        ({"label": None}, "label"),
        ({"write": Format.write}, "write"),
    ],
)
def test_a_format_with_something_missing_or_taken_is_refused(
    forgetful: None, changed: dict[str, Any], problem: str
) -> None:
    bhc.register_format(Plain)
    with pytest.raises(BhcError, match=problem):
        bhc.register_format(type("Changed", (Plain,), changed))


def test_the_service_says_which_kinds_of_files_it_answers(forgetful: None) -> None:
    bhc.register_format(Plain)
    assert set(files()[200]["content"]) == {"application/octet-stream", "text/x-c", "text/plain"}


def test_what_is_no_format_is_refused() -> None:
    with pytest.raises(BhcError, match="no format"):
        bhc.register_format(int)  # type: ignore[arg-type]


def test_a_format_that_is_not_registered_is_named_with_what_to_import(tmp_path: Path) -> None:
    small, path = small_with(torch.nn.ReLU()), tmp_path / "small.npz"
    attempts = {
        "which format": lambda: small.export(path),
        "no format 'npz'": lambda: small.export(path, "npz"),
        "small.npz is of no format": lambda: bhc.open_deployed(path),
    }
    path.write_bytes(b"PK")
    for problem, attempt in attempts.items():
        with pytest.raises(BhcError, match=problem) as caught:
            attempt()
        assert "--import" in caught.value.hint
