"""Imports go one way: each room of the house may use the ones to its left and no others."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import bhc

PACKAGE = Path(bhc.__file__).parent
ROOT = ""  # ``bhc/__init__.py``, the public API

_BEFORE_HYPERNET = {"errors", "layers", "contexts", "tasks", "graph", "posterior"}
_BEFORE_TRAINING = {*_BEFORE_HYPERNET, "hypernet", "examples", "files", "curvature"}
_BEFORE_EMISSION = {*_BEFORE_TRAINING, "training", "formats"}
_BEFORE_THE_SURFACE = {*_BEFORE_EMISSION, "emission", "compressor"}

MAY_IMPORT = {
    "errors": set(),
    "files": {"errors"},
    "plugins": {"errors"},
    "examples": {"errors"},
    "tasks": {"errors", "plugins"},
    "data": {"errors", "files", "examples"},
    "layers": {"errors"},
    "models": {"errors", "layers"},
    "contexts": {"errors", "files", "layers"},
    "graph": {"errors", "layers"},
    "posterior": {"errors", "layers", "graph"},
    "hypernet": _BEFORE_HYPERNET,
    "curvature": {*_BEFORE_HYPERNET, "hypernet", "examples"},
    "training": _BEFORE_TRAINING | {"plugins"},
    "formats": {"errors", "files", "layers", "graph"},
    "emission": _BEFORE_EMISSION,
    "hub": {"errors", "files", "contexts", "training"},
    "compressor": _BEFORE_EMISSION | {"emission", "hub"},
    "pretraining": {"errors", "files", "examples", "data", "models", "training"},
    "results": _BEFORE_EMISSION | {"emission"},
    "fitting": _BEFORE_THE_SURFACE,
    "api": _BEFORE_THE_SURFACE | {"data", "models", "pretraining", "fitting"},
    ROOT: {"api"},
    "studio": _BEFORE_THE_SURFACE | {ROOT, "plugins"},
    "cli": _BEFORE_THE_SURFACE | {ROOT, "data", "models", "pretraining", "fitting", "studio", "results", "plugins"},
    "__main__": {"cli", "errors", "plugins"},
}

MODULES = sorted(PACKAGE.rglob("*.py"))


def place(path):
    """The module's dotted name inside the package, without ``__init__``."""
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def rooms():
    return {place(path)[0] for path in MODULES if place(path)}


def imported_names(path):
    """Dotted names of everything of this package that a module imports, in functions too."""
    inside = path.relative_to(PACKAGE.parent).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = ".".join(inside[: len(inside) - node.level]) if node.level else ""
            module = ".".join(part for part in (start, node.module) if part)
            names = [f"{module}.{alias.name}" for alias in node.names]
        else:
            continue
        yield from (name for name in names if name.split(".")[0] == PACKAGE.name)


def imported_rooms(path, known):
    """The rooms behind those names; a name of the package itself that is no room is the root's."""
    for name in imported_names(path):
        first = (*name.split("."), ROOT)[1]
        yield first if first in known else ROOT


def test_the_map_knows_every_room():
    assert rooms() <= set(MAY_IMPORT)


def test_the_map_has_no_way_back():
    """No two rooms may import each other, over however many rooms between."""
    reached = {room: set(allowed) for room, allowed in MAY_IMPORT.items()}
    for _ in MAY_IMPORT:
        for room in reached:
            reached[room] |= {further for step in reached[room] for further in reached[step]}
    assert not [room for room, others in reached.items() if room in others]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_go_left(path):
    room = (*place(path), ROOT)[0]
    wrong = set(imported_rooms(path, rooms())) - MAY_IMPORT[room] - {room}
    assert not wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import bhc.training.loop", {"training"}),
        ("from bhc import contexts, wrap", {"contexts", ROOT}),
        ("import bhc", {ROOT}),
        ("from bhc.hypernet import Full", {"hypernet"}),
        ("def f():\n    from bhc.emission import emit", {"emission"}),
        ("from ..graph import trace", {"graph"}),
        ("from . import kl", {"posterior"}),
        ("from .. import files", {"files"}),
        ("import torch\nfrom json import loads", set()),
    ],
)
def test_the_reader_of_imports_sees_every_form(monkeypatch, tmp_path, text, expected):
    folder = tmp_path / "bhc" / "posterior"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text(text)
    known = rooms()
    monkeypatch.setattr(sys.modules[__name__], "PACKAGE", tmp_path / "bhc")
    assert set(imported_rooms(folder / "module.py", known)) == expected


