"""Networks that are refused, each with what is wrong and a hint."""

import warnings
from typing import Any

import pytest
import torch
from torch import nn

import bhc
from bhc.errors import BhcError
from bhc.graph import capture

from .cases import CASES
from .nets import FLAT, MAPS, net_of, seeded

REFUSED = {
    "a branch on values": ("cannot capture Net", "data-dependent", "cases.py, line"),
    "a number taken out": ("cannot capture Net", "data-dependent", "cases.py, line"),
    "a loop over the batch": ("a batch of one size only",),
    "the length of a batch": ("a batch of one size only",),
    "a shape that is not flat": ("a batch of one size only",),
    "noise": ("a batch of one size only",),
    "a batch of one size": ("does not run on the example input of shape (3, 4)", "cases.py, line"),
    "a state kept between calls": ("another answer when it is called again",),
    "a mean of its own": ("Remembering gives another answer when it is called again",),
    "dropout that is always on": ("Net gives another answer when it is called again",),
    "noise like a value": ("draws random numbers", "aten.randn_like.default"),
    "two inputs": ("does not run on the example input", "missing 1 required positional argument: 'y'"),
    "a lazy layer that was not run": ("'0.weight' has no size yet",),
    "a quantised network": ("cannot capture Sequential",),
    "a batch norm without statistics": ("depends on the others of its batch",),
}


def refusal(net: nn.Module, example: Any) -> BhcError:
    with pytest.raises(BhcError) as caught:
        capture(net, example)
    return caught.value


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_with_a_reason_and_a_hint(name: str) -> None:
    build, shape = CASES[name]
    error = refusal(build(), seeded(*shape))
    assert all(words in error.problem for words in REFUSED[name]), error.problem
    assert error.hint


@pytest.mark.parametrize(
    "example",
    [torch.zeros(2, 5), torch.zeros(2, 4, dtype=torch.long), torch.zeros(2, 3, 8, 8)],
    ids=["shape", "whole numbers", "maps"],
)
def test_an_example_that_the_network_does_not_take_is_refused(example: Any) -> None:
    error = refusal(net_of(lambda net, x: net.end(net.first(x))), example)
    assert f"does not run on the example input of shape {tuple(example.shape)}" in error.problem
    assert error.hint is not None
    assert "example_input" in error.hint


@pytest.mark.parametrize("example", [[[0.0] * 4], None, torch.zeros(()), torch.zeros(0, 4)], ids=str)
def test_what_is_no_batch_is_refused(example: Any) -> None:
    error = refusal(net_of(lambda net, x: net.end(net.first(x))), example)
    assert error.problem.startswith("example_input is a")
    assert "give a batch" in str(error.hint)


def test_a_first_axis_that_is_not_the_batch_is_refused() -> None:
    """A recurrent layer by torch's default."""
    net = net_of(lambda net, x: net.end(net.rnn(x)[0]), rnn=nn.GRU(4, 3), end=nn.Linear(3, 2))
    error = refusal(net, torch.randn(2, 5, 4))
    assert "Net" in error.problem
    assert "batch_first=True" in str(error.hint)


def test_a_jit_module_is_refused() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch no longer recommends it
        scripted = torch.jit.script(nn.Linear(4, 2))
    assert "jit module" in refusal(scripted, torch.zeros(1, 4)).problem


def test_parameters_on_several_devices_are_refused() -> None:
    net = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2, device="meta"))
    assert "parameters on several devices: cpu, meta" in refusal(net, torch.zeros(1, 4)).problem


def slope(net: Any, x: torch.Tensor) -> torch.Tensor:
    x = x.detach().requires_grad_(True)
    return net.end(torch.autograd.grad(x.square().sum(), x)[0])


def test_a_network_that_needs_gradients_is_refused() -> None:
    error = refusal(net_of(slope), torch.zeros(1, 4))
    assert "does not run on the example input" in error.problem
    assert "test_refused.py, line" in error.problem


def test_sizes_that_depend_on_values_are_refused() -> None:
    """As many numbers as are positive."""
    for forward in (
        lambda net, x: net.end(x[:, 0]) + x[x > 0].sum(),
        lambda net, x: net.end(x[:, 0]) + x[x[..., 0] > 0].sum(),
    ):
        error = refusal(net_of(forward), torch.ones(1, 3, 4))
        assert "size of a value depends on the numbers in another" in error.problem


def test_of_several_results_one_must_be_named() -> None:
    net, x = net_of(lambda net, x: (net.end(x), x)), seeded(3, 4)
    error = refusal(net, torch.zeros(1, 4))
    assert "returns a tuple of 2 values (0, 1)" in error.problem
    assert "output=" in str(error.hint)
    torch.testing.assert_close(capture(net, x, output=0)(x), net(x)[0])
    assert capture(net, x, output=1).steps == ()
    for wrong in (7, "logits"):
        with pytest.raises(BhcError, match=f"output={wrong!r}"):
            capture(net, x, output=wrong)
    with pytest.raises(BhcError, match="output=1"):
        capture(nn.Linear(4, 2), x, output=1)


@pytest.mark.parametrize(
    ("net", "shape", "words"),
    [
        (nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten()), MAPS, "not one number a class"),
        (nn.Sequential(nn.Conv2d(3, 1, 1), nn.Flatten()), MAPS, "not one number a class"),
        (net_of(lambda net, x: x + net.first(x), first=nn.Linear(4, 4)), FLAT, "not one number a class"),
        (nn.Sequential(nn.Flatten(), nn.ReLU()), MAPS, "nothing to compress"),
        (nn.Sequential(), MAPS, "nothing to compress"),
    ],
    ids=["flat maps", "one class at many places", "the input itself", "no weights", "no steps"],
)
def test_a_network_that_gives_no_classes_or_has_no_weights_is_not_wrapped(
    net: nn.Module, shape: tuple[int, ...], words: str
) -> None:
    with pytest.raises(BhcError) as caught:
        bhc.wrap(net, bhc.ClassSubsets(4), example_input=seeded(*shape))
    assert words in caught.value.problem
    assert caught.value.hint
