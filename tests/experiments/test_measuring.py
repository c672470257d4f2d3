"""A result file holds what was chosen, emitted and judged."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from study import choosing, sparse
from study.choosing import emit
from study.config import Study
from study.measuring import measure
from study.methods import METHODS
from study.training import Member

import bhc
from bhc.contexts import BinaryBudget
from bhc.data import DataSet
from bhc.emission import SCALES
from tests.experiments.toys import ALONE, EXPERIMENTS, few, fitted, garbage, member_of, read, settings

COMMITTED = EXPERIMENTS / "results/table1/lenet-300-100-bhc-cy-seed6.json"


def measured(study: Study, seed: int, members: Sequence[Member]) -> dict[str, Any]:
    """``measure`` with fewer thresholds and steps to try: they take most of its time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(choosing, "CURVE_POINTS", 25)
        patch.setattr(choosing, "scales_for", lambda family: SCALES[::3])
        return measure(study, seed, members)


@pytest.fixture(scope="module")
def pairs_study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    choices = {"error": 8.0, "bits_error": 10.0}
    return read(tmp_path_factory.mktemp("studies"), "bhc-cy", choose=choices)


@pytest.fixture(scope="module")
def pairs_result(pairs_study: Study, pairs_member: Member) -> dict[str, Any]:
    return measured(pairs_study, 7, [pairs_member])


@pytest.fixture(scope="module")
def sparse_result(tmp_path_factory: pytest.TempPathFactory, sparse_member: Member) -> dict[str, Any]:
    choices = {"threshold": 3.0, "bits_error": 25.0}
    study = read(tmp_path_factory.mktemp("studies"), "sparsevd", consolidate=None, choose=choices)
    return measured(study, 0, [sparse_member])


@pytest.fixture(scope="module", params=["bhc-cy", "sparsevd"])
def result(request: pytest.FixtureRequest) -> dict[str, Any]:
    return request.getfixturevalue({"bhc-cy": "pairs_result", "sparsevd": "sparse_result"}[request.param])


def test_a_result_has_every_key_of_the_committed_ones_and_is_plain_data(result: dict[str, Any]) -> None:
    committed = json.loads(COMMITTED.read_text())
    assert result.keys() == committed.keys() | {"curve_device"}  # written since
    assert result["summary"].keys() == committed["summary"].keys()
    for row in result["contexts"]:
        assert row.keys() - {"train_seconds"} == committed["contexts"][0].keys()
        assert len(row["architecture"]) == len(row["bits"]) == len(row["reference_bits"]) == 3
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_a_result_says_what_was_run_and_how_long_it_took(pairs_result: dict[str, Any], pairs_study: Study) -> None:
    assert [pairs_result[key] for key in ("experiment", "model", "method", "trained_on", "seed")] == [
        "table1", "lenet-300-100", "bhc-cy", "nine consecutive pairs", 7,
    ]  # fmt: skip
    assert pairs_result["config"] == settings("bhc-cy", choose={"error": 8.0, "bits_error": 10.0})
    assert pairs_result["choice"]["rule"] == pairs_study.choice.rule
    assert pairs_result["train_seconds"] == 12.5
    assert 12.5 < pairs_result["seconds"] < 72.5
    assert pairs_result["train_device"] == "cpu, 1 threads"


def mean_of(result: dict[str, Any], key: str) -> float:
    return float(np.mean([row[key] for row in result["contexts"]]))


def pooled_error(result: dict[str, Any], key: str) -> float:
    """Wrong answers, counted again from each context's percentage."""
    rows = result["contexts"]
    wrong = [round(row[key] * row["test_images"] / 100) for row in rows]
    return 100 * sum(wrong) / sum(row["test_images"] for row in rows)


