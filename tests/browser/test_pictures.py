"""How it looks: pictures at two widths in both colour schemes, and what can be said of them without eyes.

They are written to the folder ``BHC_STUDIO_PICTURES`` names. With ``BHC_STUDIO_RUN`` they show that run:
``make studio-picture RUN=bhc-demo/run`` writes docs/studio.png, which the README shows.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from .conftest import Visitor, Visits, served

FRAGMENT = "#classes=3.4&pin=classes%3D3.4&pin=classes%3D0.1&pin=classes%3D3.5.8"
HEIGHTS = {1440: 1420, 375: 812}
WIDER_THAN_THE_PAGE = """() => [...document.querySelectorAll("body *")]
    .filter((one) => !one.closest(".wide, .scroll, svg, .skip, .working, .classes canvas"))
    .filter((one) => one.getBoundingClientRect().right > innerWidth + 1 && one.getClientRects().length > 0)
    .map((one) => one.outerHTML.slice(0, 80))"""
NAMELESS = """() => [...document.querySelectorAll("button, input, a, [role=slider], [role=img]")]
    .filter((one) => one.getClientRects().length > 0)
    .filter((one) => !(one.getAttribute("aria-label") || one.textContent.trim() || one.labels?.length))
    .map((one) => one.outerHTML.slice(0, 80))"""
CONTRAST = """() => {
    const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
    const light = (colour) => {
        const [r, g, b] = colour.match(/[\\d.]+/g).map((part) => channel(Number(part) / 255));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const ratio = (a, b) => (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    const paper = light(getComputedStyle(document.body).backgroundColor);
    return [".lead", ".note", ".eyebrow", ".context", ".quiet"].map((name) =>
        [name, ratio(light(getComputedStyle(document.querySelector(name)).color), paper)]);
}"""


@pytest.fixture(scope="module")
def shown(request: pytest.FixtureRequest) -> Iterator[str]:
    """The service whose pictures are taken."""
    run = os.environ.get("BHC_STUDIO_RUN")
    if run is None:
        yield request.getfixturevalue("address")
    else:
        with served(Path(run)) as address:
            yield address


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(os.environ.get("BHC_STUDIO_PICTURES", tmp_path))


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", HEIGHTS)
def test_the_page_is_whole(visit: Visits, shown: str, folder: Path, width: int, scheme: str) -> None:
    visitor = visit(shown, fragment=FRAGMENT, width=width, color_scheme=scheme)
    arrange(visitor, width)
    assert visitor.page.evaluate(WIDER_THAN_THE_PAGE) == []
    assert visitor.page.evaluate(NAMELESS) == []
    assert [part for part in visitor.page.evaluate(CONTRAST) if part[1] < 4.5] == []
    name = "studio.png" if (width, scheme) == (1440, "light") else f"studio-{width}-{scheme}.png"
    if name == "studio.png" or "BHC_STUDIO_RUN" not in os.environ:
        visitor.page.screenshot(path=folder / name)
        assert (folder / name).stat().st_size > 20_000


def arrange(visitor: Visitor, width: int) -> None:
    page = visitor.page
    page.set_viewport_size({"width": width, "height": HEIGHTS[width]})
    expect(page.locator(".card .times")).to_have_count(3)
    page.wait_for_function("[...document.querySelectorAll('.class canvas')].every((canvas) => canvas.width > 1)")
    visitor.settle()


def test_everything_is_reached_by_tabbing(visit: Visits, shown: str) -> None:
    visitor = visit(shown, fragment=FRAGMENT)
    arrange(visitor, 1440)
    reached = set()
    for _ in range(80):
        visitor.page.keyboard.press("Tab")
        reached.add(
            visitor.page.evaluate(
                "document.activeElement.getAttribute('aria-label') || document.activeElement.textContent"
            )
        )
    wanted = {
        "Class 0",
        "Threshold",
        "Download .bhc",
        "Download C",
        "Pin to compare",
        "Copy link",
        "Clear",
        "Layer by layer",
    }
    assert wanted <= reached


def test_nothing_moves_where_motion_is_unwelcome(visit: Visits, shown: str) -> None:
    visitor = visit(shown, reduced_motion="reduce")
    moving = (
        "[...document.querySelectorAll('*')].filter((one) => getComputedStyle(one).transitionDuration !== '0s').length"
    )
    assert visitor.page.evaluate(moving) == 0
