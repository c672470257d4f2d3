"""Tasks of a user's own go all the way: a segmentation, whose classes are maps of outputs, and a regression."""

from collections.abc import Sequence
from math import exp, log
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.contexts import ContextBatch
from bhc.errors import BhcError
from bhc.training import Silent
from tests.tasks.own import (
    DIGITS,
    SIZE,
    Closeness,
    Regression,
    Segmentation,
    digits_on_noise,
    regressing,
    rows_of_patients,
    segmenting,
)

ASKED, OUTPUTS = [1, 3], (0, 2, 4)  # the background, and a map for each of the digits 1 and 3
MEASURED = [0, 2, 3, 8]


@pytest.fixture(scope="module")
def segments() -> bhc.Compressor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return segmenting(Segmentation())


@pytest.fixture(scope="module")
def regresses() -> bhc.Compressor:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return regressing(Regression())


def of_digits(wanted: list[int]) -> tuple[Tensor, Tensor]:
    """The validation examples of some digits."""
    _, (pictures, maps) = digits_on_noise()
    own = torch.isin(maps.flatten(1).amax(1) - 1, torch.tensor(wanted))
    return pictures[own], maps[own]


def pixel_errors(outputs: Tensor, kept: Sequence[int], maps: Tensor) -> Tensor:
    """By hand: outputs answer for the maps that they are of."""
    return (torch.tensor(kept)[outputs.argmax(1)] != maps).double().mean((1, 2))


def test_class_subsets_take_maps_away_and_leave_the_background(segments: bhc.Compressor) -> None:
    small = segments.compress(classes=ASKED, quantisation=bhc.Float32())
    pictures, _ = of_digits(ASKED)
    assert small.classes == OUTPUTS
    assert small.outputs(pictures).shape == (len(pictures), len(OUTPUTS), SIZE, SIZE)
    assert small.report.weights_after < small.report.weights_before
    context = segments.space.resolve({"classes": ASKED})
    batch = ContextBatch.of([context], segments.network.num_classes)
    threshold = torch.full((1, 1), small.report.threshold)
    with torch.no_grad():
        masked = segments.network.masked(pictures, batch, threshold=threshold)
    torch.testing.assert_close(small.outputs(pictures), masked[:, list(OUTPUTS)], atol=1e-4, rtol=1e-4)


def test_its_errors_are_those_of_its_maps(segments: bhc.Compressor) -> None:
    small = segments.compress(classes=ASKED)
    pictures, maps = of_digits(ASKED)
    report = small.report
    assert report.validation_images == len(maps)
    assert report.error == pytest.approx(100 * float(pixel_errors(small.outputs(pictures), OUTPUTS, maps).mean()))
    with torch.no_grad():
        before = segments.network.base_model(pictures)[:, list(OUTPUTS)]
    assert report.error_before == pytest.approx(100 * float(pixel_errors(before, OUTPUTS, maps).mean()))
    assert report.error < 15  # a tenth of the pixels is a digit's: who says background everywhere has more
    line = f"pixel error   {report.error_before:.2f} % -> {report.error:.2f} %  (validation, {len(maps)} examples)"
    assert line in str(report)


def test_files_and_runs_are_read_back(segments: bhc.Compressor, tmp_path: Path) -> None:
    small = segments.compress(classes=ASKED)
    pictures, _ = of_digits(ASKED)
    small.save(tmp_path / "small.bhc").to_onnx(tmp_path / "small.onnx").to_torch(tmp_path / "small.pt2")
    again = bhc.read(tmp_path / "small.bhc")
    assert torch.equal(again.outputs(pictures), small.outputs(pictures))
    assert (again.classes, again.report.error_name, again.report.error) == (OUTPUTS, "pixel error", small.report.error)
    for name in ("small.onnx", "small.pt2"):
        deployed = bhc.open_deployed(tmp_path / name)
        assert deployed.labels == OUTPUTS
        torch.testing.assert_close(deployed.logits(pictures), small.outputs(pictures), atol=1e-3, rtol=1e-3)
    segments.save(tmp_path / "run")
    loaded = bhc.load(tmp_path / "run", task=Segmentation())
    assert loaded.compress(classes=ASKED).to_bytes() == small.to_bytes()


def test_a_run_names_the_task_that_it_needs(segments: bhc.Compressor, tmp_path: Path, forgetful: None) -> None:
    segments.save(tmp_path / "run")
    with pytest.raises(BhcError, match="'segmentation'") as error:
        bhc.load(tmp_path / "run")
    assert "task=" in error.value.hint
    with pytest.raises(BhcError, match="'segmentation', given 'regression'"):
        bhc.load(tmp_path / "run", task=Regression())
    bhc.register_task(Segmentation())
    assert bhc.load(tmp_path / "run").compress(classes=ASKED).classes == OUTPUTS


