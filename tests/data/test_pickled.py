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


def check(content):
    images, labels = parse_pickled_rows(content, where="here")
    np.testing.assert_array_equal(images, IMAGES)
    np.testing.assert_array_equal(labels, LABELS)


def test_our_files_are_what_python_reads_too():
    """The files these tests are made of: an ordinary reader finds in them what the official ones hold."""
    entries = pickle.loads(pickled(IMAGES, LABELS), encoding="bytes")
    assert list(entries) == [b"batch_label", b"labels", b"data", b"filenames"]
    np.testing.assert_array_equal(entries[b"data"], IMAGES)


def test_reads_a_batch():
    check(pickled(IMAGES, LABELS))


def test_reads_the_name_that_numpy_2_writes():
    array = pickled_array(IMAGES, module=b"numpy._core.multiarray")
    check(pickled_entries(data=array, labels=pickled_labels(LABELS)))


@pytest.mark.parametrize("protocol", [3, 4])
def test_reads_what_python_3_writes(protocol):
    check(pickle.dumps({"data": IMAGES, "labels": LABELS.tolist()}, protocol=protocol))


def test_reads_an_array_that_is_stored_column_by_column():
    check(pickle.dumps({"data": np.asfortranarray(IMAGES), "labels": LABELS.tolist()}, protocol=4))


def test_becomes_the_content_of_the_binary_file():
    form = PickledRows()
    for file in FILES:
        stored = PICKLES[form.stored_name(file)]
        assert len(stored) <= form.limit(file)
        assert form.content(stored, file, where="here") == ROWS[file.name]


def test_another_batch_is_refused_by_the_checksum():
    first, second, *_ = FILES
    stored = PICKLES[PickledRows().stored_name(second)]
    with pytest.raises(BhcError, match=rf"{first.name}, made from here, is damaged: its content was altered"):
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
    refused(b"\x80\x02c" + name.encode() + b"\n.", f"it asks for {module}.{attribute}")


@pytest.mark.parametrize(
    ("content", "why"),
    [
        pytest.param(b"", "", id="empty"),
        pytest.param(pickled(*BATCHES["test_batch.bin"])[:-500], "", id="truncated"),
        pytest.param(b"<html>not here</html>", "", id="no pickle"),
        pytest.param(b"\x80\x02K\x01.", "AttributeError", id="a number"),
        pytest.param(pickled_entries(labels=pickled_labels([1])), "KeyError: 'data'", id="no data"),
        pytest.param(pickled_entries(data=pickled_array(IMAGES)), "KeyError: 'labels'", id="no labels"),
        pytest.param(b"\x80\x02K\x012.", "it uses the operation DUP", id="operation"),
        pytest.param(b"\x80\x02(c__main__\nC\no.", "it uses the operation OBJ", id="object"),
        pytest.param(b"\x80\x02Nr" + struct.pack("<I", 1 << 31) + b".", "it uses place 2,147,483,648", id="memory"),
        pytest.param(b"\x80\x02N" + b"\x85" * 17 + b".", "more operations than such a batch needs", id="tuples"),
        pytest.param(b"\x80\x02](" + b"N" * (1 << 17) + b"e.", "more operations than such a batch", id="operations"),
        pytest.param(b"\x80\x04\x8e" + b"\xff" * 8 + b".", "", id="declared size"),
        pytest.param(
            pickled_entries(data=pickled_array(IMAGES, kind=b"O8"), labels=pickled_labels(LABELS)),
            "it calls dtype for something else than an array of bytes",
            id="objects",
        ),
        pytest.param(
            pickled_entries(data=pickled_array(IMAGES, shape=(1 << 30, 3072)), labels=pickled_labels(LABELS)),
            "its data is not an array of bytes with 3,072 columns",
            id="shape",
        ),
        pytest.param(
            pickled_entries(data=pickled_array(IMAGES.reshape(8, -1)), labels=pickled_labels(LABELS)),
            "its data is not an array of bytes with 3,072 columns",
            id="columns",
        ),
        pytest.param(
            pickled_entries(data=text(b"pixels"), labels=pickled_labels(LABELS)),
            "its data is not an array",
            id="no array",
        ),
        pytest.param(
            pickled_entries(data=pickled_array(IMAGES), labels=pickled_labels([1, 2, 3, 256])),
            "its labels are not a list of small whole numbers",
            id="label",
        ),
    ],
)
def test_what_is_no_batch_is_refused(content, why):
    refused(content, why)


def test_images_and_labels_that_do_not_belong_together():
    content = pickled_entries(data=pickled_array(IMAGES), labels=pickled_labels(LABELS[:3]))
    with pytest.raises(BhcError, match="here has 4 images and 3 labels"):
        parse_pickled_rows(content, where="here")
