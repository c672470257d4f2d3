"""``bhc compress --contexts``: many networks, and going on after a stop."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import bhc
from tests.cli.commands import Commands
from tests.training.runs import wait_until


def write(path: Path, *rows: Any) -> Path:
    path.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return path


def listed(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "networks.jsonl").read_text().splitlines()]


def test_every_line_gets_the_network_that_it_would_get_alone(cli: Commands, run: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", {"name": "kitchen", "classes": [3, 4]}, "", {"classes": [1, 5, 7]})
    out = tmp_path / "out"
    told = cli.json("compress", run, "--contexts", file, "--out", out, "--threshold", "-1.5")
    assert told == {"out": str(out), "written": 2, "there": 0, "failed": 0}
    assert {path.name for path in out.iterdir()} == {"kitchen.bhc", "2.bhc", "networks.jsonl"}
    alone = bhc.load(run).compress(classes=[3, 4], threshold=-1.5)
    assert bhc.read(out / "kitchen.bhc").report.architecture == alone.report.architecture
    rows = listed(out)
    assert [row["file"] for row in rows] == ["kitchen.bhc", "2.bhc"]
    assert rows[0]["request"] == {"threshold": -1.5, "classes": [3, 4]}
    assert [row["report"]["file_bytes"] for row in rows] == [(out / row["file"]).stat().st_size for row in rows]


def test_multiples_are_those_of_all_lines_or_of_a_line_of_its_own(cli: Commands, run: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", {"classes": [3, 4]}, {"classes": [3, 4], "round_to": {"fc2": 5}})
    cli("compress", run, "--contexts", file, "--out", tmp_path / "out", "--round-to", "8", "--threshold", "-1")
    for row, round_to in zip(listed(tmp_path / "out"), (8, {"fc2": 5}), strict=True):
        alone = bhc.load(run).compress(classes=[3, 4], threshold=-1, round_to=round_to)
        assert row["request"]["round_to"] == row["report"]["round_to"] == round_to
        assert row["report"]["architecture"] == list(alone.report.architecture)


def test_what_is_there_is_left_alone_and_what_changed_is_made(cli: Commands, run: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    command = ("compress", run, "--contexts", tmp_path / "c.jsonl", "--out", out)
    write(tmp_path / "c.jsonl", {"name": "a", "classes": [3, 4]}, {"name": "b", "classes": [5, 6]})
    cli(*command)
    before = (out / "a.bhc").stat().st_mtime_ns
    write(tmp_path / "c.jsonl", {"name": "a", "classes": [3, 4]}, {"name": "b", "classes": [5, 7]})
    cli.refused("b.bhc exists already", *command)
    assert bhc.read(out / "b.bhc").classes == (5, 6)
    assert "1 written, 1 there before" in cli(*command, "--force").err
    assert bhc.read(out / "b.bhc").classes == (5, 7)
    assert (out / "a.bhc").stat().st_mtime_ns == before
    cli.refused("a.bhc exists already", *command, "--max-flops", "100000")  # another limit is another network


def test_lines_without_a_network_are_told_and_the_others_written(cli: Commands, run: Path, tmp_path: Path) -> None:
    rows = [{"classes": [3, 4], "max_bytes": 2}, {"classes": [3, 77]}, {"classes": [5, 6]}, {"domain": "no.npy"}]
    file, out = write(tmp_path / "c.jsonl", *rows), tmp_path / "out"
    cli.refused("3 of 4 contexts got no network", "compress", run, "--contexts", file, "--out", out)
    written = listed(out)
    assert [row.get("file") for row in written] == [None, None, "3.bhc", None]
    assert "2 bytes" in written[0]["error"]
    assert written[0]["hint"].startswith("ask for max_bytes=")
    assert "77" in written[1]["error"]
    assert "no.npy" in written[3]["error"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["{"], "is not JSON"),
        ([{"classes": [1]}, [1, 2]], "is not an object"),
        ([{"name": "../x", "classes": [1]}], "'../x'"),
        ([{"name": "x", "classes": [1]}, {"name": "x", "classes": [2]}], "the name 'x' of line 1"),
        (["", " "], "no contexts"),
        (["9" * (1 << 21)], "1,048,576"),
    ],
    ids=["json", "list", "path", "twice", "empty", "long"],
)
def test_a_wrong_file_is_refused_before_anything_is_written(
    cli: Commands, run: Path, tmp_path: Path, rows: list[Any], words: str
) -> None:
    file, out = write(tmp_path / "c.jsonl", *rows), tmp_path / "out"
    cli.refused(words, "compress", run, "--contexts", file, "--out", out)
    assert not out.exists()


def test_conditions_belong_into_the_file_and_networks_into_a_folder(cli: Commands, run: Path, tmp_path: Path) -> None:
    file = write(tmp_path / "c.jsonl", {"classes": [3, 4]})
    many, out = ("compress", run, "--contexts"), ("--out", tmp_path / "o")
    cli.refused("--classes and --contexts", *many, file, "--classes", "3,4", *out)
    cli.refused("needs a folder", *many, file)
    cli.refused("could not read", *many, tmp_path / "none.jsonl", *out)


def test_features_may_be_a_file_beside_the_contexts(
    cli: Commands, digits: bhc.data.DataSet, tmp_path: Path, pretrained: Any
) -> None:
    model = bhc.wrap(pretrained, bhc.FeatureSubsets((1, 8, 8)), example_input=digits.train.inputs[:1])
    learn = bhc.Learn(steps=5, contexts=2, examples=4)
    bhc.fit(model, digits.train, digits.validation, recipe=(learn,), run=tmp_path / "run")
    np.save(tmp_path / "left.npy", np.arange(64).reshape(1, 8, 8) % 8 < 4)
    file = write(tmp_path / "c.jsonl", {"features": "left.npy"}, {"features": [1, 2, 3]})
    cli("compress", tmp_path / "run", "--contexts", file, "--out", tmp_path / "out")
    first, second = listed(tmp_path / "out")
    assert first["request"] == {"features": "left.npy"}
    assert second["report"]["architecture"][0] <= 3


@pytest.mark.long
def test_a_killed_command_goes_on_where_it_was(run: Path, tmp_path: Path) -> None:
    pairs = [[first, second] for first in range(10) for second in range(10) if first != second]
    file, out = write(tmp_path / "c.jsonl", *({"classes": sorted(pair)} for pair in pairs)), tmp_path / "out"
    command = [sys.executable, "-m", "bhc", "compress", str(run), "--contexts", str(file), "--out", str(out)]
    child = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_until(lambda: (out / "networks.jsonl").exists() and len(list(out.glob("*.bhc"))) >= 5)
    os.kill(child.pid, signal.SIGKILL)
    child.wait()
    with (out / "networks.jsonl").open("a") as cut_off:
        cut_off.write('{"name": "0')
    before = {path: path.stat().st_mtime_ns for path in out.glob("*.bhc")}
    assert 5 <= len(before) < len(pairs)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(list(out.glob("*.bhc"))) == len(pairs)
    assert all(path.stat().st_mtime_ns == when for path, when in before.items())
    for path, pair in zip(sorted(out.glob("*.bhc")), pairs, strict=True):
        assert bhc.read(path).classes == tuple(sorted(pair))
