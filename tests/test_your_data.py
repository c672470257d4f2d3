"""``docs/your-data.md`` is executed, and what it says of its code is so."""

from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import torch

import bhc
from tests.pages import DOCS, blocks, executed

PAGE = "your-data.md"
MOST_LINES = 15  # from a stranger's classifier and data set to a file
QUICK = (bhc.Learn(steps=20, kl_weight=0.1, contexts=4, examples=8), bhc.Consolidate(steps=10, contexts=4, examples=8))


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the page leaves behind, and the folder that it ran in."""
    folder = tmp_path_factory.mktemp("page")
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        torch.manual_seed(0)
        patch.chdir(folder)
        patch.setattr("bhc.fitting.default_recipe", lambda network: QUICK)
        patch.setattr("bhc.fitting.default_progress", bhc.training.Silent)
        with redirect_stdout(StringIO()) as printed:
            return {**executed(PAGE), "folder": folder, "printed": printed}


def test_from_a_stranger_s_classifier_and_data_to_a_file_it_is_few_lines() -> None:
    (block,) = (block for block in blocks(PAGE) if "digits-run" in block)
    assert len([line for line in block.splitlines() if line.strip()]) <= MOST_LINES
    assert all(word in block for word in ("import bhc", "bhc.wrap", "bhc.fit", "compress", "to_onnx"))


def test_its_files_hold_the_network_that_was_asked_for(names: dict[str, Any]) -> None:
    small, images, folder = names["small"], names["images"][:20], names["folder"]
    assert small.report.file_bytes <= 4_000
    assert set(small.predict(images).labels.tolist()) <= {3, 4}
    assert torch.equal(bhc.read(folder / "small.bhc").outputs(images), small.outputs(images))
    deployed = bhc.open_deployed(folder / "small.onnx").logits(images)
    torch.testing.assert_close(deployed, small.outputs(images), atol=1e-4, rtol=1e-4)
    assert bhc.open_deployed(folder / "several.onnx").signature.names == ("image", "measures")


def test_tasks_do_what_the_page_says(names: dict[str, Any]) -> None:
    two = names["two"]
    assert (two.classes, two.outputs(names["images"][:2]).shape) == ((0, 4, 5), (2, 3, 8, 8))
    assert names["off"].shape == (3, 1)
    assert names["copy"].compress(classes=[3, 4]).report.error_name == "disagreement"
    assert names["copy"].model.validation.labels is not None


def test_a_run_keeps_what_the_page_says(names: dict[str, Any]) -> None:
    sample = bhc.load(names["folder"] / "digits-run").model.validation
    assert sample is not None
    assert len(sample) == len(names["validation"])
    assert names["reader"].model.validation.inputs[0].shape == (90, 9)
    stored = {file.name.split("-")[0] for file in (names["folder"] / "digits-run").glob("*-*.*")}
    assert stored == {"model", "validation"}


def test_an_item_that_cannot_be_read_is_named_and_the_run_goes_on(names: dict[str, Any]) -> None:
    said = "item 1,234 of the data set cannot be read: OSError: no such file"
    assert names["printed"].getvalue().endswith(said + "\n")
    assert f"# {said}" in (DOCS / PAGE).read_text()
    assert (names["folder"] / "fragile-run" / "run.json").exists()


def test_links_lead_somewhere() -> None:
    for link in ("../examples", "contexts.md", "sharing.md"):
        assert f"]({link})" in (DOCS / PAGE).read_text()
        assert (Path(DOCS) / link).exists()
