import errno
import io
import json
import os
import stat

import pytest
import safetensors.torch
import torch

from bhc.errors import BhcError
from bhc.files import (
    append_json_line,
    atomic_writer,
    read_bytes,
    read_json,
    read_json_lines,
    read_tensors,
    tensors_to_bytes,
    write_bytes,
    write_json,
    write_tensors,
)

OLD = b"what was there before"


@pytest.fixture
def path(tmp_path):
    """A file with content, alone in its folder."""
    path = tmp_path / "file.bin"
    path.write_bytes(OLD)
    return path


def assert_untouched(path):
    """The old content, and nothing beside it."""
    assert path.read_bytes() == OLD
    assert list(path.parent.iterdir()) == [path]


def write_half(path, error):
    with atomic_writer(path) as file:
        file.write(b"half of")
        file.flush()
        raise error


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, MemoryError])
def test_an_interrupted_write_leaves_the_old_file(path, error):
    with pytest.raises(error):
        write_half(path, error)
    assert_untouched(path)


def test_an_interrupted_write_leaves_no_file_where_there_was_none(tmp_path):
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "new", KeyboardInterrupt)
    assert list(tmp_path.iterdir()) == []


def no_room(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class FullDisk(io.FileIO):
    """A file that has room for three bytes."""

    def write(self, content):
        super().write(content[:3])
        no_room()


@pytest.mark.parametrize(("call", "fails"), [("fdopen", FullDisk), ("fsync", no_room)])
def test_a_disk_that_is_full_at_once_or_at_the_end_leaves_the_old_file_and_says_so(path, monkeypatch, call, fails):
    monkeypatch.setattr(os, call, fails)
    with pytest.raises(BhcError, match=r"file\.bin: No space left on device") as caught:
        write_bytes(path, b"new content")
    assert "free some space" in caught.value.hint
    assert_untouched(path)


def test_a_file_takes_its_name_only_when_it_is_whole(path):
    with atomic_writer(path) as file:
        file.write(b"new content")
        file.flush()
        assert path.read_bytes() == OLD
    assert path.read_bytes() == b"new content"
    assert list(path.parent.iterdir()) == [path]


def test_a_written_file_has_the_permissions_of_any_other_in_a_folder_that_is_made(tmp_path):
    path, before = tmp_path / "a" / "b" / "file", os.umask(0o027)
    try:
        write_bytes(path, b"content")
        assert path.read_bytes() == b"content"
        assert stat.S_IMODE(path.stat().st_mode) == 0o640
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_folder_in_the_way_is_an_error_and_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(BhcError, match="could not write"):
        write_bytes(tmp_path / "folder", b"content")
    assert list(tmp_path.rglob("*")) == [tmp_path / "folder"]


def test_a_file_in_the_place_of_a_folder_is_an_error(path):
    with pytest.raises(BhcError, match="could not write"):
        write_bytes(path / "below", b"content")
    assert_untouched(path)


def test_json_comes_back(tmp_path):
    value = {"name": "Brücke", "list": [1, 2.5, None, True], "nested": {"a": []}}
    write_json(tmp_path / "file.json", value)
    assert read_json(tmp_path / "file.json") == value
    assert json.loads((tmp_path / "file.json").read_text(encoding="utf-8")) == value


def test_what_is_not_json_does_not_replace_the_old_file(path):
    with pytest.raises(TypeError):
        write_json(path, {"value": object()})
    assert_untouched(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b'{"a": 1', b"nothing", b"\xff\xfe\x00", b"[" * 200_000, b'{"a": 1} {'],
    ids=lambda c: repr(c[:9]),
)
def test_what_is_not_json_is_an_error(path, content):
    path.write_bytes(content)
    with pytest.raises(BhcError, match="not valid JSON"):
        read_json(path)


HEADER = {"format": 1, "name": "Brücke", "list": [1.5, None]}


def some_tensors():
    rng = torch.Generator().manual_seed(0)
    return {
        "matrix": torch.randn(3, 4, generator=rng),
        "transposed": torch.randn(2, 3, generator=rng).T,
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "bytes": torch.arange(5, dtype=torch.uint8),
        "mask": torch.tensor([True, False]),
        "halves": torch.randn(4, generator=rng).bfloat16(),
        "parameter": torch.nn.Parameter(torch.ones(2)),
    }


def test_tensors_come_back_with_their_header(tmp_path):
    write_tensors(tmp_path / "file", some_tensors(), HEADER)
    tensors, header = read_tensors(tmp_path / "file")
    assert header == HEADER
    assert tensors.keys() == some_tensors().keys()
    for name, expected in some_tensors().items():
        assert tensors[name].dtype == expected.dtype
        assert torch.equal(tensors[name], expected)
        assert not tensors[name].requires_grad
    write_tensors(tmp_path / "file", {}, {})
    assert read_tensors(tmp_path / "file") == ({}, {})


def test_equal_tensors_make_equal_files():
    assert len({tensors_to_bytes(some_tensors(), HEADER) for _ in range(20)}) == 1


def test_a_cut_off_file_is_damaged_wherever_it_ends(tmp_path):
    content = tensors_to_bytes(some_tensors(), HEADER)
    for length in range(len(content)):
        (tmp_path / "file").write_bytes(content[:length])
        with pytest.raises(BhcError, match="is damaged") as caught:
            read_tensors(tmp_path / "file")
        assert "restore it from a copy" in caught.value.hint


def test_a_flipped_bit_is_found_wherever_it_is(tmp_path):
    content = tensors_to_bytes({"a": torch.ones(3)}, {"format": 1})
    for byte in range(len(content)):
        damaged = bytearray(content)
        damaged[byte] ^= 1 << byte % 8
        (tmp_path / "file").write_bytes(damaged)
        with pytest.raises(BhcError, match="is damaged"):
            read_tensors(tmp_path / "file")


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(tensors_to_bytes(some_tensors(), HEADER) + b"more", id="appended"),
        pytest.param(safetensors.torch.save({"a": torch.ones(3)}), id="without a header of ours"),
    ],
)
def test_what_another_program_made_of_a_file_is_damaged(tmp_path, content):
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(BhcError, match="is damaged"):
        read_tensors(tmp_path / "file")


READ = {read_bytes: OLD, read_json: b"[1, 2, 3]", read_tensors: tensors_to_bytes(some_tensors(), HEADER)}


@pytest.mark.parametrize(("read", "content"), READ.items(), ids=lambda value: getattr(value, "__name__", ""))
def test_a_file_has_a_largest_size_and_must_be_there(path, tmp_path, read, content):
    path.write_bytes(content)
    read(path, limit=len(content))
    with pytest.raises(BhcError, match=f"{len(content) - 1:,} bytes"):
        read(path, limit=len(content) - 1)
    for nowhere in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(BhcError, match=f"{nowhere}"):
            read(nowhere, limit=10)


def test_tensors_that_cannot_be_written_leave_the_old_file(path):
    with pytest.raises(TypeError):
        write_tensors(path, some_tensors(), {"value": object()})
    assert_untouched(path)


def test_a_line_that_was_cut_off_costs_no_other(tmp_path):
    path = tmp_path / "rows.jsonl"
    assert read_json_lines(path) == []
    append_json_line(path, {"first": 1})
    path.write_bytes(path.read_bytes() + b'{"seco')
    append_json_line(path, {"third": "drei \u00fc"})
    assert read_json_lines(path) == [{"first": 1}, {"third": "drei \u00fc"}]
    with pytest.raises(BhcError, match="could not write"):
        append_json_line(tmp_path / "none" / "rows.jsonl", {})
