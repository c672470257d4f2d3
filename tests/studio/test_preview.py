from itertools import pairwise

import numpy as np
import pytest

import bhc
from bhc.studio import schemas
from bhc.studio.service import Service


@pytest.mark.parametrize("more", [{}, {"round_to": 8}], ids=str)
def test_a_preview_is_of_the_network_that_is_handed_out(service: Service, more: dict[str, int]) -> None:
    asked = {"classes": [3, 4], "threshold": 0.5} | more
    shown = service.preview(asked)
    report = shown["report"]
    assert report["file_bytes"] == len(service.network(asked).content)
    assert [layer["weights_after"] for layer in shown["layers"]] == list(report["layer_weights"])
    assert [layer["bits"] for layer in shown["layers"]] == list(report["bits"])
    for layer in shown["layers"]:
        assert len(layer["kept_inputs"]) == layer["inputs_after"] <= layer["inputs_before"]
        assert len(layer["kept_outputs"]) == layer["outputs_after"]
    assert shown["inputs_kept"] == shown["layers"][0]["kept_inputs"]
    assert shown["here"] == {
        "threshold": 0.5,
        "ratio": report["pruning_ratio"],
        "error": report["error"],
        "bytes": report["file_bytes"],
        "flops": report["flops_after"],
    }


def test_the_curve_falls_in_size(service: Service) -> None:
    curve = service.preview({"classes": [3, 4]})["curve"]
    assert all(one["threshold"] > other["threshold"] for one, other in pairwise(curve))
    ratios = [point["ratio"] for point in curve]
    assert ratios == sorted(ratios)
    assert all(0 <= point["error"] <= 100 for point in curve)


def test_the_curve_is_that_of_the_multiples(service: Service) -> None:
    plain, rounded = (service.preview({"classes": [3, 4]} | more)["curve"] for more in ({}, {"round_to": 16}))
    for one, other in zip(plain, rounded, strict=True):
        assert one["threshold"] == other["threshold"]
        report = service.report({"classes": [3, 4], "threshold": other["threshold"], "round_to": 16})
        assert one["weights"] <= other["weights"] == report["weights_after"]
    assert plain != rounded


def test_histograms_count_every_rate(service: Service) -> None:
    shown = service.preview({"classes": [3, 4], "threshold": 0.0})
    by_layer = {layer["name"]: layer for layer in service.facts()["layers"]}
    for histogram in shown["histograms"]:
        layer = by_layer[histogram["layer"]]
        assert sum(histogram["counts"]) == layer[histogram["which"]]
        assert len(histogram["edges"]) == len(histogram["counts"]) + 1
        left = np.array(histogram["edges"][1:]) <= 0
        assert histogram["kept"] == pytest.approx(np.array(histogram["counts"])[left].sum(), abs=1)


def test_a_threshold_that_moves_asks_no_more_of_the_hypernetwork(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.preview({"classes": [5, 6]})
    monkeypatch.setattr("bhc.studio.preview.Preview._points", None)
    monkeypatch.setattr("bhc.studio.service.Cutter", None)
    moved = service.preview({"classes": [5, 6], "threshold": 0.25})
    assert moved["threshold"] == 0.25


def test_models_without_labelled_images_have_a_curve_without_errors(domain_model: bhc.Compressor) -> None:
    shown = Service(domain_model, "untrained").preview({"classes": [0, 1]})
    assert {point["error"] for point in shown["curve"]} == {None}


@pytest.mark.parametrize("threshold", [-3.0, -1.0, 2.0])
def test_blocks_are_the_branches_that_may_go(vision: Service, threshold: float) -> None:
    shown = vision.preview({"classes": [3, 4], "threshold": threshold})
    blocks, report, layers = shown["blocks"], shown["report"], {layer["name"]: layer for layer in shown["layers"]}
    assert [block["name"] for block in blocks] == [
        f"blocks_{place}_{end}" for place in range(4) for end in ("attend_out_proj", "narrow")
    ]
    assert [name for block in blocks if block["gone"] for name in block["layers"]] == list(report["gone"])
    assert [block["heads_after"] for block in blocks if block["heads"]] == list(report["heads"])
    assert [block["heads_before"] for block in blocks if block["heads"]] == list(report["heads_before"])
    for block in blocks:
        assert {layers[name]["bits"] is None for name in block["layers"]} == {block["gone"]}
        assert 0 < block["stream_after"] <= block["stream_before"] == 12
        assert len(block["heads"]) == block["heads_before"]
        assert sum(head["alive"] for head in block["heads"]) == block["heads_after"]
        parts = [head[f"{part}_after"] for head in block["heads"] for part in ("query_keys", "values")]
        assert block["units_after"] == (sum(parts) if parts else layers[block["name"]]["inputs_after"])
    schemas.PreviewAnswer.model_validate(shown)


def test_networks_without_shortcuts_have_no_blocks(service: Service) -> None:
    assert service.preview({"classes": [3, 4]})["blocks"] == []
