"""The drawing, the pictures, the downloads, pins and links."""

import json
import re
import shutil
import subprocess
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch
from playwright.sync_api import Browser, expect

import bhc
from bhc.data import DataSet

from .conftest import Visitor, Visits, served

MAIN = """
#include <stdio.h>
#include "{header}"
static float input[{inputs}], scores[{outputs}];
int main(void)
{{
    while (fread(input, sizeof(float), {inputs}, stdin) == {inputs}) printf("%d\\n", network_predict(input, scores));
    return 0;
}}
"""


def draw_a_stroke(visitor: Visitor) -> None:
    """A one: a line from top to bottom."""
    paper = visitor.page.get_by_role("img", name="Draw a digit here")
    paper.scroll_into_view_if_needed()
    box = paper.bounding_box()
    assert box is not None
    x, y = box["x"] + 0.3 * box["width"], box["y"]  # off the middle: it is centred before it is asked about
    visitor.page.mouse.move(x, y + 0.2 * box["height"])
    visitor.page.mouse.down()
    visitor.page.mouse.move(x, y + 0.8 * box["height"], steps=12)
    visitor.page.mouse.up()
    visitor.settle()


def last_image(visitor: Visitor) -> torch.Tensor:
    sent = json.loads(visitor.asked("/v1/answers")[-1].post_data or "")
    return torch.tensor(sent["input"], dtype=torch.float32).reshape(1, 1, 8, 8)


def test_a_drawing_is_centred_and_both_networks_answer(visit: Visits, address: str, budget_run: Path) -> None:
    visitor = visit(address, fragment="#classes=1.7&budget=0")
    draw_a_stroke(visitor)
    image = last_image(visitor)
    assert 0 < image.max() <= 16
    mass = image[0, 0] / image.sum()
    places = torch.arange(8) + 0.5
    assert (mass.sum(0) @ places).item() == pytest.approx(4, abs=0.4)
    assert (mass.sum(1) @ places).item() == pytest.approx(4, abs=0.4)
    small = bhc.load(budget_run).compress(classes=[1, 7], budget=0.0)
    answers = visitor.page.locator(".reply")
    expect(answers.nth(0).locator(".label")).to_have_text(str(int(small.predict(image).labels[0])))
    expect(answers.nth(0)).to_contain_text(f"{small.report.flops_after:,} FLOPs")
    expect(answers.nth(1).locator(".label")).to_have_text(re.compile(r"^\d$"))
    expect(answers.nth(1)).to_contain_text(f"{small.report.flops_before:,} FLOPs")
    expect(answers.nth(0).locator(".bars li")).to_have_count(2)
    expect(answers.nth(1).locator(".bars li")).to_have_count(10)


def test_clearing_takes_the_answers_away(visit: Visits, address: str) -> None:
    visitor = visit(address)
    draw_a_stroke(visitor)
    visitor.page.get_by_role("button", name="Clear").click()
    expect(visitor.page.locator(".reply .label").first).to_have_text("–")
    expect(visitor.page.locator(".bars li")).to_have_count(0)


def test_a_picture_is_tried_by_keyboard(visit: Visits, address: str, digits: DataSet) -> None:
    visitor = visit(address, fragment="#classes=3.4")
    picture = visitor.page.get_by_role("button", name="Picture 1 of class 4")
    picture.focus()
    picture.press("Enter")
    expect(picture).to_have_attribute("aria-pressed", "true")
    expect(visitor.page.locator(".verdict")).to_contain_text("The picture is of class 4.")
    visitor.settle()
    sent = json.loads(visitor.asked("/v1/answers")[-1].post_data or "")
    assert sent["example"] == int((digits.validation.labels == 4).nonzero()[1])
    seen = visitor.page.get_by_role("img", name="What the networks see").evaluate(
        "canvas => [...canvas.getContext('2d').getImageData(0, 0, 8, 8).data].filter((_, at) => at % 4 === 0)"
    )
    pixels = torch.tensor(seen).reshape(8, 8) * 16 / 255
    assert torch.allclose(pixels, digits.validation.inputs[sent["example"], 0].float(), atol=0.1)


def test_the_answer_follows_the_context(visit: Visits, address: str) -> None:
    visitor = visit(address, fragment="#classes=3.4")
    visitor.page.get_by_role("button", name="Picture 1 of class 4").click()
    tailored = visitor.page.locator(".reply").first
    expect(tailored.locator(".bars li")).to_have_count(2)
    visitor.page.get_by_role("button", name="Class 9", exact=True).click()
    expect(tailored.locator(".bars li")).to_have_count(3)


