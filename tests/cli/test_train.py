"""What `bhc train` trains: each kind of context and family, narrowed or not."""

from pathlib import Path

import numpy as np
import pytest

import bhc
from tests.cli.test_commands import call, refused


def test_from_scratch_with_unequal_appearances(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--model", "lenet-300-100", "--data", "digits", "--out", tmp_path / "run", "--concentration", "1")
    quick = ("--steps", "20", "--consolidation-steps", "5", "--kl-weight", "0.05", "--contexts", "4")
    assert call(monkeypatch, "train", *words, *quick) == 0
    captured = capsys.readouterr()
    assert "from scratch" in captured.err
    assert "pretrained" not in captured.out


def test_budgets_are_trained_beyond_both_ends(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--model", "lenet-300-100", "--data", "digits", "--out", tmp_path / "run", "--context", "classes+budget")
    assert call(monkeypatch, "train", *words, "--margin", "0.5", "--steps", "10", "--consolidation-steps", "5") == 0
    space = bhc.load(tmp_path / "run").space
    assert isinstance(space, bhc.Joint)
    assert space.spaces[1] == bhc.Budgets(margin=0.5)
    words = ("compress", tmp_path / "run", "--classes", "3,4")
    assert call(monkeypatch, *words, "--out", tmp_path / "a.bhc", "--budget", "1") == 0
    capsys.readouterr()
    beyond = ("--out", tmp_path / "b.bhc", "--budget", "1.2")
    refused(monkeypatch, capsys, "outside what this model takes: 0 to 1", *words, *beyond)


@pytest.mark.parametrize("family", ["ghs", "sparse-vd"])
def test_a_network_for_all_contexts_trains_and_is_inspected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, family: str
) -> None:
    out = tmp_path / "run"
    words = ("--model", "lenet-300-100", "--data", "digits", "--out", out, "--context", "none", "--family", family)
    assert call(monkeypatch, "train", *words, "--steps", "10", "--consolidation-steps", "5") == 0
    assert "compress" in (told := capsys.readouterr().err)
    assert "--classes" not in told.split("next:")[1]
    assert call(monkeypatch, "inspect", out, "--plot", tmp_path / "x.png") == 0
    facts = capsys.readouterr().out
    assert "accepts       nothing: it was made for one context" in facts
    assert f"family {family}" in facts
    assert call(monkeypatch, "compress", out, "--out", tmp_path / "a.bhc") == 0
    assert call(monkeypatch, "compress", out, "--classes", "3,4", "--out", tmp_path / "b.bhc") == 2
    assert "leave the conditions out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "kinds"),
    [
        ((), ["learn", "consolidate"]),
        (("--narrow-to", "3", "--context-weight", "0.1"), ["learn", "narrow", "consolidate"]),
        (("--narrow-to", "3", "--consolidation-steps", "0"), ["learn", "narrow"]),
        (
            ("--narrow-to", "3", "--context", "budget", "--two-stage"),
            ["learn", "freeze-offsets", "learn", "narrow", "consolidate"],
        ),
    ],
    ids=["as usual", "narrowed", "only narrowed", "two stages"],
)
def test_networks_are_narrowed_where_that_is_asked_for(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    words: tuple[str, ...],
    kinds: list[str],
) -> None:
    names = ("--model", "lenet-300-100", "--data", "digits", "--out", tmp_path / "run")
    quick = ("--steps", "10", "--narrowing-steps", "20", "--consolidation-steps", "5", "--contexts", "4")
    assert call(monkeypatch, "train", *names, *quick, *words) == 0
    recipe = bhc.load(tmp_path / "run").model.training["recipe"]
    assert [stage["kind"] for stage in recipe] == kinds
    learned = [stage for stage in recipe if stage["kind"] in ("learn", "narrow")]
    assert {(stage["kl_weight"], stage["contexts"]) for stage in learned} == {(2.0, 4)}
    weights = {stage.get("context_weight", 0.0) for stage in learned}
    assert weights == {0.1 if "--context-weight" in words else 0.0}
    for stage in recipe:
        if stage["kind"] == "narrow":
            assert (stage["steps"], stage["final_ratio"]) == (20, 3.0)
        if stage["kind"] == "consolidate" and "narrow" in kinds:
            assert stage["ratios"] == [1.5, 3.75]
        if "--two-stage" in words and stage["kind"] in ("narrow", "consolidate"):
            assert stage["budget"] == 1.0


def test_an_unknown_family_is_refused_before_anything_is_loaded(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ("--model", "lenet-300-100", "--data", "digits", "--out", tmp_path / "run", "--family", "gaussian")
    assert call(monkeypatch, "train", *words) == 2
    assert "sparse-vd" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    "context", ["domain", "features", "budget", "classes+budget", "classes+domain+features+budget"]
)
def test_other_contexts_train_and_are_inspected(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, context: str
) -> None:
    out = tmp_path / "run"
    words = ("--model", "lenet-300-100", "--data", "digits", "--out", out, "--context", context)
    quick = ("--steps", "10", "--consolidation-steps", "5", "--kl-weight", "0.05", "--contexts", "4")
    assert call(monkeypatch, "train", *words, *quick) == 0
    assert call(monkeypatch, "inspect", out, "--plot", tmp_path / "x.png") == 0
    told = capsys.readouterr().out.split("accepts")[1]
    assert all(f"{name}: " in told for name in context.split("+"))
    assert ("may be left out" in told) == ("+" in context)
    np.save(tmp_path / "sample.npy", np.full((16, 1, 8, 8), 9, dtype=np.uint8))
    np.save(tmp_path / "mask.npy", np.arange(64).reshape(1, 8, 8) < 32)
    asked = {
        "domain": ("--domain", tmp_path / "sample.npy"),
        "features": ("--features", tmp_path / "mask.npy"),
        "budget": ("--budget", "0.7"),
        "classes+budget": ("--classes", "3,4", "--budget", "0"),
        "classes+domain+features+budget": ("--features", tmp_path / "mask.npy", "--classes", "3,4"),
    }[context]
    assert call(monkeypatch, "compress", out, *asked, "--out", tmp_path / "a.bhc") == 0
    assert call(monkeypatch, "evaluate", tmp_path / "a.bhc", "--data", "digits", "--classes", "3,4") == 0
    assert "classes 3, 4" in capsys.readouterr().out
