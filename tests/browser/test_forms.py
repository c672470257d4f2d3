"""Contexts and formats that the page has never seen: their controls are made from what they say of themselves."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from playwright.sync_api import expect

import bhc
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


WEATHER = """
from dataclasses import dataclass, replace
import torch
import bhc
from bhc.contexts import Option, ProbeRequest, VectorEmbedder

SKIES = ["clear", "cloudy"]

@bhc.register_context
@dataclass(frozen=True)
class Weather(bhc.ContextSpace):
    kind = "weather"
    conditions = ("sky", "place")
    options = (Option("sky", "Clear or cloudy.", example="clear"), Option("place", "A town.", example="Rome"))

    def form(self):
        sky = {"kind": "choice", "words": "what is above", "choices": SKIES, "default": "cloudy"}
        return {"sky": sky, "place": {"kind": "text", "words": "a town", "default": "Rome"}}

    def resolve_parts(self, request):
        if request["place"] == "Atlantis":
            raise bhc.BhcError("Atlantis is under water", hint="name a town")
        return {"weather": [float(SKIES.index(request["sky"])), float(len(request["place"]))]}

    def refine(self, batch, *, rng):
        drawn = torch.rand(len(batch), 2, generator=rng, device=rng.device)
        return replace(batch, values={**batch.values, "weather": drawn})

    def encode(self, batch):
        return (batch.values["weather"],)

    def embedder(self, width):
        return VectorEmbedder(2, width)

    def probes(self, num_classes, limit):
        return [ProbeRequest({"sky": sky, "place": "Rome"}) for sky in SKIES]
"""


def test_choices_texts_and_formats_of_ones_own_are_drawn(
    visit: Visits, forgetful: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "weather.py").write_text(WEATHER + blocks("adding-a-format.md")[0])
    monkeypatch.setenv("BHC_IMPORT", str(tmp_path / "weather.py"))
    names: dict[str, type[bhc.ContextSpace]] = {}
    exec((tmp_path / "weather.py").read_text(), names)
    inputs, labels = torch.randint(0, 255, (80, 1, 4, 4), dtype=torch.uint8), torch.arange(80) % 4
    net = bhc.models.build("lenet-300-100", image_shape=(1, 4, 4), num_classes=4)
    model = bhc.wrap(net, names["Weather"](), example_input=inputs[:1], pretrained=False)
    recipe = (bhc.Learn(steps=3), bhc.Consolidate(steps=3))
    examples = (inputs, labels)
    bhc.fit(model, examples, examples, recipe=recipe, run=tmp_path / "run", progress=bhc.training.Silent())
    with served(tmp_path / "run") as address:
        visitor = visit(address)
        choice = visitor.page.get_by_role("combobox", name="Sky")
        expect(choice).to_have_value("cloudy")
        choice.select_option("clear")
        assert last_asked(visitor)["sky"] == "clear"
        town = visitor.page.get_by_role("textbox", name="Place")
        town.fill("Oslo")
        town.press("Enter")
        assert last_asked(visitor)["place"] == "Oslo"
        with visitor.page.expect_download() as download:
            visitor.page.get_by_role("button", name="Download NumPy").click()
        assert download.value.suggested_filename.endswith(".npz")
