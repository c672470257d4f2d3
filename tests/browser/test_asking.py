"""Every control asks for what it says."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from playwright.sync_api import Page, Request, Route, expect

import bhc
from bhc.contexts import from_token
from bhc.data import DataSet

from .conftest import Visitor, Visits

BRIGHTEST = """canvas => {
    const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
    return Math.max(...data.filter((_, at) => at % 4 < 3));
}"""


def last_asked(visitor: Visitor) -> dict[str, Any]:
    visitor.settle()
    return json.loads(visitor.asked("/v1/previews")[-1].post_data or "")


def answer_to(request: Request) -> dict[str, Any]:
    response = request.response()
    assert response is not None
    return response.json()


def test_the_figures_are_those_of_the_model(visit: Visits, address: str, budget_run: Path) -> None:
    page = visit(address, fragment="#classes=3.4&budget=1").page
    report = bhc.load(budget_run).compress(classes=[3, 4], budget=1.0).report
    expect(page.get_by_role("heading", name="classes 3 and 4, budget 1.00")).to_be_visible()
    figures = page.locator(".figures")
    expect(figures).to_contain_text(f"{report.file_bytes:,} B")
    expect(figures).to_contain_text(f"{report.flops_after:,}")
    expect(figures).to_contain_text(f"{report.error:.2f} %")
    kept = re.compile(f"^{report.weights_after:,} of {report.weights_before:,} weights stay")
    expect(page.locator("#network .chart")).to_have_attribute("aria-label", kept)
    page.get_by_text("Layer by layer").click()
    rows = page.locator("#network-table tbody tr")
    expect(rows).to_have_count(len(report.bits))
    for row, (name, bits) in enumerate(zip(report.layers, report.bits, strict=True)):
        expect(rows.nth(row)).to_contain_text(name)
        expect(rows.nth(row).locator("td").last).to_have_text(str(bits))


def test_classes_are_chosen_by_their_pictures(visit: Visits, address: str) -> None:
    visitor = visit(address, fragment="#classes=3.4")
    seven = visitor.page.get_by_role("button", name="Class 7", exact=True)
    expect(seven).to_have_attribute("aria-pressed", "false")
    seven.click()
    expect(seven).to_have_attribute("aria-pressed", "true")
    assert last_asked(visitor)["classes"] == [3, 4, 7]
    seven.press("Space")
    assert last_asked(visitor)["classes"] == [3, 4]
    visitor.page.get_by_role("button", name="All").click()
    assert last_asked(visitor)["classes"] == list(range(10))
    expect(visitor.page.get_by_role("heading", name="all classes")).to_be_visible()


def test_the_pictures_of_the_classes_are_painted(visit: Visits, address: str) -> None:
    page = visit(address).page
    canvas = page.locator(".class canvas").nth(8)
    page.wait_for_function("document.querySelectorAll('.class canvas')[8].width > 1")
    assert canvas.evaluate(BRIGHTEST) > 200


def test_the_budget_slides(visit: Visits, address: str) -> None:
    visitor = visit(address)
    slider = visitor.page.get_by_role("slider", name="Budget")
    slider.press("Home")
    assert last_asked(visitor)["budget"] == 0
    slider.press("ArrowRight")
    assert last_asked(visitor)["budget"] == 0.05
    expect(visitor.page.locator("#budget output")).to_have_text("0.05")


def enter(page: Page, label: str, number: int) -> None:
    box = page.get_by_role("spinbutton", name=label)
    box.fill(str(number))
    box.press("Enter")


@pytest.mark.parametrize(
    ("name", "label", "given", "field"),
    [
        ("File at most", "Most bytes of the file", 3000, "max_bytes"),
        ("FLOPs at most", "Most FLOPs", 30000, "max_flops"),
        ("Validation error at most", "Highest validation error in percent", 50, "max_error"),
        ("Memory in C at most", "Most bytes of the C form", 20000, "max_ram_bytes"),
        ("Latency at most", "Longest latency in milliseconds", 50, "max_latency_ms"),
    ],
)
def test_limits_are_asked_for_and_kept(
    visit: Visits, address: str, name: str, label: str, given: int, field: str
) -> None:
    visitor = visit(address)
    page = visitor.page
    page.get_by_role("checkbox", name=name).check()
    assert field in last_asked(visitor)
    enter(page, label, given)
    assert last_asked(visitor)[field] == given
    kept = answer_to(visitor.asked("/v1/previews")[-1])["report"]
    measured = {
        "max_bytes": kept["file_bytes"],
        "max_flops": kept["flops_after"],
        "max_error": kept["error"],
        "max_ram_bytes": kept["ram_bytes"],
        "max_latency_ms": kept["latency_ms"],
    }
    assert measured[field] <= given
    page.get_by_role("slider", name=f"{label}, slider").press("ArrowLeft")
    assert last_asked(visitor)[field] != given
    page.get_by_role("checkbox", name=name).uncheck()
    assert field not in last_asked(visitor)


def test_an_error_is_proved_where_there_is_one_to_prove(visit: Visits, address: str) -> None:
    visitor = visit(address)
    page = visitor.page
    proved = page.get_by_role("checkbox", name="Proved for new data")
    expect(proved).to_be_hidden()
    page.get_by_role("checkbox", name="Validation error at most").check()
    enter(page, "Highest validation error in percent", 60)
    proved.check()
    assert last_asked(visitor)["confidence"] == 0.95
    enter(page, "Percent sure", 90)
    assert last_asked(visitor)["confidence"] == 0.9
    expect(page.locator(".figures")).to_contain_text("proved: ≤ 60 %, 90 % sure")
    guarantee = answer_to(visitor.asked("/v1/previews")[-1])["report"]["guarantee"]
    assert (guarantee["max_error"], guarantee["confidence"]) == (60, 0.9)
    page.get_by_role("checkbox", name="Validation error at most").uncheck()
    assert "confidence" not in last_asked(visitor)


def test_inputs_outside_the_context_are_flagged(visit: Visits, address: str) -> None:
    visitor = visit(address, fragment="#classes=3.4")
    page = visitor.page
    flags = page.get_by_role("checkbox", name="Flag other inputs")
    flags.check()
    assert last_asked(visitor)["flag_outside"] == 0.05
    enter(page, "Percent of false alarms", 20)
    assert last_asked(visitor)["flag_outside"] == 0.2
    page.locator(".thumb").first.click()
    expect(page.locator(".verdict")).to_contain_text(re.compile("flags it|does not flag it"))
    page.reload()
    visitor.wait_for_figures()
    expect(flags).to_be_checked()
    flags.uncheck()
    assert "flag_outside" not in last_asked(visitor)


def test_the_threshold_is_dragged_and_moved_by_keys(visit: Visits, address: str) -> None:
    visitor = visit(address)
    page = visitor.page
    handle = page.get_by_role("slider", name="Threshold")
    expect(page.locator("#threshold-note")).to_have_text("Cut where training suggests.")
    handle.scroll_into_view_if_needed()
    before = float(handle.get_attribute("aria-valuenow") or "nan")
    box = handle.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x - 20, y, steps=4)
    page.mouse.up()
    dragged = float(handle.get_attribute("aria-valuenow") or "nan")
    assert dragged < before
    assert last_asked(visitor)["threshold"] == pytest.approx(dragged)
    handle.press("ArrowRight")
    assert last_asked(visitor)["threshold"] == pytest.approx(dragged + 0.05)
    handle.press("Home")
    assert last_asked(visitor)["threshold"] == pytest.approx(float(handle.get_attribute("aria-valuemin") or "nan"))
    expect(page.locator("#threshold-note")).to_contain_text("by hand")
    page.get_by_role("button", name="Default").click()
    assert "threshold" not in last_asked(visitor)


def test_networks_come_while_the_handle_still_moves(visit: Visits, address: str) -> None:
    visitor = visit(address)
    visitor.settle()
    before = len(visitor.asked("/v1/previews"))
    handle = visitor.page.get_by_role("slider", name="Threshold")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    assert box is not None
    visitor.page.mouse.move(box["x"] + 28, box["y"] + 12)
    visitor.page.mouse.down()
    for step in range(60):
        visitor.page.mouse.move(box["x"] + 28 - step, box["y"] + 12)
        visitor.page.wait_for_timeout(20)
    asked = len(visitor.asked("/v1/previews")) - before
    visitor.page.mouse.up()
    assert asked >= 2, "nothing is asked until it rests"


def test_a_touch_drags_the_threshold(visit: Visits, address: str) -> None:
    visitor = visit(address, width=375, has_touch=True, is_mobile=True)
    handle = visitor.page.get_by_role("slider", name="Threshold")
    handle.scroll_into_view_if_needed()
    box = handle.bounding_box()
    assert box is not None
    visitor.page.touchscreen.tap(box["x"] + box["width"] / 2 + 30, box["y"] + 60)
    assert last_asked(visitor)["threshold"] == pytest.approx(float(handle.get_attribute("aria-valuenow") or "nan"))


def test_a_limit_lets_go_of_a_threshold_and_the_other_way_round(visit: Visits, address: str) -> None:
    """Multiples stay whatever is limited."""
    visitor = visit(address, fragment="#classes=3.4&threshold=0.5")
    assert last_asked(visitor)["threshold"] == 0.5
    visitor.page.get_by_role("checkbox", name="Channels in multiples of").check()
    assert last_asked(visitor)["round_to"] == 8
    enter(visitor.page, "Multiple of channels", 16)
    visitor.page.get_by_role("checkbox", name="File at most").check()
    assert "threshold" not in last_asked(visitor)
    visitor.page.get_by_role("slider", name="Threshold").press("ArrowLeft")
    assert "max_bytes" not in last_asked(visitor)
    expect(visitor.page.get_by_role("checkbox", name="File at most")).not_to_be_checked()
    assert last_asked(visitor)["round_to"] == 16
    without = answer_to(visitor.asked("/v1/previews")[-1])["report"]["without_multiples"]["weights"]
    expect(visitor.page.locator("#network-lead")).to_contain_text(f"weights stay, rounded up from {without:,}.")
    visitor.page.get_by_role("checkbox", name="Channels in multiples of").uncheck()
    assert "round_to" not in last_asked(visitor)


def test_the_curve_is_clicked(visit: Visits, address: str) -> None:
    visitor = visit(address)
    thresholds = [point["threshold"] for point in answer_to(visitor.asked("/v1/previews")[0])["curve"]]
    chart = visitor.page.locator("#curve .chart")
    expect(chart).to_contain_text("you are here")
    box = chart.bounding_box()
    assert box is not None
    chart.click(position={"x": box["width"] - 20, "y": 100})
    assert last_asked(visitor)["threshold"] in thresholds


def test_features_are_painted_and_chosen(visit: Visits, inputs_address: str) -> None:
    visitor = visit(inputs_address)
    page = visitor.page
    mask = page.get_by_role("img", name="Pixels that are there: 64 of 64")
    page.get_by_role("button", name="Top half").click()
    assert last_asked(visitor)["features"] == list(range(32))
    expect(page.get_by_role("heading", name="32 inputs")).to_be_visible()
    page.get_by_role("button", name="All", exact=True).click()
    assert "features" not in last_asked(visitor)
    mask.click(position={"x": 2, "y": 2})
    assert last_asked(visitor)["features"] == [place for place in range(64) if place not in (0, 1, 8, 9)]


def test_a_domain_is_uploaded(visit: Visits, inputs_address: str, digits: DataSet, tmp_path: Path) -> None:
    visitor = visit(inputs_address)
    page = visitor.page
    np.save(tmp_path / "zeros.npy", digits.train.restricted_to([0]).inputs[:40].numpy())
    page.get_by_label("Samples of the domain").set_input_files(tmp_path / "zeros.npy")
    expect(page.get_by_role("heading", name="inputs like zeros.npy")).to_be_visible()
    assert str(last_asked(visitor)["domain"]).startswith("domain-")
    page.get_by_role("button", name="Forget it").click()
    assert "domain" not in last_asked(visitor)


def test_a_domain_is_told_by_pictures(visit: Visits, inputs_address: str, inputs_run: Path) -> None:
    visitor = visit(inputs_address)
    page = visitor.page
    one = page.get_by_role("button", name="Pictures of 1")
    one.click()
    expect(page.locator("#domain").get_by_role("alert")).to_contain_text("says too little")  # nine of one class
    page.get_by_role("button", name="Pictures of 7").click()
    expect(page.get_by_role("heading", name="inputs like pictures of 1 and 7")).to_be_visible()
    sample = bhc.load(inputs_run).model.validation
    assert sample is not None
    expected = torch.cat([sample.inputs[sample.labels == label][:9] for label in (1, 7)]).float().mean(0)
    token = last_asked(visitor)["domain"]
    assert torch.allclose(from_token(token, tuple(expected.shape)).mean, expected)
    page.get_by_role("button", name="Forget it").click()
    expect(one).to_have_attribute("aria-pressed", "false")


def test_a_domain_that_says_too_little_is_refused_beside_the_upload(
    visit: Visits, inputs_address: str, digits: DataSet, tmp_path: Path
) -> None:
    page = visit(inputs_address).page
    np.save(tmp_path / "few.npy", digits.train.inputs[:3].numpy())
    page.get_by_label("Samples of the domain").set_input_files(tmp_path / "few.npy")
    problem = page.locator("#domain").get_by_role("alert")
    expect(problem).to_contain_text("A domain sample of 3 inputs says too little")
    expect(problem).to_contain_text("give at least 16")


def test_what_cannot_be_met_is_said_and_the_state_stays(visit: Visits, address: str) -> None:
    visitor = visit(address, fragment="#classes=3.4")
    page = visitor.page
    page.get_by_role("checkbox", name="File at most").check()
    enter(page, "Most bytes of the file", 7)
    expect(page.locator("#problem")).to_contain_text("7")
    expect(page.locator("#problem span")).not_to_be_empty()
    expect(page.get_by_role("spinbutton", name="Most bytes of the file")).to_have_value("7")
    expect(page.locator(".large strong")).not_to_have_text("")
    enter(page, "Most bytes of the file", 5000)
    expect(page.locator("#problem")).to_be_hidden()


def test_no_class_at_all_is_refused(visit: Visits, address: str) -> None:
    page = visit(address, fragment="#classes=3").page
    page.get_by_role("button", name="Class 3", exact=True).click()
    expect(page.locator("#problem")).to_be_visible()
    page.get_by_role("button", name="Class 5", exact=True).click()
    expect(page.locator("#problem")).to_be_hidden()


def test_only_the_newest_answer_is_shown(visit: Visits, address: str) -> None:
    visitor = visit(address, fragment="#classes=3.4")
    page = visitor.page
    held: list[Route] = []

    def slow(route: Route) -> None:
        if not held:
            held.append(route)  # the first one never comes back in time
        else:
            route.continue_()

    page.route("**/v1/previews", slow)
    page.get_by_role("button", name="Class 7", exact=True).click()
    page.wait_for_timeout(200)
    page.get_by_role("button", name="Class 8", exact=True).click()
    with page.expect_response("**/v1/previews") as answered:
        pass
    weights = answered.value.json()["report"]["weights_after"]
    expect(page.locator("#network-lead")).to_contain_text(f"{weights:,} of")
    expect(page.locator("#network .class-name")).to_have_text(["3", "4", "7", "8"])


def test_a_service_that_is_gone_is_said(visit: Visits, address: str) -> None:
    visitor = visit(address)
    visitor.page.route("**/v1/previews", lambda route: route.abort())
    visitor.page.get_by_role("button", name="Class 7", exact=True).click()
    expect(visitor.page.locator("#problem")).to_contain_text("The service does not answer")
    visitor.complaints.clear()  # the browser reports the failed request itself
