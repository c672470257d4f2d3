"""Arrays of a user's own in one file: what is read, what is set aside, and what is refused."""

import io
import struct
import zipfile

import numpy as np
import pytest
import torch

from bhc.data import read_npz, read_npz_inputs
from bhc.errors import BhcError

RNG = np.random.default_rng(0)
X, Y = RNG.standard_normal((40, 3)).astype(np.float32), np.arange(40) % 4


@pytest.fixture
def path(tmp_path):
    return tmp_path / "mine.npz"


def save(path, **arrays):
    np.savez(path, **{"x": X, "y": Y} | arrays)
    return path


def refused(match, path, **options):
    with pytest.raises(BhcError, match=match) as caught:
        read_npz(path, **options)
    return caught.value.hint


@pytest.mark.parametrize("writer", [np.savez, np.savez_compressed])
def test_all_parts_of_a_file_come_back_as_they_are(path, writer):
    names = np.array(["ä", "b", "c", "d"])
    arrays = {"x_validation": X[:3], "y_validation": Y[:3], "x_test": X[3:5], "y_test": Y[3:5]}
    writer(path, x=X, y=Y, classes=names, **arrays)
    splits = read_npz(path)
    for part, start, end in ((splits.train, 0, 40), (splits.validation, 0, 3), (splits.test, 3, 5)):
        assert torch.equal(part[0], torch.from_numpy(X[start:end]))
        assert torch.equal(part[1], torch.from_numpy(Y[start:end]))
    assert (splits.classes, splits.set_aside) == (("ä", "b", "c", "d"), False)


KINDS = ["?", "u1", "i1", "u2", ">i2", "u4", "<i4", ">i8", "u8", "f2", "f4", ">f8", "c8"]


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_keep_their_type_in_this_machines_byte_order(path, kind):
    x = RNG.integers(0, 2, (40, 2, 3)).astype(kind)
    splits = read_npz(save(path, x=x, x_test=x[:1], y_test=Y[:1]))
    assert splits.train[0].dtype == torch.from_numpy(x.astype(x.dtype.newbyteorder("="))).dtype
    assert splits.test[0].tolist() == x[:1].tolist()
    assert len(splits.train[0]) == 36


def test_an_array_that_is_stored_by_column(path):
    splits = read_npz(save(path, x=np.asfortranarray(X), x_test=np.asfortranarray(X), y_test=Y))
    assert torch.equal(splits.test[0], torch.from_numpy(X))
    assert splits.test[0].is_contiguous()


@pytest.mark.parametrize("kind", ["?", "u1", "i4", ">u2", "u8"])
def test_one_whole_number_an_example_is_a_label(path, kind):
    labels = (Y % 2).astype(kind)
    splits = read_npz(save(path, y=labels, x_test=X, y_test=labels))
    assert splits.test[1].dtype == torch.int64
    assert splits.test[1].tolist() == labels.astype(int).tolist()


@pytest.mark.parametrize("targets", [X, X[:, 0], Y[:, None], Y.astype(np.complex64)])
def test_other_targets_keep_their_type(path, targets):
    splits = read_npz(save(path, y=targets, x_test=X, y_test=targets))
    assert splits.test[1].dtype == torch.from_numpy(targets).dtype
    assert (len(splits.train[1]), len(splits.validation[1])) == (36, 4)


def rows(inputs):
    return set(map(tuple, inputs.tolist()))


def test_a_tenth_of_each_class_is_set_aside_in_any_order(path):
    labels = np.repeat([0, 1, 2], [20, 18, 2])
    splits = read_npz(save(path, y=labels))
    assert (splits.set_aside, splits.test, splits.classes) == (True, None, ())
    assert splits.validation[1].bincount().tolist() == [2, 1, 1]
    assert rows(splits.train[0]) | rows(splits.validation[0]) == rows(X)
    assert not rows(splits.train[0]) & rows(splits.validation[0])
    order = RNG.permutation(40)
    again = read_npz(save(path, x=X[order], y=labels[order]))
    assert rows(again.validation[0]) == rows(splits.validation[0])


def test_a_class_with_one_example_is_named(path):
    labels = np.array([0] * 39 + [1])
    assert "validation" in refused("class 1 has one training example", save(path, y=labels))
    refused("class bee has one", save(path, y=labels, classes=["ant", "bee"]))
    assert len(read_npz(save(path, y=labels, x_validation=X, y_validation=labels)).train[0]) == 40


def test_objects_are_refused_and_what_they_name_is_not_run(path, tmp_path):
    class Harm:
        def __reduce__(self):
            return (tmp_path / "harm").touch, ()

    save(path, x=np.array([Harm()] * 40, dtype=object))
    refused("x in .*mine.npz holds Python objects", path)
    save(path, x=np.array([(Harm(),)] * 40, dtype=[("field", object)]))
    refused("x in .*mine.npz holds Python objects", path)
    assert not (tmp_path / "harm").exists()


