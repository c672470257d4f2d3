"""Programs are loaded where bhc does not exist: in a process that cannot import it."""

import io
import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

from bhc.formats import QuantisedNetwork, load_program, torch_bytes
from bhc.graph import Graph
from bhc.layers import Add

from .chains import GRAPHS, TORCH_REMARKS, assert_alike, inputs, named, quantised
from .graphs import wired

pytestmark = TORCH_REMARKS
CHAINED = ["gelu-tanh", "everything-at-once", "padding-and-a-mean", "names-that-formats-use"]
NAMES = [*CHAINED, *GRAPHS]
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
    assert json.loads((folder / "cards.json").read_text())[name] == METADATA
    network = quantised(name)
    answers = torch.load(folder / f"{name}.answers", weights_only=True)
    # Nothing in it may look like code to the check that comes before torch's loader.
    program, metadata = load_program((folder / f"{name}.pt2").read_bytes())
    assert metadata == METADATA
    for count, given in zip((1, 2, 5), answers, strict=True):
        assert given.shape == (count, len(network.labels))
        x = inputs(network.input_shape, count)
        for answer in (given, program(x)):
            assert_alike(answer, network.graph(x), part=1e-6)


CODE = 'a" if print("INJECTED") else "b'  # torch writes names into code, between quotation marks


@pytest.mark.parametrize(
    "graph",
    [
        pytest.param(named(**{CODE: nn.Linear(2, 2)}), id="chain"),
        pytest.param(wired((CODE, nn.Linear(2, 2)), ("sum", Add(), CODE, "")), id="branching"),
    ],
)
def test_names_of_layers_do_not_become_code(graph: Graph, capsys: pytest.CaptureFixture[str]) -> None:
    network = QuantisedNetwork(graph.eval().requires_grad_(False), (2,), (0, 1))
    x = inputs((2,), 3)
    program, _ = load_program(torch_bytes(network, metadata={}))
    for module in (network.module(), program):
        assert_alike(module(x), network.graph(x), part=1e-6)
    assert capsys.readouterr().out == ""


def edited(content: bytes, change: Callable[[str], str]) -> bytes:
    """An archive with its descriptions changed."""
    file = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as old, zipfile.ZipFile(file, "w") as new:
        for name in old.namelist():
            entry = old.read(name)
            changes = name.endswith(".json") and not name.endswith("bhc.json")
            new.writestr(name, change(entry.decode()) if changes else entry)
    return file.getvalue()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        pytest.param('"fc1.weight"', json.dumps(CODE + ".weight"), id="a parameter"),
        pytest.param('"forward_arg_names": ["input"]', '"forward_arg_names": ["x=print(1)"]', id="an argument"),
        pytest.param('"p_fc1_weight"', '"p=print(1)"', id="a value"),
        pytest.param('"fqn": "fc1"', '"fqn": "fc1()"', id="a module"),
    ],
)
def test_a_program_with_code_for_a_name_is_refused(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    content = torch_bytes(quantised("relu"), metadata={})
    load_program(edited(content, lambda text: text))
    assert edited(content, lambda text: text.replace(old, new)) != edited(content, lambda text: text)
    with pytest.raises(ValueError, match="name"):
        load_program(edited(content, lambda text: text.replace(old, new)))
    assert capsys.readouterr().out == ""