def loaded_by(statement):
    """The top-level modules that a fresh interpreter holds after a statement."""
    script = f"{statement}\nimport json, sys\njson.dump(sorted({{n.split('.')[0] for n in sys.modules}}), sys.stdout)"
    environment = os.environ | {"PYTHONPATH": str(PACKAGE.parent), "OMP_NUM_THREADS": "1"}
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, env=environment, timeout=120
    )
    return set(json.loads(answer.stdout))


def test_the_library_needs_no_package_of_the_command_line():
    loaded = loaded_by("import bhc; bhc.fit")
    assert {"bhc", "torch"} <= loaded
    assert not loaded & {"rich", "typer", "click", "matplotlib", "scipy", "sklearn", "PIL"}
    assert not loaded & {"onnx", "onnxruntime", "constriction", "huggingface_hub"}


def test_torch_is_loaded_with_the_first_name_that_is_asked_for():
    assert "torch" not in loaded_by("import bhc; bhc.__version__")


def test_public_names_are_there_however_they_are_asked_for():
    assert "torch" in loaded_by("import bhc; bhc.data.load\nfrom bhc import wrap\nfrom bhc import *; Full")


def test_every_public_name_is_listed_and_no_other_is_there():
    assert set(bhc.__all__) <= set(dir(bhc))
    assert all(getattr(bhc, name) is not None for name in bhc.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        bhc.nonsense  # noqa: B018


COMMAND = """
import json, os, sys
import bhc.__main__ as program
assert "torch" not in sys.modules
sys.argv = ["bhc", "--version"]
try:
    program.main()
except SystemExit:
    pass
sys.stdout.write(json.dumps(os.environ.get("OMP_WAIT_POLICY")))
"""


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ({}, "passive"),
        pytest.param({"OMP_WAIT_POLICY": "active"}, "active", marks=pytest.mark.long),
        pytest.param({"GOMP_SPINCOUNT": "1000"}, None, marks=pytest.mark.long),
    ],
)
def test_the_command_tells_waiting_threads_to_rest_unless_the_user_has_spoken(said, expected):
    quiet = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_", "KMP_"))}
    answer = subprocess.run(
        [sys.executable, "-c", COMMAND], capture_output=True, text=True, check=True, env=quiet | said, timeout=120
    )
    assert json.loads(answer.stdout.splitlines()[-1]) == expected


def test_nonsense_in_the_environment_is_for_torch_to_speak_of():
    names = ("ATEN_CPU_CAPABILITY", "OMP_WAIT_POLICY", "OMP_NUM_THREADS", "MKL_CBWR", "ONEDNN_MAX_CPU_ISA")
    environment = os.environ | dict.fromkeys(names, "nonsense")
    words = [sys.executable, "-m", "bhc", "--version"]
    answer = subprocess.run(words, capture_output=True, text=True, env=environment, timeout=120)
    assert answer.returncode == 0
    assert "Traceback" not in answer.stderr
    assert answer.stdout.startswith("bhc ")


TRAINING = """
import sys
sys.modules.update(dict.fromkeys(("onnx", "onnxruntime", "constriction")))  # none of them can be imported
import bhc, torch
data = torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.arange(20) % 2
net = bhc.models.build("lenet-300-100", image_shape=(1, 4, 4), num_classes=2)
model = bhc.wrap(net, bhc.Budgets(), example_input=data[0][:1])
bhc.fit(model, data, data, recipe=(bhc.Learn(steps=2), bhc.Consolidate(steps=2)), progress=bhc.training.Silent())
model.save(FOLDER)
bhc.load(FOLDER)
"""


def test_training_runs_where_no_package_for_files_is_installed(tmp_path):
    loaded = loaded_by(TRAINING.replace("FOLDER", repr(str(tmp_path / "run"))))
    assert not loaded & {"lightning_fabric", "lightning_utilities"}  # what connects several processes
