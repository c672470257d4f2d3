"""A network as a torch ``ExportedProgram``: a ``.pt2`` file that torch loads without bhc."""

import ast
import io
import json
import logging
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.files import read_bytes
from bhc.formats.format import LARGEST_FILE, Deployed, Export, Format, checked, not_ours, register_format, signature_in
from bhc.formats.quantised import QuantisedNetwork
from bhc.graph import Inputs
from bhc.graph.exporting import quietly
from bhc.layers import EXAMPLES

CARD = "bhc.json"  # the extra file inside that says what the network is for
LONGEST_SIZE = 1000  # letters of a size that depends on others
ARITHMETIC = ("Add", "Mul", "Integer", "FloorDiv", "Max", "Min", "TruncToInt", "ToFloat")
MOST_AXES = 8  # sizes that are multiplied with each other: no larger power can be meant
NUMBER = re.compile(r"-?[0-9]{1,20}(\.[0-9]{1,60})?")
SYMBOL = re.compile(r"[a-z]+[0-9]+")
WORDS = re.compile(r"[\w.]*", re.ASCII)  # names: torch writes them into the code that it makes of a program
OPERATOR = re.compile(r"torch\.ops\.aten\.\w+\.\w+|_operator\.(add|sub|mul|floordiv|mod|neg|eq|ne|ge|gt|le|lt|getitem)")
EQUATION = re.compile(r"[\w.,> -]*", re.ASCII)  # of a product of tensors, or a mode's name
OUR_ENTRY = re.compile(
    r"[^/]+/("
    r"data/weights/(weight_[0-9]+|model_weights_config\.json)|data/constants/(tensor_[0-9]+|model_constants_config\.json)"
    r"|data/sample_inputs/model\.pt|models/model\.json|extra/bhc\.json"
    r"|archive_format|archive_version|byteorder|\.data/(version|serialization_id))"
)

NUMBERS_AS_TEXT = ("Infinity", "-Infinity")

# Keys of texts that are no names: remarks about where a step came from, and plain data.
REMARKS = (
    "stack_trace", "nn_module_stack", "torch_fn", "torch_version", "custom", "in_spec", "out_spec", "expr_str",
    "as_string",
)  # fmt: skip


def is_size(text: str) -> bool:
    """Whether a text is arithmetic of whole numbers and symbols, and nothing else: torch's loader evaluates it."""
    if len(text) > LONGEST_SIZE:
        return False
    try:
        return _is_arithmetic(ast.parse(text, mode="eval").body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=int()) if not isinstance(node.value, bool):
            return True
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.Name(id=name):
            return bool(SYMBOL.fullmatch(name))
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub() | ast.Mult() | ast.FloorDiv(), right=right):
            return _is_arithmetic(left) and _is_arithmetic(right)
        case ast.Call(func=ast.Name(id="Symbol"), args=[ast.Constant(value=str(name))], keywords=keywords):
            flags = all(isinstance(key.value, ast.Constant) and key.value.value is True for key in keywords)
            return bool(SYMBOL.fullmatch(name)) and flags
        case ast.Call(func=ast.Name(id="Pow"), args=[base, ast.Call(func=ast.Name(id="Integer"), args=[power])]):
            return _is_arithmetic(base) and isinstance(power, ast.Constant) and power.value in range(MOST_AXES)
        case ast.Call(
            func=ast.Name(id="Float"), args=[ast.Constant(value=str(text))], keywords=[ast.keyword("precision")]
        ):
            return bool(NUMBER.fullmatch(text)) and _is_arithmetic(node.keywords[0].value)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in ARITHMETIC:
            return all(map(_is_arithmetic, args))
    return False


# What may stand behind the keys that make torch's loader run something.
ALLOWED: dict[str, Callable[[Any], bool]] = {
    "use_pickle": lambda value: value is False,
    "path_name": lambda value: bool(re.fullmatch(r"(weight|tensor)_[0-9]+", str(value))),
    "expr_str": lambda value: is_size(str(value)),
    "as_string": lambda value: bool(EQUATION.fullmatch(str(value))),
    "guards_code": lambda value: value in ([], None),
    "target": lambda value: bool(OPERATOR.fullmatch(str(value))),
}


def torch_bytes(network: QuantisedNetwork, *, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The file's content: inputs of any batch size in, logits out."""
    signature = network.signature
    with quietly(logging.NOTSET):  # torch warns of how its own recurrent layers hold their weights
        program = torch.export.export(
            network.module(), signature.zeros(EXAMPLES), dynamic_shapes=signature.dynamic_shapes(), strict=False
        )
    program._guards_code = []  # what inputs must be as code that a loader would run; sizes are in the program itself
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={CARD: json.dumps(dict(metadata or {}))})
    return file.getvalue()


@register_format
class Program(Format):
    """For torch, without bhc."""

    name, label, suffix, aliases = "pt2", ".pt2", ".pt2", ("torch",)
    rank = 3

    def write(self, network: QuantisedNetwork, export: Export) -> bytes:
        return torch_bytes(network, metadata=export.metadata)

    def open(self, path: Path) -> Deployed:
        content = read_bytes(path, limit=LARGEST_FILE)
        try:
            program, metadata = load_program(content)
            signature = signature_in(metadata)

            def logits(x: Inputs) -> Tensor:
                with torch.no_grad():
                    return program(*signature.cast(x))

            return checked(metadata, signature, "torch, exported program", len(content), logits, path)
        except Exception as error:  # torch's loader raises whatever its parts raise
            raise not_ours(path, error) from error


def load_program(content: bytes) -> tuple[Callable[..., Tensor], dict[str, Any]]:
    """The program of a file that ``torch_bytes`` wrote, and its metadata; ValueError for any other file."""
    _refuse_code(content)
    extra = {CARD: ""}
    program = torch.export.load(io.BytesIO(content), extra_files=extra)
    return program.module(), dict(json.loads(extra[CARD]))


def _refuse_code(content: bytes) -> None:
    """torch's loader unpickles, compiles and runs what an archive tells it to.

    What we write needs none of that, so only archives with our entries, our kinds of values and torch's own
    operators reach the loader.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        names = archive.namelist()
        if sum(entry.file_size for entry in archive.infolist()) > len(content):
            raise ValueError("it is compressed, which torch's own are not")
        if len(set(names)) < len(names):
            raise ValueError("two of its entries have one name")
        for name in names:
            if not OUR_ENTRY.fullmatch(name):
                raise ValueError(f"it holds {name[:60]!r}")
            if name.endswith(".pt"):
                torch.load(io.BytesIO(archive.read(name)), weights_only=True)
            elif name.endswith(".json") and not name.endswith(CARD):
                _refuse_description(json.loads(archive.read(name)))


def _refuse_description(description: Any) -> None:
    for key, value in _entries(description):
        if key in ALLOWED and not ALLOWED[key](value):
            raise ValueError(f"its {key} is {str(value)[:60]!r}")
    for text in _names(description):
        if not WORDS.fullmatch(text) and text not in NUMBERS_AS_TEXT:
            raise ValueError(f"it holds the name {text[:60]!r}")


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    if isinstance(value, dict):
        yield from value.items()
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _entries(item)


def _names(value: Any) -> Iterator[str]:
    """Every text, keys included, but for remarks."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)
    elif isinstance(value, dict):
        yield from value
        for key, item in value.items():
            if not (key in REMARKS and isinstance(item, str)):
                yield from _names(item)
