import json
from pathlib import Path

import bhc
from bhc.cli.demo import GOOD, RATIO, SIZES, SMALL, choose_held_out
from bhc.contexts import all_subsets
from tests.cli.commands import PNG, Commands


def test_the_demo_tells_the_whole_story(cli: Commands, tmp_path: Path) -> None:
    out = tmp_path / "demo"
    options = ("--epochs", "8", "--steps", "40", "--consolidation-steps", "20", "--kl-weight", "0.1")
    captured = cli("demo", "--data", "digits", "--out", out, *options)
    sizes = [f"{size}, 9 pairs" for size in (GOOD, SMALL)]
    for words in ("0, 1", "8, 9", "3, 5, 8", "never shown in training", "unseen subsets:", *sizes):
        assert words in captured.out
    assert "what size costs" in captured.err
    assert "Try next" in captured.err
    assert f"serve {out / 'run'} " in captured.err

    summary = json.loads((out / "summary.json").read_text())
    assert summary["method"] == "bhc-cy"
    rows = summary["contexts"]
    for size, ratio in ((GOOD, 1), (SMALL, RATIO)):
        own = [row for row in rows if row["size"] == size]
        assert min(row["pruning_ratio"] for row in own) >= ratio
        pairs = [row["context"]["classes"] for row in own if row["group"] == "pairs"]
        assert pairs == [[k, k + 1] for k in range(9)]
        figures = summary["summary"][size]
        assert figures.keys() == {"pairs", "triple", "unseen", "all"}
        assert {"pruning_ratio_harmonic", "file_error", "error_max", "original_error"} <= figures["all"].keys()
    for name in ("contexts.png", "run.png"):
        assert (out / name).read_bytes().startswith(PNG)
    network = out / "networks" / "lenet-300-100-3-4-small.bhc"
    assert bhc.read(network).classes == (3, 4)
    assert network.with_suffix(".onnx").exists()
    assert "lenet_300_100_3_4_small_predict" in network.with_suffix(".h").read_text()
    (row,) = (row for row in rows if row["size"] == SMALL and row["context"] == {"classes": [3, 4]})
    assert row["file_bytes"] == network.stat().st_size
    assert len(row["reference_bits"]) == len(row["bits"]) == 3

    model = bhc.load(out / "run")
    held_out = {tuple(subset) for subset in model.space.to_dict()["sampler"]["held_out"]}
    unseen = {tuple(row["context"]["classes"]) for row in rows if row["group"] == "unseen"}
    assert unseen == held_out == set(choose_held_out(10))


def test_held_out_subsets_leave_the_pairs_and_the_triple_in() -> None:
    held_out = choose_held_out(10)
    assert (3, 5, 8) not in held_out
    assert not any(len(s) == 2 and s[1] - s[0] == 1 for s in held_out)
    assert {len(s) for s in held_out} == set(SIZES)
    assert len(held_out) > len(list(all_subsets(10, SIZES))) / 10
