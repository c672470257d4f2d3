"""The size of the house: rooms that can be found, classes and functions that can be read at one look."""

import ast
from collections import Counter
from pathlib import Path

import bhc

PACKAGE = Path(bhc.__file__).parent
MODULES = {str(path.relative_to(PACKAGE)): path.read_text() for path in sorted(PACKAGE.rglob("*.py"))}
TREES = {name: ast.parse(text) for name, text in MODULES.items()}
# Rooms that a newcomer finds by their names: what is added goes where it belongs before it gets a module of its own.
MOST_MODULES, MOST_LINES, MOST_METHODS, MOST_PARAMETERS = 150, 400, 15, 8

# What users call takes what they may say.
PUBLIC = {"wrap", "fit", "compress"}
ALIKE = {"__init__", "registry"}  # one in each package that has one
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def test_there_are_few_modules_and_none_is_long():
    assert len(MODULES) <= MOST_MODULES
    assert not [name for name, text in MODULES.items() if len(text.splitlines()) > MOST_LINES]


def test_no_name_of_a_module_stands_in_two_packages():
    names = Counter(Path(name).stem for name in MODULES)
    assert {name for name, count in names.items() if count > 1} <= ALIKE


def test_no_class_has_many_methods():
    classes = [
        (name, node) for name, tree in TREES.items() for node in ast.walk(tree) if isinstance(node, ast.ClassDef)
    ]
    sizes = {f"{name}:{node.name}": sum(isinstance(part, FUNCTIONS) for part in node.body) for name, node in classes}
    assert not {name: size for name, size in sizes.items() if size > MOST_METHODS}


def parameters(function):
    own = function.args
    count = len(own.posonlyargs + own.args + own.kwonlyargs)
    return count - bool(own.args and own.args[0].arg in ("self", "cls"))


def test_no_function_takes_much_but_what_users_call():
    functions = [
        (f"{name}:{node.name}", parameters(node))
        for name, tree in TREES.items()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS) and not node.name.endswith("_command") and node.name not in PUBLIC
    ]
    assert len(functions) > 1000
    assert not [(name, count) for name, count in functions if count > MOST_PARAMETERS]
