import math

import numpy as np
import pytest
import torch

from bhc.emission import Alarm, outside_score

LOGITS = torch.tensor([[1.0, 5.0, 3.0], [-2.0, -4.0, -8.0]])


@pytest.mark.parametrize(
    ("quarters", "scores"), [(0, [-5.0, 2.0]), (1, [-4.25, 1.0]), (2, [-3.5, 0.0]), (4, [-2.0, -2.0])]
)
def test_the_score_is_a_part_of_the_second_logit_less_the_first(quarters: int, scores: list[float]) -> None:
    assert outside_score(LOGITS, quarters).tolist() == scores


def test_one_class_has_its_logit_for_a_score() -> None:
    for quarters in (0, 2, 4):
        assert outside_score(torch.tensor([[3.0], [-1.0]]), quarters).tolist() == [-3.0, 1.0]


@pytest.mark.parametrize(
    ("count", "rate", "place"),
    [
        (19, 0.05, 19),  # the first that can keep 5 %: nothing above the largest
        (20, 0.05, 20),
        (39, 0.05, 38),  # ceil(40 * 0.95)
        (99, 0.05, 95),
        (100, 0.05, 96),
        (9, 0.1, 9),
        (99, 0.1, 90),  # 100 * 0.9 in binary fractions is not quite 90
        (9, 0.7, 3),
    ],
)
def test_the_threshold_is_the_conformal_quantile(count: int, rate: float, place: int) -> None:
    assert place == math.ceil(round((count + 1) * (1 - rate), 9))
    scores = torch.arange(1.0, count + 1)[torch.randperm(count, generator=torch.Generator().manual_seed(count))]
    assert Alarm.set_by(scores, 2, rate).threshold == place


def test_fresh_inputs_are_flagged_no_more_often_than_allowed() -> None:
    """Over many draws of a small sample; a plain quantile of 19 scores would flag nearly twice as many."""
    rng = torch.Generator().manual_seed(0)
    rates = []
    for _ in range(2000):
        logits = torch.randn(59, 2, generator=rng)
        fresh = torch.randn(50, 2, generator=rng)
        rates.append(Alarm.set_by(outside_score(logits), 2, 0.05).flags(fresh).float().mean().item())
    assert 0.045 < np.mean(rates) < 0.0525


@pytest.mark.parametrize("score", [-3.14159, 1 / 3, -1e-9, 2049.0, -70000.0, 70001.0, 1e6 / 3])
def test_the_threshold_is_rounded_up_to_few_bits(score: float) -> None:
    threshold = Alarm.set_by(torch.full((9,), score, dtype=torch.double), 0, 0.1).threshold
    assert score <= threshold <= score + abs(score) / 1000 + 1e-7 or (score < -65504 and threshold == -65504)
    assert float(np.float32(threshold)) == threshold
    if abs(score) < 65504:
        assert float(np.float16(threshold)) == threshold


@pytest.mark.parametrize("rate", [0.05, 0.001, 0.01, 0.123, 0.5, 0.999])
def test_a_card_keeps_it(rate: float) -> None:
    alarm = Alarm(3, -2.5, rate)
    assert Alarm.of({"alarm": alarm.to_card()}) == alarm
    assert Alarm.of({}) is None


@pytest.mark.parametrize(
    "stored",
    [5, [], [2, -1.0], [5, -1.0, 0.05], [-1, -1.0, 0.05], [2, 1, 0.05], [2, float("nan"), 0.05], [2, -1.0, 0.0],
     [2, -1.0, 2.0], [2, -1.0, "0.05"], [2.0, -1.0, 0.05]],
    ids=str,
)  # fmt: skip
def test_a_damaged_card_is_an_error(stored: object) -> None:
    with pytest.raises(ValueError, match="alarm"):
        Alarm.of({"alarm": stored})
