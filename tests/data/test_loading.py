"""Where a data set is looked for, and what is kept of it."""

import errno
import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from bhc.data import load
from bhc.data.catalogue import cache_dir, load_recipe
from bhc.data.images import TEST_IMAGES, TRAIN_IMAGES
from bhc.errors import BhcError

from .tiny import FILES, TEST, TRAIN, Failing, Giving, fill, raising, recipe, truncate


def test_the_place_of_the_cache(monkeypatch):
    monkeypatch.setenv("HOME", "/home/someone")
    monkeypatch.setenv("BHC_CACHE", "~/own")
    monkeypatch.setenv("XDG_CACHE_HOME", "/common")
    assert cache_dir() == Path("/home/someone/own")
    monkeypatch.setenv("BHC_CACHE", "")
    assert cache_dir() == Path("/common/bhc")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_dir() == Path("/home/someone/.cache/bhc")


def snapshot(folder):
    return {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}


def check(data):
    assert (len(data.train), len(data.validation), len(data.test)) == (8, 4, 5)
    np.testing.assert_array_equal(data.train.inputs.squeeze(1), TRAIN[0][:8])
    np.testing.assert_array_equal(data.test.inputs.squeeze(1), TEST[0])


@pytest.mark.parametrize("name", ["imagenet", "MNIST", ""])
def test_unknown_name(name):
    with pytest.raises(BhcError, match=f"'{name}'") as caught:
        load(name)
    assert caught.value.hint == "the data sets are mnist, fashion-mnist, cifar10, digits, fsdd and trec"


def test_order_of_the_places(cache, tmp_path, monkeypatch, caplog):
    caplog.set_level(logging.INFO, logger="bhc.data")
    later = Giving()
    check(load_recipe(recipe(Failing(), later)))
    check(load_recipe(recipe(later)))
    fill(tmp_path / "common" / "tiny")
    monkeypatch.setenv("BHC_DATA", str(tmp_path / "common"))
    check(load_recipe(recipe(later)))
    fill(tmp_path / "given" / "tiny")
    check(load_recipe(recipe(later), data_dir=str(tmp_path / "given")))
    assert [message for message in caplog.messages if "comes" in message] == [
        "tiny comes from a giving source",
        f"tiny comes from cache {cache / 'tiny'}",
        f"tiny comes from folder {tmp_path / 'common' / 'tiny'}",
        f"tiny comes from folder {tmp_path / 'given' / 'tiny'}",
    ]
    assert {record.levelname for record in caplog.records} == {"INFO"}  # what is not there is no reason to warn
    assert later.asked == 1


def test_a_damaged_file_in_a_given_folder_is_an_error(cache, tmp_path):
    folder = fill(tmp_path / "given" / "tiny")
    truncate(folder / TRAIN_IMAGES)
    before, later = snapshot(folder), Giving()
    with pytest.raises(BhcError, match=f"{folder / TRAIN_IMAGES} is damaged"):
        load_recipe(recipe(later), data_dir=tmp_path / "given")
    assert later.asked == 0
    assert snapshot(folder) == before
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_a_given_folder_without_the_data_set_is_passed_over(tmp_path):
    later = Giving()
    check(load_recipe(recipe(later), data_dir=tmp_path / "nowhere"))
    assert later.asked == 1
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.usefixtures("cache")
def test_a_damaged_file_in_the_common_folder_is_passed_over(tmp_path, monkeypatch, caplog):
    folder = fill(tmp_path / "common" / "tiny")
    truncate(folder / TEST_IMAGES)
    before = snapshot(folder)
    monkeypatch.setenv("BHC_DATA", str(tmp_path / "common"))
    check(load_recipe(recipe(Giving())))
    assert f"{folder / TEST_IMAGES} is damaged" in caplog.text
    assert snapshot(folder) == before


def test_a_damaged_cached_file_is_replaced(cache, caplog):
    fill(cache / "tiny")
    truncate(cache / "tiny" / TRAIN_IMAGES)
    later = Giving()
    check(load_recipe(recipe(later)))
    assert [(record.levelname, record.name) for record in caplog.records] == [("WARNING", "bhc.data")]
    assert f"{cache / 'tiny' / TRAIN_IMAGES} is damaged" in caplog.text
    caplog.clear()
    check(load_recipe(recipe(later)))
    assert later.asked == 1
    assert caplog.records == []


def test_damage_further_on_is_passed_over(cache, caplog):
    check(load_recipe(recipe(Failing(BhcError("altered on the way")), Giving())))
    assert "a failing source is passed over: altered on the way" in caplog.text
    assert sorted(path.name for path in (cache / "tiny").iterdir()) == sorted(file.name for file in FILES)


@pytest.mark.usefixtures("cache")
def test_what_cannot_be_kept_is_given_all_the_same(caplog, monkeypatch):
    monkeypatch.setattr(os, "fsync", raising(OSError(errno.ENOSPC, "No space left on device")))
    check(load_recipe(recipe(Giving())))
    assert list((cache_dir() / "tiny").iterdir()) == []
    assert "not kept in the cache: could not write" in caplog.text


def test_no_place_has_it(cache, tmp_path):
    sources = (Failing(title="one place"), Failing(BhcError("altered"), title="another place"))
    with pytest.raises(BhcError) as caught:
        load_recipe(recipe(*sources), data_dir=tmp_path / "given")
    _, *lines = caught.value.problem.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        f"  - folder {tmp_path / 'given' / 'tiny'}",
        f"  - cache {cache / 'tiny'}",
        "  - one place",
        "  - another place",
    ]
    assert lines[-1].endswith(": altered")
    assert "FOLDER/tiny and set BHC_DATA=FOLDER" in caught.value.hint
    assert all(file.name in caught.value.hint for file in FILES)
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_digits():
    data = load("digits")
    assert (len(data.train), len(data.validation), len(data.test)) == (1197, 300, 300)
    assert data.image_shape == (1, 8, 8)
    assert data.num_classes == 10
    images = torch.cat([data.train.inputs, data.validation.inputs, data.test.inputs])
    assert (int(images.min()), int(images.max())) == (0, 16)
    labels = torch.cat([data.train.labels, data.validation.labels, data.test.labels])
    assert labels.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert images[0, 0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert data.test.labels[-5:].tolist() == [9, 0, 8, 9, 8]


def test_mnist_from_whatever_place_has_it():
    """The one test that may need the network; it uses the cache in force, so that only the first run does."""
    data = load("mnist")
    assert (len(data.train), len(data.validation), len(data.test)) == (55_000, 5_000, 10_000)
    assert data.image_shape == (1, 28, 28)
    assert data.class_names == tuple("0123456789")
    counts = torch.cat([data.train.labels, data.validation.labels]).bincount().tolist()
    assert counts == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
    assert data.test.labels[:5].tolist() == [7, 2, 1, 0, 4]
