"""How sure a count of wrong answers makes us: the binomial tail and what follows from it, exactly."""

from math import ceil, exp, fsum, lgamma, log, log1p

NEGLIGIBLE = 1e-18  # of the largest term
HALVINGS = 60
LOWEST_RATE = 1e-300  # under which one over it is no number


def at_most(wrong: int, images: int, rate: float) -> float:
    """The probability of ``wrong`` or fewer mistakes where each image is one with probability ``rate``."""
    if wrong < 0 or rate >= 1:
        return float(wrong >= images)
    if wrong >= images or rate <= 0:
        return 1.0
    # The smaller tail is summed, from its largest term outwards.
    if wrong <= images * rate:
        return _tail(wrong, images, rate)
    return 1.0 if 1 - rate == 1 else 1 - _tail(images - wrong - 1, images, 1 - rate)


def _tail(count: int, images: int, rate: float) -> float:
    """The probability of ``count`` or fewer, where that is no more than the mean."""
    choices = lgamma(images + 1) - lgamma(count + 1) - lgamma(images - count + 1)
    largest = exp(choices + count * log(rate) + (images - count) * log1p(-rate))
    terms, term = [1.0], 1.0
    for place in range(count, 0, -1):
        term *= place / (images - place + 1) * (1 - rate) / rate
        terms.append(term)
        if term < NEGLIGIBLE:
            break
    return largest * fsum(terms)


def proves(wrong: int, images: int, rate: float, *, confidence: float) -> bool:
    """Whether so few mistakes would be rarer than one minus ``confidence`` if there were more than ``rate`` of them.

    The images may be drawn class by class: Hoeffding (1956) has it that the count is then no more often as low, as
    long as it is one or more under the mean. With a confidence of three quarters or more, and a rate that is not within
    1 / images of 1, that is so by itself.
    """
    return wrong + 1 <= images * rate and at_most(wrong, images, rate) <= 1 - confidence


def upper_bound(wrong: int, images: int, *, confidence: float) -> float:
    """The lowest rate that is proved, Clopper and Pearson's bound; 1 if none is."""
    low, high = 0.0, 1.0
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if proves(wrong, images, middle, confidence=confidence) else (middle, high)
    return high


def images_needed(rate: float, *, confidence: float) -> int:
    """How many images prove ``rate`` if there is no mistake among them."""
    if rate >= 1:
        return 1
    rate = max(rate, LOWEST_RATE)
    images = ceil(max(log(1 - confidence) / log1p(-rate), 1 / rate))
    # Logarithms are rounded: one too many, or as many too few as floats of this size are apart.
    if proves(0, images - 1, rate, confidence=confidence):
        return images - 1
    while not proves(0, images, rate, confidence=confidence):
        images += max(1, images >> 50)
    return images
