"""Every block of the README runs, on the small digits and for a moment only."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path
from statistics import mean, median

import pytest

import bhc
from bhc.cli import main
from bhc.data import DataSet
from bhc.pretraining import Pretraining
from tests.quick_model import RECIPE

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()
SUBSETS = ("shown", "unseen")  # in training
SHORTER = {
    "pretrain": ["--epochs", "2"],
    "train": ["--steps", "10", "--consolidation-steps", "5", "--kl-weight", "0.05", "--contexts", "4"],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, flags=re.DOTALL | re.MULTILINE)


# A moment's training may take a lower threshold for 2,000 bytes than it was consolidated for.
@pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")
def test_the_python_blocks_run_one_after_the_other(
    digits: DataSet, quick_model: bhc.Compressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    quick_model.save(tmp_path / "bhc-demo" / "run")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bhc.data, "load", lambda name: digits)
    monkeypatch.setattr("bhc.pretraining.DEFAULT_RECIPE", Pretraining(epochs=2))
    monkeypatch.setattr("bhc.fitting.default_recipe", lambda network: RECIPE)
    names: dict[str, object] = {}
    assert len(blocks("python")) == 2
    for block in blocks("python"):
        exec(block, names)
    assert (tmp_path / "threes-and-fours.bhc").exists()
    assert (tmp_path / "run" / "run.json").exists()


def test_the_commands_run_one_after_the_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "contexts.jsonl").write_text(next(block for block in blocks("json") if "classes" in block))
    commands = [line for block in blocks("bash") for line in block.splitlines() if line.startswith("bhc ")]
    assert len(commands) >= 6
    for command in commands:
        # The digits are too small for the convolutions of lenet-5-caffe.
        command = command.replace("mnist", "digits").replace("lenet-5-caffe", "lenet-300-100")
        # A moment's training keeps no promise of one percent.
        words = shlex.split(command.replace("--max-error 1", "--max-error 99"))
        monkeypatch.setattr(sys, "argv", [*words, *SHORTER.get(words[1], [])])
        with pytest.raises(SystemExit) as ended:
            main()
        assert not ended.value.code, command


def test_make_targets_named_in_the_readme_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in set(re.findall(r"make ([\w-]+)", README)):
        assert re.search(rf"^{target}:", makefile, flags=re.MULTILINE), target
    assert shutil.which("make")


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\((?!http)([^)#]+)\)", README):
        assert (ROOT / link).exists(), link


def test_the_figures_of_packed_files_and_of_speed_are_those_of_the_benchmarks() -> None:
    packing = json.loads((ROOT / "benchmarks" / "packing.json").read_text())
    limited = [run for run in packing["runs"] if "max_bytes" in run["limits"]]
    assert limited
    for run in limited:
        assert f"{run['file_bytes_max']} | {run['file_bytes_mean']:.0f} | {run['test_error']:.2f} %" in README
    inference = json.loads((ROOT / "benchmarks" / "inference.json").read_text())
    for batch in (1, 256):
        ratios = [row[f"threads_1_batch_{batch}"]["ratio"] for row in inference["rows"]]
        assert f"{median(ratios):.1f} x ({min(ratios):.1f})" in README


def test_the_figures_are_those_of_the_result_file() -> None:
    result = json.loads((ROOT / "docs" / "results" / "demo.json").read_text())
    for groups in result["spread"].values():
        for figures in groups.values():
            error, size = figures["file_error"], figures["file_bytes_mean"]["mean"]
            small = f"{error['mean']:.2f} % ({error['min']:.2f} to {error['max']:.2f})"
            line = f"{figures['original_error']['mean']:.2f} % | {small} | {size:,.0f} bytes |"
            assert line in README, line
        assert f"{groups['all']['error_max']['max']:.2f} %" in README
    for ratio in result["runs"][0]["sizes"]:
        shown, unseen = (mean(run["sizes"][ratio][name]["lost"] for run in result["runs"]) for name in SUBSETS)
        assert f"| {ratio} | {shown:.2f} | {unseen:.2f} |" in README


def test_the_demo_says_the_same_everywhere() -> None:
    """Five seeds and three kinds of processor: at each size all errors, pooled, are within 0.3 points."""
    result = json.loads((ROOT / "docs" / "results" / "demo.json").read_text())
    runs = {(run["seed"], run["capability"]) for run in result["runs"]}
    assert len(runs) == len(result["runs"]) == 15
    for groups in result["spread"].values():
        error = groups["all"]["file_error"]
        assert error["max"] - error["min"] <= 0.3
    table = (ROOT / "docs" / "results" / "demo.md").read_text()
    for run in result["runs"]:
        errors = [run["summary"][size][group]["file_error"] for size in result["spread"] for group in ("all", "pairs")]
        line = next(line for line in table.splitlines() if line.startswith(f"| {run['seed']} | {run['capability']} |"))
        assert all(f"{error:.2f}" in line for error in errors)


def test_subsets_never_met_are_those_of_their_table() -> None:
    text = (ROOT / "experiments/tables/contexts/subsets.md").read_text()
    networks = re.findall(r"^## (LeNet\S+)\n(.*?)(?=^## )", text, flags=re.DOTALL | re.MULTILINE)
    assert len(networks) == 2
    for network, part in networks:
        cells = next(line for line in part.splitlines() if line.startswith("| all |")).strip("| ").split(" | ")
        unseen, seen, unseen_error, seen_error = (cells[place] for place in (4, 5, 7, 8))
        assert f"| {network} | {unseen} x at {unseen_error} % | {seen} x at {seen_error} % |" in README


def test_the_speed_of_a_training_step_is_what_its_benchmark_measured() -> None:
    adams = {"plain": "torch's Adam as it comes", "plain-fused": "fused Adam, as ours"}
    for row in json.loads((ROOT / "benchmarks/training_step.json").read_text())["rows"]:
        for kind, ratios in row["ratios"].items():
            plain = row[f"{kind.replace('-', '_')}_ms"]
            shared = " | ".join(f"{ratios[rng]:.1f} x" for rng in ("scales-only", "low-rank"))
            line = f"| {row['model']} | {plain:.1f} ms, {adams[kind]} | {shared} | {ratios['full']:.0f} x |"
            assert line in README, line


def test_the_time_of_emission_is_what_its_benchmark_measured() -> None:
    times = [row["emit_ms_median"] for row in json.loads((ROOT / "benchmarks/emission.json").read_text())["rows"]]
    assert f"takes {min(times):.1f} to {max(times):.1f} ms" in README
