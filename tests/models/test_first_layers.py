"""What stands in front of a network: pixels on its scale, and sounds as pictures of their bands."""

import math

import pytest
import torch

from bhc.errors import BhcError
from bhc.models import LogMel, Normalise


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_normalise_shifts_and_scales(dtype):
    x = torch.tensor([0, 3, 255], dtype=dtype)
    torch.testing.assert_close(Normalise(3.0, 2.0)(x), (x.float() - 3) / 2)


def test_the_numbers_belong_to_the_state_and_are_not_trained():
    normalise = Normalise(3.0, 2.0)
    assert set(normalise.state_dict()) == {"mean", "std"}
    assert not list(normalise.parameters())


def test_one_number_a_channel():
    x = torch.rand(2, 3, 4, 5)
    normalise = Normalise([1.0, 2.0, 3.0], (4.0, 5.0, 6.0))
    assert {tensor.shape for tensor in normalise.state_dict().values()} == {(3, 1, 1)}
    given = normalise(x)
    for channel in range(3):
        torch.testing.assert_close(given[:, channel], (x[:, channel] - (channel + 1)) / (channel + 4))


def test_one_number_is_stored_as_one():
    """As in the files that were written when there was nothing else."""
    normalise = Normalise(0.0, 1.0)
    normalise.load_state_dict({"mean": torch.tensor(3.0), "std": torch.tensor(2.0)})
    assert normalise(torch.tensor([5.0])).item() == 1.0


@pytest.mark.parametrize(
    ("mean", "std", "problem"), [(0.5, [1.0, 2.0], "one number"), ([0.5, 0.5, 0.5], [1.0, 2.0], "3 channels")]
)
def test_mean_and_deviation_must_be_alike(mean, std, problem):
    with pytest.raises(BhcError, match=problem):
        Normalise(mean, std)


LOG_MEL = LogMel(8_000, 32, 256, 160)


def hum(hertz, samples=1_600):
    return torch.sin(2 * math.pi * hertz * torch.arange(samples) / 8_000).reshape(1, 1, -1)


def slowly(x):
    """The same by torch's own transform, window by window."""
    windows = x[:, 0].unfold(1, LOG_MEL.window, LOG_MEL.hop)
    spectrum = torch.fft.rfft(windows.double() * torch.hann_window(LOG_MEL.window, dtype=torch.float64))
    _, shares = LOG_MEL.bank()
    energies = spectrum.abs().square() @ shares[:, : spectrum.shape[-1], 0].double().mT
    return torch.log(energies + LOG_MEL.floor).mT.unsqueeze(1)


def test_it_is_the_logarithm_of_a_power_spectrum_in_bands():
    x = torch.randn(3, 1, 1_000, generator=torch.Generator().manual_seed(0))
    assert LOG_MEL(x).shape == (3, 1, 32, LOG_MEL.frames(1_000))
    torch.testing.assert_close(LOG_MEL(x).double(), slowly(x), rtol=0, atol=1e-4)


def test_higher_notes_are_in_higher_bands():
    places = [int(LOG_MEL(hum(hertz))[0, 0].mean(1).argmax()) for hertz in (200, 500, 1_000, 2_000, 3_500)]
    assert places == sorted(set(places))
    assert places[-1] >= 28


def test_silence_is_the_floor():
    assert torch.allclose(LOG_MEL(torch.zeros(1, 1, 256)), torch.tensor(math.log(LOG_MEL.floor)))


def test_it_has_no_numbers_of_its_own_and_can_be_built_without_storage():
    with torch.device("meta"):
        built = LogMel(8_000, 32, 256, 160)
    assert not built.state_dict()
    assert torch.equal(built(hum(300)), LOG_MEL(hum(300)))


@pytest.mark.parametrize(
    "numbers", [(0, 32, 256, 160), (8_000, 0, 256, 160), (8_000, 129, 256, 160), (8_000, 4, 16, 0)]
)
def test_windows_that_cannot_be(numbers):
    with pytest.raises(BhcError, match="bands"):
        LogMel(*numbers)
