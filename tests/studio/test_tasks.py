"""Runs of other tasks than classification: what is told of them, what they give, what they are not asked."""

import base64
import io
import json
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.image
import numpy as np
import pytest
import schemathesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error

from bhc.studio import schemas
from bhc.studio.answers import Said, draw
from bhc.studio.service import Service
from tests.studio.inputs import serving_here
from tests.studio.serving import PATIENCE, command, environment, serving
from tests.studio.tasks import KINDS, MAKERS, Segmentation, task_service

EXAMPLES = 15  # made up for each operation
MEASURES = {
    "regression": {"name": "absolute error", "higher_is_better": False, "has_answers": False},
    "segmentation": {"name": "pixel error", "higher_is_better": False, "has_answers": False},
    "overlap": {"name": "overlap", "higher_is_better": True, "has_answers": False},
    "imitation": {"name": "disagreement", "higher_is_better": False, "has_answers": True},
}
FILE = Path(__file__).with_name("tasks.py")


@pytest.fixture(scope="module")
def services() -> dict[str, Service]:
    return {kind: task_service(kind) for kind in MAKERS}


@pytest.fixture(scope="module")
def address(services: dict[str, Service]) -> Iterator[str]:
    with serving_here(services["segmentation"]) as address:
        yield address


@pytest.mark.parametrize("kind", MAKERS)
def test_facts_say_how_a_task_measures(services: dict[str, Service], kind: str) -> None:
    facts = services[kind].facts()
    known = schemas.ModelFacts.model_validate(facts)
    assert set(known.model_dump(by_alias=True)) == set(facts)
    assert facts["measure"] == MEASURES[kind]
    assert (facts["classes"] == []) == (kind == "regression")


def test_outputs_are_called_as_the_class_of_their_own(services: dict[str, Service]) -> None:
    assert services["regression"].facts()["outputs"] == ["length", "width", "height"]
    assert services["segmentation"].facts()["outputs"] == ["output 0", *map(str, range(KINDS))]
    assert services["imitation"].facts()["outputs"] == list("0123")


def test_numbers_are_given_with_the_error_of_the_example(services: dict[str, Service]) -> None:
    service = services["regression"]
    told = service.answer({"budget": 0.0, "example": 5})
    schemas.Answer.model_validate(told)
    sample = service.model.model.validation
    assert sample is not None
    assert sample.targets is not None
    small = service.model.compress(budget=0.0)
    for said, outputs in (
        (told["tailored"], small.outputs(sample.tensor[5:6])),
        (told["full"], service.model.network.base_model.run(sample.tensor[5:6])),
    ):
        assert said["shown"]["values"] == pytest.approx(outputs[0].tolist(), rel=1e-4)
        apart = (outputs - sample.targets[5:6]).abs().mean().clamp(max=1)
        assert said["error"] == pytest.approx(100 * apart.item(), rel=1e-4)
        assert "label" not in said
    raw = service.answer({"budget": 0.0, "input": sample.tensor[5].tolist()})
    assert raw["tailored"]["shown"] == told["tailored"]["shown"]
    assert raw["tailored"]["error"] is raw["full"]["error"] is None


def test_maps_show_the_highest_output_in_its_colour(services: dict[str, Service]) -> None:
    service = services["segmentation"]
    told = service.answer({"classes": [3, 4], "example": 13})
    schemas.Answer.model_validate(told)
    sample = service.model.model.validation
    assert sample is not None
    highest = service.model.network.base_model.run(sample.tensor[13:14]).argmax(1)[0]
    shown = told["full"]["shown"]
    picture = pixels(shown["png"])
    for part in shown["parts"]:
        places = highest == part["output"]
        assert part["part"] == pytest.approx(places.float().mean().item())
        assert {bytes(colour).hex() for colour in picture[places.numpy()]} == {part["colour"][1:]}
    assert sum(part["part"] for part in shown["parts"]) == pytest.approx(1)
    assert told["tailored"]["outputs"] == [0, 4, 5]


def pixels(text: str) -> np.ndarray:
    read = matplotlib.image.imread(io.BytesIO(base64.b64decode(text)), format="png")
    return (255 * read).round().astype(np.uint8)


def test_an_example_of_another_class_has_no_error(services: dict[str, Service]) -> None:
    """Nothing that the network could have said would be right."""
    service = services["segmentation"]
    own, other = (service.answer({"classes": [3, 4], "example": number}) for number in (13, 15))
    assert own["tailored"]["error"] is not None
    assert other["tailored"]["error"] is None
    assert other["full"]["error"] is not None


def test_the_error_is_the_reports_over_all_examples(services: dict[str, Service]) -> None:
    service = services["overlap"]
    sample = service.model.model.validation
    assert sample is not None
    own = sample.places_of([3, 4]).tolist()
    answers = [service.answer({"classes": [3, 4], "example": number})["tailored"]["error"] for number in own]
    report = service.report({"classes": [3, 4]})
    assert sum(answers) / len(answers) == pytest.approx(report["error"], rel=1e-4)


