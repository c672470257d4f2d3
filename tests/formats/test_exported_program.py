"""Programs are loaded where bhc does not exist: in a process that cannot import it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from bhc.formats import torch_bytes

from .chains import TORCH_REMARKS, assert_alike, inputs, quantised

pytestmark = TORCH_REMARKS
NAMES = ["gelu-tanh", "everything-at-once", "padding-and-a-mean", "names-that-formats-use"]
METADATA = {"classes": [3, 4], "class_names": ["drei", "fünf"], "report": {"error": None}}

SCRIPT = """
import json, sys
sys.modules["bhc"] = None  # every import of it fails
import torch
folder, names = sys.argv[1], sys.argv[2:]
cards = {}
for name in names:
    extra = {"bhc.json": ""}
    program = torch.export.load(f"{folder}/{name}.pt2", extra_files=extra).module()
    answers = [program(x) for x in torch.load(f"{folder}/{name}.inputs", weights_only=True)]
    torch.save(answers, f"{folder}/{name}.answers")
    cards[name] = json.loads(extra["bhc.json"])
assert not [name for name, module in sys.modules.items() if name.startswith("bhc") and module is not None]
print(json.dumps(cards))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Programs, inputs and what another process answered to them."""
    path = tmp_path_factory.mktemp("programs")
    for name in NAMES:
        network = quantised(name)
        (path / f"{name}.pt2").write_bytes(torch_bytes(network, metadata=METADATA))
        torch.save([inputs(network.input_shape, count) for count in (1, 2, 5)], path / f"{name}.inputs")
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", SCRIPT, str(path), *NAMES]
    answer = subprocess.run(
        command, capture_output=True, text=True, env=environment, cwd=path, timeout=120, check=False
    )
    assert answer.returncode == 0, answer.stderr
    (path / "cards.json").write_text(answer.stdout)
    return path


@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_module_s_logits_for_any_batch_without_bhc(name: str, folder: Path) -> None:
    network = quantised(name)
    answers = torch.load(folder / f"{name}.answers", weights_only=True)
    for count, given in zip((1, 2, 5), answers, strict=True):
        assert given.shape == (count, len(network.labels))
        assert_alike(given, network.chain(inputs(network.input_shape, count)), part=1e-6)


def test_the_metadata_lie_inside(folder: Path) -> None:
    assert json.loads((folder / "cards.json").read_text()) == dict.fromkeys(NAMES, METADATA)
