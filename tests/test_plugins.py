"""Files and modules of a user's own, imported before a command runs or for one function in them."""

import os
import sys
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest

from bhc import plugins
from bhc.errors import BhcError


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(plugins.VARIABLE, "")
    monkeypatch.setattr(plugins, "_imported", set())
    monkeypatch.setattr(sys, "path", list(sys.path))
    (tmp_path / "mine.py").write_text("with open('log', 'a') as log: log.write('imported ')")
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", None)).startswith(str(tmp_path)):
            del sys.modules[name]


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


NETS = """
import os
from neighbour_of_nets import DEPTH

class Net:
    def __init__(self, width=3):
        self.width = width
    def __call__(self):
        return os.getpid(), self.width * DEPTH

def build():
    return Net(5)

build_number = 7
"""


@pytest.fixture
def nets(folder: Path) -> Path:
    (folder / "neighbour_of_nets.py").write_text("DEPTH = 2")
    (folder / "my-nets.py").write_text(NETS)
    return folder / "my-nets.py"


def test_functions_of_modules_and_of_files_with_what_lies_beside_them(nets: Path) -> None:
    assert plugins.load_function("os.path:basename") is os.path.basename
    build = plugins.load_function("my-nets.py:build")
    assert build().width == 5
    assert isinstance(build(), plugins.load_function(f"{nets}:Net"))  # type: ignore[arg-type]
    assert build.__module__ == plugins.module_name(str(nets))


def _ask(connection: Any, thing: Any) -> None:
    connection.send(thing())


def test_what_a_file_defines_is_found_by_processes_that_have_imported_nothing(nets: Path) -> None:
    instance = plugins.load_function("my-nets.py:build")()
    context = get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=_ask, args=(there, instance))
    process.start()
    assert here.poll(60)
    assert here.recv() == (process.pid, 10)
    process.join()


def test_files_of_one_name_are_two_modules(folder: Path) -> None:
    for place in ("a", "b"):
        (folder / place).mkdir()
        (folder / place / "net.py").write_text(f"def build(): return '{place}'")
    assert [plugins.load_function(f"{place}/net.py:build")() for place in "ab"] == ["a", "b"]


def test_a_file_may_import_another_that_was_imported_by_name(folder: Path) -> None:
    (folder / "user.py").write_text("import mine\ndef module(): return mine")
    plugins.import_plugins(["mine.py"])
    found = plugins.load_function("user.py:module")()
    assert found is sys.modules[plugins.module_name(str(folder / "mine.py"))]
    assert (folder / "log").read_text() == "imported "


@pytest.mark.parametrize("where", ["my-nets.py", "build", ":build", "my-nets.py:", ""])
def test_what_names_no_function(where: str) -> None:
    with pytest.raises(BhcError, match="name a function") as caught:
        plugins.load_function(where)
    assert plugins.FUNCTION_FORMS in caught.value.hint


@pytest.mark.parametrize("where", ["nothere:f", "os.nothere:f", "my-nets:f", "a/b:f", ".relative:f", "nothere.py:f"])
def test_a_file_or_module_that_is_not_there(nets: Path, where: str) -> None:
    with pytest.raises(BhcError, match=f"there is no (file|module) .*{where.removesuffix(':f')}"):
        plugins.load_function(where)


@pytest.mark.usefixtures("nets")
@pytest.mark.parametrize(
    ("name", "problem", "hint"),
    [
        ("bild", "no function bild", "it has build$"),
        ("xyz", "no function xyz", "it has Net, build$"),
        ("build_number", "build_number .* int", ""),
    ],
)
def test_a_name_that_is_no_function_and_names_like_it(name: str, problem: str, hint: str) -> None:
    with pytest.raises(BhcError, match=problem) as caught:
        plugins.load_function(f"my-nets.py:{name}")
    assert caught.match(hint)


def test_a_module_without_functions_has_nothing_to_offer() -> None:
    with pytest.raises(BhcError, match="defines no function"):
        plugins.load_function("mine.py:f")


