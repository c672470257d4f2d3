import pytest
import torch
from torch.optim import Adam

from bhc.training import optimiser
from bhc.training.optimiser import PIECE, PiecewiseAdam

SIZES = ((3,), (PIECE,), (2, PIECE + 5), (6, 5, 2, 2), (5, 7, 11), (2, 2))
SCALES = (1.0, 1.0, 4.0, 1.0, 2.5)
BAD = (0.0, 0.0, 0.0, 1.0, 0.0)  # the fourth step is not taken


def trained(kind: type[Adam], *, first: dict[int, dict[str, torch.Tensor]] | None = None) -> tuple[list, list]:
    """Parameters and states after the same steps; two have no gradients, one of these a rate of its own."""
    rng = torch.Generator().manual_seed(0)
    parameters = [torch.randn(size, generator=rng) for size in SIZES]
    parameters[3] = parameters[3].contiguous(memory_format=torch.channels_last)
    for parameter in parameters:
        parameter.requires_grad_()
    groups = [
        {"params": parameters[:2], "lr": torch.tensor(0.1)},
        {"params": parameters[2:5], "lr": torch.tensor(0.01)},
        {"params": parameters[5:], "lr": torch.tensor(1.0)},
    ]
    optimizer = kind(groups, fused=True)
    for place, state in (first or {}).items():
        optimizer.state[parameters[place]] = {name: value.clone() for name, value in state.items()}
    for scale, bad in zip(SCALES, BAD, strict=True):
        for parameter in parameters[:4]:
            parameter.grad = torch.empty_like(parameter).normal_(generator=rng)
        optimizer.grad_scale, optimizer.found_inf = torch.tensor(scale), torch.tensor(bad)
        optimizer.step()
    return parameters, [optimizer.state.get(parameter, {}) for parameter in parameters]


@pytest.mark.parametrize("large", [optimiser.LARGE, PIECE])
def test_pieces_are_updated_as_the_whole_is(monkeypatch: pytest.MonkeyPatch, large: int) -> None:
    monkeypatch.setattr(optimiser, "LARGE", large)
    expected, states = trained(Adam)
    given, own = trained(PiecewiseAdam)
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
    for one, other in zip(own, states, strict=True):
        assert one.keys() == other.keys()
        for name in one:
            torch.testing.assert_close(one[name], other[name], rtol=0, atol=0)
    assert own[0]["step"] == len(SCALES) - 1


def test_it_goes_on_from_what_adam_remembers() -> None:
    _, states = trained(Adam)
    remembered = dict(enumerate(states[:3]))
    expected, given = trained(Adam, first=remembered)[0], trained(PiecewiseAdam, first=remembered)[0]
    for one, other in zip(given, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
