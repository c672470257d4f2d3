"""What docs/how-it-works.md says of principal axes is what the benchmark found."""

import json
from pathlib import Path

ROOT = Path(__file__).parents[2]
PARTS = ("1.0", "0.75", "0.5", "0.375", "0.25", "0.125")
NETWORKS = {"before": "norms before attention", "after": "norms on the stream"}


def test_the_table_of_errors_is_that_of_the_file() -> None:
    results = json.loads((ROOT / "benchmarks" / "basis.json").read_text())
    rows = [
        f"| {network} | {kept} | {' | '.join(f'{results[key][kept][part]:.2f}' for part in PARTS)} |"
        for key, network in NETWORKS.items()
        for kept in results[key]
        if kept != "full"
    ]
    document = (ROOT / "docs" / "how-it-works.md").read_text()
    assert len(rows) == 8
    assert "\n".join(rows) in document
