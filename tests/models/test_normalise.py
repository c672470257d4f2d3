import torch

from bhc.models import Normalise


def test_normalise_shifts_and_scales():
    x = torch.tensor([0.0, 3.0, 10.0])
    torch.testing.assert_close(Normalise(3.0, 2.0)(x), (x - 3) / 2)


def test_integers_become_floats():
    pixels = torch.tensor([0, 255], dtype=torch.uint8)
    torch.testing.assert_close(Normalise(0.0, 255.0)(pixels), torch.tensor([0.0, 1.0]))


def test_the_numbers_belong_to_the_state_and_are_not_trained():
    normalise = Normalise(3.0, 2.0)
    assert set(normalise.state_dict()) == {"mean", "std"}
    assert not list(normalise.parameters())
