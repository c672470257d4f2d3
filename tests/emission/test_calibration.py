import pytest
import torch

from bhc.emission import expected_calibration_error
from bhc.emission.judge import best_temperature


def two(*confidences: float) -> torch.Tensor:
    """Probabilities of two classes; the answer is always the first."""
    return torch.tensor([[confidence, 1 - confidence] for confidence in confidences], dtype=torch.double)


def test_a_bin_counts_with_its_examples() -> None:
    # Bin (12/15, 13/15] holds 0.82 and 0.86, one right: |0.5 - 0.84|, twice. Bin (8/15, 9/15] holds 0.6, right: 0.4.
    labels = torch.tensor([0, 1, 0])
    assert expected_calibration_error(two(0.82, 0.86, 0.6), labels) == pytest.approx(100 * (2 * 0.34 + 0.4) / 3)


def test_too_high_and_too_low_cancel_only_within_a_bin() -> None:
    labels = torch.tensor([0, 1])
    assert expected_calibration_error(two(0.81, 0.85), labels) == pytest.approx(100 * abs(1 - 1.66) / 2)
    assert expected_calibration_error(two(0.81, 0.95), labels) == pytest.approx(100 * (0.19 + 0.95) / 2)


def test_an_edge_belongs_to_the_bin_below_it() -> None:
    # 0.6 is 9/15: together with 0.55 it makes a bin in which one of two is right, not two bins.
    labels = torch.tensor([0, 1])
    assert expected_calibration_error(two(0.6, 0.55), labels) == pytest.approx(100 * abs(1 - 1.15) / 2)


def test_certainty_is_perfect_or_wrong() -> None:
    assert expected_calibration_error(two(1.0, 1.0), torch.tensor([0, 0])) == 0
    assert expected_calibration_error(two(1.0, 1.0), torch.tensor([1, 1])) == 100
    assert expected_calibration_error(torch.ones(3, 1), torch.zeros(3, dtype=torch.long)) == 0


@pytest.mark.parametrize("temperature", [0.15, 0.7, 1.0, 1.3, 4.7, 20.0])
def test_the_temperature_of_labels_drawn_with_it_is_found(temperature: float) -> None:
    rng = torch.Generator().manual_seed(0)
    logits = 4 * torch.randn(20000, 3, generator=rng) * temperature
    labels = torch.multinomial((logits / temperature).softmax(1), 1, generator=rng)[:, 0]
    found = best_temperature(logits, labels)
    assert found == pytest.approx(temperature, rel=0.06)
    assert torch.tensor(found).half().item() == found


def test_a_network_that_is_never_wrong_gets_the_coldest_temperature() -> None:
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    assert best_temperature(logits, torch.tensor([0, 1])) == pytest.approx(0.1, rel=1e-3)
    assert best_temperature(logits, torch.tensor([1, 0])) == pytest.approx(25, rel=0.01)
