"""docs/command-line-data.md: its files are written, its commands run one after the other."""

import re
import shlex
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from bhc.data import DataSet, ImageFolder
from tests.cli.commands import Commands
from tests.cli.own import QUICK, write_images
from tests.pages import DOCS, blocks

PAGE = "command-line-data.md"


@pytest.fixture
def folder(digits: DataSet, at_home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the reader has: photos in folders, pictures without labels, and the files of the page."""
    monkeypatch.chdir(tmp_path)
    few = digits.train.restricted_to([0, 1, 2]).at(slice(60))
    for part in ("train", "test"):
        write_images(tmp_path / "photos" / part, few.tensor, few.known_labels, ("cat", "dog", "owl"))
        write_images(tmp_path / "pictures" / part, few.tensor, few.known_labels, ("",) * 3)
    for block in blocks(PAGE):
        name = re.match(r"# (\w+\.py)\n", block)
        assert name is not None
        (tmp_path / name[1]).write_text(block)
    names: dict[str, object] = {}
    exec((tmp_path / "net.py").read_text(), names)
    save_file(trained(names["build"](), tmp_path / "photos").state_dict(), tmp_path / "net.safetensors")  # type: ignore[operator]
    return tmp_path


def trained(net: nn.Module, photos: Path) -> nn.Module:
    """A network that gives every class now and then."""
    images = ImageFolder(photos / "train", size=32, channels=3, mean=0.5, std=0.25)
    x, y = torch.stack([image for image, _ in images]), images.targets
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for _ in range(20):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x), y).backward()
        optimiser.step()
    return net


@pytest.mark.usefixtures("forgetful")
def test_the_commands_run_one_after_the_other(cli: Commands, folder: Path) -> None:
    text = (DOCS / PAGE).read_text().replace("\\\n", "")
    commands = [line for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    assert len(commands) == 11
    said = {command: cli(*shlex.split(command)[1:], *(QUICK if " train " in command else ())) for command in commands}
    assert "of classes cat, dog)" in said[commands[2]].out
    assert "cat, dog, owl" in said[commands[4]].out
    assert "test disagreement" in said[commands[7]].out
    assert "test absolute error" in said[commands[10]].out
    assert (folder / "quiet.bhc").exists()


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", (DOCS / PAGE).read_text()):
        assert (DOCS / link).exists(), link
