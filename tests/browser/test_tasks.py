"""Runs of other tasks: the measure goes by its own name, and outputs are shown in the place of labels."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.studio.inputs import serving_here
from tests.studio.tasks import task_service
from tests.studio.test_texts import masked

from .conftest import Visits
from .test_asking import BRIGHTEST
from .test_pictures import NAMELESS, WIDER_THAN_THE_PAGE

SCHEMES = {1440: "light", 375: "dark"}
NAMES = {"regression": "absolute error", "segmentation": "pixel error", "overlap": "overlap"}


@pytest.fixture
def here(kind: str) -> Iterator[str]:
    with serving_here(task_service(kind)) as address:
        yield address


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1440, 375])
@pytest.mark.parametrize("kind", NAMES)
def test_the_measure_and_outputs_are_shown(
    visit: Visits, here: str, kind: str, width: int, scheme: str, tmp_path: Path
) -> None:
    visitor = visit(here, fragment="" if kind == "regression" else "#classes=2.3", width=width, color_scheme=scheme)
    page, name = visitor.page, NAMES[kind]
    expect(page.locator("#figures")).to_contain_text(f"Validation {name}")
    expect(page.locator("#measure")).to_have_text(f"Validation {name}")
    expect(page.locator("#curve")).to_contain_text(f"{name}, %, root scale")
    expect(page.locator("#strip")).to_contain_text(re.compile(rf"\d %\s?{name}"))
    expect(page.locator("#flag_outside")).to_be_hidden()
    page.get_by_role("button", name="Pin to compare").click()
    expect(page.locator(".card")).to_contain_text(name.capitalize())
    page.locator(".thumb").nth(1).click()
    visitor.settle()
    told = page.locator(".reply")
    expect(told.locator(".own-error").first).to_have_text(re.compile(rf"\d %{name} of this example"))
    expect(page.locator(".bars li")).to_have_count(0)
    if kind == "regression":
        expect(told.first.locator("th")).to_have_text(["length", "width", "height"])
        expect(told.nth(1).locator("tr")).to_have_count(3)
    else:
        assert told.nth(1).locator("canvas").evaluate(BRIGHTEST) > 100
        expect(told.nth(1).locator(".legend")).to_contain_text("output 0")
        expect(page.locator(".verdict")).to_have_text("The picture is of class 3.")
    assert page.evaluate(WIDER_THAN_THE_PAGE) == []
    assert page.evaluate(NAMELESS) == []
    folder = Path(os.environ.get("BHC_STUDIO_PICTURES", tmp_path))
    page.screenshot(path=folder / f"task-{kind}-{width}-{scheme}.png", full_page=True)


@pytest.mark.parametrize("kind", ["overlap"])
def test_a_limit_is_about_the_error_itself(visit: Visits, here: str, kind: str) -> None:
    visitor = visit(here, fragment="#classes=2.3")
    page = visitor.page
    page.get_by_role("checkbox", name="Validation error at most").check()
    expect(page.locator("#limits")).to_contain_text("100 % less the validation overlap")
    page.get_by_label("Highest validation error in percent", exact=True).fill("40")
    page.get_by_label("Highest validation error in percent", exact=True).press("Enter")
    visitor.settle()
    assert json.loads(visitor.asked("/v1/previews")[-1].post_data or "")["max_error"] == 40


def test_a_text_is_written_and_answered(visit: Visits) -> None:
    with serving_here(masked(dynamic=True)) as address:
        visitor = visit(address, fragment="#classes=1.2")
        visitor.page.get_by_label("A text").fill("who is the author ?")
        expect(visitor.page.locator(".reply .label").first).to_have_text(re.compile("[12]"))
        visitor.settle()
        sent = json.loads(visitor.asked("/v1/answers")[-1].post_data or "")
    assert sent == {"classes": [1, 2], "text": "who is the author ?"}
