import gzip
from dataclasses import replace

import pytest

from bhc.data.sources import Plain
from bhc.errors import BhcError

from .tiny import packed_file

CONTENT = b"some content, some content" * 50
FILE = packed_file("file.gz", CONTENT)


def test_round_trip_whoever_compressed():
    assert FILE.unpack(FILE.pack(CONTENT), where="here") == CONTENT
    assert FILE.unpack(gzip.compress(CONTENT, 9), where="here") == CONTENT


def test_a_file_may_stand_as_it_is():
    plain = replace(FILE, packing=Plain())
    assert plain.pack(CONTENT) == CONTENT
    assert plain.unpack(CONTENT, where="here") == CONTENT
    assert plain.packed_limit == len(CONTENT)
    with pytest.raises(BhcError, match="here is damaged: it goes on after 1,300 bytes"):
        plain.unpack(CONTENT * 2, where="here")


def test_packing_is_repeatable():
    assert FILE.pack(CONTENT) == FILE.pack(CONTENT)


def test_the_limit_has_room_for_what_does_not_compress():
    noise = bytes(range(256)) * 400
    assert len(gzip.compress(noise, 0)) <= packed_file("noise.gz", noise).packed_limit


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (CONTENT[:-1], "it ends after 1,299 bytes"),
        (CONTENT + b"x", "it goes on after 1,300 bytes"),
        (CONTENT[:-1] + b"x", r"its content was altered \(SHA-256 "),
    ],
)
def test_wrong_content(content, why):
    expected = rf"here/file\.gz is damaged: {why}.*1,300 bytes with SHA-256 {FILE.sha256} are expected"
    with pytest.raises(BhcError, match=expected) as caught:
        FILE.unpack(gzip.compress(content), where="here/file.gz")
    assert "original file.gz" in caught.value.hint


@pytest.mark.parametrize(
    "packed",
    [
        pytest.param(b"<html>not here</html>", id="no gzip"),
        pytest.param(gzip.compress(CONTENT)[:-9], id="truncated"),
        pytest.param(gzip.compress(CONTENT)[:-8] + bytes(8), id="wrong check value"),
        pytest.param(gzip.compress(CONTENT)[:12] + b"\xff" * 20, id="bad stream"),
        pytest.param(gzip.compress(CONTENT) + b"and more", id="goes on"),
    ],
)
def test_what_does_not_decompress(packed):
    with pytest.raises(BhcError, match=r"here is damaged: it does not decompress \("):
        FILE.unpack(packed, where="here")


def test_a_bomb_is_not_decompressed(monkeypatch):
    asked = []
    read = gzip.GzipFile.read

    def watched(file, size=-1):
        asked.append(size)
        return read(file, size)

    monkeypatch.setattr(gzip.GzipFile, "read", watched)
    with pytest.raises(BhcError, match="it goes on after 1,300 bytes"):
        FILE.unpack(gzip.compress(bytes(1 << 20)), where="here")
    assert asked == [1301]