def test_limits_on_its_error_are_kept(segments: bhc.Compressor) -> None:
    pictures, maps = of_digits(ASKED)
    small = segments.compress(classes=ASKED, max_error=12)
    assert 100 * float(pixel_errors(small.outputs(pictures), OUTPUTS, maps).mean()) <= 12
    assert small.report.file_bytes < segments.compress(classes=ASKED).report.file_bytes
    with pytest.raises(BhcError, match=r"at most 0\.01 % error") as error:
        segments.compress(classes=ASKED, max_error=0.01)
    reachable = float(error.value.hint.split("max_error=")[1].split()[0])
    assert segments.compress(classes=ASKED, max_error=reachable).report.error <= reachable


def proved_by_hand(total: float, count: int, rate: float) -> float:
    """How likely so small a mean of errors would be, by Hoeffding's bound, if there were ``rate`` of them."""
    mean = total / count
    return exp(-count * (mean * log(mean / rate) + (1 - mean) * log((1 - mean) / (1 - rate))))


def test_an_error_between_none_and_all_is_promised_with_confidence(segments: bhc.Compressor) -> None:
    small = segments.compress(classes=ASKED, max_error=25, confidence=0.95)
    promise = small.report.guarantee
    assert promise is not None
    wanted = [int(label) for label in ASKED]
    pictures, maps = of_digits(wanted)
    labels = maps.flatten(1).amax(1) - 1
    each = min(int((labels == label).sum()) for label in wanted)  # of every class as many
    own = torch.cat([(labels == label).nonzero().flatten()[:each] for label in wanted])
    total = float(pixel_errors(small.outputs(pictures[own]), OUTPUTS, maps[own]).sum())
    assert promise.images == len(own)
    assert promise.wrong == pytest.approx(total, rel=1e-5)
    assert proved_by_hand(total, len(own), 0.25) < 0.05
    assert f"{len(own)} examples" in str(small.report)
    with pytest.raises(BhcError, match="takes 299 calibration"):
        segments.compress(classes=ASKED, max_error=1, confidence=0.95)


def test_what_needs_answers_is_refused(segments: bhc.Compressor) -> None:
    small = segments.compress(classes=ASKED)
    with pytest.raises(BhcError, match="'pixel error'") as error:
        small.predict(of_digits(ASKED)[0])
    assert "outputs" in error.value.hint
    with pytest.raises(BhcError, match="'segmentation'"):
        segments.compress(classes=ASKED, flag_outside=0.05)


def test_a_number_is_limited_and_promised_too(regresses: bhc.Compressor, tmp_path: Path) -> None:
    _, (x, y), (new, wanted) = rows_of_patients()
    small = regresses.compress(features=MEASURED, max_error=18)
    off = (small.outputs(x) - y).abs().clamp(max=1)
    assert small.report.error == pytest.approx(100 * float(off.mean()), rel=1e-5)
    assert small.report.error <= 18
    assert small.report.notes == ()
    column = len("absolute error") + 1  # the longest name of a row
    assert all(line[column - 1] == " " != line[column] for line in str(small.report).splitlines())
    elsewhere = torch.randn(len(x), 10).index_copy(1, torch.tensor(MEASURED), x[:, MEASURED])
    assert torch.equal(small.outputs(elsewhere), small.outputs(x))  # what is not measured is not read
    with pytest.raises(BhcError, match=r"has \d+\.\d+ % error on 110 calibration examples"):
        regresses.compress(features=MEASURED, max_error=16, confidence=0.9)
    proved = regresses.compress(features=MEASURED, max_error=32, confidence=0.9)
    total = float((proved.outputs(new) - wanted).abs().clamp(max=1).double().sum())
    assert proved.report.guarantee.wrong == pytest.approx(total, rel=1e-5)
    assert proved_by_hand(total, len(new), 0.32) < 0.1
    proved.save(tmp_path / "proved.bhc").to_onnx(tmp_path / "proved.onnx")
    assert bhc.read(tmp_path / "proved.bhc").report.guarantee == proved.report.guarantee
    deployed = bhc.open_deployed(tmp_path / "proved.onnx").logits(x)
    torch.testing.assert_close(deployed, proved.outputs(x), atol=1e-4, rtol=1e-4)


def test_a_measure_that_is_better_when_higher_is_shown_so(tmp_path: Path) -> None:
    model = regressing(Closeness())
    small = model.compress(features=MEASURED, max_error=25)  # an error it stays, and 75 % of closeness are asked
    assert small.report.error <= 25
    shown = f"closeness     {100 - small.report.error_before:.2f} % -> {100 - small.report.error:.2f} %"
    assert shown in str(small.report)
    small.save(tmp_path / "small.bhc")
    assert shown in str(bhc.read(tmp_path / "small.bhc").report)


def small_net(outputs: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(10, 8), nn.ReLU(), nn.Linear(8, outputs))


