"""The picture of branches, heads and the stream: what is drawn is what the service says."""

import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from .conftest import Visitor, Visits
from .test_pictures import WIDER_THAN_THE_PAGE

FRAGMENT = "#classes=3.4&threshold=-2"


def last_blocks(visitor: Visitor) -> list[dict[str, Any]]:
    visitor.settle()
    answer = visitor.asked("/v1/previews")[-1].response()
    assert answer is not None
    blocks: list[dict[str, Any]] = answer.json()["blocks"]
    return blocks


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 390])
def test_blocks_are_drawn_as_they_are(
    visit: Visits, vision_address: str, width: int, scheme: str, tmp_path: Path
) -> None:
    visitor = visit(vision_address, fragment=FRAGMENT, width=width, color_scheme=scheme)
    blocks = last_blocks(visitor)
    page = visitor.page
    drawn = page.locator("#blocks .branches > g")
    expect(drawn).to_have_count(len(blocks))
    assert {block["gone"] for block in blocks} == {True, False}
    for place, block in enumerate(blocks):
        one = drawn.nth(place)
        assert (one.get_attribute("class") == "gone") == block["gone"]
        expect(one.locator(".count")).to_have_text("gone" if block["gone"] else str(block["units_after"]))
        was, filled = (float(one.locator(f"> .{name}").get_attribute("height") or "") for name in ("was", "is"))
        assert (filled / was) ** 2 == pytest.approx(block["units_after"] / block["units_before"], abs=0.02)
        squares = [float(each.get_attribute("height") or "") > 0 for each in one.locator(".heads .is").all()]
        assert squares == ([] if block["gone"] else [head["alive"] for head in block["heads"]])
    gone = sum(block["gone"] for block in blocks)
    said = f"{len(blocks) - gone} of {len(blocks)} branches stay"
    expect(page.locator("#blocks-lead")).to_contain_text(said)
    assert said in (page.locator("#blocks svg").get_attribute("aria-label") or "")
    wide = "box => box.scrollWidth > box.clientWidth"
    assert page.locator("#network").evaluate(wide)
    assert page.locator("#blocks").evaluate(wide) == (width == 390)
    assert page.evaluate(WIDER_THAN_THE_PAGE) == []
    folder = Path(os.environ.get("BHC_STUDIO_PICTURES", tmp_path))
    page.locator("#blocks-part").screenshot(path=folder / f"blocks-{width}-{scheme}.png")


def test_the_table_has_blocks_and_layers_that_went(visit: Visits, vision_address: str) -> None:
    visitor = visit(vision_address, fragment=FRAGMENT)
    blocks = last_blocks(visitor)
    visitor.page.get_by_text("Layer by layer").click()
    rows = visitor.page.locator("#blocks-table tbody tr")
    assert [row.locator("th").inner_text() for row in rows.all()] == [block["name"] for block in blocks]
    lost = {name for block in blocks if block["gone"] for name in block["layers"]}
    layers = visitor.page.locator("#network-table tbody tr").all()
    assert {row.locator("th").inner_text() for row in layers if row.inner_text().endswith("gone")} == lost
    assert "null" not in (visitor.page.locator("#network svg").get_attribute("aria-label") or "")


def test_a_moved_threshold_brings_heads_back(visit: Visits, vision_address: str) -> None:
    visitor = visit(vision_address, fragment=FRAGMENT)
    few = last_blocks(visitor)
    visitor.page.get_by_role("slider", name="Threshold").focus()
    visitor.page.keyboard.press("End")
    many = last_blocks(visitor)
    assert sum(block["heads_after"] for block in few) < sum(block["heads_after"] for block in many)
    expect(visitor.page.locator("#blocks .branches > .gone")).to_have_count(sum(block["gone"] for block in many))


def test_networks_without_shortcuts_have_no_picture_of_blocks(visit: Visits, address: str) -> None:
    visitor = visit(address)
    visitor.settle()
    expect(visitor.page.locator("#blocks-part")).to_be_hidden()
    visitor.page.get_by_text("Layer by layer").click()
    expect(visitor.page.locator("#blocks-table")).to_be_hidden()
