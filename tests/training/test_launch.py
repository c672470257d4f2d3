"""Processes that are started together, end together and go on from where they were."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.training import Processes, ResumeWarning, RunFolder, Silent, config, launch, load_run
from tests.training.ranks import tiny_data, tiny_model
from tests.training.runs import ENVIRONMENT, OPTIONS, StopAt, Stopped, assert_same_bits, command, wait_until

pytest.importorskip("lightning_fabric")

TWO = bhc.Processes(devices=2)
RECIPE = (
    bhc.Learn(steps=100, kl_weight=0.1, contexts=2, examples=4),
    bhc.Consolidate(steps=10, contexts=2, examples=4),
)
WITHIN = 30.0  # seconds, on a busy machine


def fit(digits: DataSet, run: Path | None = None, **options: object) -> bhc.Compressor:
    options = {"recipe": RECIPE, "progress": Silent(), "checkpoint_every": 20} | options
    return bhc.fit(tiny_model(), *tiny_data(digits), run=run, **options)  # type: ignore[arg-type]


def broken_off(digits: DataSet, run: Path, **options: object) -> None:
    with pytest.raises(Stopped):
        fit(digits, run, progress=StopAt(50, "learning"), **options)
    assert RunFolder(run).checkpoint.exists()


@pytest.mark.long
def test_two_processes_resume_to_the_same_bits_and_one_resumes_what_two_began(digits: DataSet, tmp_path: Path) -> None:
    whole = fit(digits, tmp_path / "whole", processes=TWO)
    broken_off(digits, tmp_path / "cut", processes=TWO)
    shutil.copytree(tmp_path / "cut", tmp_path / "other")
    resumed = fit(digits, tmp_path / "cut", processes=TWO, resume=True)
    assert_same_bits(whole, resumed)
    assert_same_bits(whole, bhc.load(tmp_path / "whole"))
    assert whole.model.thresholds == resumed.model.thresholds
    with pytest.warns(ResumeWarning, match=r"2 processes .* with 1: .* not end at the same bits"):
        alone = fit(digits, tmp_path / "other", resume=True)
    assert alone.model.training["steps"] == 110
    with pytest.raises(AssertionError):
        assert_same_bits(whole, alone)


@pytest.mark.long
def test_two_processes_resume_what_one_began(digits: DataSet, tmp_path: Path) -> None:
    broken_off(digits, tmp_path)
    with pytest.warns(ResumeWarning, match=r"1 processes .* with 2"):
        model = fit(digits, tmp_path, processes=TWO, resume=True)
    assert model.model.training["steps"] == 110
    assert model.model.training["processes"] == 2
    assert [record["step"] for record in RunFolder(tmp_path).metrics.read()] == [50, 100, 110]
    assert model.compress(classes=[3, 4]).report.error is not None


def test_an_error_in_a_process_is_raised_where_it_was_started(digits: DataSet) -> None:
    train, validation = tiny_data(digits)
    kept = train.labels != 7
    without = bhc.data.Split(train.inputs[kept], train.labels[kept])
    with pytest.raises(BhcError, match="no example of class 7"):
        bhc.fit(tiny_model(), without, validation, recipe=RECIPE, progress=Silent(), processes=TWO)


UNGUARDED = """
import bhc, torch
data = torch.zeros(20, 1, 4, 4, dtype=torch.uint8), torch.arange(20) % 2
net = bhc.models.build("lenet-300-100", image_shape=(1, 4, 4), num_classes=2)
model = bhc.wrap(net, bhc.Budgets(), example_input=data[0][:1])
bhc.fit(model, data, data, recipe=(bhc.Learn(steps=2),), processes=bhc.Processes(2))
"""


@pytest.mark.long
def test_a_script_that_trains_whenever_it_is_imported_is_told_so(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(UNGUARDED)
    words = [sys.executable, str(tmp_path / "script.py")]
    answer = subprocess.run(words, env=ENVIRONMENT, capture_output=True, text=True, timeout=120)
    assert answer.returncode == 1
    assert "of 2 ended with status 1" in answer.stderr
    assert launch.GUARD in answer.stderr


def start(words: list[str], **variables: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    return subprocess.Popen(words, env=ENVIRONMENT | variables, stdout=pipe, stderr=pipe, text=True)


def started_team(out: Path) -> tuple[subprocess.Popen[str], list[int]]:
    """A program that has trained for a while, and the two processes that it has started for that, in their order."""
    process = start(command(out, "--devices", "2"))
    wait_until(RunFolder(out).checkpoint.exists)
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    pids = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    assert len(pids) == 2
    return process, pids


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="looks for processes in /proc")


@pytest.mark.long
@needs_proc
@pytest.mark.parametrize("victim", [0, 1])
def test_when_one_process_is_killed_all_end_and_the_run_goes_on_under_torchrun(tmp_path: Path, victim: int) -> None:
    program, pids = started_team(tmp_path)
    os.kill(pids[victim], signal.SIGKILL)
    _, messages = program.communicate(timeout=WITHIN)
    assert program.returncode == 2
    assert f"error: process {victim} of 2 was killed (SIGKILL); the others were ended" in messages
    assert "--resume" in messages
    assert "Traceback" not in messages
    assert not any(alive(pid) for pid in pids)
    if victim == 0:
        return  # going on is tried once

    words = [*OPTIONS, "--out", str(tmp_path), "--resume", "--json"]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "bhc"]
    answer = subprocess.run([*torchrun, *words], env=ENVIRONMENT, capture_output=True, text=True, timeout=240)
    assert answer.returncode == 0, answer.stderr
    assert json.loads(answer.stdout)["run"] == str(tmp_path)  # said once
    assert answer.stderr.count("wrote ") == 1
    assert load_run(tmp_path).training["steps"] == 210


@pytest.mark.long
@needs_proc
def test_when_the_program_is_killed_its_processes_end_too(tmp_path: Path) -> None:
    program, pids = started_team(tmp_path)
    program.kill()
    program.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids), seconds=WITHIN)
    program.communicate()


@pytest.mark.long
def test_two_machines_train_one_model_and_the_first_writes_it(tmp_path: Path) -> None:
    """Two programs that meet at an address, as on two machines; each has one process."""
    place = {name: Processes(2).environments()[0][name] for name in ("MASTER_ADDR", "MASTER_PORT")}
    options = ("--steps", "40", "--devices", "1", "--nodes", "2")
    programs = [start(command(tmp_path / str(node), *options), **place, NODE_RANK=str(node)) for node in range(2)]
    (first, messages), (other, _) = (program.communicate(timeout=120) for program in programs)
    assert [program.returncode for program in programs] == [0, 0], messages
    assert "x smaller" in first
    assert not other
    assert load_run(tmp_path / "0").training["processes"] == 2
    assert not (tmp_path / "1").exists()


@pytest.mark.parametrize("value", [0, -1])
@pytest.mark.parametrize("name", ["devices", "nodes"])
def test_less_than_one_process_is_refused(name: str, value: int) -> None:
    with pytest.raises(BhcError, match=f"{name}.* given {value}"):
        bhc.Processes(**{name: value})


def test_more_gpus_than_there_are_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(BhcError, match="1 GPUs"):
        TWO.check(torch.device("cuda"))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({}, "2 nodes asked for, but MASTER_ADDR, MASTER_PORT, NODE_RANK is not set"),
        ({"MASTER_ADDR": "here", "MASTER_PORT": "1234"}, "but NODE_RANK is not set"),
        ({"MASTER_ADDR": "here", "MASTER_PORT": "1234", "NODE_RANK": "2"}, "NODE_RANK is a number from 0 to 1"),
        ({"MASTER_ADDR": "here", "MASTER_PORT": "port", "NODE_RANK": "0"}, "MASTER_PORT is a number"),
    ],
)
def test_nodes_without_what_connects_them_are_refused(
    digits: DataSet, monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name in launch.NODES_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(BhcError, match=message):
        fit(digits, processes=bhc.Processes(nodes=2))


def test_each_process_of_each_machine_has_a_place_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "first.example")
    monkeypatch.setenv("MASTER_PORT", "1234")
    processes, places = bhc.Processes(devices=2, nodes=3), []
    for node in range(3):
        monkeypatch.setenv("NODE_RANK", str(node))
        places += processes.environments()
    assert [place["RANK"] for place in places] == ["0", "1", "2", "3", "4", "5"]
    assert [place["LOCAL_RANK"] for place in places] == ["0", "1"] * 3
    assert {place["WORLD_SIZE"] for place in places} == {"6"}
    assert {(place["MASTER_ADDR"], place["MASTER_PORT"]) for place in places} == {("first.example", "1234")}


def test_another_number_than_torchrun_started_is_refused(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(BhcError, match="in one of 3"):
        fit(digits, processes=TWO)
    monkeypatch.delenv("RANK", raising=False)
    with pytest.raises(BhcError, match="WORLD_SIZE is 3, but RANK"):
        fit(digits)
    monkeypatch.setenv("WORLD_SIZE", "three")
    with pytest.raises(BhcError, match="given 'three'"):
        fit(digits)


def test_without_the_extra_it_is_said_how_to_get_it(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "lightning_fabric", None)
    with pytest.raises(BhcError, match="needs lightning-fabric") as refused:
        fit(digits, processes=TWO)
    assert refused.value.hint == config.INSTALL


def test_a_run_in_the_way_is_named_before_anything_is_started(
    digits: DataSet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken_off(digits, tmp_path)
    monkeypatch.setattr(launch, "start_processes", lambda *_, **__: pytest.fail("processes were started"))
    with pytest.raises(BhcError, match="holds a run already"):
        fit(digits, tmp_path, processes=TWO)
