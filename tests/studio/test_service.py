from pathlib import Path

import onnxruntime
import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.emission import from_file
from bhc.formats import parse_network
from bhc.studio import schemas
from bhc.studio.service import Service
from tests.studio.serving import npy


def logits(form: str, content: bytes, images: torch.Tensor, folder: Path) -> torch.Tensor:
    """What the file of a form answers, in that form's own runtime."""
    path = folder / f"network.{form}"
    path.write_bytes(content)
    match form:
        case "bhc":
            return bhc.read(path).module(images)
        case "onnx":
            session = onnxruntime.InferenceSession(content)
            return torch.from_numpy(session.run(None, {"input": images.float().numpy()})[0])
    return torch.export.load(path).module()(images.float())


@pytest.mark.parametrize("form", ["bhc", "onnx", "pt2"])
def test_files_load_and_classify(service: Service, digits: DataSet, tmp_path: Path, form: str) -> None:
    response = service.network({"classes": [3, 4], "format": form})
    images = digits.test.restricted_to([3, 4]).inputs
    expected = service.model.compress(classes=[3, 4]).module(images)
    torch.testing.assert_close(logits(form, response.content, images, tmp_path), expected, rtol=1e-4, atol=1e-4)


def test_c_headers_are_text(service: Service) -> None:
    response = service.network({"classes": [3, 4], "format": "c"})
    assert b"network_predict(const float *input, float *scores)" in response.content
    assert response.file_name == "network.h"


@pytest.mark.parametrize("form", ["bhc", "onnx", "c", "pt2"])
def test_the_same_request_gives_the_same_bytes(service: Service, form: str) -> None:
    first, second = (service.network({"classes": [1, 7], "format": form}) for _ in range(2))
    assert first.content == second.content
    assert first.digest == second.digest


@pytest.mark.parametrize("more", [{}, {"round_to": 8}, {"round_to": {"fc1": 16}}], ids=str)
def test_a_network_is_the_command_lines(service: Service, more: dict[str, object]) -> None:
    asked = {"classes": [0, 1, 2], "max_bytes": 4000} | more
    response, small = service.network(asked), service.model.compress(**asked)
    assert response.content == small.to_bytes()
    assert response.report | {"emit_ms": 0} == small.report.to_dict() | {"emit_ms": 0}
    assert service.report(asked)["file_bytes"] == len(response.content)


def test_the_example_is_answered(service: Service, domain_model: bhc.Compressor) -> None:
    for each in (service, Service(domain_model, "domains")):
        assert each.network(each.example()).content


def test_facts_say_what_may_be_asked(service: Service) -> None:
    facts = service.facts()
    assert facts["conditions"] == service.model.space.describe()
    assert facts["classes"] == [str(label) for label in range(10)]
    assert (facts["image_shape"], facts["full_scale"], facts["pictures"]) == ([1, 8, 8], 16.0, 9)
    assert facts["weights_before"] == sum(layer["weights"] for layer in facts["layers"])
    assert facts["thresholds"]["least"] < facts["thresholds"]["low"] < facts["thresholds"]["high"]


@pytest.mark.parametrize(("space", "step"), [(bhc.Budgets(), 0.05), (bhc.BinaryBudget(), 1.0)])
def test_a_form_offers_the_budgets_that_there_are(
    digits: DataSet, pretrained: torch.nn.Sequential, space: bhc.Budgets, step: float
) -> None:
    model = bhc.wrap(pretrained, space, example_input=digits.train.inputs[:1])
    form = Service(model, "budgets").facts()["forms"]["budget"]
    assert {name: form[name] for name in ("kind", "low", "high", "step", "default")} == {
        "kind": "range",
        "low": 0.0,
        "high": 1.0,
        "step": step,
        "default": 1.0,
    }


def test_what_is_answered_is_what_the_contract_says(service: Service) -> None:
    asked = service.example()
    answer = service.answer(asked | {"input": torch.zeros(service.model.network.input_shape).tolist()})
    for schema, value in (
        (schemas.ModelFacts, service.facts()),
        (schemas.ExampleInput, service.example_input(3)),
        (schemas.PreviewAnswer, service.preview(asked)),
        (schemas.Answer, answer),
    ):
        model = schema.model_validate(value)
        assert set(model.model_dump(by_alias=True)) == set(value)


def test_numbers_of_any_size_are_refused_and_do_not_fail(service: Service) -> None:
    for asked in ({"max_error": 10**400}, {"threshold": 10**400}, {"flag_outside": 10**400}, {"confidence": 10**400}):
        with pytest.raises(bhc.BhcError):
            service.network({"classes": [3, 4]} | asked)


