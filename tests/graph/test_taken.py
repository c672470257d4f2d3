"""Whatever can be captured is taken: it computes the same, and what stays after a cut computes what the masks say."""

import warnings

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import Cutter, slim_model
from bhc.graph import Graph, Inputs, capture, describe, rebuild

from .cases import CASES
from .nets import seeded
from .test_refused import REFUSED

TAKEN = [name for name in CASES if name not in REFUSED]


def near(given: Tensor, wanted: Tensor) -> bool:
    return given.shape == wanted.shape and torch.allclose(
        given, wanted, atol=1e-4 * max(1.0, float(wanted.abs().max()))
    )


def cut_in_half(
    net: nn.Module, x: Inputs, *, dynamic_axes: tuple[int, ...] = ()
) -> tuple[Graph, Tensor, Tensor, float]:
    """A wrapped network without the noisier half of its units: slim, and what slim and masked give."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about how much stays whole
        model = bhc.wrap(net, bhc.SingleContext(), example_input=x, initial=bhc.Initial(), dynamic_axes=dynamic_axes)
    network = model.network.eval()
    draws = torch.Generator().manual_seed(1)
    for name, parameter in network.hypernet.named_parameters():
        if "logvar" in name and name.endswith("offset") and "vectors" in name:
            parameter.data += 5 + 3 * torch.randn(parameter.shape, generator=draws)
    batch = ContextBatch.of([Context()], network.num_classes)
    with torch.no_grad():
        rates = network.find_masks.noisiest_links(network.dropouts(batch), batch.outputs)
        free = rates[rates.isfinite()]
        threshold = float(free.median()) if len(free) else 0.0
        plan = Cutter(network, Context()).cut(threshold)
        slim = slim_model(network, plan)
        masked = network.masked(x, batch, threshold=torch.tensor([[threshold]]))
        return slim, slim.run(x), masked, network.num_weights / plan.num_weights


@torch.no_grad()
@pytest.mark.parametrize("name", TAKEN)
def test_it_computes_the_same(name: str) -> None:
    build, shape = CASES[name]
    net, x = build().train(), 3 * seeded(*shape)
    graph = capture(net, x)
    assert type(graph) is Graph
    (wanted,) = tree_leaves(net.eval()(x.clone()))
    torch.testing.assert_close(graph(x), wanted)
    again = rebuild(describe(graph))
    again.load_state_dict(graph.state_dict())
    assert torch.equal(again.eval()(x), graph(x))


@pytest.mark.parametrize("name", ["a value beside nothing", "a value that nobody reads"])
def test_what_changes_nothing_is_no_step(name: str) -> None:
    build, shape = CASES[name]
    assert [step.name for step in capture(build(), seeded(*shape)).steps] == ["first", "end"]


@pytest.mark.parametrize("name", TAKEN)
def test_what_stays_computes_what_the_masks_say(name: str) -> None:
    build, shape = CASES[name]
    _, slim, masked, _ = cut_in_half(build(), seeded(*shape))
    assert near(slim, masked)


class Backwards(nn.Module):
    """Sums over all channels before each."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.cumsum(1)


def test_wrap_warns_where_less_than_half_of_the_weights_can_go() -> None:
    net = nn.Sequential(nn.Linear(8, 8), Backwards(), nn.Linear(8, 3), nn.ReLU(), nn.Linear(3, 2))
    with pytest.warns(UserWarning, match=r"68 % .*cumsum"):
        model = bhc.wrap(net, bhc.ClassSubsets(2), example_input=torch.zeros(1, 8))
    (whole,) = model.network.whole
    assert (whole.name, whole.weights) == ("0", 64)
    small = model.compress(classes=[0, 1], threshold=1e6)
    assert any(note.startswith("stays whole: 0 (64 weights)") for note in small.report.notes)
