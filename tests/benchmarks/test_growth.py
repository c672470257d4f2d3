"""Networks of growing size, what is said of their memory, and the times of deep ones."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from encoder import Transformer
from growth import CLASSES, mlp, subjects, wrapped
from memory import REFERENCES

import bhc

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("weights", [10**5, 10**6])
def test_a_network_has_about_as_many_weights_as_asked_for(weights: int) -> None:
    counted = sum(parameter.numel() for parameter in mlp(weights).parameters())
    assert counted == pytest.approx(weights, rel=0.02)


def test_the_transformer_has_over_a_hundred_million_weights() -> None:
    with torch.device("meta"):
        net = subjects(1e8)["transformer"].build()
    assert sum(parameter.numel() for parameter in net.parameters()) >= 1.1e8


def test_stream_heads_and_widths_of_the_transformer_can_go() -> None:
    net = Transformer(width=64, depth=2, classes=CLASSES)
    model = bhc.wrap(net, bhc.ClassSubsets(CLASSES), example_input=torch.zeros(1, 3, 32, 32, dtype=torch.uint8))
    units = model.network.units
    names = ["patches", *[f"blocks_{number}_think_0" for number in range(2)]]
    assert not any(units.always[units.carried[name]].any() for name in names)
    assert len(units.heads) == 2


def test_a_step_of_each_kind_is_of_the_same_network() -> None:
    subject = subjects(1e5)["mlp-1e5"]
    sizes = {wrapped(subject.build(), kind).network.num_weights for kind in ("scales-only", "low-rank")}
    assert sizes == {sum(parameter.numel() for parameter in subject.build().parameters() if parameter.dim() > 1)}


@pytest.mark.skipif(not REFERENCES.exists(), reason="only Linux tells")
def test_memory_that_is_held_for_a_moment_only_is_seen() -> None:
    """In a process of its own: one that has trained holds memory that it has freed, and may use that."""
    peak = "peak_mib(lambda: torch.ones(64 * 2**18).sum(), torch.device('cpu'))"
    code = f"import torch; from memory import peak_mib; torch.ones(9).sum(); print({peak})"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    assert 60 < float(done.stdout) < 90


@pytest.mark.long
def test_a_quick_run_times_every_way_and_is_no_result(tmp_path: Path) -> None:
    # In a process of its own: other tests here look at how much memory this one holds.
    subprocess.run(
        [sys.executable, BENCHMARKS / "deep_emission.py", "--quick", "--out", tmp_path / "found.json"], check=True
    )
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["quick"]
    assert set(found["wrap_seconds"]) == {"vgg", "resnet-56"}
    assert set(found["emit_ms"]) == {"module", "file", "file_with_validation"}
    assert 50 < found["pruning_ratio"] < 100  # as pairs of classes leave it


@pytest.mark.long
def test_transformers_are_emitted_written_and_faster(tmp_path: Path) -> None:
    script, out = BENCHMARKS / "transformer_emission.py", tmp_path / "found.json"
    subprocess.run([sys.executable, script, "--quick", "--out", out], check=True)
    found = json.loads(out.read_text())["networks"]
    assert set(found) == {"ViT-Tiny", "BERT-mini"}
    for network in found.values():
        for ratio in (4, 8):
            row = network[f"{ratio} x"]
            assert row["flops_ratio"] >= ratio
            assert row["difference"] < 1e-4
            assert min(row[key] for key in ("module_ms", "file_ms", "onnx_ms", "speed_up_batch_32")) > 0
