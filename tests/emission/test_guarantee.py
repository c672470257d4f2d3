"""What is promised of new data holds as often as is said, however networks were chosen."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import bhc
from bhc.data import DataSet, Split
from bhc.emission import Guarantee, upper_bound
from bhc.emission.guarantee import Calibration, proves_mean, stratified
from bhc.emission.report import from_card, to_card
from bhc.errors import BhcError
from bhc.formats import pack

pytestmark = pytest.mark.filterwarnings("ignore::bhc.emission.ThresholdWarning")

PAIR, TRIPLE = [3, 4], [3, 8, 9]
CERTAIN = 1 << 16  # images of the draws below are numbers from 0 to here


@pytest.fixture(scope="module")
def model(quick_model: bhc.Compressor, digits: DataSet) -> bhc.Compressor:
    """The quick model with images that neither it nor its choices have seen."""
    return bhc.Compressor(replace(quick_model.model, calibration=digits.test))


def images_of(model: bhc.Compressor, *classes: int) -> dict[int, int]:
    return {label: int((model.model.calibration.labels == label).sum()) for label in classes}


def wrong_by_hand(model: bhc.Compressor, small: bhc.Compressed, counts: dict[int, int]) -> int:
    """Mistakes among the first so many images of each class."""
    calibration, wrong = model.model.calibration, 0
    for label, count in counts.items():
        images = calibration.inputs[calibration.labels == label][:count]
        wrong += int((small.predict(images).labels != label).sum())
    return wrong


def test_the_network_is_the_last_before_the_first_that_is_not_proved(model: bhc.Compressor) -> None:
    each = min(images_of(model, *TRIPLE).values())
    thresholds = torch.linspace(1, -2, 33, dtype=torch.float64).half().double().tolist()
    networks = [model.compress(classes=TRIPLE, threshold=threshold) for threshold in thresholds]
    wrongs = [wrong_by_hand(model, network, dict.fromkeys(TRIPLE, each)) for network in networks]
    # What the first few prove, and the first with more mistakes does not.
    first_worse = next(place for place, wrong in enumerate(wrongs) if wrong > wrongs[0])
    max_error = 100 * upper_bound(wrongs[0], 3 * each, confidence=0.95) + 1e-6
    small = model.compress(classes=TRIPLE, max_error=max_error, confidence=0.95)
    guarantee, last = small.report.guarantee, networks[first_worse - 1].report
    assert (guarantee.wrong, guarantee.images) == (wrongs[first_worse - 1], 3 * each)
    assert (small.report.architecture, small.report.scale) == (last.architecture, last.scale)


def test_more_confidence_and_less_error_take_larger_networks(model: bhc.Compressor) -> None:
    asked = [(80.0, 0.9), (40.0, 0.9), (40.0, 0.999), (28.0, 0.9)]
    sizes = [model.compress(classes=range(10), max_error=e, confidence=c).report.weights_after for e, c in asked]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[1] < sizes[-1]


@pytest.mark.parametrize(
    "limits",
    [
        {"max_bytes": 0.999},
        {"max_flops": 0.999},
        {"max_ram_bytes": 0.999},
        {"max_latency_ms": 50.0, "threshold": -1.0},
        {"threshold": 0.3},
        {"quantisation": bhc.Float32()},
        {"quantisation": bhc.VarianceBits(0.3)},
    ],
    ids=str,
)
def test_what_else_is_asked_is_kept_too(model: bhc.Compressor, tmp_path: Path, limits: dict[str, Any]) -> None:
    """Sizes are given as parts of what there would be without."""
    proved: dict[str, Any] = {"classes": PAIR, "max_error": 20, "confidence": 0.9}
    free = model.compress(**proved, threshold=1).report
    sizes = {"max_bytes": free.file_bytes, "max_flops": free.flops_after, "max_ram_bytes": free.ram_bytes}
    asked = {name: int(limit * sizes[name]) if name in sizes else limit for name, limit in limits.items()}
    report = model.compress(**proved, **asked).save(tmp_path / "small.bhc").report
    assert report.guarantee is not None
    assert (tmp_path / "small.bhc").stat().st_size == report.file_bytes <= asked.get("max_bytes", report.file_bytes)
    assert report.flops_after <= asked.get("max_flops", report.flops_after)
    assert report.ram_bytes <= asked.get("max_ram_bytes", report.ram_bytes)
    assert report.latency_ms is None or report.latency_ms <= asked["max_latency_ms"]
    assert report.threshold == asked.get("threshold", report.threshold)
    if "quantisation" in asked:
        assert report.scale == getattr(asked["quantisation"], "scale", None)


def test_the_bytes_of_the_guarantee_count(model: bhc.Compressor) -> None:
    """The smallest file that can be had has its limit at its own size, not a byte below."""
    with pytest.raises(BhcError, match="the smallest has") as caught:
        model.compress(classes=PAIR, max_error=90, confidence=0.9, max_bytes=20)
    size = int(str(caught.value).split("the smallest has ")[1].split(" ")[0].replace(",", ""))
    assert f"max_bytes={size} or more" in caught.value.hint
    small = model.compress(classes=PAIR, max_error=90, confidence=0.9, max_bytes=size)
    assert len(small.to_bytes()) <= size
    with pytest.raises(BhcError, match="the smallest has"):
        model.compress(classes=PAIR, max_error=90, confidence=0.9, max_bytes=size - 1)


def test_validation_images_do_not_decide(model: bhc.Compressor) -> None:
    """None of them: steps are then the finest, and calibration images alone choose the cut."""
    alone = bhc.Compressor(replace(model.model, validation=None))
    report = alone.compress(classes=PAIR, max_error=20, confidence=0.9).report
    assert report.error is None
    assert report.guarantee is not None


def test_the_report_says_it_in_words_in_json_and_in_the_file(model: bhc.Compressor, tmp_path: Path) -> None:
    small = model.compress(classes=PAIR, max_error=20, confidence=0.95).save(tmp_path / "small.bhc")
    guarantee = small.report.guarantee
    line = f"guarantee     at most 20 % error with 95 % confidence ({guarantee.images:,} images)"
    assert line in str(small.report).splitlines()
    assert bhc.read(tmp_path / "small.bhc").report.guarantee == guarantee
    data = json.loads(json.dumps(small.report.to_dict()))
    assert data["guarantee"] == {
        "max_error": 20.0,
        "confidence": 0.95,
        "images": guarantee.images,
        "wrong": guarantee.wrong,
    }
    assert bhc.Report.from_dict(data) == small.report
    assert str(Guarantee(1, 0.95, 1006, 3)) == "at most 1 % error with 95 % confidence (1,006 images)"


def test_without_a_confidence_nothing_is_said_and_no_byte_spent(
    quick_model: bhc.Compressor, model: bhc.Compressor
) -> None:
    plain = model.compress(classes=PAIR, max_error=20)
    assert plain.report.guarantee is None
    assert "guarantee" not in str(plain.report)
    assert plain.to_bytes() == quick_model.compress(classes=PAIR, max_error=20).to_bytes()


@pytest.mark.parametrize("confidence", [0.95, 0.999, 0.07, 0.123456789012345, 1 - 2**-53])
def test_any_confidence_is_kept_in_the_card(model: bhc.Compressor, confidence: float) -> None:
    small = model.compress(classes=PAIR)
    report = replace(small.report, guarantee=Guarantee(1.0, confidence, 1006, 3))
    again = from_card(replace(small.network, card=to_card(report))).guarantee
    assert again.confidence == pytest.approx(confidence, rel=1e-15)
    assert replace(again, confidence=confidence) == report.guarantee


def test_the_usual_guarantee_takes_nine_bytes(model: bhc.Compressor) -> None:
    small = model.compress(classes=PAIR)
    card = to_card(replace(small.report, guarantee=Guarantee(1.0, 0.95, 1006, 3)))
    assert card["guarantee"] == [1, 95, 1006, 3]
    assert len(pack(replace(small.network, card=card))) == len(small.to_bytes()) + 9


def test_a_run_without_calibration_images_says_how_to_get_them(quick_model: bhc.Compressor) -> None:
    with pytest.raises(BhcError, match="the run has none") as caught:
        quick_model.compress(classes=PAIR, max_error=5, confidence=0.95)
    assert "--calibration" in caught.value.hint
    assert "calibration_set" in caught.value.hint


def test_too_few_images_name_the_number_needed(model: bhc.Compressor) -> None:
    there = 2 * min(images_of(model, *PAIR).values())
    with pytest.raises(BhcError, match=f"299 calibration images .* there are {there}") as caught:
        model.compress(classes=PAIR, max_error=1, confidence=0.95)
    named = float(caught.value.hint.split("max_error=")[1].split(" ")[0])
    assert named >= 100 * upper_bound(0, there, confidence=0.95)
    assert model.compress(classes=PAIR, max_error=named, confidence=0.95).report.guarantee is not None
    with pytest.raises(BhcError):
        model.compress(classes=PAIR, max_error=named - 0.002, confidence=0.95)


def test_a_largest_network_that_fails_names_what_could_be_promised(model: bhc.Compressor) -> None:
    request: dict[str, Any] = {"classes": PAIR, "confidence": 0.9, "threshold": -50}
    with pytest.raises(BhcError, match="largest network") as caught:
        model.compress(max_error=10, **request)
    named = float(caught.value.hint.split("max_error=")[1].split(" ")[0])
    guarantee = model.compress(max_error=named, **request).report.guarantee
    assert f"{guarantee.wrong} of {guarantee.images} calibration images" in str(caught.value)
    with pytest.raises(BhcError, match="largest network"):
        model.compress(max_error=named - 0.002, **request)


@pytest.mark.parametrize(("limits", "noun"), [({}, "labelled validation data"), ({"confidence": 0.9}, "promised")])
def test_a_domain_has_no_labelled_images(
    model: bhc.Compressor, digits: DataSet, limits: dict[str, float], noun: str
) -> None:
    network = bhc.wrap(
        model.network.base_model, bhc.InputDomains((1, 8, 8)), example_input=digits.train.inputs[:1]
    ).network
    asked = bhc.Compressor(replace(model.model, network=network))
    with pytest.raises(BhcError, match=noun):
        asked.compress(domain=digits.train.inputs[:20], max_error=5, **limits)


def test_classes_without_calibration_images_are_named(model: bhc.Compressor, digits: DataSet) -> None:
    some = bhc.Compressor(replace(model.model, calibration=digits.test.restricted_to([3, 5, 6])))
    with pytest.raises(BhcError, match="class 4, 7"):
        some.compress(classes=[3, 4, 7], max_error=20, confidence=0.9)


def test_unequal_classes_are_proved_by_as_unequal_images(model: bhc.Compressor, weighing_model: bhc.Compressor) -> None:
    model = bhc.Compressor(replace(model.model, network=weighing_model.network))
    there = images_of(model, *PAIR)
    counts = {3: there[3], 4: -(-there[3] // 4)}
    small = model.compress(classes={3: 0.8, 4: 0.2}, max_error=25, confidence=0.9)
    guarantee = small.report.guarantee
    assert guarantee.images == sum(counts.values())
    assert guarantee.wrong == wrong_by_hand(model, small, counts)


def labelled(*labels: int) -> Split:
    return Split(torch.arange(len(labels), dtype=torch.uint8).view(-1, 1, 1, 1), torch.tensor(labels))


def test_equal_classes_give_as_many_images_each_in_their_order() -> None:
    sample, share = stratified(labelled(1, 0, 1, 2, 1, 0), (0, 1), None)
    assert sample.inputs.flatten().tolist() == [0, 1, 2, 5]
    assert sample.labels.tolist() == [1, 0, 1, 0]
    assert share == 1


@pytest.mark.parametrize("appearance", [(1.0, 1 / 9), (0.25, 1.0), (1.0, 0.3337), (1.0, 1e-4)])
def test_a_sample_has_at_least_its_share_of_every_class(appearance: tuple[float, float]) -> None:
    sample, share = stratified(labelled(*[0] * 90, *[1] * 47), (0, 1), appearance)
    counts = sample.labels.bincount(minlength=2).tolist()
    frequencies = [weight / sum(appearance) for weight in appearance]
    for count, frequency in zip(counts, frequencies, strict=True):
        assert count >= share * len(sample) * frequency * (1 - 1e-12)
        assert count < share * len(sample) * frequency + 1 + 1e-9
    assert counts[0] == 90 or counts[1] == 47


@dataclass(frozen=True)
class Examinees:
    """Stands in for a judge: a network is its rates of mistakes by class, an image a number."""

    sample: Split
    task: ClassVar[bhc.Task] = bhc.Classification()

    @property
    def num_images(self) -> int:
        return len(self.sample)

    def wrong_of(self, rates: Sequence[int]) -> float:
        high, low = self.sample.tensor[:, 0, 0, :].long().unbind(1)
        return int(((256 * high + low) < torch.tensor(rates)[self.sample.known_labels]).sum())


def draw(count: int, rng: torch.Generator) -> Split:
    images = torch.randint(0, 256, (count, 1, 1, 2), generator=rng, dtype=torch.uint8)
    return Split(images, torch.randint(0, 2, (count,), generator=rng))


DRAWS, ERROR, CONFIDENCE = 1000, 0.05, 0.9


RISING, UP_AND_DOWN = (0.3, 0.5, 0.7, 0.9, 1.02, 1.1, 1.2, 1.4), (0.3, 0.5, 0.4, 0.9, 0.7, 1.02, 0.95, 1.1, 1.2)


@pytest.mark.parametrize(
    ("appearance", "ratio", "times"),
    [(None, 1.0, RISING), (None, 6.0, RISING), ((1.0, 0.23), 6.0, RISING), (None, 1.0, UP_AND_DOWN)],
    ids=["alike", "equal", "unequal", "up and down"],
)
def test_the_promise_is_broken_no_more_often_than_is_said(
    appearance: tuple[float, float] | None, ratio: float, times: tuple[float, ...]
) -> None:
    """Networks from large to small, with true errors on both sides of the limit; class 1 is ``ratio`` times as hard.

    The control takes the smallest network whose error on the same images is within the limit.
    """
    weights = appearance or (1.0, 1.0)
    frequencies = [weight / sum(weights) for weight in weights]
    easy = [ERROR * part / (frequencies[0] + ratio * frequencies[1]) for part in times]
    networks = [(round(CERTAIN * rate), round(CERTAIN * rate * ratio)) for rate in easy]
    truth = {rates: sum(f * r / CERTAIN for f, r in zip(frequencies, rates, strict=True)) for rates in networks}
    rng = torch.Generator().manual_seed(1)
    identity: Callable[[Any], Any] = lambda network: network  # noqa: E731
    broken = broken_by_control = emitted = 0
    for _ in range(DRAWS):
        sample, share = stratified(draw(600, rng), (0, 1), appearance)
        judge: Any = Examinees(sample)
        calibration = Calibration(judge, share, max_error=100 * ERROR, confidence=CONFIDENCE)
        try:
            found = calibration.last_proved(networks, identity)
        except BhcError:
            found = None
        if found is not None:
            emitted += 1
            broken += truth[found[0]] > ERROR
        fitting = [rates for rates in networks if judge.wrong_of(rates) <= ERROR * len(sample)]
        broken_by_control += bool(fitting) and truth[fitting[-1]] > ERROR
    allowed = 1 - CONFIDENCE
    assert broken / DRAWS <= allowed + 3 * (allowed * CONFIDENCE / DRAWS) ** 0.5
    assert broken / DRAWS >= allowed / 5  # the limit is nearly used: a test that could not fail would show nothing
    assert emitted > 0.9 * DRAWS
    assert broken_by_control / DRAWS > 3 * allowed


ERRORS: dict[str, Callable[[tuple[int, int], torch.Generator], torch.Tensor]] = {  # each with a mean of 1
    "all or nothing": lambda shape, rng: (torch.rand(shape, generator=rng) < RATE).double() / RATE,
    "all alike": lambda shape, rng: torch.ones(shape, dtype=torch.float64),
    "up to twice the mean": lambda shape, rng: 2 * torch.rand(shape, generator=rng, dtype=torch.float64),
    "seldom half": lambda shape, rng: (torch.rand(shape, generator=rng) < 2 * RATE).double() / 2 / RATE,
}
RATE, IMAGES, TRIES = 0.05, 300, 4000


@pytest.mark.parametrize("errors", ERRORS.values(), ids=ERRORS)
def test_means_of_bounded_errors_are_proved_too_low_no_more_often_than_is_said(
    errors: Callable[[tuple[int, int], torch.Generator], torch.Tensor],
) -> None:
    """The true mean is the rate that is tested, and errors stay between 0 and 1."""
    drawn = RATE * errors((TRIES, IMAGES), torch.Generator().manual_seed(0))
    proved = sum(proves_mean(float(total), IMAGES, RATE, confidence=CONFIDENCE) for total in drawn.sum(1))
    assert proved / TRIES <= 1 - CONFIDENCE
    low = 0.3 * drawn.sum(1)
    assert sum(proves_mean(float(total), IMAGES, RATE, confidence=CONFIDENCE) for total in low) > 0.9 * TRIES


@pytest.mark.parametrize("total", [0, 1, 7])
def test_of_counts_the_exact_bound_is_the_lower_one(total: int) -> None:
    exact = upper_bound(total, IMAGES, confidence=CONFIDENCE)
    bounded = upper_bound(total, IMAGES, confidence=CONFIDENCE, test=proves_mean)
    assert total / IMAGES < exact <= bounded + 1e-9 < exact + 0.02
