from fractions import Fraction
from math import comb

import pytest

from bhc.emission import upper_bound
from bhc.emission.guarantee import at_most, images_needed, proves


def exactly(wrong: int, images: int, rate: float) -> float:
    """In whole numbers: what the float stands for, and no rounding before the end."""
    part = Fraction(rate)
    return float(sum(comb(images, k) * part**k * (1 - part) ** (images - k) for k in range(wrong + 1)))


@pytest.mark.parametrize(
    ("wrong", "images", "rate", "tail"),
    [
        (0, 2, 0.5, 1 / 4),
        (1, 2, 0.5, 3 / 4),
        (1, 3, 0.1, 0.729 + 3 * 0.1 * 0.81),
        (2, 2, 0.5, 1),
        (3, 10, 0.0, 1),
        (9, 10, 1.0, 0),
        (10, 10, 1.0, 1),
        (-1, 10, 0.2, 0),
        (5, 100, 1e-20, 1),
    ],
)
def test_tails_counted_on_fingers(wrong: int, images: int, rate: float, tail: float) -> None:
    assert at_most(wrong, images, rate) == (tail if tail in (0, 1) else pytest.approx(tail))


@pytest.mark.parametrize("images", [1, 7, 60, 400])
@pytest.mark.parametrize("rate", [1e-6, 0.003, 0.05, 0.5, 0.77, 0.999])
def test_tails_are_those_of_whole_numbers(images: int, rate: float) -> None:
    for wrong in sorted({0, 1, images // 20, images // 2, images - 1}):
        assert at_most(wrong, images, rate) == pytest.approx(exactly(wrong, images, rate), rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("wrong", [0, 1, 900, 1000, 1001, 1200, 50_000, 99_999])
@pytest.mark.parametrize("rate", [1e-5, 0.01, 0.5, 0.9999])
def test_tails_of_many_images_are_those_of_another_library(wrong: int, rate: float) -> None:
    binom = pytest.importorskip("scipy.stats").binom
    assert at_most(wrong, 100_000, rate) == pytest.approx(binom.cdf(wrong, 100_000, rate), rel=1e-8, abs=1e-300)


def test_a_bound_is_the_lowest_rate_that_is_proved() -> None:
    for wrong, images in ((0, 50), (3, 1006), (420, 1000), (49, 50)):
        bound = upper_bound(wrong, images, confidence=0.9)
        assert proves(wrong, images, bound, confidence=0.9)
        assert not proves(wrong, images, bound * 0.9999, confidence=0.9)
    assert upper_bound(7, 7, confidence=0.9) == 1


def test_the_images_needed_are_just_enough() -> None:
    assert images_needed(0.01, confidence=0.95) == 299
    for rate in (0.3, 0.01, 1e-4):
        for confidence in (0.2, 0.5, 0.95, 0.9999):
            images = images_needed(rate, confidence=confidence)
            assert proves(0, images, rate, confidence=confidence)
            assert not proves(0, images - 1, rate, confidence=confidence)
    assert images_needed(1.0, confidence=0.95) == 1
    for rate in (1e-9, 1e-18, 1e-290, 1e-320):
        assert images_needed(rate, confidence=0.95) == pytest.approx(2.99573 / max(rate, 1e-300), rel=1e-5)


def test_little_confidence_does_not_prove_what_a_sample_by_classes_cannot() -> None:
    """Half of the images all wrong, half all right: the count is certain, and a binomial one would be rare enough."""
    assert at_most(50, 100, 0.499) <= 1 - 0.4
    assert not proves(50, 100, 0.499, confidence=0.4)


def test_with_the_usual_confidence_the_bound_is_that_of_another_library() -> None:
    beta = pytest.importorskip("scipy.stats").beta
    for images in (5, 84, 1006, 100_000):
        for wrong in sorted({0, 1, images // 9, images // 2, images - 2}):
            for confidence in (0.75, 0.9, 0.999):
                bound = beta.ppf(confidence, wrong + 1, images - wrong)
                if bound < 1 - 1 / images:
                    assert upper_bound(wrong, images, confidence=confidence) == pytest.approx(bound, rel=1e-8)
