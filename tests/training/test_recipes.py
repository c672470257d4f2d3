from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

import bhc
from bhc.contexts import ContextBatch
from bhc.data import DataSet
from bhc.hypernet import ConditionalNetwork
from bhc.training.stages import StepScalars
from bhc.training.step import make_step
from tests.training.runs import RECIPE, Draw, Fit, bits

DIALS = StepScalars(torch.tensor(1.0), torch.tensor(0.0))


def watched(network: ConditionalNetwork, patch: pytest.MonkeyPatch) -> list[tuple[torch.Tensor, ContextBatch]]:
    """The images and the contexts that the masked network is shown from now on."""
    shown, masked = [], network.masked

    def noting(x: torch.Tensor, batch: ContextBatch, **options: object) -> torch.Tensor:
        shown.append((x, batch))
        return masked(x, batch, **options)  # type: ignore[arg-type]

    patch.setattr(network, "masked", noting)
    return shown


def test_a_recipe_speaks_of_blends_only_where_there_are_some() -> None:
    assert "blended" not in bhc.Consolidate().to_dict()
    assert bhc.Consolidate(blended=0.5).to_dict() == bhc.Consolidate().to_dict() | {"blended": 0.5}
    assert bhc.Consolidate(teacher_weight=0.0).to_dict()["teacher_weight"] == 0


def test_training_with_blends_is_another_training_and_keeps_what_was_learned(fit: Fit) -> None:
    learn, consolidate = RECIPE
    assert isinstance(consolidate, bhc.Consolidate)
    plain, blended = (fit(recipe=(learn, replace(consolidate, blended=part))) for part in (0.0, 0.5))
    assert blended.model.training["recipe"][1]["blended"] == 0.5
    differing = [name for name, tensor in bits(plain).items() if not torch.equal(tensor, bits(blended)[name])]
    assert any("weights" in name for name in differing)
    assert all(tensor.isfinite().all() for tensor in bits(blended).values())
    for model in (plain, blended):  # with classes at random it is half of the answers and more
        assert model.model.training["curves"]["after"][-1]["error"] < 25


@pytest.mark.parametrize("teacher_weight", [0.0, 0.3, 1.0])
def test_a_blend_is_labelled_by_its_shares_and_the_teacher_answers_for_the_blend(
    wrap: Fit, draw: Draw, monkeypatch: pytest.MonkeyPatch, teacher_weight: float
) -> None:
    network = wrap().network
    stage = bhc.Consolidate(
        blended=0.6, teacher_weight=teacher_weight, thresholds=(0.0, 0.0), contexts=4, examples=8, temperature=3.0
    )
    stage.prepare_(network)
    with monkeypatch.context() as patched:
        shown = watched(network, patched)
        total = stage.loss(network, draw(), DIALS).total
    ((x, _),) = shown

    drawn = draw().next(network, stage)
    batch, first, labels = drawn.batch, drawn.x, drawn.targets
    second = first.float().unflatten(0, (4, 8)).roll(1, 1).flatten(0, 1)
    others = labels.unflatten(0, (4, 8)).roll(1, 1).flatten()
    way = (second - first).flatten(1)
    share = ((x - first).flatten(1) * way).sum(1) / (way**2).sum(1)  # read off the images
    assert 5 < (share > 1e-6).sum() < 32
    torch.testing.assert_close(x, first + share[:, None, None, None] * way.view_as(x))

    students, teachers = network.masked(x, batch, threshold=torch.zeros(4, 1)), network.bayesian.plain(x)
    expected = torch.tensor(0.0)
    for row in range(32):
        classes = batch.outputs[row // 8].nonzero().flatten().tolist()
        student, teacher = students[row, classes], teachers[row, classes]
        mine, other = (-F.log_softmax(student, 0)[classes.index(int(told[row]))] for told in (labels, others))
        entropy = (1 - share[row]) * mine + share[row] * other
        of_teacher, of_student = F.softmax(teacher / 3, 0), F.softmax(student / 3, 0)
        away = (of_teacher * (of_teacher / of_student).log()).sum()
        expected = expected + ((1 - teacher_weight) * entropy + teacher_weight * 9 * away) / 32
    torch.testing.assert_close(total, expected, rtol=1e-4, atol=1e-5)


def test_a_teacher_that_is_asked_once_an_image_says_the_same(digits: DataSet, wrap: Fit, draw: Draw) -> None:
    network = wrap().network
    stage = bhc.Consolidate(thresholds=(0.0, 0.0), contexts=4, examples=8)
    stage.prepare_(network)
    equipped = stage.equipped(network, draw())
    assert equipped.teacher is not None
    torch.testing.assert_close(equipped.teacher, network.bayesian.plain(digits.train.inputs))
    asked, remembered = (stage.loss(network, source, DIALS).total for source in (draw(), equipped))
    torch.testing.assert_close(remembered, asked)


@pytest.mark.parametrize("changed", ["blended", "augmented", "short"])
def test_a_teacher_of_images_that_are_seldom_the_same_is_asked_in_each_step(
    wrap: Fit, draw: Draw, changed: str
) -> None:
    stage = bhc.Consolidate(steps=2 if changed == "short" else 3500, blended=0.5 if changed == "blended" else 0.0)
    source = replace(draw(), augment=bhc.data.Shift(padding=1) if changed == "augmented" else None)
    assert stage.equipped(wrap().network, source).teacher is None


def test_it_trains_for_budgets_that_can_be_asked_for(wrap: Fit, draw: Draw, monkeypatch: pytest.MonkeyPatch) -> None:
    network = wrap(bhc.Joint(bhc.ClassSubsets(10), bhc.Budgets(margin=1.0))).network
    shown = watched(network, monkeypatch)
    stage = bhc.Consolidate(steps=8)
    stage.prepare_(network)
    take = make_step(stage, network, draw())
    for _ in range(stage.steps):
        take()
    budgets = torch.cat([batch.budget for _, batch in shown])
    assert len(budgets) == stage.steps * stage.contexts
    assert budgets.min() == 0
    assert budgets.max() == 1
    assert ((budgets > 0) & (budgets < 1)).any()
