"""Runs whose inputs are of every kind: what is told of them, drawn, and taken in place of them."""

import json
import urllib.request
from typing import Any

import pytest
import torch

import bhc
from bhc.data import Split
from bhc.studio import schemas
from bhc.studio.service import Service
from tests.studio.inputs import COUNT, KINDS, VOCABULARY, Reads, model_of, service_of, serving_here, texts

SHAPES = {
    "series": [6, 128],
    "waveform": [1, 2000],
    "image": [3, 16, 16],
    "grey": [16, 16],
    "row": [12],
    "words": [7],
    "several": [],
    "none": [2, 3, 3, 9],
}


@pytest.fixture(params=KINDS)
def either(request: pytest.FixtureRequest) -> Service:
    return service_of(request.param)


def test_inputs_of_every_kind_are_told_drawn_and_answered(either: Service) -> None:
    facts, sample = either.facts(), either.model.model.validation
    assert sample is not None
    known = schemas.ModelFacts.model_validate(facts)
    assert set(known.model_dump(by_alias=True)) == set(facts)
    assert facts["inputs"]["kind"] == {"grey": "image"}.get(either.name, either.name)
    assert facts["inputs"]["shape"] == SHAPES[either.name]
    assert (facts["pictures"] > 0) == (facts["inputs"]["kind"] == "image")
    assert facts["examples_by_class"] == (sample.labels is not None)
    for label, group in enumerate(facts["examples"]):
        assert len(group) == 9
        assert sample.labels is None or set(sample.labels[group].tolist()) == {label}
    shown = either.example_input(facts["examples"][-1][-1])
    assert len(json.dumps(shown, allow_nan=False)) < 10_000
    again = schemas.ExampleInput.model_validate(shown).model_dump()
    assert again["drawing"]["kind"] == facts["inputs"]["kind"]
    assert json.loads(json.dumps(again)) == json.loads(json.dumps(shown))
    several = isinstance(sample.inputs, tuple)
    raw = [x[17].tolist() for x in sample.inputs] if several else sample.inputs[17].tolist()
    answers = either.answer({"classes": [1, 2], "example": 17})
    assert answers["tailored"]["label"] in (1, 2)
    assert answers == either.answer({"classes": [1, 2], "input": raw})


def test_pictures_of_floats_are_stretched_and_say_so() -> None:
    colour, grey = service_of("image"), service_of("grey")
    assert colour.picture(3, 0) != colour.picture(3, 1)
    told = [service.facts()["inputs"] for service in (colour, grey)]
    assert [each["pixels"] for each in told] == [False, False]
    assert told[0]["range"] is None
    black, white = told[1]["range"]
    assert -3 < black < 0 < white < 4


def test_only_pixels_in_their_layout_are_told_as_such(service: Service) -> None:
    inputs = service.facts()["inputs"]
    assert (inputs["kind"], inputs["pixels"], inputs["range"]) == ("image", True, [0.0, 16.0])
    assert inputs["takes"] == [{"name": "input", "shape": [1, 8, 8], "dtype": "uint8", "dynamic": []}]


def test_inputs_without_classes_have_examples_all_the_same() -> None:
    service = service_of("image")
    service.model.model.validation = Split(service.model.model.validation.inputs, None)  # type: ignore[assignment, union-attr]
    whole = Service(service.model, "no classes")
    facts = whole.facts()
    assert facts["examples"] == [list(range(0, COUNT, 7))]
    assert (facts["examples_by_class"], facts["pictures"]) == (False, 9)
    assert whole.picture(0, 8) is not None
    assert whole.picture(1, 0) is None


@pytest.mark.parametrize(
    ("labels", "targets"), [(None, torch.rand(COUNT)), (torch.arange(COUNT), None), (None, torch.zeros(COUNT, 3))]
)
def test_labels_that_are_no_classes_make_no_groups(labels: torch.Tensor | None, targets: torch.Tensor | None) -> None:
    model = KINDS["row"]()
    assert model.model.validation is not None
    model.model.validation = Split(model.model.validation.inputs, labels, targets=targets)
    assert not Service(model, "values").facts()["examples_by_class"]


