from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.contexts import Context
from bhc.data import DataSet, Split
from bhc.emission import Judge, expected_calibration_error
from bhc.emission.judge import CHUNK, HARD_IMAGES, best_temperature, logits_of
from bhc.graph import Graph
from bhc.layers import Select
from bhc.models import Normalise
from bhc.training import TrainedModel

TEN = tuple(range(10))


class Spectrum(nn.Module):
    """Something that is worked out of all inputs together, without weights."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.fft.fft(x.flatten(1)).abs()


def judge_of(model: bhc.Compressor, classes: tuple[int, ...] = TEN, weights: tuple[float, ...] | None = None) -> Judge:
    return Judge.of(model.model, Context(classes=classes, appearance=weights))


def answers_of(model: bhc.Compressor, classes: tuple[int, ...]) -> list[tuple[torch.Tensor, list[float], int]]:
    """Image, the pretrained network's logits of the classes, and the right one's place, one image at a time."""
    examples, rows = model.model.validation, []
    for image, label in zip(examples.inputs, examples.labels.tolist(), strict=True):
        if label in classes:
            logits = model.network.base_model(image[None])[0].tolist()
            rows.append((image, [logits[number] for number in classes], classes.index(label)))
    return rows


@pytest.mark.parametrize("classes", [(3, 4), (1, 8, 9), TEN])
def test_the_pretrained_network_s_errors_are_those_of_a_plain_loop(
    quick_model: bhc.Compressor, classes: tuple[int, ...]
) -> None:
    rows = answers_of(quick_model, classes)
    judge = judge_of(quick_model, classes)
    assert judge.num_images == len(rows)
    assert judge.wrong_before == sum(max(logits) != logits[place] for _, logits, place in rows)
    report = quick_model.compress(classes=list(classes)).report
    assert report.error_before == pytest.approx(100 * judge.wrong_before / len(rows))


def test_the_hard_examples_are_those_of_the_smallest_margin(quick_model: bhc.Compressor) -> None:
    margins = []
    for image, logits, place in answers_of(quick_model, TEN):
        others = [logit for number, logit in enumerate(logits) if number != place]
        margins.append((logits[place] - max(others), image, place))
    hardest = sorted(margins, key=lambda row: row[0])[:HARD_IMAGES]
    hard = judge_of(quick_model).hard
    assert hard.num_images == HARD_IMAGES
    for (_, image, place), given, label in zip(hardest, hard.inputs, hard.labels.tolist(), strict=True):
        assert torch.equal(given, image)
        assert label == place
    few = judge_of(quick_model, (3, 4))
    assert few.num_images <= HARD_IMAGES
    assert few.hard is few


def test_a_verdict_is_that_of_the_module(quick_model: bhc.Compressor, pretrained: torch.nn.Sequential) -> None:
    judge = judge_of(quick_model)
    verdict = judge.judge(Graph.chain(pretrained.named_children()))
    with torch.no_grad():
        logits = pretrained(judge.inputs)
    torch.testing.assert_close(verdict.logits, logits)
    assert verdict.wrong == int((logits.argmax(1) != judge.labels).sum()) == judge.wrong_before
    assert verdict.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, judge.labels).item(), rel=1e-4)


def test_a_verdict_on_images_is_that_of_the_module() -> None:
    """Convolutions are run in another order of memory, or taken together with their pools."""
    net = bhc.models.build("lenet-5-caffe", image_shape=(1, 16, 16), num_classes=10).requires_grad_(False)
    images = torch.randint(0, 256, (600, 1, 16, 16), dtype=torch.uint8)
    network = bhc.wrap(net, bhc.ClassSubsets(10), example_input=images[:1]).network
    sample = Split(images, torch.arange(600) % 10)
    judge = Judge.on(TrainedModel(network), Context(classes=TEN), sample)
    torch.testing.assert_close(judge.judge(Graph.chain(net.named_children())).logits, net(images), rtol=1e-4, atol=1e-5)


def test_there_is_no_judge_without_labelled_data(
    quick_model: bhc.Compressor, digits: DataSet, pretrained: torch.nn.Module
) -> None:
    untrained = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    assert Judge.of(untrained.model, Context(classes=(3, 4))) is None
    assert Judge.of(quick_model.model, Context(domain=torch.zeros(1, 8, 8))) is None


def test_an_untrained_network_is_not_compared_with(quick_model: bhc.Compressor, pretrained: torch.nn.Module) -> None:
    network = bhc.wrap(
        pretrained, bhc.ClassSubsets(10), example_input=torch.zeros(1, 1, 8, 8), pretrained=False
    ).network
    model = TrainedModel(network, validation=quick_model.model.validation)
    judge = Judge.of(model, Context(classes=TEN))
    assert judge.wrong_before is None
    assert judge.hard is judge
    report = bhc.Compressor(model).compress(classes=[3, 4]).report
    assert report.error_before is None
    assert report.error is not None


def test_loss_and_temperature_weigh_classes_too(quick_model: bhc.Compressor) -> None:
    judge = judge_of(quick_model, (1, 8, 9), (0.1, 1.0, 0.35))
    assert judge_of(quick_model, (3, 4), (1.0, 1.0)).weights is None  # equal ones change nothing
    verdict = judge.judge(quick_model.compress(classes=[1, 8, 9]).network.graph)
    losses = torch.nn.functional.cross_entropy(verdict.logits, judge.labels, reduction="none")
    means = [float(losses[judge.labels == place].mean()) for place in range(3)]
    expected = sum(mean * weight for mean, weight in zip(means, (0.1, 1.0, 0.35), strict=True)) / 1.45
    assert verdict.loss == pytest.approx(expected, rel=1e-5)
    # Every answer is "4", and sure of it: right to be where 3 hardly appears, and not where 4 hardly does.
    for appearance, expected in (((1e-6, 1.0), 0.1), ((1.0, 1e-6), 10**1.4)):
        pair = judge_of(quick_model, (3, 4), appearance)
        four = torch.tensor([[0.0, 1.0]]).expand(pair.num_images, 2)
        assert pair.calibrate(four) == pytest.approx(expected, rel=1e-3)


def test_mistakes_on_hard_images_never_count_more_than_on_all(quick_model: bhc.Compressor) -> None:
    weights = tuple(1.0 - 0.093 * place for place in range(10))
    judge = judge_of(quick_model, TEN, weights)
    assert judge.num_images > judge.hard.num_images
    for threshold in (1.0, -1.0, -2.0, -50.0):
        graph = quick_model.network.base_model
        if threshold < 1:
            with pytest.warns() if threshold < -2 else nullcontext():
                graph = quick_model.compress(classes=TEN, threshold=threshold).network.graph
        assert judge.hard.judge(graph).wrong <= judge.judge(graph).wrong


def test_an_error_of_unequal_classes_is_searched_and_reported(weighing_model: bhc.Compressor) -> None:
    """A network that is bad at a rare class is right enough; where that class is common, it is not."""
    examples = weighing_model.model.validation.restricted_to([1, 8])
    full = weighing_model.network.base_model(examples.inputs)[:, [1, 8]].argmax(1)
    for request in ({1: 1.0, 8: 0.02}, {1: 0.02, 8: 1.0}):
        small = weighing_model.compress(classes=request, threshold=-1.5)
        eights = (small.predict(examples.inputs).labels == 8).long()
        for told, answers in ((small.report.error_before, full), (small.report.error, eights)):
            wrong = (answers != (examples.labels == 8)).double()
            rates = {label: float(wrong[examples.labels == label].mean()) for label in request}
            expected = 100 * sum(rates[label] * weight for label, weight in request.items()) / sum(request.values())
            assert told == pytest.approx(expected, rel=1e-5)
            assert rates[1] > rates[8]  # so it depends on how often they appear
        limited = weighing_model.compress(classes=request, max_error=expected + 1, threshold=-1.5).report
        assert limited.error <= expected + 1


@pytest.mark.parametrize("end", [0, 1])
def test_pixels_picked_before_normalising_give_the_same_bits(quick_model: bhc.Compressor, end: int) -> None:
    graph = quick_model.compress(classes=list(TEN), threshold=quick_model.model.thresholds[end]).network.graph
    judge = judge_of(quick_model)
    with torch.no_grad():
        expected = torch.cat([graph(part) for part in judge.inputs.split(CHUNK)])
    assert torch.equal(logits_of(graph, judge.inputs), expected)
    assert judge.wrong_of(graph) == judge.judge(graph).wrong  # a quick look counts the same


@pytest.mark.parametrize(
    "between",
    [[], [nn.Flatten()], [nn.Flatten(), nn.ReLU()], [nn.AvgPool2d(1), nn.Flatten()], [Spectrum()]],
    ids=lambda steps: "-".join(type(step).__name__ for step in steps) or "nothing",
)
@pytest.mark.parametrize("first", [Normalise(100.0, 50.0), Normalise([90.0, 110.0], [50.0, 60.0])], ids=["one", "two"])
def test_inputs_that_are_picked_late_are_judged_as_the_network_sees_them(
    first: Normalise, between: list[nn.Module]
) -> None:
    images = torch.randint(0, 256, (20, 2, 3, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    arriving = first(images[:1])
    for step in between:
        arriving = step(arriving)
    picked = Select(torch.tensor([1] if arriving.dim() > 2 else [2, 5, 7, 11]))
    last = nn.Linear(picked(arriving).flatten(1).shape[1], 4)
    steps = [first, *between, picked, nn.Flatten(), last]
    graph = Graph.chain((f"step{place}", step) for place, step in enumerate(steps)).eval()
    torch.testing.assert_close(logits_of(graph, images), graph(images))


@pytest.mark.parametrize(
    ("confidences", "labels", "expected"),
    [
        # (12/15, 13/15] holds 0.82 and 0.86, one right: |0.5 - 0.84|, twice. (8/15, 9/15] holds 0.6, right: 0.4.
        ((0.82, 0.86, 0.6), [0, 1, 0], (2 * 0.34 + 0.4) / 3),
        # Too high and too low cancel only within a bin.
        ((0.81, 0.85), [0, 1], abs(1 - 1.66) / 2),
        ((0.81, 0.95), [0, 1], (0.19 + 0.95) / 2),
        # 0.6 is 9/15: together with 0.55 it makes a bin in which one of two is right, not two bins.
        ((0.6, 0.55), [0, 1], abs(1 - 1.15) / 2),
        ((1.0, 1.0), [0, 0], 0),
        ((1.0, 1.0), [1, 1], 1),
    ],
)
def test_calibration_is_counted_by_bins(confidences: tuple[float, ...], labels: list[int], expected: float) -> None:
    """Probabilities of two classes; the answer is always the first."""
    told = torch.tensor([[confidence, 1 - confidence] for confidence in confidences], dtype=torch.double)
    assert expected_calibration_error(told, torch.tensor(labels)) == pytest.approx(100 * expected)


def test_one_class_is_calibrated() -> None:
    assert expected_calibration_error(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)) == 0


@pytest.mark.parametrize("temperature", [0.15, 0.7, 1.0, 1.3, 4.7, 20.0])
def test_the_temperature_of_labels_drawn_with_it_is_found(temperature: float) -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(20000, 3, generator=rng) * temperature
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=rng)[:, 0]
    found = best_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.06)
    assert torch.tensor(found).half().item() == found


def test_a_network_that_is_always_right_gets_the_coldest_temperature_and_one_that_never_is_the_hottest() -> None:
    assert best_temperature(torch.eye(2), torch.tensor([0, 1])) == pytest.approx(0.1, rel=1e-3)
    assert best_temperature(torch.eye(2), torch.tensor([1, 0])) == pytest.approx(25, rel=0.01)
