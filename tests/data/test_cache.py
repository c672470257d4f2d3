import errno
import os
from pathlib import Path

import pytest

from bhc.data.catalogue import Cache, Kept, cache_dir
from bhc.data.images import TRAIN_IMAGES
from bhc.data.sources import Unavailable
from bhc.errors import BhcError

from .tiny import CONTENTS, FILES, Failing, Giving, fill


@pytest.fixture
def full_disk(monkeypatch):
    def fail(handle):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)


def test_the_place_of_the_cache(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("BHC_CACHE", "~/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/common")
    assert cache_dir() == Path("/home/someone/own")
    monkeypatch.setenv("BHC_CACHE", "")
    assert cache_dir() == Path("/common/bhc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/someone/.cache/bhc")


def test_what_is_stored_comes_back(tmp_path):
    cache = Cache(tmp_path / "new" / "tiny")
    with pytest.raises(Unavailable, match="it lacks"):
        cache.fetch(FILES)
    cache.store(FILES, CONTENTS)
    assert cache.fetch(FILES) == CONTENTS
    assert sorted(path.name for path in cache.folder.iterdir()) == sorted(CONTENTS)


@pytest.mark.usefixtures("full_disk")
def test_a_write_that_fails_leaves_the_old_file(tmp_path):
    cache = Cache(fill(tmp_path / "tiny"))
    before = {path.name: path.read_bytes() for path in cache.folder.iterdir()}
    with pytest.raises(BhcError, match=f"could not write .*{TRAIN_IMAGES}: No space left on device"):
        cache.store(FILES, CONTENTS)
    assert {path.name: path.read_bytes() for path in cache.folder.iterdir()} == before


def test_a_kept_source_fills_the_cache(tmp_path):
    cache = Cache(tmp_path / "tiny")
    assert Kept(Giving(), cache).fetch(FILES) == CONTENTS
    assert cache.fetch(FILES) == CONTENTS


@pytest.mark.usefixtures("full_disk")
def test_what_cannot_be_kept_is_given_all_the_same(tmp_path, caplog):
    assert Kept(Giving(), Cache(tmp_path / "tiny")).fetch(FILES) == CONTENTS
    assert list((tmp_path / "tiny").iterdir()) == []
    assert "not kept in the cache: could not write" in caplog.text


def test_a_kept_source_that_fails_writes_nothing(tmp_path):
    with pytest.raises(Unavailable, match="out of order"):
        Kept(Failing(), Cache(tmp_path / "tiny")).fetch(FILES)
    assert not (tmp_path / "tiny").exists()
