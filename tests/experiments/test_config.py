"""A study is read from a file, and refused if it cannot be."""

import tomllib
from pathlib import Path
from typing import Any

import pytest
import torch
from experiments.report.methods import METHODS as TABLE_METHODS
from study.config import Choice, Study
from study.methods import METHODS

import bhc
from bhc.data import DataSet
from bhc.hypernet import LowRank
from bhc.training import FreezeOffsets
from tests.experiments.synthetic import PAPERS
from tests.experiments.toys import (
    EXPERIMENTS,
    read,
    settings,
    write_study,
)

CONFIGS = sorted((EXPERIMENTS / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_every_configuration_is_a_study_that_can_be_trained(
    path: Path, digits: DataSet, pretrained: torch.nn.Module
) -> None:
    study = Study.read(path)
    assert study.name == path.stem == f"{study.model}-{study.method.name}"
    assert study.model in bhc.models.NAMES
    assert study.settings == tomllib.loads(path.read_text())
    space, learned = study.method.space(digits), study.recipe[0]
    example = digits.train.inputs[:1]
    model = bhc.wrap(pretrained, space, example_input=example, family=study.method.family)
    for stage in study.recipe:
        stage.check(model.network)
    assert (learned.contexts, learned.examples) == (study.method.contexts, study.method.examples)
    assert learned.steps == study.settings["learn"]["steps"]
    groups = len({case.group for case in study.method.cases(digits)})
    assert len(study.choice.bits_error) == groups == study.method.groups
    assert len(study.choice.error) == (groups if study.choice.threshold is None else 0)


def test_every_row_of_the_tables_has_a_configuration_and_the_other_way_round() -> None:
    studies = [Study.read(path) for path in CONFIGS]
    found = [(study.data, study.experiment, study.model, study.method.name) for study in studies]
    assert sorted(found) == sorted(
        (paper.name, paper.experiment, model, method)
        for paper in PAPERS.values()
        for model in paper.models
        for method in paper.methods(model)
    )
    assert set(METHODS) == set(TABLE_METHODS)


def test_only_public_weights_have_seen_the_validation_images_and_their_limits_are_rises() -> None:
    for study in map(Study.read, CONFIGS):
        assert (study.weights == "public") == (study.model == "resnet-20")
        assert study.choice.above_best or study.weights == "own"


def test_rows_of_one_hypernetwork_have_three_seeds_on_mnist_and_all_others_at_least_one() -> None:
    for study in map(Study.read, CONFIGS):
        assert len(set(study.seeds)) == len(study.seeds) > 0
        if study.data == "mnist" and study.method.name.startswith("bhc-"):
            assert len(study.seeds) == 3


def test_the_yardstick_sees_more_of_each_context_than_the_row_that_it_measures() -> None:
    studies = {path.stem: Study.read(path) for path in CONFIGS}
    for network in ("lenet-300-100", "lenet-5-caffe"):
        alone, together = studies[f"{network}-per-context"], studies[f"{network}-bhc-cy"]
        steps = [sum(stage.steps for stage in study.recipe) for study in (alone, together)]
        assert 9 * steps[0] > 3 * steps[1]
        assert alone.choice == together.choice


@pytest.mark.parametrize("key", ["experiment", "model", "data", "method", "seeds", "learn", "choose"])
def test_a_missing_key_is_named_with_the_file(tmp_path: Path, key: str) -> None:
    with pytest.raises(bhc.BhcError, match=rf"half\.toml lacks '{key}'"):
        Study.read(write_study(tmp_path, "bhc-cy", "half", **{key: None}))


def test_a_study_must_say_how_steps_are_chosen(tmp_path: Path) -> None:
    with pytest.raises(bhc.BhcError, match=r"half\.toml .*'bits_error'"):
        Study.read(write_study(tmp_path, "bhc-cy", "half", choose={"error": 1.0}))


@pytest.mark.parametrize(
    ("method", "choices", "words"),
    [
        ("bhc-cy", {"bits_error": 1.0}, "0 limits for error"),
        ("bhc-cy", {"error": [1.0, 2.0], "bits_error": 1.0}, "2 limits for error"),
        ("bhc-cw", {"error": [1.0, 2.0], "bits_error": 1.0}, "1 limits for bits_error"),
        ("sparsevd", {"threshold": 3.0, "bits_error": []}, "0 limits for bits_error"),
        ("sparsevd", {"threshold": 3.0, "error": 1.0, "bits_error": 1.0}, "exclude each other"),
    ],
)
def test_every_group_of_contexts_needs_its_limits(
    tmp_path: Path, method: str, choices: dict[str, Any], words: str
) -> None:
    with pytest.raises(bhc.BhcError, match=rf"{method}\.toml .*{words}"):
        read(tmp_path, method, choose=choices)


def test_narrowing_learns_on_as_it_was_but_for_what_is_said(tmp_path: Path) -> None:
    learn = {"steps": 20, "kl_weight": 0.3, "logvar_rate": 0.2, "warm_up": 0.9, "context_weight": 0.01}
    narrow, after = {"steps": 9, "final_ratio": 4.0, "kl_weight": 0.1}, {"steps": 5, "ratios": [3, 5]}
    learning, narrowing, consolidation = read(tmp_path, "bhc-cy", learn=learn, narrow=narrow, consolidate=after).recipe
    size = {"contexts": 16, "examples": 16}
    assert learning.context_weight == 0.01
    assert narrowing == bhc.Narrow(
        steps=9, final_ratio=4.0, kl_weight=0.1, logvar_rate=0.2, context_weight=0.01, **size
    )
    assert consolidation == bhc.Consolidate(steps=5, ratios=(3.0, 5.0), **size)


def test_only_the_network_of_budget_1_is_narrowed(tmp_path: Path) -> None:
    choose = {"error": [1.0, 2.0], "bits_error": [1.0, 2.0]}
    high, narrow = {"kl_weight": 0.7}, {"steps": 9, "final_ratio": 4.0}
    *_, narrowing, consolidation = read(tmp_path, "bhc-cw", choose=choose, learn_high=high, narrow=narrow).recipe
    assert (narrowing.kind, narrowing.budget, consolidation.budget) == ("narrow", 1.0, 1.0)
    assert isinstance(narrowing, bhc.Narrow)
    assert narrowing.kl_weight == 0.7


@pytest.mark.parametrize("table", ["learn", "narrow", "consolidate", "choose", "generator"])
def test_a_setting_that_nobody_knows_is_named_with_the_file(tmp_path: Path, table: str) -> None:
    known = {"generator": {"kind": "full"}, "narrow": {"steps": 5}}.get(table) or settings("bhc-cy")[table]
    with pytest.raises(bhc.BhcError, match=r"bhc-cy\.toml .*'magic'"):
        read(tmp_path, "bhc-cy", **{table: known | {"magic": 1}})


def test_a_method_that_does_not_exist_is_named_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(bhc.BhcError, match=r"magic\.toml lacks 'magic', or names what does not exist"):
        Study.read(write_study(tmp_path, "magic"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model": "magic"}, "unknown model 'magic'"),
        ({"weights": "magic"}, "unknown weights 'magic'"),
        ({"generator": {"kind": "magic"}}, "unknown generator 'magic'"),
        ({"learn": {"warm_up": 2.0}}, "warm_up is a fraction"),
        ({"consolidate": {"steps": -1}}, "steps must be a number of at least 0"),
    ],
)
def test_a_value_that_cannot_be_is_named_with_the_file(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(bhc.BhcError, match=rf"bhc-cy\.toml .*{words}"):
        read(tmp_path, "bhc-cy", **changes)


def test_a_file_that_is_no_toml_and_one_that_is_not_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("seeds = [0")
    with pytest.raises(bhc.BhcError, match=r"broken\.toml cannot be read as a study"):
        Study.read(tmp_path / "broken.toml")
    with pytest.raises(bhc.BhcError, match=r"missing\.toml cannot be read as a study"):
        Study.read(tmp_path / "missing.toml")


def test_what_is_left_out_of_a_file_has_a_default(tmp_path: Path) -> None:
    study = read(tmp_path, "bc-gnj", consolidate=None, choose={"error": 1.5, "bits_error": 2})
    assert study.weight_generator == bhc.ScalesOnly()
    assert study.weights == "own"
    assert study.recipe == (bhc.Learn(steps=20, kl_weight=0.3, logvar_rate=0.2, contexts=1, examples=256),)
    assert study.choice == Choice(error=(1.5,), threshold=None, bits_error=(2,))


def test_generator_and_options_of_the_stages_come_from_the_file(tmp_path: Path) -> None:
    study = read(
        tmp_path,
        "bhc-cy",
        generator={"kind": "low-rank", "rank": 3},
        learn={"steps": 7, "rate": 0.25, "warm_up": 0.125},
        consolidate={"steps": 5, "thresholds": [-3, 0.5], "teacher_weight": 0.5},
    )
    assert study.weight_generator == LowRank(3)
    assert study.recipe == (
        bhc.Learn(steps=7, rate=0.25, warm_up=0.125, contexts=16, examples=16),
        bhc.Consolidate(steps=5, thresholds=(-3.0, 0.5), teacher_weight=0.5, contexts=16, examples=16),
    )


def test_a_budget_learns_in_two_stages_and_consolidates_the_second_network_only(tmp_path: Path) -> None:
    study = read(tmp_path, "bhc-cw", learn_high={"steps": 30}, choose={"error": [1.0, 2.0], "bits_error": [1.0, 2.0]})
    low, freeze, high, consolidation = study.recipe
    assert (low.steps, low.budget, low.kl_weight) == (20, 0.0, 0.3)
    assert isinstance(freeze, FreezeOffsets)
    assert (high.steps, high.budget, high.kl_weight) == (30, 1.0, 0.3)
    assert (consolidation.steps, consolidation.budget) == (10, 1.0)
    assert read(tmp_path, "bhc-cy").recipe[1].budget is None


def test_limits_are_errors_or_points_over_the_smallest() -> None:
    limits = {"error": (0.5, 1.0), "bits_error": (0.75, 1.25)}
    assert Choice(**limits).limits(1, smallest=2.0) == (1.0, 1.25)
    assert Choice(**limits, above_best=True).limits(1, smallest=2.0) == (3.0, 3.25)
    assert Choice(threshold=3.0, bits_error=(0.75,), above_best=True).limits(0, smallest=2.0) == (None, 2.75)


def test_the_rule_in_words_says_what_was_fixed_and_what_was_chosen() -> None:
    assert Choice(error=(0.65,), bits_error=(0.8,)).rule == (
        "the largest mean ratio with at most 0.65 % error on validation data;"
        " the coarsest steps with at most 0.8 % there"
    )
    assert Choice(error=(1.2, 1.5), bits_error=(1.3, 1.6)).rule == (
        "the largest mean ratio with at most 1.2 and 1.5 % error on validation data;"
        " the coarsest steps with at most 1.3 and 1.6 % there"
    )
    assert Choice(threshold=3.0, bits_error=(1.65,)).rule == (
        "threshold 3, as published; the coarsest steps with at most 1.65 % there"
    )
