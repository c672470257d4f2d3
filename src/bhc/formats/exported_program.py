"""A network as a torch ``ExportedProgram``: a ``.pt2`` file that torch loads without bhc."""

import io
import json
import re
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from bhc.formats.quantised import QuantisedNetwork

CARD = "bhc.json"  # the extra file inside that says what the network is for
PLAIN_SIZE = re.compile(r"-?[0-9]+|[a-z]+[0-9]+|Symbol\('[a-z]+[0-9]+'(, [a-z]+=True)*\)")


def torch_bytes(network: QuantisedNetwork, *, metadata: Mapping[str, Any] | None = None) -> bytes:
    """The file's content: float inputs of any batch size in, logits out."""
    example = torch.zeros(2, *network.input_shape)
    program = torch.export.export(
        network.module(), (example,), dynamic_shapes=({0: torch.export.Dim("batch")},), strict=False
    )
    file = io.BytesIO()
    torch.export.save(program, file, extra_files={CARD: json.dumps(dict(metadata or {}))})
    return file.getvalue()


def load_program(content: bytes) -> tuple[Callable[[Tensor], Tensor], dict[str, Any]]:
    """The program of a file that ``torch_bytes`` wrote, and its metadata; ValueError for any other file."""
    _refuse_code(content)
    extra = {CARD: ""}
    program = torch.export.load(io.BytesIO(content), extra_files=extra)
    return program.module(), dict(json.loads(extra[CARD]))


def _refuse_code(content: bytes) -> None:
    """torch's loader unpickles what an archive tells it to and evaluates its symbolic sizes as Python.

    What we write needs neither, so an archive with either is not one of ours and never reaches the loader.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > len(content):
            raise ValueError("it is compressed, which torch's own are not")
        for entry in archive.namelist():
            if entry.endswith(".json"):
                for key, value in _entries(json.loads(archive.read(entry))):
                    if key == "use_pickle" and value is not False:
                        raise ValueError("it holds pickled objects")
                    if key == "expr_str" and not PLAIN_SIZE.fullmatch(str(value)):
                        raise ValueError("it computes sizes by a formula")
            elif entry.endswith(".pt"):
                torch.load(io.BytesIO(archive.read(entry)), weights_only=True)


def _entries(value: Any) -> Iterator[tuple[str, Any]]:
    """Every key with its value, at any depth."""
    if isinstance(value, dict):
        yield from value.items()
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _entries(item)
