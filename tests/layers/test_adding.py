"""``docs/adding-a-layer.md`` is executed: its layers are packed, read, exported and compared."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import bhc
from bhc import layers
from bhc.errors import BhcError
from bhc.formats import open_session
from tests.pages import bhc_command, blocks, executed

from ..graph.test_taken import cut_in_half, near

PAGE = "adding-a-layer.md"


@pytest.fixture
def page(
    forgetful: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    """The names that the page's code leaves behind."""
    monkeypatch.chdir(tmp_path)
    names = executed(PAGE)
    assert capsys.readouterr().out == "True\n"
    return names


def test_its_layers_are_steps_of_the_graph_and_can_be_cut(page: dict[str, Any]) -> None:
    kinds = [type(step.module).__name__ for step in page["model"].network.base_model.steps]
    assert kinds == ["Conv1d", "PlaceNorm", "Bump", "Conv1d", "Flatten", "Linear"]
    slim, given, masked, ratio = cut_in_half(page["net"], page["x"])
    assert near(given, masked)
    assert ratio > 1.5
    narrowed = next(step.module for step in slim.steps if type(step.module).__name__ == "PlaceNorm")
    assert narrowed.channels < 8


def test_a_run_with_them_is_saved_and_loaded(page: dict[str, Any], tmp_path: Path) -> None:
    model, x = page["model"], page["x"]
    model.save(tmp_path / "run")
    loaded = bhc.load(tmp_path / "run").compress(classes=[0, 3], threshold=1e6)
    torch.testing.assert_close(loaded.module(x), page["small"].module(x))


def test_the_command_line_reads_them_where_their_file_is_imported(page: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "acme.py").write_text("".join(blocks(PAGE)[:2]))
    done = bhc_command("export", "small.bhc", "--to", "pt2", "--out", "small.pt2", plugin="acme.py")
    assert (done.returncode, (tmp_path / "small.pt2").exists()) == (0, True), done.stderr


def test_the_activation_is_written_as_onnx_by_its_own_rule(page: dict[str, Any], tmp_path: Path) -> None:
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), page["Bump"](0.5), torch.nn.Linear(6, 3))
    model = bhc.wrap(net, bhc.ClassSubsets(3), example_input=torch.zeros(1, 4))
    small = model.compress(classes=[0, 2], threshold=1e6)
    small.to_onnx(tmp_path / "small.onnx")
    x = torch.randn(5, 4)
    (answer,) = open_session((tmp_path / "small.onnx").read_bytes()).run(None, {"input": x.numpy()})
    assert np.allclose(answer, small.module(x).numpy(), atol=1e-5)


def test_the_norm_goes_into_a_program_and_not_into_c(page: dict[str, Any], tmp_path: Path) -> None:
    small, x = page["small"], page["x"]
    small.to_torch(tmp_path / "small.pt2")
    program = torch.export.load(tmp_path / "small.pt2").module()
    torch.testing.assert_close(program(x), small.module(x))
    with pytest.raises(BhcError, match="in C"):
        small.to_c(tmp_path / "small.h")


def test_a_file_with_a_layer_that_is_not_registered_is_refused_by_name(page: dict[str, Any]) -> None:
    for table in (layers._BY_MODULE, layers._BY_NAME, layers._BY_TAG):
        for key in [key for key, kind in table.items() if "acme" in kind.name]:  # type: ignore[attr-defined]
            del table[key]  # type: ignore[attr-defined]
    for read in (bhc.read, bhc.open_deployed):
        with pytest.raises(BhcError, match=r"^layer 'acme\.place-norm'") as caught:
            read("small.bhc")
        assert "--import" in caught.value.hint
