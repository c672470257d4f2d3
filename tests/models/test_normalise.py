import pytest
import torch

from bhc.errors import BhcError
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


def test_one_number_a_channel():
    x = torch.rand(2, 3, 4, 5)
    given = Normalise([1.0, 2.0, 3.0], (4.0, 5.0, 6.0))(x)
    for channel in range(3):
        torch.testing.assert_close(given[:, channel], (x[:, channel] - (channel + 1)) / (channel + 4))


def test_the_numbers_of_channels_stand_in_a_column():
    normalise = Normalise([1, 2, 3], [4, 5, 6])
    assert {name: tuple(tensor.shape) for name, tensor in normalise.state_dict().items()} == {
        "mean": (3, 1, 1),
        "std": (3, 1, 1),
    }
    assert normalise(torch.zeros(1, 3, 2, 2, dtype=torch.uint8)).dtype == torch.float32


def test_one_number_is_stored_as_one():
    """As in the files that were written when there was nothing else."""
    normalise = Normalise(0.0, 1.0)
    normalise.load_state_dict({"mean": torch.tensor(3.0), "std": torch.tensor(2.0)})
    assert normalise(torch.tensor([5.0])).item() == 1.0


@pytest.mark.parametrize(
    ("mean", "std", "problem"),
    [
        (0.5, [1.0, 2.0], "a mean of one number does not go with a standard deviation of 2 channels"),
        ([0.5, 0.5, 0.5], [1.0, 2.0], "a mean of 3 channels does not go with a standard deviation of 2 channels"),
    ],
)
def test_mean_and_deviation_must_be_alike(mean, std, problem):
    with pytest.raises(BhcError, match=problem):
        Normalise(mean, std)
