"""A data set of a few 3 x 3 images with its own checksums, and ways to place it."""

import gzip
import hashlib
import io
import zipfile
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bhc.data.archives import WheelTable
from bhc.data.catalogue import Recipe
from bhc.data.images import TEST_IMAGES, TEST_LABELS, TRAIN_IMAGES, TRAIN_LABELS, IdxLayout, format_idx
from bhc.data.sources import Gzip, PackedFile, Source, Unavailable

GZIP = Gzip()


def images_and_labels(count, *, seed):
    random = np.random.default_rng(seed)
    images = random.integers(0, 256, (count, 3, 3), dtype=np.uint8)
    return images, np.arange(count, dtype=np.uint8) % 4


def packed_file(name, content, packing=GZIP):
    return PackedFile(name, len(content), hashlib.sha256(content).hexdigest(), packing)


def raising(error):
    """A function that fails, to stand in for one that does not."""

    def fail(*_, **__):
        raise error

    return fail


TRAIN = images_and_labels(12, seed=1)
TEST = images_and_labels(5, seed=2)
CONTENTS = {
    TRAIN_IMAGES: format_idx(TRAIN[0]),
    TRAIN_LABELS: format_idx(TRAIN[1]),
    TEST_IMAGES: format_idx(TEST[0]),
    TEST_LABELS: format_idx(TEST[1]),
}
FILES = tuple(packed_file(name, content) for name, content in CONTENTS.items())


def recipe(*sources: Source) -> Recipe:
    return Recipe("tiny", ("a", "b", "c", "d"), FILES, IdxLayout(validation=4), sources)


def fill(folder: Path) -> Path:
    """Put the four public files into ``folder``."""
    folder.mkdir(parents=True)
    for name, content in CONTENTS.items():
        (folder / name).write_bytes(gzip.compress(content))
    return folder


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-9])


@dataclass
class Giving:
    """A source that gives fixed contents and counts how often it was asked."""

    contents: dict[str, bytes] = field(default_factory=lambda: dict(CONTENTS))
    asked: int = 0
    title: str = "a giving source"

    def fetch(self, files):
        self.asked += 1
        return self.contents


@dataclass
class Failing:
    """A source that always says why it cannot."""

    error: Exception = field(default_factory=lambda: Unavailable("out of order"))
    title: str = "a failing source"

    def fetch(self, files):
        raise self.error


def csv(images, labels, *, line_end="\r\n"):
    rows = np.column_stack([labels, images.reshape(len(images), -1)])
    header = ",".join(["label", *(f"{y}x{x}" for y in (1, 2, 3) for x in (1, 2, 3))])
    return line_end.join([header, *(",".join(map(str, row)) for row in rows), ""]).encode()


TABLES = (
    WheelTable("tiny/train.csv", len(csv(*TRAIN)), (3, 3), TRAIN_IMAGES, TRAIN_LABELS),
    WheelTable("tiny/test.csv", len(csv(*TEST)), (3, 3), TEST_IMAGES, TEST_LABELS),
)


def wheel(members=None) -> bytes:
    """Build a wheel that pip accepts, with the two tables or with other members."""
    if members is None:
        members = {"tiny/train.csv": csv(*TRAIN), "tiny/test.csv": csv(*TEST)}
    info = {
        "tiny-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n",
        "tiny-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny-1.0.dist-info/RECORD": b"",
    }
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, content in {**members, **info}.items():
            # A ZipInfo of its own has no time of day: the same wheel is the same bytes.
            archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    return file.getvalue()
