import gzip

import pytest

from .pictures import fill


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache of the test's own, and no folder of the user's."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("BHC_CACHE", str(folder))
    monkeypatch.delenv("BHC_DATA", raising=False)
    return folder


@pytest.fixture
def decompressed(monkeypatch):
    """How many bytes gzip has given, read by read."""
    given, read = [], gzip.GzipFile.read

    def watched(file, size=-1):
        content = read(file, size)
        given.append(len(content))
        return content

    monkeypatch.setattr(gzip.GzipFile, "read", watched)
    return given


@pytest.fixture
def root(tmp_path):
    """A folder with four images of each of three classes."""
    return fill(tmp_path / "images")
