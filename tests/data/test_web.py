import email.message
import http.client
import io
import urllib.error
import urllib.request

import pytest

from bhc.data.images import TRAIN_IMAGES
from bhc.data.sources import Unavailable, WebSource
from bhc.errors import BhcError

from .tiny import CONTENTS, FILES, fill, truncate


@pytest.fixture
def site(tmp_path):
    """A folder with the files, and its address: ``file:`` goes the same way through urllib as ``https:``."""
    folder = fill(tmp_path / "site")
    return folder, WebSource(folder.as_uri() + "/")


def test_reads_the_files_below_the_address(site):
    _, source = site
    assert source.fetch(FILES) == CONTENTS
    assert source.title == source.address


def test_asks_with_a_timeout(site, monkeypatch):
    _, source = site
    timeouts = []
    urlopen = urllib.request.urlopen

    def watched(address, *, timeout):
        timeouts.append(timeout)
        return urlopen(address, timeout=timeout)

    monkeypatch.setattr(urllib.request, "urlopen", watched)
    source.fetch(FILES)
    assert timeouts == [20.0] * 4


def test_a_truncated_answer(site):
    folder, source = site
    truncate(folder / TRAIN_IMAGES)
    with pytest.raises(BhcError, match=f"{source.address}{TRAIN_IMAGES} is damaged"):
        source.fetch(FILES)


def test_an_endless_answer_is_cut_off(monkeypatch):
    class Endless(io.RawIOBase):
        given = 0

        def read(self, size=-1):
            self.given += size
            return bytes(size)

    endless = Endless()
    monkeypatch.setattr(urllib.request, "urlopen", lambda *_, **__: endless)
    with pytest.raises(BhcError, match=r"is larger than the .* bytes such a file may have"):
        WebSource("https://example.invalid/").fetch(FILES)
    assert endless.given <= 1 << 16


def test_a_file_that_is_not_there(site):
    folder, source = site
    (folder / TRAIN_IMAGES).unlink()
    with pytest.raises(Unavailable, match=f"{TRAIN_IMAGES}: .*No such file"):
        source.fetch(FILES)


@pytest.mark.parametrize(
    ("error", "why"),
    [
        (
            urllib.error.HTTPError("address", 404, "Not Found", email.message.Message(), io.BytesIO()),
            "the server answers 404 Not Found",
        ),
        (urllib.error.URLError("Name or service not known"), "Name or service not known"),
        (TimeoutError("timed out"), "timed out"),
        (ConnectionResetError(), "ConnectionResetError"),
        (http.client.IncompleteRead(b"abc"), "IncompleteRead"),
    ],
)
def test_no_answer(monkeypatch, error, why):
    def fail(*_, **__):
        raise error

    monkeypatch.setattr(urllib.request, "urlopen", fail)
    with pytest.raises(Unavailable, match=f"{TRAIN_IMAGES}: .*{why}"):
        WebSource("https://example.invalid/").fetch(FILES)