def test_downloads_load_and_classify(
    visit: Visits, address: str, budget_run: Path, digits: DataSet, tmp_path: Path
) -> None:
    page = visit(address, fragment="#classes=3.4&budget=0.5").page
    files = {}
    for button in ("Download .bhc", "Download ONNX", "Download C", "Download .pt2"):
        with page.expect_download() as download:
            page.get_by_role("button", name=button).click()
        name = download.value.suggested_filename
        download.value.save_as(tmp_path / name)
        files[Path(name).suffix] = tmp_path / name
    assert sorted(files) == [".bhc", ".h", ".onnx", ".pt2"]
    assert all(path.stem.endswith("3-4") for path in files.values())
    images = digits.test.restricted_to([3, 4]).inputs
    expected = bhc.load(budget_run).compress(classes=[3, 4], budget=0.5).predict(images).labels.tolist()
    assert bhc.read(files[".bhc"]).predict(images).labels.tolist() == expected
    session = onnxruntime.InferenceSession(files[".onnx"], providers=["CPUExecutionProvider"])
    (logits,) = session.run(None, {"input": images.float().numpy()})
    assert np.array([3, 4])[logits.argmax(1)].tolist() == expected
    assert labels_in_c(files[".h"], images.float().numpy()) == expected
    program = torch.export.load(files[".pt2"]).module()
    assert np.array([3, 4])[program(images.float()).argmax(1)].tolist() == expected


def labels_in_c(header: Path, images: np.ndarray) -> list[int]:
    gcc = shutil.which("gcc")
    if gcc is None:
        pytest.skip("gcc is not installed")
    source = header.with_suffix(".c")
    source.write_text(MAIN.format(header=header.name, inputs=images[0].size, outputs=2))
    program = header.with_suffix(".program")
    subprocess.run([gcc, "-std=c99", "-O1", source, "-o", program, "-lm"], check=True, timeout=60)
    answer = subprocess.run([program], input=images.tobytes(), capture_output=True, check=True, timeout=60)
    return [int(line) for line in answer.stdout.split()]


def test_up_to_four_are_pinned_and_compared(visit: Visits, address: str) -> None:
    visitor = visit(address, fragment="#classes=3.4")
    page = visitor.page
    pin = page.get_by_role("button", name="Pin to compare")
    for label in (5, 6, 7):
        pin.click()
        page.get_by_role("button", name=f"Class {label}", exact=True).click()
        visitor.settle()
    pin.click()
    cards = page.locator(".card")
    expect(cards).to_have_count(4)
    expect(page.get_by_role("button", name="Four are pinned")).to_be_disabled()
    expect(cards.nth(1)).to_contain_text("Classes 3, 4 and 5")
    cards.nth(0).get_by_role("button", name="Show").click()
    expect(page.get_by_role("heading", name="classes 3 and 4, budget 1.00", exact=True)).to_be_visible()
    cards.nth(0).get_by_role("button", name="Remove").click()
    expect(cards).to_have_count(3)
    expect(pin).to_be_enabled()


def test_a_link_restores_everything(visit: Visits, address: str) -> None:
    visitor = visit(address, fragment="#classes=1.7")
    page = visitor.page
    page.get_by_role("button", name="Pin to compare").click()
    page.get_by_role("button", name="Class 9", exact=True).click()
    page.get_by_role("slider", name="Budget").press("ArrowLeft")
    page.get_by_role("checkbox", name="File at most").check()
    visitor.settle()
    figures = page.locator(".figures dl dd").all_inner_texts()[:6]
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_role("status").filter(has_text="Copied.")).to_be_visible()
    link = page.evaluate("navigator.clipboard.readText()")
    assert link == page.url
    other = visit(address, fragment="#" + link.split("#", 1)[1])
    other.settle()
    expect(other.page.get_by_role("heading", name="classes 1, 7 and 9, budget 0.95")).to_be_visible()
    expect(other.page.get_by_role("checkbox", name="File at most")).to_be_checked()
    expect(other.page.locator(".card")).to_have_count(1)
    expect(other.page.locator(".card")).to_contain_text("Classes 1 and 7")
    assert other.page.locator(".figures dl dd").all_inner_texts()[:6] == figures


@pytest.mark.parametrize(
    "fragment", ["#classes=3.x.99&budget=seven&threshold=", "#features=zz.zz&pin=&domain=no", "#%%%"]
)
def test_a_link_that_makes_no_sense_is_no_fault(visit: Visits, address: str, fragment: str) -> None:
    visitor = visit(address, fragment=fragment)
    expect(visitor.page.locator("#problem")).to_be_hidden()


def test_a_token_is_asked_for(browser: Browser, budget_run: Path, tmp_path: Path) -> None:
    token = "correct-horse-battery-staple-0123"
    (tmp_path / "token").write_text(token)
    with served(budget_run, "--token-file", str(tmp_path / "token")) as address:
        page = browser.new_context().new_page()
        page.goto(address)
        page.get_by_label("This service asks for a token.").fill(token)
        page.get_by_role("button", name="Open").click()
        expect(page.locator(".large strong")).not_to_have_text("")
        page.wait_for_function("document.querySelectorAll('.class canvas')[8].width > 1")
        page.context.close()