RELATIVE = r"bhc\.plugins.*\n  hint: .*package\.module"


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        pytest.param("x = 1\nx.y\n", r"AttributeError.* \(line 2 of .*broken\.py\)", id="attribute"),
        pytest.param("import json\n\njson.loads('{')", r"JSON.* \(line 3 of .*broken\.py\)", id="in another library"),
        pytest.param("def f(:", r"SyntaxError.* \(broken\.py, line 1\)", id="syntax"),
        pytest.param("import helper", r"ZeroDivisionError.* \(line 2 of .*helper\.py\)", id="in what lies beside"),
        pytest.param("import acme.nothere", r"named 'acme' \(line 1 of .*broken\.py\)", id="not installed"),
        pytest.param("import sys\nsys.exit(3)", r"SystemExit: 3 \(line 2 .*\)\n.*__main__", id="exit"),
        *(pytest.param(code, RELATIVE, id=code) for code in ("from . import helper", "from .helper import x")),
    ],
)
def test_a_file_that_fails_is_named_with_the_line_and_can_be_mended(folder: Path, code: str, expected: str) -> None:
    (folder / "helper.py").write_text("\n1 / 0")
    (folder / "broken.py").write_text(code)
    with pytest.raises(BhcError, match=expected):
        plugins.load_function("broken.py:f")
    assert not os.environ[plugins.VARIABLE]
    (folder / "broken.py").write_text("# mended, and longer than it was before\ndef f(): return 1")
    assert plugins.load_function("broken.py:f")() == 1


def test_a_module_that_fails_is_named_with_the_line(folder: Path) -> None:
    (folder / "acme").mkdir()
    (folder / "acme" / "broken.py").write_text("\n\nundefined")
    sys.path.append(str(folder))
    with pytest.raises(BhcError, match=r"acme.broken cannot be imported: NameError.*line 3 of .*broken\.py"):
        plugins.load_function("acme.broken:f")


def test_what_a_file_refuses_itself_is_said_as_it_is(folder: Path) -> None:
    (folder / "refusing.py").write_text("from bhc.errors import BhcError\nraise BhcError('not this', hint='but that')")
    with pytest.raises(BhcError, match=r"^not this\n  hint: but that$"):
        plugins.load_function("refusing.py:f")


def test_a_path_that_the_environment_cannot_carry(folder: Path) -> None:
    (folder / "a:b").mkdir()
    (folder / "a:b" / "net.py").write_text("def f(): ...")
    with pytest.raises(BhcError, match="BHC_IMPORT"):
        plugins.load_function("a:b/net.py:f")


def test_what_a_function_gives(nets: Path) -> None:
    assert plugins.made_by("my-nets.py:build").width == 5
    assert plugins.made_by("my-nets.py:Net").width == 3
    assert plugins.made_by("builtins:dict") == {}  # which does not say what it takes


MAKERS = """
from bhc.errors import BhcError

def takes(size): return size
def fails():
    return 1 / 0
def leaves(): raise SystemExit(3)
def refuses(): raise BhcError("not today", hint="tomorrow")
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("takes", r"makers.py:takes cannot be called without arguments: .*'size'"),
        ("fails", r"makers.py:fails fails: ZeroDivisionError: .* \(line 6 of .*makers.py\)"),
        ("leaves", "makers.py:leaves fails: SystemExit: 3"),
        ("refuses", "^not today\n  hint: tomorrow"),
    ],
)
def test_a_function_that_gives_nothing(folder: Path, name: str, expected: str) -> None:
    (folder / "makers.py").write_text(MAKERS)
    with pytest.raises(BhcError, match=expected):
        plugins.made_by(f"makers.py:{name}")


def test_a_name_of_a_function_that_holds_in_other_folders(folder: Path) -> None:
    assert plugins.found_anywhere("nets.py:build") == f"{folder / 'nets.py'}:build"
    assert plugins.found_anywhere("acme.nets:build") == "acme.nets:build"
