"""A context that the page has never seen: its control is made from what the context says of itself."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.pages import blocks, executed

from .conftest import Visits, served
from .test_asking import last_asked


@pytest.fixture
def hours(forgetful: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The run of ``docs/adding-a-context.md``, served."""
    monkeypatch.chdir(tmp_path)
    executed("adding-a-context.md")
    (tmp_path / "time_of_day.py").write_text(blocks("adding-a-context.md")[0])
    monkeypatch.setenv("BHC_IMPORT", str(tmp_path / "time_of_day.py"))
    with served(tmp_path / "run") as address:
        yield address


def test_a_number_that_the_page_knows_nothing_of_slides(visit: Visits, hours: str) -> None:
    visitor = visit(hours)
    expect(visitor.page.get_by_role("heading", name="hour 12")).to_be_visible()
    slider = visitor.page.get_by_role("slider", name="Hour")
    slider.press("ArrowRight")
    assert last_asked(visitor)["hour"] == 13
    expect(visitor.page.locator("#hour output")).to_have_text("13")
    expect(visitor.page.locator("#hour-field")).to_contain_text("an hour of the day, 0 to 23")
    assert "hour=13" in visitor.page.evaluate("location.hash")


def test_a_link_restores_it(visit: Visits, hours: str) -> None:
    visitor = visit(hours, fragment="#hour=99")
    expect(visitor.page.get_by_role("heading", name="hour 23")).to_be_visible()
    assert last_asked(visitor)["hour"] == 23
