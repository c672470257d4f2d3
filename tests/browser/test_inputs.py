"""Inputs that are no pictures of pixels: what is shown of them, and how one is taken."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Locator, expect

import bhc
from bhc.studio.service import Service
from tests.studio.inputs import Flat, rows, service_of, serving_here

from .conftest import Visits
from .test_asking import BRIGHTEST
from .test_pictures import NAMELESS, WIDER_THAN_THE_PAGE

SCHEMES = {1440: "light", 375: "dark"}
WIDE = [(kind, 1440) for kind in ("series", "waveform", "image", "row", "words", "several", "none")]
NARROW = [(kind, 375) for kind in ("series", "image", "row", "several")]


@pytest.fixture
def here(kind: str) -> Iterator[str]:
    with serving_here(service_of(kind)) as address:
        yield address


def is_shown(kind: str, given: Locator) -> None:
    match kind:
        case "series" | "waveform":
            expect(given.locator(".lanes li")).to_have_count({"series": 6, "waveform": 1}[kind])
            expect(given).to_contain_text({"series": "6 channels, 128 steps", "waveform": "2,000 steps"}[kind])
            heights = [line.bounding_box() for line in given.locator(".line").all()]
            assert all(box is not None and box["height"] > 15 and box["width"] > 200 for box in heights)
        case "image":
            assert given.locator("canvas").evaluate(BRIGHTEST) > 100
        case "row":
            expect(given.locator("tr")).to_have_count(12)
            widths = {bar.evaluate("bar => bar.style.width") for bar in given.locator(".bar b").all()}
            assert len(widths) > 6
        case "words":
            expect(given.locator(".text")).to_contain_text("is this what is <unknown> ?")
        case "several":
            expect(given.locator("dt")).to_have_text(["words", "row", "cube"])
            expect(given.locator("tr")).to_have_count(5)
            expect(given).to_contain_text("The studio cannot draw inputs of shape (2, 2, 2, 2).")


@pytest.mark.parametrize(("kind", "width"), WIDE + NARROW)
def test_an_example_is_shown_and_answered(visit: Visits, here: str, kind: str, width: int, tmp_path: Path) -> None:
    visitor = visit(here, fragment="#classes=2.3", width=width, color_scheme=SCHEMES[width])
    page = visitor.page
    thumbs = page.locator(".thumb")
    expect(thumbs).to_have_count(8)
    thumbs.nth(1).click()
    expect(thumbs.nth(1)).to_have_attribute("aria-pressed", "true")
    expect(page.locator(".reply .label").first).to_have_text(re.compile("running|stairs"))
    visitor.settle()
    sent = json.loads(visitor.asked("/v1/answers")[-1].post_data or "")
    is_labelled = kind not in ("several", "none")
    assert sent == {"classes": [2, 3], "example": 7}
    if is_labelled:
        noun = "picture" if kind == "image" else "example"
        expect(page.locator(".verdict")).to_contain_text(f"The {noun} is of class stairs.")
    if kind == "none":
        expect(page.locator("#try-lead")).to_contain_text("cannot draw inputs of shape (2, 3, 3, 9)")
        expect(page.locator(".given")).to_have_count(0)
    else:
        is_shown(kind, page.locator(".given"))
    drawn = kind in ("series", "waveform", "image")
    expect(page.locator("#classes .face")).to_have_count(4 if drawn else 0)
    expect(page.locator("#classes .chip")).to_have_count(0 if drawn else 4)
    assert page.evaluate(WIDER_THAN_THE_PAGE) == []
    assert page.evaluate(NAMELESS) == []
    folder = Path(os.environ.get("BHC_STUDIO_PICTURES", tmp_path))
    page.locator("#try").screenshot(path=folder / f"inputs-{kind}-{width}-{SCHEMES[width]}.png")


def test_lines_follow_the_colours_of_the_page(visit: Visits) -> None:
    with serving_here(service_of("series")) as address:
        visitor = visit(address)
        page = visitor.page
        page.locator(".thumb").first.click()
        visitor.settle()  # the service ends before the page does
        line = page.locator(".given .line").first
        colours = []
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
            colours.append(line.evaluate("line => getComputedStyle(line).stroke"))
        assert len(set(colours)) == 2


def test_values_of_a_table_are_switches(visit: Visits) -> None:
    model = bhc.wrap(Flat(12).eval(), bhc.FeatureSubsets((12,)), example_input=rows(12)[:1])
    with serving_here(Service(model, "table")) as address:
        visitor = visit(address)
        visitor.page.get_by_label("Value 3", exact=True).uncheck()
        expect(visitor.page.get_by_role("heading", name="11 inputs")).to_be_visible()
        visitor.settle()
        asked = json.loads(visitor.asked("/v1/previews")[-1].post_data or "")["features"]
        assert asked == [place for place in range(12) if place != 3]


def test_a_drawing_becomes_the_numbers_that_a_network_takes(visit: Visits) -> None:
    """Black and white are the range of the sample's values, and no whole numbers."""
    service = service_of("grey")
    black, white = service.facts()["inputs"]["range"]
    with serving_here(service) as address:
        visitor = visit(address)
        paper = visitor.page.get_by_role("img", name="Draw a digit here")
        paper.scroll_into_view_if_needed()
        box = paper.bounding_box()
        assert box is not None
        visitor.page.mouse.move(box["x"] + 60, box["y"] + 50)
        visitor.page.mouse.down()
        visitor.page.mouse.move(box["x"] + 80, box["y"] + 200, steps=8)
        visitor.page.mouse.up()
        visitor.settle()
        values = json.loads(visitor.asked("/v1/answers")[-1].post_data or "")["input"]
    assert len(values) == 256
    assert min(values) == pytest.approx(black)
    assert 0 < max(values) <= white