def test_the_summary_is_that_of_the_rows(result: dict[str, Any]) -> None:
    rows, summary = result["contexts"], result["summary"]
    for key in ("pruning_ratio", "bits_ratio"):
        assert summary[f"{key}_mean"] == pytest.approx(mean_of(result, key))
        assert summary[f"{key}_harmonic"] == pytest.approx(1 / np.mean([1 / row[key] for row in rows]))
    for key in ("pruning_ratio_ten_outputs", "file_bytes", "file_ratio"):
        assert summary[f"{key}_mean"] == pytest.approx(mean_of(result, key))
    assert summary["pruning_ratio_min"] == min(row["pruning_ratio"] for row in rows)
    assert summary["file_bytes_max"] == max(row["file_bytes"] for row in rows)
    assert summary["error_max"] == max(row["file_error"] for row in rows)
    assert summary["emit_ms_median"] == pytest.approx(np.median([row["emit_ms"] for row in rows]))
    for key in ("pruning_error", "bits_error", "file_error"):
        assert summary[key] == pytest.approx(pooled_error(result, key))
    assert result["original_error"] == pytest.approx(pooled_error(result, "original_error"))


def test_errors_are_told_apart_and_pooled_over_images_not_over_contexts(pairs_result: dict[str, Any]) -> None:
    assert pairs_result["original_error"] < pairs_result["summary"]["pruning_error"]
    assert pairs_result["summary"]["pruning_error"] != pytest.approx(mean_of(pairs_result, "pruning_error"))


@pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")
def test_a_row_is_the_network_that_was_chosen(
    pairs_result: dict[str, Any], pairs_member: Member, digits: DataSet, tmp_path: Path
) -> None:
    choice = pairs_result["choice"]
    for first, row in enumerate(pairs_result["contexts"]):
        pair = [first, first + 1]
        assert row["context"] == {"classes": pair}
        assert (row["threshold"], row["scale"]) == (choice["threshold"], choice["scale"])
        options = {"classes": pair, "threshold": row["threshold"]}
        path = tmp_path / f"{first}.bhc"
        pairs_member.model.compress(**options, quantisation=bhc.VarianceBits(row["scale"])).save(path)
        own = digits.test.restricted_to(pair)
        wrong = int((bhc.read(path).predict(own.inputs).labels != own.labels).sum())
        assert row["file_error"] == row["bits_error"] == pytest.approx(100 * wrong / len(own))
        assert (row["file_bytes"], row["test_images"]) == (path.stat().st_size, len(own))
        report = pairs_member.model.compress(**options, quantisation=bhc.Float32()).report
        assert (row["architecture"], row["weights_after"]) == (list(report.architecture), report.weights_after)
        assert row["pruning_ratio"] == pytest.approx(50200 / report.weights_after)
        ten = report.weights_after + 8 * report.architecture[-1]
        assert row["pruning_ratio_ten_outputs"] == pytest.approx(50200 / ten)
        logits = pairs_member.model.network.base_model(own.inputs)[:, pair]
        wrong_before = int((logits.argmax(1) + first != own.labels).sum())
        assert row["original_error"] == pytest.approx(100 * wrong_before / len(own))


