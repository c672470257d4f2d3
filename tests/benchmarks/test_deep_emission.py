"""The times of deep networks: what is timed is what is said."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks/deep_emission.py"


@pytest.mark.long
def test_a_quick_run_times_every_way_and_is_no_result(tmp_path: Path) -> None:
    # In a process of its own: other tests here look at how much memory this one holds.
    subprocess.run([sys.executable, SCRIPT, "--quick", "--out", tmp_path / "found.json"], check=True)
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["quick"]
    assert set(found["wrap_seconds"]) == {"vgg", "resnet-56"}
    assert set(found["emit_ms"]) == {"module", "file", "file_with_validation"}
    assert 50 < found["pruning_ratio"] < 100  # as pairs of classes leave it
