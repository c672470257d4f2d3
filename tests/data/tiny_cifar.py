"""A few images in CIFAR-10's two official forms, with their own checksums."""

import io
import struct
import tarfile
from dataclasses import replace
from pathlib import Path

import numpy as np

from bhc.data.catalogue import RECIPES
from bhc.data.images import PIXELS, TEST_ROWS, TRAIN_ROWS, RowsLayout, format_rows
from bhc.data.sources import Plain

from .tiny import packed_file

NAMES = (*TRAIN_ROWS, TEST_ROWS)
BINARY, PYTHON = "cifar-10-batches-bin", "cifar-10-batches-py"
BINARY_ARCHIVE, PYTHON_ARCHIVE = "cifar-10-binary.tar.gz", "cifar-10-python.tar.gz"


def batch(seed, count=4):
    random = np.random.default_rng(seed)
    return random.integers(0, 256, (count, PIXELS), dtype=np.uint8), random.integers(0, 10, count, dtype=np.uint8)


BATCHES = {name: batch(seed) for seed, name in enumerate(NAMES)}
ROWS = {name: format_rows(*batch) for name, batch in BATCHES.items()}
FILES = tuple(packed_file(name, content, Plain()) for name, content in ROWS.items())


def recipe(*sources):
    """CIFAR-10's own recipe for these few images."""
    return replace(RECIPES["cifar10"], files=FILES, layout=RowsLayout(validation=3), sources=sources)


def text(value: bytes) -> bytes:
    """A string as Python 2 pickles it."""
    return (b"U" + bytes([len(value)]) if len(value) < 256 else b"T" + struct.pack("<I", len(value))) + value


def whole(number: int) -> bytes:
    return b"K" + bytes([number]) if number < 256 else b"J" + struct.pack("<i", number)


def pickled_array(images, *, module=b"numpy.core.multiarray", kind=b"u1", shape=None) -> bytes:
    """The operations by which numpy 1 under Python 2 describes an array of bytes, protocol 2."""
    rows, columns = shape or images.shape
    return b"".join(
        [
            b"c" + module + b"\n_reconstruct\nq\x03cnumpy\nndarray\nq\x04K\x00\x85" + text(b"b") + b"\x87Rq\x05",
            b"(K\x01" + whole(rows) + whole(columns) + b"\x86",
            b"cnumpy\ndtype\nq\x06" + text(kind) + b"K\x00K\x01\x87R",
            b"(K\x03" + text(b"|") + b"NNN" + b"J\xff\xff\xff\xff" * 2 + b"K\x00tb",
            b"\x89" + text(images.tobytes()) + b"tb",
        ]
    )


def pickled_labels(labels) -> bytes:
    return b"]q\x02(" + b"".join(whole(int(label)) for label in labels) + b"e"


def pickled_entries(**entries: bytes) -> bytes:
    pairs = b"".join(text(name.encode()) + value for name, value in entries.items())
    return b"\x80\x02}q\x01(" + pairs + b"u."


def pickled(images, labels) -> bytes:
    """A batch as the official python version has it."""
    return pickled_entries(
        batch_label=text(b"training batch 1 of 5"),
        labels=pickled_labels(labels),
        data=pickled_array(images),
        filenames=b"](" + b"".join(text(b"leptodactylus_pentadactylus_s_%06d.png" % place) for place in labels) + b"e",
    )


PICKLES = {name.removesuffix(".bin"): pickled(*batch) for name, batch in BATCHES.items()}


def tar(members: dict[str, bytes]) -> bytes:
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, content in members.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return file.getvalue()


def inside(folder: str, contents: dict[str, bytes]) -> dict[str, bytes]:
    return {f"{folder}/readme.html": b"<html>", **{f"{folder}/{name}": content for name, content in contents.items()}}


def write(folder: Path, contents: dict[str, bytes]) -> None:
    for name, content in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


# The ways a folder may hold the data set, in the order they are looked for.
FORMS = {
    "loose": ROWS,
    "binary": inside(BINARY, ROWS),
    "binary archive": {BINARY_ARCHIVE: tar(inside(BINARY, ROWS))},
    "python": inside(PYTHON, PICKLES),
    "python archive": {PYTHON_ARCHIVE: tar(inside(PYTHON, PICKLES))},
}
