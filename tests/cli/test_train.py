"""What `bhc train` trains: each kind of context and family, narrowed or not."""

from pathlib import Path

import numpy as np
import pytest

import bhc
from tests.cli.commands import LENET, Commands


def test_from_scratch_with_unequal_appearances_and_an_old_option(cli: Commands, tmp_path: Path) -> None:
    words = (*LENET, "--out", tmp_path / "run", "--concentration", "1")
    quick = ("--steps", "20", "--consolidation-steps", "5", "--kl-weight", "0.05", "--contexts", "4")
    captured = cli("train", *words, *quick, "--generator", "low-rank", "--rank", "2")
    assert "from scratch" in captured.err
    assert "--generator is --weight-generator now" in captured.err
    assert bhc.load(tmp_path / "run").network.design.weight_generator == bhc.LowRank(2)
    assert "pretrained" not in captured.out


def test_budgets_are_trained_beyond_both_ends(cli: Commands, tmp_path: Path) -> None:
    words = (*LENET, "--out", tmp_path / "run", "--context", "classes+budget")
    cli("train", *words, "--margin", "0.5", "--steps", "10", "--consolidation-steps", "5")
    space = bhc.load(tmp_path / "run").space
    assert isinstance(space, bhc.Joint)
    assert space.spaces[1] == bhc.Budgets(margin=0.5)
    words = ("compress", tmp_path / "run", "--classes", "3,4")
    cli(*words, "--out", tmp_path / "a.bhc", "--budget", "1")
    beyond = ("--out", tmp_path / "b.bhc", "--budget", "1.2")
    cli.refused("0 to 1", *words, *beyond)


@pytest.mark.parametrize("family", ["ghs", "sparse-vd"])
def test_a_network_for_all_contexts_trains_and_is_inspected(cli: Commands, tmp_path: Path, family: str) -> None:
    out = tmp_path / "run"
    words = (*LENET, "--out", out, "--context", "none", "--family", family)
    told = cli("train", *words, "--steps", "10", "--consolidation-steps", "5").err.split("next:")[1]
    assert "compress" in told
    assert "--classes" not in told
    facts = cli("inspect", out, "--plot", tmp_path / "x.png").out
    assert "accepts       nothing: it was made for one context" in facts
    assert f"family {family}" in facts
    cli("compress", out, "--out", tmp_path / "a.bhc")
    cli.refused("leave the conditions out", "compress", out, "--classes", "3,4", "--out", tmp_path / "b.bhc")


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
    cli: Commands, tmp_path: Path, words: tuple[str, ...], kinds: list[str]
) -> None:
    names = (*LENET, "--out", tmp_path / "run")
    quick = ("--steps", "10", "--narrowing-steps", "20", "--consolidation-steps", "5", "--contexts", "4")
    cli("train", *names, *quick, *words)
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


@pytest.mark.parametrize(
    "context",
    ["domain", "features", "budget", "classes+budget", "domain+features", "classes+domain+features+budget"],
)
def test_other_contexts_train_and_are_inspected(cli: Commands, tmp_path: Path, context: str) -> None:
    out = tmp_path / "run"
    words = (*LENET, "--out", out, "--context", context)
    quick = ("--steps", "10", "--consolidation-steps", "5", "--kl-weight", "0.05", "--contexts", "4")
    cli("train", *words, *quick)
    told = cli("inspect", out, "--plot", tmp_path / "x.png").out.split("accepts")[1]
    assert all(f"{name}: " in told for name in context.split("+"))
    assert ("may be left out" in told) == ("+" in context)
    np.save(tmp_path / "sample.npy", np.full((16, 1, 8, 8), 9, dtype=np.uint8))
    np.save(tmp_path / "mask.npy", np.arange(64).reshape(1, 8, 8) < 32)
    asked = {
        "domain": ("--domain", tmp_path / "sample.npy"),
        "features": ("--features", tmp_path / "mask.npy"),
        "budget": ("--budget", "0.7"),
        "classes+budget": ("--classes", "3,4", "--budget", "0"),
        "domain+features": ("--domain", tmp_path / "sample.npy"),
        "classes+domain+features+budget": ("--features", tmp_path / "mask.npy", "--classes", "3,4"),
    }[context]
    cli("compress", out, *asked, "--out", tmp_path / "a.bhc")
    assert "classes 3, 4" in cli("evaluate", tmp_path / "a.bhc", "--data", "digits", "--classes", "3,4").out
    if "+" in context:
        cli("compress", out, "--out", tmp_path / "b.bhc")
        assert bhc.read(tmp_path / "b.bhc").classes == tuple(range(10))
