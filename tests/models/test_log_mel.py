import math

import pytest
import torch

from bhc.errors import BhcError
from bhc.models import LogMel

LOG_MEL = LogMel(8_000, 32, 256, 160)


def hum(hertz: float, samples: int = 1_600) -> torch.Tensor:
    return torch.sin(2 * math.pi * hertz * torch.arange(samples) / 8_000).reshape(1, 1, -1)


def slowly(x: torch.Tensor) -> torch.Tensor:
    """The same by torch's own transform, window by window."""
    windows = x[:, 0].unfold(1, LOG_MEL.window, LOG_MEL.hop)
    spectrum = torch.fft.rfft(windows.double() * torch.hann_window(LOG_MEL.window, dtype=torch.float64))
    _, shares = LOG_MEL.bank()
    energies = spectrum.abs().square() @ shares[:, : spectrum.shape[-1], 0].double().mT
    return torch.log(energies + LOG_MEL.floor).mT.unsqueeze(1)


def test_it_is_the_logarithm_of_a_power_spectrum_in_bands() -> None:
    x = torch.randn(3, 1, 1_000, generator=torch.Generator().manual_seed(0))
    assert LOG_MEL(x).shape == (3, 1, 32, LOG_MEL.frames(1_000))
    torch.testing.assert_close(LOG_MEL(x).double(), slowly(x), rtol=0, atol=1e-4)


def test_higher_notes_are_in_higher_bands() -> None:
    places = [int(LOG_MEL(hum(hertz))[0, 0].mean(1).argmax()) for hertz in (200, 500, 1_000, 2_000, 3_500)]
    assert places == sorted(set(places))
    assert places[-1] >= 28


def test_silence_is_the_floor() -> None:
    assert torch.allclose(LOG_MEL(torch.zeros(1, 1, 256)), torch.tensor(math.log(LOG_MEL.floor)))


def test_it_has_no_numbers_of_its_own_and_can_be_built_without_storage() -> None:
    with torch.device("meta"):
        built = LogMel(8_000, 32, 256, 160)
    assert not built.state_dict()
    assert torch.equal(built(hum(300)), LOG_MEL(hum(300)))


@pytest.mark.parametrize(
    "numbers", [(0, 32, 256, 160), (8_000, 0, 256, 160), (8_000, 129, 256, 160), (8_000, 4, 16, 0)]
)
def test_windows_that_cannot_be(numbers: tuple[int, int, int, int]) -> None:
    with pytest.raises(BhcError, match="bands of windows of"):
        LogMel(*numbers)
