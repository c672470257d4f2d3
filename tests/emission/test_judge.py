import pytest
import torch

import bhc
from bhc.contexts import Context
from bhc.data import DataSet
from bhc.emission.judge import HARD_IMAGES, Judge
from bhc.graph import Graph
from bhc.training import TrainedModel

TEN = tuple(range(10))


def judge_of(model: bhc.Compressor, classes: tuple[int, ...] = TEN) -> Judge:
    judge = Judge.of(model.model, Context(classes=classes))
    assert judge is not None
    return judge


def answers_of(model: bhc.Compressor, classes: tuple[int, ...]) -> list[tuple[torch.Tensor, list[float], int]]:
    """Image, the pretrained network's logits of the classes, and the right one's place, one image at a time."""
    examples, rows = model.model.validation, []
    assert examples is not None
    for image, label in zip(examples.images, examples.labels.tolist(), strict=True):
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
    for (_, image, place), given, label in zip(hardest, hard.images, hard.labels.tolist(), strict=True):
        assert torch.equal(given, image)
        assert label == place


def test_few_examples_are_all_hard(quick_model: bhc.Compressor) -> None:
    judge = judge_of(quick_model, (3, 4))
    assert judge.num_images <= HARD_IMAGES
    assert judge.hard is judge


def test_a_verdict_is_that_of_the_module(quick_model: bhc.Compressor, pretrained: torch.nn.Sequential) -> None:
    judge = judge_of(quick_model)
    verdict = judge.judge(Graph.chain(pretrained.named_children()))
    with torch.no_grad():
        logits = pretrained(judge.images)
    torch.testing.assert_close(verdict.logits, logits)
    assert verdict.wrong == int((logits.argmax(1) != judge.labels).sum()) == judge.wrong_before
    assert verdict.loss == pytest.approx(torch.nn.functional.cross_entropy(logits, judge.labels).item(), rel=1e-4)


def test_a_verdict_on_images_is_that_of_the_module() -> None:
    """Convolutions are run in another order of memory, or taken together with their pools."""
    net = bhc.models.build("lenet-5-caffe", image_shape=(1, 16, 16), num_classes=10).requires_grad_(False)
    images = torch.randint(0, 256, (600, 1, 16, 16), dtype=torch.uint8)
    network = bhc.wrap(net, bhc.ClassSubsets(10), example_input=images[:1]).network
    judge = Judge(TrainedModel(network), images, torch.zeros(600, dtype=torch.long), TEN)
    torch.testing.assert_close(judge.judge(Graph.chain(net.named_children())).logits, net(images), rtol=1e-4, atol=1e-5)


def test_there_is_no_judge_without_labelled_data(
    quick_model: bhc.Compressor, digits: DataSet, pretrained: torch.nn.Module
) -> None:
    untrained = bhc.wrap(pretrained, bhc.ClassSubsets(10), example_input=digits.train.images[:1])
    assert Judge.of(untrained.model, Context(classes=(3, 4))) is None
    assert Judge.of(quick_model.model, Context(domain=torch.zeros(1, 8, 8))) is None


def test_an_untrained_network_is_not_compared_with(quick_model: bhc.Compressor, pretrained: torch.nn.Module) -> None:
    network = bhc.wrap(
        pretrained, bhc.ClassSubsets(10), example_input=torch.zeros(1, 1, 8, 8), pretrained=False
    ).network
    model = TrainedModel(network, validation=quick_model.model.validation)
    judge = Judge.of(model, Context(classes=TEN))
    assert judge is not None
    assert judge.wrong_before is None
    assert judge.hard is judge
    report = bhc.Compressor(model).compress(classes=[3, 4]).report
    assert report.error_before is None
    assert report.error is not None


def test_the_temperature_has_the_lowest_cross_entropy_of_the_candidates(quick_model: bhc.Compressor) -> None:
    judge = judge_of(quick_model)
    for sharpness in (0.2, 1.0, 6.0):
        verdict = judge.judge(quick_model.network.base_model)
        logits = sharpness * verdict.logits
        chosen = judge.calibrate(logits)
        assert torch.tensor(chosen).half().item() == chosen

        def loss(temperature: float, logits: torch.Tensor = logits) -> float:
            return torch.nn.functional.cross_entropy(logits / temperature, judge.labels).item()

        assert all(loss(chosen) <= loss(10 ** (-1 + 0.2 * place)) * 1.001 for place in range(13))