def test_contexts_of_classes_need_a_task_that_has_some() -> None:
    with pytest.raises(BhcError, match="'regression' has no classes") as error:
        bhc.wrap(small_net(), bhc.ClassSubsets(3), example_input=torch.zeros(1, 10), task=Regression())
    assert "FeatureSubsets" in error.value.hint
    net, example = nn.Conv2d(1, 1 + DIGITS, 3), torch.zeros(1, 1, 8, 8)
    with pytest.raises(BhcError, match=f"{DIGITS}"):  # five outputs, one of them the background
        bhc.wrap(net, bhc.ClassSubsets(1 + DIGITS), example_input=example, task=Segmentation())


def test_an_example_of_no_class_is_named() -> None:
    (pictures, maps), validation = digits_on_noise()
    maps[7] = 0
    net = nn.Conv2d(1, 1 + DIGITS, 5, padding=2)
    model = bhc.wrap(net, bhc.ClassSubsets(DIGITS), example_input=pictures[:1], task=Segmentation())
    with pytest.raises(BhcError, match="train_set: example 7 is of class -1, and there are 4 classes"):
        bhc.fit(model, (pictures, maps), validation)


class SeveralAnswers(bhc.Task):
    """Any of the classes may be there; one that a context has not must not be asked for."""

    name = "several-answers"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none").mean(1)

    def error(self, outputs: Tensor, targets: Tensor) -> Tensor:
        return ((outputs > 0) != (targets > 0.5)).float().mean(1)

    def class_outputs(self, num_outputs: int) -> Sequence[Sequence[int]]:
        return [[label] for label in range(num_outputs)]


class SeveralOfThoseThere(SeveralAnswers):
    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        there = outputs > bhc.tasks.ABSENT / 2
        losses = nn.functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        return losses.masked_fill(~there, 0.0).sum(1) / there.sum(1)


def test_a_loss_that_counts_outputs_which_are_not_there_is_refused() -> None:
    x, labels = torch.randn(60, 10), torch.arange(60) % 3
    targets = torch.eye(3)[labels]
    targets[5] = 1.0  # all of them
    recipe = (bhc.Learn(steps=4, contexts=2, examples=4), bhc.Consolidate(steps=2, contexts=2, examples=4))
    model = bhc.wrap(small_net(), bhc.ClassSubsets(3), example_input=x[:1])
    data: Any = (x, targets)
    with pytest.raises(BhcError, match=r"'several-answers': .* example 5 is .*e\+08") as error:
        bhc.fit(model, data, data, task=SeveralAnswers(), labels=(labels, labels))
    assert "ABSENT" in error.value.hint
    task = SeveralOfThoseThere()
    model = bhc.fit(model, data, data, task=task, labels=(labels, labels), recipe=recipe, progress=Silent())
    assert model.compress(classes=[0, 2]).outputs(x).shape == (60, 2)


def changed(**changes: Any) -> bhc.Task:
    return type("Changed", (Regression,), changes)()


WRONG = [
    (changed(loss=lambda self, outputs, targets: (outputs - targets).square().mean()), "loss gives a tensor of shape"),
    (
        changed(loss=lambda self, outputs, targets: (outputs - targets.T).square().mean(1)),
        "alone and .* beside another",
    ),
    (changed(loss=lambda self, outputs, targets: outputs[:, 5]), "fails on outputs of shape .*IndexError"),
    (changed(loss=lambda self, outputs, targets: outputs[:, 0] / 0), "not finite"),
    (changed(error=lambda self, outputs, targets: 100 + (outputs - targets)[:, 0]), "error gives numbers from"),
    (changed(error=lambda self, outputs, targets: None), "error gives a NoneType"),
    (changed(class_outputs=lambda self, count: [[0], [7]]), r"class 1 has the outputs \[7\]"),
    (changed(class_outputs=lambda self, count: [[0], []]), r"class 1 has the outputs \[\]"),
    (changed(name=""), "Changed has no name"),
    (Regression, "a task is an instance"),
]


@pytest.mark.parametrize(("task", "problem"), WRONG, ids=[problem for _, problem in WRONG])
def test_what_a_task_gets_wrong_is_said_before_training(task: Any, problem: str) -> None:
    train, validation, _ = rows_of_patients()
    model = bhc.wrap(small_net(1), bhc.SingleContext(), example_input=train[0][:1])
    with pytest.raises(BhcError, match=problem):
        bhc.fit(model, train, validation, task=task, progress=Silent())


def test_a_teacher_is_kept_to_by_squares_where_a_task_says_nothing_else() -> None:
    outputs, teacher = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[0.0, 2.0], [0.0, 0.0]])
    absent = outputs.clone()
    absent[1, 0] = bhc.tasks.ABSENT
    assert Regression().distance(outputs, teacher, temperature=2.0).tolist() == [0.5, 12.5]
    assert Regression().distance(absent, teacher, temperature=2.0).tolist() == [0.5, 16.0]  # of what is there