def test_imitation_is_answered_as_a_classification(services: dict[str, Service]) -> None:
    told = services["imitation"].answer({"classes": [1, 2], "example": 0})
    assert told["tailored"]["label"] in (1, 2)
    assert sum(told["full"]["probabilities"]) == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize(
    ("shape", "by_class", "kind"),
    [
        ((3,), False, "numbers"),
        ((100,), False, "numbers"),
        ((2, 50), False, "series"),
        ((2, 6, 6), False, "several"),
        ((1, 6, 6), True, "several"),
        ((3, 600, 500), True, "map"),
        ((3, 2, 2, 2), True, "none"),
        ((3, 0), False, "none"),
    ],
    ids=str,
)
def test_outputs_are_drawn_by_their_shape(shape: tuple[int, ...], by_class: bool, kind: str) -> None:
    every = tuple(range(shape[0] + 1))
    small = Said(torch.randn(1, *shape), every[1:])
    full = Said(torch.randn(1, len(every), *shape[1:]), every)
    names = [f"output {output}" for output in every]
    drawn = draw([small, full], names, {0} if by_class else None)
    assert [each.kind for each in drawn] == [kind] * 2
    told = [schemas.Answer.model_validate({"tailored": as_given(each), "full": None}) for each in drawn]
    assert all(len(each.model_dump_json()) < 200_000 for each in told)
    if kind == "numbers":
        (values,) = {len(each.values) for each in drawn}  # type: ignore[union-attr]
        assert values == min(shape[0], 64)


def as_given(drawing: Any) -> dict[str, Any]:
    return {"outputs": [0], "shown": vars(drawing), "error": None, "weights": 1, "bytes": 1, "flops": 1}


def test_numbers_that_are_not_finite_are_null() -> None:
    (drawn,) = draw([Said(torch.tensor([[1.0, float("nan"), float("inf")]]), (0, 1, 2))], "abc")
    assert drawn.values == [1.0, None, None]  # type: ignore[union-attr]


def test_what_does_not_apply_is_refused_by_its_name(address: str) -> None:
    asked: list[tuple[dict[str, Any], str]] = [
        ({"classes": [3, 4], "flag_outside": 0.05}, "flag_outside"),
        ({"classes": [3, 4], "text": "what is this ?"}, "texts"),
        ({"classes": [3, 4], "example": 1, "flag_outside": 0.05}, "flag_outside"),
    ]
    for body, name in asked:
        path = "v1/networks" if "example" not in body and "text" not in body else "v1/answers"
        with pytest.raises(urllib.error.HTTPError) as caught:
            post(address + path, body)
        assert caught.value.code == 422
        assert name in json.load(caught.value)["error"]


def post(url: str, body: dict[str, Any]) -> Any:
    asked = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(asked, timeout=PATIENCE) as answer:
        return json.load(answer)


def test_no_request_made_up_from_the_description_is_a_fault(address: str) -> None:
    torch.set_flush_denormal(False)  # commands set it for their process, and numbers are made up down to the smallest
    described = schemathesis.openapi.from_url(f"{address}openapi.json")
    for found in described.get_all_operations():

        @given(case=found.ok().as_strategy())
        @settings(
            max_examples=EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            phases=[Phase.explicit, Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        def check(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=[not_a_server_error], timeout=PATIENCE)

        check()


@pytest.mark.parametrize(("name", "higher", "shown"), [("absolute error", False, 8.5), ("closeness", True, 91.5)])
def test_files_say_the_measure_by_its_name(services: dict[str, Service], name: str, higher: bool, shown: float) -> None:
    small = services["regression"].model.compress(budget=0.0)
    report = replace(small.report, error=8.5, error_name=name, higher_is_better=higher)
    assert f"validation {name}: {shown:.2f} %" in replace(small, report=report).content("c").decode()


@pytest.fixture
def segmentation_run(services: dict[str, Service], tmp_path: Path) -> Path:
    services["segmentation"].model.save(tmp_path / "run")
    return tmp_path / "run"


def test_a_task_that_is_not_known_ends_the_start(segmentation_run: Path) -> None:
    words = command("serve", str(segmentation_run), "--port", "0")
    ended = subprocess.run(words, capture_output=True, text=True, env=environment(), timeout=PATIENCE, check=False)
    assert ended.returncode == 2
    assert Segmentation.name in ended.stderr
    assert "--import" in ended.stderr


def test_workers_import_the_file_of_a_task(segmentation_run: Path) -> None:
    with serving(segmentation_run, imported=[FILE]) as server:
        assert server.get("/v1/model").json()["measure"] == MEASURES["segmentation"]
        told = server.post("/v1/answers", {"classes": [3, 4], "example": 13})
        assert told.status == 200
        assert told.json()["full"]["shown"]["kind"] == "map"