WRONG: list[tuple[str, Any, str]] = [
    ("series", [0.0] * 100, "6 x 128 numbers (float32)"),
    ("series", [["a"]], "6 x 128 numbers (float32)"),
    ("series", [float("inf")] * 768, "6 x 128 numbers (float32)"),
    ("words", [2, 3, 4, 5, 6, 7, 1.5], "7 whole numbers (int32)"),
    ("words", [2, 3, 4, 5, 6, 7, 2**40], "7 whole numbers (int32)"),
    ("words", [2, 3, 4, 5, 6, 7, 99], "vocabulary"),
    ("several", [[1] * 7, [0.0] * 5], "words, row, cube"),
    ("several", {"words": [1] * 7, "row": [0.0] * 5}, "words, row, cube"),
    ("several", {"words": [1] * 7, "row": [0.0] * 4, "cube": [0.0] * 16}, "5 numbers (float32)"),
    ("several", 3, "words, row, cube"),
]


@pytest.mark.parametrize(("kind", "given", "hint"), WRONG, ids=lambda case: str(case)[:30])
def test_values_that_do_not_fit_are_refused_with_those_that_do(kind: str, given: Any, hint: str) -> None:
    with pytest.raises(bhc.BhcError) as caught:
        service_of(kind).answer({"classes": [0, 1], "input": given})
    assert hint in caught.value.hint


def test_several_inputs_are_taken_by_name_flat_or_nested() -> None:
    service = service_of("several")
    words, row, cube = (x[5] for x in service.model.model.validation.inputs)  # type: ignore[union-attr]
    named = {"cube": cube.flatten().tolist(), "words": words.tolist(), "row": row.tolist()}
    answers = [service.answer({"classes": [0, 1], **asked}) for asked in ({"input": named}, {"example": 5})]
    assert answers[0] == answers[1]


def test_words_of_any_length_are_taken() -> None:
    """Where the network takes such."""
    net = Reads(len(VOCABULARY)).eval()
    model = bhc.wrap(net, bhc.ClassSubsets(4), example_input=texts()[:2], dynamic_axes=(1,))
    model.model.validation = Split(texts(), None)  # type: ignore[assignment]
    service = Service(model, "any length")
    assert service.facts()["inputs"]["kind"] == "words"
    assert service.answer({"classes": [0, 1], "input": [2, 5, 6]})["tailored"]["label"] in (0, 1)
    with pytest.raises(bhc.BhcError, match="shape") as caught:
        service.answer({"classes": [0, 1], "input": [[2, 5, 6]]})
    assert "any whole numbers" in caught.value.hint


def test_a_vocabulary_is_for_the_words_that_an_embedding_of_its_size_reads() -> None:
    model = KINDS["several"]()
    model.model.vocabulary = VOCABULARY
    drawing = Service(model, "several").example_input(0)["drawing"]
    assert drawing["parts"]["words"]["words"] == ["who", "is", "the", "author", "?"]
    other = model_of(Reads(len(VOCABULARY) + 1), texts(), labelled=False)
    assert Service(other, "other").example_input(0)["drawing"]["words"][0] == "2"


@pytest.mark.parametrize("kind", ["series", "several", "none"])
def test_they_are_asked_for_over_http(kind: str) -> None:
    with serving_here(service_of(kind)) as address:

        def get(path: str) -> Any:
            with urllib.request.urlopen(address + path) as answer:
                return json.load(answer)

        facts, described = get("v1/model"), get("openapi.json")
        shown = get(f"v1/examples/{facts['examples'][0][0]}")
        assert shown["drawing"]["kind"] == kind
        example = described["components"]["schemas"]["AnswerAsked"]["example"]
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(address + "v1/answers", json.dumps(example).encode(), headers)
        with urllib.request.urlopen(asked) as answer:
            schemas.Answer.model_validate(json.load(answer))
