import gzip
import io
import tarfile

import pytest

from bhc.data.archives import Archive, ArchiveSource, read_members
from bhc.data.sources import FolderSource, Unavailable, WebSource
from bhc.errors import BhcError

from .tiny_cifar import BINARY, BINARY_ARCHIVE, FILES, ROWS, inside, tar

ARCHIVE = Archive(BINARY_ARCHIVE, folder=BINARY)
WANTED = {"in/a": 10, "in/b": 10}
MEMBERS = {"in/a": b"first", "in/b": b"second"}


def read(packed, *, total=1 << 20):
    return read_members(packed, WANTED, total=total, where="here")


def test_the_wanted_members_and_no_others():
    assert read(tar({"in/c": b"other", **MEMBERS, "b": b"elsewhere"})) == MEMBERS


def test_a_dot_in_front_of_the_names_does_no_harm():
    assert read(tar({f"./{name}": content for name, content in MEMBERS.items()})) == MEMBERS


@pytest.mark.parametrize("name", ["../in/a", "/in/a", "in/../in/a", "in/a/"])
def test_a_member_with_another_path_is_another_member(name):
    with pytest.raises(BhcError, match="here lacks in/a"):
        read(tar({name: b"first", "in/b": b"second"}))


def test_a_link_is_not_followed():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for kind, target in ((tarfile.SYMTYPE, "/etc/passwd"), (tarfile.LNKTYPE, "in/b")):
            link = tarfile.TarInfo("in/a")
            link.type, link.linkname = kind, target
            archive.addfile(link)
    with pytest.raises(BhcError, match="here lacks in/a, in/b"):
        read(file.getvalue())


def test_a_member_far_too_large_is_not_read():
    with pytest.raises(BhcError, match=r"in/a in here has 11 bytes; at most 10 are expected"):
        read(tar({"in/a": bytes(11)}))


@pytest.mark.parametrize("name", ["in/a", "other"])
def test_a_bomb_is_not_decompressed(name, monkeypatch):
    bomb = tar({name: bytes(1 << 20)} if name == "other" else {"other": bytes(1 << 20), name: b"first"})
    given = []
    decompress = gzip.GzipFile.read

    def watched(file, size=-1):
        content = decompress(file, size)
        given.append(len(content))
        return content

    monkeypatch.setattr(gzip.GzipFile, "read", watched)
    with pytest.raises(BhcError, match="here decompresses to more than the 50,000 bytes such an archive may have"):
        read(bomb, total=50_000)
    assert sum(given) == 50_001


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
    with pytest.raises(BhcError, match=r"here is damaged: it cannot be read as a \.tar\.gz archive") as caught:
        read(packed)
    assert "replace it" in caught.value.hint


@pytest.fixture
def folder(tmp_path):
    (tmp_path / BINARY_ARCHIVE).write_bytes(tar(inside(BINARY, ROWS)))
    return tmp_path


def test_the_files_of_an_archive_in_a_folder(folder):
    source = ArchiveSource(FolderSource(folder), ARCHIVE)
    assert source.fetch(FILES) == ROWS
    assert source.title == str(folder / BINARY_ARCHIVE)


def test_the_files_of_an_archive_at_an_address(folder):
    source = ArchiveSource(WebSource(folder.as_uri() + "/"), ARCHIVE)
    assert source.fetch(FILES) == ROWS
    assert source.title == f"{folder.as_uri()}/{BINARY_ARCHIVE}"


def test_an_archive_that_is_not_there(tmp_path):
    with pytest.raises(Unavailable, match=f"it lacks {BINARY_ARCHIVE}"):
        ArchiveSource(FolderSource(tmp_path), ARCHIVE).fetch(FILES)
    with pytest.raises(Unavailable, match=f"{BINARY_ARCHIVE}: .*No such file"):
        ArchiveSource(WebSource(tmp_path.as_uri() + "/"), ARCHIVE).fetch(FILES)


def test_an_altered_file_is_named_with_its_archive(folder):
    name = FILES[2].name
    altered = {**ROWS, name: bytes(len(ROWS[name]))}
    (folder / BINARY_ARCHIVE).write_bytes(tar(inside(BINARY, altered)))
    with pytest.raises(BhcError, match=f"{BINARY}/{name} in {folder / BINARY_ARCHIVE} is damaged: .*altered"):
        ArchiveSource(FolderSource(folder), ARCHIVE).fetch(FILES)


def test_an_archive_far_too_large_is_not_read(folder):
    (folder / BINARY_ARCHIVE).write_bytes(bytes(ARCHIVE.limit(FILES) + 1))
    with pytest.raises(BhcError, match=f"{folder / BINARY_ARCHIVE} is larger than"):
        ArchiveSource(FolderSource(folder), ARCHIVE).fetch(FILES)
