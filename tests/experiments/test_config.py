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
from bhc.training import FreezeOffsets
from tests.experiments.synthetic import PAPERS
from tests.experiments.toys import EXPERIMENTS, read, settings

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


def test_only_public_weights_may_have_seen_the_validation_images_and_our_rows_have_three_seeds() -> None:
    for study in map(Study.read, CONFIGS):
        assert (study.weights == "public") == (study.model == "resnet-20")
        assert study.choice.above_best or study.weights == "own"  # their limits are rises
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


ONE, TWO = {"bits_error": 1.0}, {"error": [1.0, 2.0], "bits_error": 1.0}
FIXED = {"threshold": 3.0, "bits_error": []}


@pytest.mark.parametrize(
    ("method", "changes", "words"),
    [
        *(
            ("bhc-cy", {key: None}, f"lacks '{key}'")
            for key in ("experiment", "model", "data", "method", "seeds", "learn", "choose")
        ),
        *(
            ("bhc-cy", {table: known | {"magic": 1}}, "'magic'")
            for table, known in {"generator": {"kind": "full"}, "narrow": {"steps": 5}, **settings("bhc-cy")}.items()
            if isinstance(known, dict)
        ),
        ("magic", {}, "lacks 'magic'"),
        ("bhc-cy", {"choose": {"error": 1.0}}, "'bits_error'"),
        ("bhc-cy", {"choose": ONE}, "0 limits for error"),
        ("bhc-cy", {"choose": TWO}, "2 limits for error"),
        ("bhc-cw", {"choose": TWO}, "1 limits for bits_error"),
        ("sparsevd", {"choose": FIXED}, "0 limits for bits_error"),
        ("sparsevd", {"choose": FIXED | {"error": 1.0}}, "exclude each other"),
        ("bhc-cy", {"model": "magic"}, "model 'magic'"),
        ("bhc-cy", {"weights": "magic"}, "weights 'magic'"),
        ("bhc-cy", {"generator": {"kind": "magic"}}, "generator 'magic'"),
        ("bhc-cy", {"learn": {"warm_up": 2.0}}, "warm_up"),
        ("bhc-cy", {"consolidate": {"steps": -1}}, "steps"),
    ],
)
def test_a_study_that_cannot_be_is_named_with_what_is_wrong(
    tmp_path: Path, method: str, changes: dict[str, Any], words: str
) -> None:
    with pytest.raises(bhc.BhcError, match=rf"{method}\.toml .*{words}"):
        read(tmp_path, method, **changes)


@pytest.mark.parametrize("text", ["seeds = [0", None])
def test_a_file_that_is_no_toml_or_not_there_is_named(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "some.toml").write_text(text)
    with pytest.raises(bhc.BhcError, match=r"some\.toml cannot be read"):
        Study.read(tmp_path / "some.toml")


def test_options_come_from_the_file_and_narrowing_learns_on_as_it_was_but_for_what_is_said(tmp_path: Path) -> None:
    learn = {"steps": 20, "kl_weight": 0.3, "logvar_rate": 0.2, "rate": 0.25, "warm_up": 0.9, "context_weight": 0.01}
    narrow = {"steps": 9, "final_ratio": 4.0, "kl_weight": 0.1}
    after = {"steps": 5, "ratios": [3, 5], "teacher_weight": 0.5}
    generator = {"kind": "low-rank", "rank": 3}
    study = read(tmp_path, "bhc-cy", generator=generator, learn=learn, narrow=narrow, consolidate=after)
    size = {"contexts": 16, "examples": 16}
    assert study.weight_generator == bhc.LowRank(3)
    assert study.recipe == (
        bhc.Learn(**learn, **size),
        bhc.Narrow(**narrow, logvar_rate=0.2, rate=0.25, context_weight=0.01, **size),
        bhc.Consolidate(steps=5, ratios=(3.0, 5.0), teacher_weight=0.5, **size),
    )
    thresholds = read(tmp_path, "bhc-cy", consolidate={"steps": 5, "thresholds": [-3, 0.5]}).recipe[1].thresholds
    assert thresholds == (-3.0, 0.5)


def test_what_is_left_out_of_a_file_has_a_default(tmp_path: Path) -> None:
    study = read(tmp_path, "bc-gnj", consolidate=None, choose={"error": 1.5, "bits_error": 2})
    assert study.weight_generator == bhc.ScalesOnly()
    assert study.weights == "own"
    assert study.recipe == (bhc.Learn(steps=20, kl_weight=0.3, logvar_rate=0.2, contexts=1, examples=256),)
    assert study.choice == Choice(error=(1.5,), threshold=None, bits_error=(2,))


def test_a_budget_learns_in_two_stages_and_narrows_and_consolidates_the_second_network_only(tmp_path: Path) -> None:
    limits, narrow = {"error": [1.0, 2.0], "bits_error": [1.0, 2.0]}, {"steps": 9, "final_ratio": 4.0}
    study = read(tmp_path, "bhc-cw", learn_high={"steps": 30, "kl_weight": 0.7}, choose=limits, narrow=narrow)
    low, freeze, high, narrowing, consolidation = study.recipe
    assert (low.steps, low.budget, low.kl_weight) == (20, 0.0, 0.3)
    assert isinstance(freeze, FreezeOffsets)
    assert (high.steps, high.budget, high.kl_weight) == (30, 1.0, 0.7)
    assert (narrowing.kind, narrowing.budget, narrowing.kl_weight) == ("narrow", 1.0, 0.7)
    assert (consolidation.steps, consolidation.budget) == (10, 1.0)
    assert read(tmp_path, "bhc-cy").recipe[1].budget is None


def test_limits_are_errors_or_points_over_the_smallest() -> None:
    limits = {"error": (0.5, 1.0), "bits_error": (0.75, 1.25)}
    assert Choice(**limits).limits(1, smallest=2.0) == (1.0, 1.25)
    assert Choice(**limits, above_best=True).limits(1, smallest=2.0) == (3.0, 3.25)
    assert Choice(threshold=3.0, bits_error=(0.75,), above_best=True).limits(0, smallest=2.0) == (None, 2.75)


def test_the_rule_says_what_was_fixed_and_what_was_chosen() -> None:
    assert "at most 1.2 and 1.5 %" in Choice(error=(1.2, 1.5), bits_error=(1.3, 1.6)).rule
    published = Choice(threshold=3.0, bits_error=(1.65,)).rule
    assert published.startswith("threshold 3, ")
    assert "at most 1.65 %" in published
