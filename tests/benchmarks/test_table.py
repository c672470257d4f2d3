"""What docs/performance.md shows is what the result files say."""

import json
from pathlib import Path
from typing import Any

import table

HEAD = {"commit": "c", "device": "cpu, 2 threads", "versions": {}}


def rows_of(folder: Path, file: str, results: dict[str, Any]) -> list[tuple[str, ...]]:
    (folder / f"{file}.json").write_text(json.dumps(HEAD | results))
    return [row for figure in table.FIGURES if figure.file == file for row in table.shown(figure, folder)]


def test_the_document_shows_the_files_that_are_there() -> None:
    document = table.DOCUMENT.read_text()
    assert table.renewed(document, table.HERE) == document, "run: python benchmarks/table.py"


def test_every_file_has_a_script_that_writes_it() -> None:
    for figure in table.FIGURES:
        assert (table.HERE / f"{figure.file.removesuffix('_gpu')}.py").exists(), figure.file


def test_what_has_no_file_says_not_run(tmp_path: Path) -> None:
    rows = table.table(tmp_path).splitlines()[2:]
    assert len(rows) == len(table.FIGURES)
    assert all(table.NOT_RUN in row for row in rows)


def test_what_a_quick_run_found_is_not_shown(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, "gpu_step", {"quick": True, "rows": [{"model": "m", "stage": "s", "ratio": 2.0}]})
    assert [row[2] for row in rows] == [table.NOT_RUN] * 2


def test_memory_that_could_not_be_measured_is_unknown(tmp_path: Path) -> None:
    network = {
        "network": "mlp-1e5",
        "parameters": 99_455,
        "step_ratio": {"scales-only": 3.14, "low-rank": 4.0},
        "memory_ratio": {"scales-only": None, "low-rank": 2.25},
        "wrap_in_plain_steps": 12.6,
        "emission_in_plain_steps": 0.266,
    }
    emitted = [{"contexts": 10_000, "latest_beside_the_first_ten": 1.04}]
    steps = [{"generator": "low-rank", "step_ratio": {"1": 5.3, "64": 7.0}}]
    found = {"networks": [network], "contexts_emitted": emitted, "contexts_a_step": steps}
    size, contexts, step = (row[2] for row in rows_of(tmp_path, "growth", found))
    assert "`ScalesOnly` 3.1 x, `LowRank` 4.0 x; memory `ScalesOnly` unknown, `LowRank` 2.2 x" in size
    assert "wrapping 13, emission 0.27" in size
    assert "10,000: 1.04 x" in contexts
    assert "`LowRank`, 1: 5.3 x, 64: 7.0 x" in step