def test_a_file_is_judged_as_it_was_read(
    pairs_study: Study, pairs_member: Member, pairs_result: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = bhc.read

    def contrary(path: Path) -> bhc.Compressed:
        small = read(path)
        last = small.network.layers[-1].module
        for parameter in last.parameters():
            parameter.data.neg_()
        return small

    monkeypatch.setattr(bhc, "read", contrary)
    case = pairs_member.cases[2]
    alone = replace(pairs_member, cases=(case,))
    result = measured(pairs_study, 0, [alone])
    (row,) = result["contexts"]
    assert row["file_error"] == result["summary"]["file_error"] == result["summary"]["error_max"]
    assert row["file_error"] == pytest.approx(100 - row["bits_error"])
    assert row["bits_error"] < 50
    assert row["train_seconds"] == alone.seconds
    assert all("train_seconds" not in other for other in pairs_result["contexts"])


def test_the_choice_is_that_of_the_rule_on_the_validation_curve(pairs_result: dict[str, Any]) -> None:
    (curves,), choice = pairs_result["trade_offs"], pairs_result["choice"]
    assert curves["name"] == choice["group"] == "all contexts"
    within = [point for point in curves["validation"] if point["error"] <= 8.0]
    best = max(within, key=lambda point: point["ratio_mean"])
    assert (choice["threshold"], choice["validation_error"]) == (best["threshold"], best["error"])
    assert choice["validation_error_bits"] <= 10.0
    assert len(within) < len(curves["validation"])
    assert choice["groups"] == [{key: value for key, value in choice.items() if key not in ("rule", "groups")}]


def test_the_chosen_point_of_the_test_curve_is_the_summary(pairs_result: dict[str, Any]) -> None:
    (curves,), summary = pairs_result["trade_offs"], pairs_result["summary"]
    (chosen,) = [p for p in curves["test"] if p["threshold"] == pairs_result["choice"]["threshold"]]
    assert chosen["error"] == pytest.approx(summary["pruning_error"])
    assert chosen["ratio_mean"] == pytest.approx(summary["pruning_ratio_mean"])
    assert chosen["ratio_harmonic"] == pytest.approx(summary["pruning_ratio_harmonic"])


def test_other_test_images_change_what_is_measured_and_nothing_that_is_chosen(
    pairs_study: Study, pairs_member: Member
) -> None:
    member = few(pairs_member, 2)
    cases = [replace(case, test=replace(case.test, examples=garbage(case.test.examples))) for case in member.cases]
    true, false = (measured(pairs_study, 7, [own]) for own in (member, replace(member, cases=tuple(cases))))
    assert false["choice"] == true["choice"]
    assert false["trade_offs"][0]["validation"] == true["trade_offs"][0]["validation"]
    assert false["trade_offs"][0]["test"] != true["trade_offs"][0]["test"]
    assert false["summary"]["pruning_error"] > true["summary"]["pruning_error"]
    for key in ("pruning_ratio_mean", "bits_ratio_mean", "file_bytes_mean"):
        assert false["summary"][key] == true["summary"][key]


def test_errors_of_the_classes_add_up_to_the_pooled_ones(result: dict[str, Any]) -> None:
    classes = result["per_class"]
    assert [entry["class"] for entry in classes] == list(range(10))
    images = np.array([entry["images"] for entry in classes])
    assert images.sum() == sum(row["test_images"] for row in result["contexts"])
    pooled = {"original_error": result["original_error"]} | result["summary"]
    for key in ("original_error", "pruning_error", "file_error"):
        errors = np.array([entry[key] for entry in classes])
        assert (images * errors).sum() / images.sum() == pytest.approx(pooled[key])
        assert len(set(errors)) > 1


def test_a_class_counts_once_for_each_context_it_is_in(pairs_result: dict[str, Any], digits: DataSet) -> None:
    once = digits.test.labels.bincount().tolist()
    expected = [count * (1 if label in (0, 9) else 2) for label, count in enumerate(once)]
    assert [entry["images"] for entry in pairs_result["per_class"]] == expected


def test_rows_of_single_weights_are_counted_as_sparse(sparse_result: dict[str, Any], sparse_member: Member) -> None:
    (row,), (case,) = sparse_result["contexts"], sparse_member.cases
    assert row["threshold"] == 3.0
    pruned = emit(sparse_member, case.test, 3.0, bhc.Float32())
    small = emit(sparse_member, case.test, 3.0, bhc.VarianceBits(row["scale"]))
    assert row["pruning_ratio"] == row["pruning_ratio_ten_outputs"] == sparse.pruning_ratio(pruned)
    assert row["bits_ratio"] == sparse.bits_ratio(small)
    assert row["pruning_ratio"] != pytest.approx(pruned.report.pruning_ratio)
    assert sparse_result["summary"]["pruning_ratio_mean"] == row["pruning_ratio"]


def test_log_dropout_rates_are_kept_for_the_baselines_with_scales(
    digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path, pairs_result: dict[str, Any]
) -> None:
    model = fitted(pretrained, digits, bhc.SingleContext(), ALONE, family="gnj")
    method = METHODS["bc-gnj"]
    result = measured(read(tmp_path, "bc-gnj", consolidate=None), 0, [member_of(model, method.cases(digits))])
    assert {name: len(rates) for name, rates in result["log_dropout"].items()} == {
        "fc1 inputs": 64, "fc2 inputs": 300, "fc3 inputs": 100,
    }  # fmt: skip
    assert len(set(result["log_dropout"]["fc2 inputs"])) > 50
    assert pairs_result["log_dropout"] == {}


def test_two_budgets_are_chosen_and_drawn_apart(digits: DataSet, pretrained: torch.nn.Module, tmp_path: Path) -> None:
    study = read(
        tmp_path,
        "bhc-cw",
        learn_high={"kl_weight": 2.0},
        choose={"error": [10.0, 30.0], "bits_error": [20.0, 40.0]},
    )
    model = fitted(pretrained, digits, BinaryBudget(), study.recipe, weight_generator=study.weight_generator)
    result = measured(study, 0, [member_of(model, study.method.cases(digits))])
    names = ["c_w = 0", "c_w = 1"]
    assert [curves["name"] for curves in result["trade_offs"]] == names
    assert [group["group"] for group in result["choice"]["groups"]] == names
    assert [row["label"] for row in result["contexts"]] == names
    assert [row["context"] for row in result["contexts"]] == [{"budget": 0.0}, {"budget": 1.0}]
    low, high = result["choice"]["groups"]
    assert low["threshold"] != high["threshold"]
    for limit, group, row, curves in zip(
        (10.0, 30.0), (low, high), result["contexts"], result["trade_offs"], strict=True
    ):
        assert (row["threshold"], row["scale"]) == (group["threshold"], group["scale"])
        within = [point for point in curves["validation"] if point["error"] <= limit]
        assert group["threshold"] == max(within, key=lambda point: point["ratio_mean"])["threshold"]
    assert result["contexts"][1]["pruning_ratio"] > result["contexts"][0]["pruning_ratio"]


# Single weights, counted as they are stored


def fake(weights_before: int, *layers: tuple[Any, int]) -> Any:
    """What the counts read of an emitted network."""
    modules = [SimpleNamespace(module=SimpleNamespace(weight=torch.tensor(weight))) for weight, _ in layers]
    report = SimpleNamespace(weights_before=weights_before, bits=tuple(bits for _, bits in layers))
    return SimpleNamespace(network=SimpleNamespace(layers=modules), report=report)


KERNELS = [[[[1.0, 0.0], [0.0, 0.0]]], [[[0.0, 2.0], [0.0, 3.0]]]]


@pytest.mark.parametrize(
    ("layers", "words", "bits"),
    [
        # 3 values of 4 bits, 3 rows out of two (1 bit), 4 places where columns begin from 0 to 3 (2 bits)
        pytest.param([([[0.0, 1.5, 0.0], [2.0, 0.0, 3.0]], 4)], 3 + 3 + 4, 3 * 4 + 3 * 1 + 4 * 2, id="usual"),
        pytest.param(
            [([[1.0, 2.0, 3.0, 4.0]], 3), ([[0.0], [0.0]], 1)],
            (4 + 4 + 5) + (0 + 0 + 2),
            (4 * 3 + 4 * 1 + 5 * 3) + (0 + 0 + 2 * 1),
            id="one row, no value",
        ),
        pytest.param([(KERNELS, 5)], 3 + 3 + 5, 3 * 5 + 3 * 1 + 5 * 2, id="kernels are parts of their columns"),
    ],
)
def test_a_sparse_layer_counts_values_rows_and_where_columns_begin(layers: Any, words: int, bits: int) -> None:
    small = fake(1200, *layers)
    assert sparse.pruning_ratio(small) == 1200 / words
    assert sparse.bits_ratio(small) == 32 * 1200 / bits
