"""CIFAR-10 in its official forms, and the rows of bytes that one of them is."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from bhc.data import load
from bhc.data.archives import ArchiveSource
from bhc.data.catalogue import RECIPES, load_recipe
from bhc.data.images import PIXELS, TEST_ROWS, TRAIN_ROWS, format_rows, parse_rows
from bhc.data.sources import WebSource
from bhc.errors import BhcError

from .tiny import Failing
from .tiny_cifar import BATCHES, BINARY_ARCHIVE, FORMS, NAMES, PYTHON_ARCHIVE, ROWS, batch, recipe, write


def test_rows_round_trip():
    images, labels = batch(5)
    given, named = parse_rows(format_rows(images, labels), where="here")
    np.testing.assert_array_equal(given, images.reshape(4, 3, 32, 32))
    np.testing.assert_array_equal(named, labels)


def test_the_label_comes_first_then_red_row_by_row():
    content = bytes([7]) + bytes(range(256)) * 12
    images, labels = parse_rows(content, where="here")
    assert labels.tolist() == [7]
    assert images[0, 0, 1, :3].tolist() == [32, 33, 34]
    assert images[0, 2].tobytes() == content[1 + 2 * 1024 :]


@pytest.mark.parametrize("content", [b"", bytes(PIXELS), bytes(2 * (PIXELS + 1) + 1)])
def test_what_is_not_whole_rows_is_refused(content):
    with pytest.raises(BhcError, match=f"here has {len(content):,} bytes"):
        parse_rows(content, where="here")


def check(data):
    """The same tensors, whatever the form."""
    assert (len(data.train), len(data.validation), len(data.test)) == (17, 3, 4)
    images, labels = (np.concatenate(parts) for parts in zip(*(BATCHES[name] for name in TRAIN_ROWS), strict=True))
    known = torch.cat([data.train.inputs, data.validation.inputs])
    np.testing.assert_array_equal(known, images.reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(torch.cat([data.train.labels, data.validation.labels]), labels)
    np.testing.assert_array_equal(data.test.inputs, BATCHES[TEST_ROWS][0].reshape(-1, 3, 32, 32))
    np.testing.assert_array_equal(data.test.labels, BATCHES[TEST_ROWS][1])
    assert (known.dtype, data.test.labels.dtype) == (torch.uint8, torch.int64)


@pytest.mark.parametrize("form", FORMS)
def test_every_form_in_a_given_or_the_common_folder_gives_the_same(cache, tmp_path, monkeypatch, form):
    write(tmp_path / "cifar10", FORMS[form])
    check(load_recipe(recipe(), data_dir=tmp_path))
    monkeypatch.setenv("BHC_DATA", str(tmp_path))
    check(load_recipe(recipe()))
    assert not cache.exists()


@pytest.mark.usefixtures("cache")
def test_the_first_form_that_is_there_is_taken(tmp_path):
    write(tmp_path / "cifar10", FORMS["binary"] | {PYTHON_ARCHIVE: b"never looked at"})
    check(load_recipe(recipe(), data_dir=tmp_path))


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("archive", [BINARY_ARCHIVE, PYTHON_ARCHIVE])
def test_a_damaged_form_in_a_given_folder_is_an_error(tmp_path, archive):
    write(tmp_path / "cifar10", {archive: b"damaged"})
    with pytest.raises(BhcError, match=f"{tmp_path / 'cifar10' / archive} is damaged"):
        load_recipe(recipe(), data_dir=tmp_path)


def test_what_an_address_gives_is_kept(cache, tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="bhc.data")
    write(tmp_path / "site", FORMS["python archive"])
    site = WebSource((tmp_path / "site").as_uri() + "/")
    sources = [ArchiveSource(site, source.archive) for source in RECIPES["cifar10"].sources]
    check(load_recipe(recipe(*sources)))
    assert f"cifar10 comes from {site.address}{PYTHON_ARCHIVE}" in caplog.messages
    assert {path.name: path.read_bytes() for path in (cache / "cifar10").iterdir()} == ROWS
    check(load_recipe(recipe(Failing())))


@pytest.mark.usefixtures("cache")
def test_no_place_has_it(tmp_path):
    with pytest.raises(BhcError, match="no source") as caught:
        load_recipe(recipe(), data_dir=tmp_path)
    lacking = caught.value.problem.splitlines()[1]
    for name in (*NAMES, "data_batch_1,", BINARY_ARCHIVE, PYTHON_ARCHIVE):
        assert name in lacking


AT_HAND = Path(os.environ.get("BHC_DATA") or "nowhere") / "cifar10"


@pytest.mark.skipif(not AT_HAND.is_dir(), reason="a download of 170 megabytes; put cifar10/ into BHC_DATA")
def test_cifar10_where_it_is_at_hand():
    data = load("cifar10", data_dir=AT_HAND.parent)
    assert (len(data.train), len(data.validation), len(data.test)) == (45_000, 5_000, 10_000)
    assert data.image_shape == (3, 32, 32)
    assert data.full_scale == 255
    assert data.test.labels.bincount().tolist() == [1000] * 10
    assert [data.class_names[label] for label in data.train.labels[:3]] == ["frog", "truck", "truck"]