@pytest.mark.filterwarnings("ignore:Stored array in format 3.0")
@pytest.mark.parametrize(
    ("arrays", "match"),
    [
        ({"x": np.array(["a"] * 40)}, "x in .* is of type <U1"),
        ({"y": np.array(["a"] * 40)}, "y in .* is of type <U1"),
        ({"x": np.zeros(40, dtype="datetime64[s]")}, "x in .* is of type datetime64"),
        ({"x": np.zeros(40, dtype=[("a", "f4")])}, r"x in .* is of type \[\('a'"),
        ({"x": np.zeros(40, dtype=[("é€", "f4")])}, "columns with names"),
        ({"x": np.float32(1)}, "x in .* is one number"),
        ({"x": X[:39]}, "39 examples in x and 40 in y"),
        ({"x": X[:0], "y": Y[:0]}, r"x in .* is empty: its shape is \(0, 3\)"),
        ({"classes": np.array([], dtype=str)}, "classes in .* is empty"),
        ({"x_test": X}, "x_test without y_test"),
        ({"y_validation": Y}, "y_validation without x_validation"),
        ({"x_test": X[:, :2], "y_test": Y}, r"x_test in .* is \(2,\) float32, and of x \(3,\) float32"),
        ({"x_test": X.astype(np.float64), "y_test": Y}, "float64"),
        ({"x_test": X, "y_test": X}, r"y_test in .* is \(3,\) float32, and of y \(\) int64"),
        ({"x_val": X, "y_val": Y}, "other names: x_val, y_val"),
        ({"classes": np.array(["a", "b", "c"])}, "y in .* labels from 0 to 2"),
        ({"y": Y - 1, "classes": np.array(["a", "b", "c", "d"])}, "labels from 0 to 3"),
        ({"y": X, "classes": np.array(["a", "b", "c", "d"])}, "labels from 0 to 3"),
        *(({"classes": np.array(names)}, "classes in") for names in (["a", "a"], [["a"]], [1, 2, 3, 4], "a")),
    ],
)
def test_what_a_file_may_not_hold(path, arrays, match):
    refused(match, save(path, **arrays))


def test_arrays_that_are_missing_are_named_with_those_there_are(path):
    np.savez(path, images=X, labels=Y)
    assert "numpy.savez" in refused("lacks x and y; it has images, labels", path)


def npy_claiming(shape, *, kind="<f4", content=b""):
    """An array file whose header says more than there is."""
    header = f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}}}".encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + content


def packed(path, members, method=zipfile.ZIP_DEFLATED):
    with zipfile.ZipFile(path, "w", method) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@pytest.mark.parametrize(
    "shape", [(1 << 40,), (1 << 20, 1 << 20), (40, 4), (40, 2), (-2, -60), (0, 1 << 62), (1 << 62, 0)]
)
def test_a_header_is_held_against_the_size_of_its_member(path, shape):
    content = bytes(480)  # of 40 x 3
    packed(path, {"x.npy": npy_claiming(shape, content=content), "y.npy": npy(Y)})
    refused("mine.npz", path)


def test_a_bomb_is_not_decompressed(path, monkeypatch):
    packed(path, {"x.npy": bytes(8 << 20), "y.npy": npy(Y)})
    assert path.stat().st_size < 20_000
    monkeypatch.setattr(zipfile.ZipFile, "open", None)  # nothing is opened
    assert "limit" in refused(r"8,389,\d+ bytes of arrays; 1,000,000 are read", path, limit=1_000_000)


def test_a_member_that_says_it_is_smaller_than_it_is(path):
    packed(path, {"x.npy": npy(np.zeros((40, 1 << 16))), "y.npy": npy(Y)})
    content = path.read_bytes()
    true = struct.pack("<I", len(npy(np.zeros((40, 1 << 16)))))
    path.write_bytes(content.replace(true, struct.pack("<I", 1_000)))
    refused("mine.npz", path, limit=1_000_000)


def test_a_file_that_is_larger_than_may_be_read(path):
    save(path, x=np.zeros((40, 1 << 16), dtype=np.float32))
    refused("limit|bytes of arrays", path, limit=1_000_000)
    assert read_npz(path, limit=20_000_000).train[0].shape == (36, 1 << 16)


@pytest.mark.parametrize("content", [b"", b"no archive", npy(X), b"PK\x03\x04" + bytes(60)])
def test_what_is_no_archive(path, content):
    path.write_bytes(content)
    refused("mine.npz cannot be read as an .npz file", path)


def test_members_that_are_no_arrays(path):
    refused("mine.npz cannot be read", packed(path, {"x.npy": b"text", "y.npy": npy(Y)}))
    refused("mine.npz cannot be read", packed(path, {"x.npy": b"\x93NUMPY\x01\x00\xff\xff{}", "y.npy": npy(Y)}))


def test_a_file_that_is_not_there(path):
    refused("there is no file .*mine.npz", path)


def test_damage_anywhere_is_an_error_of_ours_or_none(path):
    """A flipped byte may hit what is not looked at, as a time; then the arrays are what they were."""
    content = save(path).read_bytes()
    found = 0
    for place in range(0, len(content), 7):
        path.write_bytes(content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :])
        try:
            splits = read_npz(path)
        except BhcError:
            found += 1
        else:
            assert rows(splits.train[0]) | rows(splits.validation[0]) == rows(X)
    assert found > len(content) / 14


def test_inputs_alone(path):
    np.savez(path, x=X, x_test=X[:2])
    refused("lacks y; it has x, x_test", path)
    assert "read_npz_inputs" in refused("lacks y", path)
    splits = read_npz_inputs(path)
    assert (len(splits.train), len(splits.validation), splits.set_aside) == (36, 4, True)
    assert rows(splits.train) | rows(splits.validation) == rows(X)
    assert torch.equal(splits.test, torch.from_numpy(X[:2]))
    save(path, x_validation=X[:3], y_validation=Y[:3], classes=["a", "b"])  # targets say nothing here, so four classes
    splits = read_npz_inputs(path)
    assert (len(splits.train), len(splits.validation), splits.classes, splits.set_aside) == (40, 3, ("a", "b"), False)
    np.savez(path, x=X, x_test=X[:, :2])
    with pytest.raises(BhcError, match=r"x_test in .* is \(2,\) float32"):
        read_npz_inputs(path)
    np.savez(path, y=Y)
    with pytest.raises(BhcError, match="lacks x; it has y"):
        read_npz_inputs(path)