def test_a_domain_is_its_token(domain_model: bhc.Compressor, digits: DataSet) -> None:
    """The token says what the samples say: the same network comes of both, and of another service too."""
    samples = digits.train.restricted_to([3, 4]).inputs[:100]
    content = npy(samples.numpy())
    found = Service(domain_model, "one").domain(content, 100)
    assert found["samples"] == 100
    asked = {"domain": found["domain"], "threshold": 0.0}
    response = Service(domain_model, "two").network(asked)
    assert response.content == domain_model.compress(domain=samples, threshold=0.0).to_bytes()
    assert from_file(parse_network(response.content, Path("x")), Path("x")).report.context == {
        "domain": "mean of a sample"
    }


@pytest.mark.parametrize(
    "round_to", [True, 8.0, "8", [8], 0, 10**400, {"fc1": True}, {"fc3": 8}, {"x" * 99: 8}], ids=str
)
def test_multiples_that_make_no_sense_are_refused(service: Service, round_to: object) -> None:
    with pytest.raises(bhc.BhcError, match=r"round_to|layer") as caught:
        service.network({"classes": [3, 4], "round_to": round_to})
    assert "fc1" in caught.value.hint


def test_flags_need_the_samples_themselves(domain_model: bhc.Compressor, digits: DataSet) -> None:
    service = Service(domain_model, "domains")
    token = service.domain(npy(digits.train.inputs[:40].numpy()), 100)["domain"]
    with pytest.raises(bhc.BhcError, match="only their mean is left"):
        service.network({"domain": token, "flag_outside": 0.05})


def test_models_without_domains_take_no_samples(service: Service, digits: DataSet) -> None:
    with pytest.raises(bhc.BhcError, match="not trained for a condition on domain"):
        service.domain(npy(digits.train.inputs[:40].numpy()), 100)


def test_an_image_gets_two_answers(service: Service, digits: DataSet) -> None:
    test = digits.test.restricted_to([3, 4])
    image, asked = test.inputs[0], {"classes": [3, 4], "flag_outside": 0.1}
    answers = service.answer({**asked, "input": image.flatten().tolist()})
    assert answers == service.answer({**asked, "input": image.tolist()})
    assert answers == service.answer(
        {**asked, "image": image.float().tolist()}
    )  # the old name, whole numbers as floats
    small = service.model.compress(**asked)
    tailored, full = answers["tailored"], answers["full"]
    assert tailored["label"] == int(small.predict(image[None]).labels[0])
    assert tailored["classes"] == [3, 4]
    assert sum(tailored["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert isinstance(tailored["outside"], bool)
    assert tailored["bytes"] == small.report.file_bytes < full["bytes"]
    assert full["label"] == int(service.model.network.base_model(image[None]).argmax())


def test_an_example_is_answered_by_its_number(service: Service) -> None:
    sample = service.model.model.validation
    assert sample is not None
    for number in (0, len(sample) - 1):
        answers = service.answer({"classes": [3, 4], "example": number})
        assert answers == service.answer({"classes": [3, 4], "input": sample.inputs[number].tolist()})


@pytest.mark.parametrize("number", [-1, 10**30, True, 1.0, "3", [3]], ids=str)
def test_examples_that_are_not_there_are_refused(service: Service, number: object) -> None:
    with pytest.raises(bhc.BhcError, match="no example") as caught:
        service.answer({"classes": [3, 4], "example": number})
    assert "0 to" in caught.value.hint


def test_without_a_sample_there_are_no_examples(domain_model: bhc.Compressor) -> None:
    service = Service(domain_model, "untrained")
    assert (service.facts()["inputs"]["kind"], service.facts()["examples"]) == ("image", [[]])
    with pytest.raises(bhc.BhcError, match="example 0") as caught:
        service.example_input(0)
    assert "missing" in caught.value.hint


@pytest.mark.parametrize("given", [{}, {"input": [0] * 64, "example": 3}, {"input": [0] * 64, "image": [0] * 64}])
def test_there_is_one_input(service: Service, given: dict[str, object]) -> None:
    with pytest.raises(bhc.BhcError, match="given"):
        service.answer({"classes": [3, 4], **given})


@pytest.mark.parametrize(
    "values",
    [None, "x", [1, 2], [[0] * 64, [1]], [float("nan")] * 64, [10**400] * 64, [256] * 64, [-1] * 64, [0.5] * 64, {}],
    ids=lambda values: str(values)[:20],
)
def test_what_is_no_image_is_refused(service: Service, values: object) -> None:
    with pytest.raises(bhc.BhcError, match="input") as caught:
        service.answer({"classes": [3, 4], "input": values})
    assert "1 x 8 x 8 whole numbers from 0 to 255 (uint8)" in caught.value.hint or values == {}
