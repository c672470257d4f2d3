import os
import pickle
import struct

import numpy as np
import pytest

from bhc.data.images import PickledRows, parse_pickled_rows
from bhc.errors import BhcError

from .tiny_cifar import (
    BATCHES,
    FILES,
    PICKLES,
    ROWS,
    batch,
    pickled,
    pickled_array,
    pickled_entries,
    pickled_labels,
    text,
)

IMAGES, LABELS = batch(0)


def refused(content, why):
    with pytest.raises(BhcError, match=rf"here is no pickled batch of CIFAR-10: .*{why}") as caught:
        parse_pickled_rows(content, where="here")
    assert "binary version" in caught.value.hint


def test_our_files_are_what_python_reads_too():
    """The files these tests are made of: an ordinary reader finds in them what the official ones hold."""
    entries = pickle.loads(pickled(IMAGES, LABELS), encoding="bytes")
    assert list(entries) == [b"batch_label", b"labels", b"data", b"filenames"]
    np.testing.assert_array_equal(entries[b"data"], IMAGES)


def by_python_3(images, protocol):
    return pickle.dumps({"data": images, "labels": LABELS.tolist()}, protocol=protocol)


NUMPY_2 = pickled_array(IMAGES, module=b"numpy._core.multiarray")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(pickled(IMAGES, LABELS), id="official"),
        pytest.param(pickled_entries(data=NUMPY_2, labels=pickled_labels(LABELS)), id="numpy 2"),
        pytest.param(by_python_3(IMAGES, 3), id="protocol 3"),
        pytest.param(by_python_3(IMAGES, 4), id="protocol 4"),
        pytest.param(by_python_3(np.asfortranarray(IMAGES), 4), id="column by column"),
    ],
)
def test_reads_a_batch_whoever_pickled_it(content):
    images, labels = parse_pickled_rows(content, where="here")
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


def test_becomes_the_content_of_the_binary_file():
    form = PickledRows()
    for file in FILES:
        stored = PICKLES[form.stored_name(file)]
        assert len(stored) <= form.limit(file)
        assert form.content(stored, file, where="here") == ROWS[file.name]


def test_another_batch_is_refused_by_the_checksum():
    first, second, *_ = FILES
    stored = PICKLES[PickledRows().stored_name(second)]
    with pytest.raises(BhcError, match=f"{first.name}, made from here, is damaged"):
        PickledRows().content(stored, first, where="here")


class Hostile:
    """Makes a folder when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


@pytest.mark.parametrize("protocol", range(6))
def test_a_hostile_pickle_is_refused_and_does_not_run(tmp_path, protocol):
    trap = tmp_path / "trap"
    content = pickle.dumps({"data": Hostile(trap), "labels": [1]}, protocol=protocol)
    refused(content, "")
    assert not trap.exists()
    pickle.loads(content)
    assert trap.exists()  # it does run where it is let


@pytest.mark.parametrize(
    "name",
    [
        "os\nsystem",
        "builtins\neval",
        "numpy\nload",
        "numpy\nndarray.tofile",
        "numpy.core.multiarray\nfromfile",
        "numpy.core.multiarray\nscalar",
        "numpy.lib.npyio\n_reconstruct",
        "numpy._core.multiarray\nndarray",
    ],
)
def test_no_other_name_is_known(name):
    module, _, attribute = name.partition("\n")
    refused(b"\x80\x02c" + name.encode() + b"\n.", f"{module}.{attribute}")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(pickled(*BATCHES["test_batch.bin"])[:-500], "", id="truncated"),
        pytest.param(b"<html>not here</html>", "", id="no pickle"),
        pytest.param(b"\x80\x02K\x01.", "AttributeError", id="a number"),
        pytest.param(pickled_entries(labels=pickled_labels([1])), "KeyError: 'data'", id="no data"),
        pytest.param(pickled_entries(data=pickled_array(IMAGES)), "KeyError: 'labels'", id="no labels"),
        pytest.param(b"\x80\x02K\x012.", "operation DUP", id="operation"),
        pytest.param(b"\x80\x02(c__main__\nC\no.", "operation OBJ", id="object"),
        pytest.param(b"\x80\x02Nr" + struct.pack("<I", 1 << 31) + b".", "2,147,483,648", id="memory"),
        pytest.param(b"\x80\x02N" + b"\x85" * 17 + b".", "more operations", id="tuples"),
        pytest.param(b"\x80\x02](" + b"N" * (1 << 17) + b"e.", "more operations", id="operations"),
        pytest.param(b"\x80\x04\x8e" + b"\xff" * 8 + b".", "", id="declared size"),
        *(
            pytest.param(pickled_entries(data=data, labels=pickled_labels(LABELS)), why, id=name)
            for name, data, why in (
                ("objects", pickled_array(IMAGES, kind=b"O8"), "calls dtype"),
                ("shape", pickled_array(IMAGES, shape=(1 << 30, 3072)), "3,072 columns"),
                ("columns", pickled_array(IMAGES.reshape(8, -1)), "3,072 columns"),
                ("no array", text(b"pixels"), "its data is not an array"),
            )
        ),
        pytest.param(
            pickled_entries(data=pickled_array(IMAGES), labels=pickled_labels([1, 2, 3, 256])), "its labels", id="label"
        ),
    ],
)
def test_what_is_no_batch_is_refused(content, why):
    refused(content, why)


def test_images_and_labels_that_do_not_belong_together():
    content = pickled_entries(data=pickled_array(IMAGES), labels=pickled_labels(LABELS[:3]))
    with pytest.raises(BhcError, match="4 images and 3 labels"):
        parse_pickled_rows(content, where="here")
