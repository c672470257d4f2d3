"""Files that are known by what is inside them, and the places they come from."""

import email.message
import gzip
import http.client
import io
import sys
import urllib.error
import urllib.request

import pytest

from bhc.data.images import TRAIN_IMAGES
from bhc.data.sources import FolderSource, PackageSource, Plain, Unavailable, WebSource
from bhc.errors import BhcError

from .tiny import CONTENTS, FILES, fill, packed_file, raising, truncate

CONTENT = b"some content, some content" * 50
FILE = packed_file("file.gz", CONTENT)


def test_round_trip_whoever_compressed():
    packed = FILE.pack(CONTENT)
    assert packed[4:8] == bytes(4)  # no time of day: the same content is the same file
    for form in (packed, gzip.compress(CONTENT, 9)):
        assert FILE.unpack(form, where="here") == CONTENT


def test_a_file_may_stand_as_it_is():
    plain = packed_file("file", CONTENT, Plain())
    assert plain.pack(CONTENT) == plain.unpack(CONTENT, where="here") == CONTENT
    assert plain.packed_limit == len(CONTENT)
    with pytest.raises(BhcError, match="1,300 bytes"):
        plain.unpack(CONTENT * 2, where="here")


def test_the_limit_has_room_for_what_does_not_compress():
    noise = bytes(range(256)) * 400
    assert len(gzip.compress(noise, 0)) <= packed_file("noise.gz", noise).packed_limit


@pytest.mark.parametrize(
    ("packed", "why"),
    [
        pytest.param(gzip.compress(CONTENT[:-1]), "ends after 1,299", id="short"),
        pytest.param(gzip.compress(CONTENT + b"x"), "goes on after 1,300", id="long"),
        pytest.param(gzip.compress(CONTENT[:-1] + b"x"), "altered", id="altered"),
        pytest.param(b"<html>not here</html>", "decompress", id="no gzip"),
        pytest.param(gzip.compress(CONTENT)[:-9], "decompress", id="truncated"),
        pytest.param(gzip.compress(CONTENT)[:-8] + bytes(8), "decompress", id="wrong check value"),
        pytest.param(gzip.compress(CONTENT)[:12] + b"\xff" * 20, "decompress", id="bad stream"),
        pytest.param(gzip.compress(CONTENT) + b"and more", "decompress", id="more after the stream"),
    ],
)
def test_another_file_is_damaged_and_the_original_named(packed, why):
    with pytest.raises(BhcError, match=rf"here is damaged: .*{why}.*{FILE.sha256}") as caught:
        FILE.unpack(packed, where="here")
    assert "original file.gz" in caught.value.hint


def test_a_bomb_is_not_decompressed(decompressed):
    with pytest.raises(BhcError, match="1,300 bytes"):
        FILE.unpack(gzip.compress(bytes(1 << 20)), where="here")
    assert decompressed == [1301]


@pytest.fixture(params=["folder", "web"])
def place(request, tmp_path):
    """A folder with the files, and what reads it; ``file:`` goes the same way through urllib as ``https:``."""
    folder = fill(tmp_path / "site")
    return folder, FolderSource(folder) if request.param == "folder" else WebSource(folder.as_uri() + "/")


def test_the_public_files_are_read(place):
    _, source = place
    assert source.fetch(FILES) == CONTENTS


def test_a_file_that_is_not_there(place):
    folder, source = place
    (folder / TRAIN_IMAGES).unlink()
    with pytest.raises(Unavailable, match=TRAIN_IMAGES):
        source.fetch(FILES)


def test_damaged_and_far_too_large_files_are_no_absent_ones(place):
    folder, source = place
    truncate(folder / TRAIN_IMAGES)
    with pytest.raises(BhcError, match=f"{source.address_of(TRAIN_IMAGES)} is damaged") as damaged:
        source.fetch(FILES)
    (folder / TRAIN_IMAGES).write_bytes(bytes(100_000))
    with pytest.raises(BhcError, match=f"{source.address_of(TRAIN_IMAGES)} is larger") as large:
        source.fetch(FILES)
    assert not any(isinstance(caught.value, Unavailable) for caught in (damaged, large))


def test_a_package_is_found_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "carrier_of_data"
    fill(package / "inside" / "files")
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = PackageSource("carrier_of_data", distribution="carrier-of-data", subfolder="inside/files")
    assert source.fetch(FILES) == CONTENTS
    assert "carrier_of_data" not in sys.modules
    assert "carrier-of-data" in source.title


@pytest.mark.parametrize("package", ["no_such_package_anywhere", "this"])
def test_a_package_that_is_not_installed_or_has_no_folder(package):
    source = PackageSource(package, distribution="some-package", subfolder="data")
    with pytest.raises(Unavailable, match="some-package"):
        source.fetch(FILES)


def test_an_address_is_asked_with_a_timeout(tmp_path, monkeypatch):
    source = WebSource(fill(tmp_path / "site").as_uri() + "/")
    timeouts = []
    urlopen = urllib.request.urlopen

    def watched(address, *, timeout):
        assert address.startswith(source.title)
        timeouts.append(timeout)
        return urlopen(address, timeout=timeout)

    monkeypatch.setattr(urllib.request, "urlopen", watched)
    source.fetch(FILES)
    assert timeouts == [20.0] * 4


def test_an_endless_answer_is_cut_off(monkeypatch):
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size=-1):
            self.given += size
            return bytes(size)

    endless = Endless()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: endless)
    with pytest.raises(BhcError, match="larger"):
        WebSource("https://example.invalid/").fetch(FILES)
    assert endless.given <= 1 << 16


NOT_FOUND = urllib.error.HTTPError("address", 404, "Not Found", email.message.Message(), io.BytesIO())


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (NOT_FOUND, "404 Not Found"),
        (urllib.error.URLError("Name or service not known"), "Name or service not known"),
        (TimeoutError("timed out"), "timed out"),
        (ConnectionResetError(), "ConnectionResetError"),
        (http.client.IncompleteRead(b"abc"), "IncompleteRead"),
    ],
)
def test_no_answer(monkeypatch, error, why):
    monkeypatch.setattr(urllib.request, "urlopen", raising(error))
    with pytest.raises(Unavailable, match=f"{TRAIN_IMAGES}: .*{why}"):
        WebSource("https://example.invalid/").fetch(FILES)
