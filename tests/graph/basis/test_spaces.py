"""Which coordinates belong together, and where their vectors stand."""

import pytest
import torch
from torch import Tensor, nn

from bhc.graph import capture
from bhc.graph.basis.principal_axes import find_free
from bhc.graph.basis.spaces import components, turn_

from ..nets import net_of, seeded


def slowly(count: int, links: Tensor) -> list[int]:
    """The smallest number that each leads to, by looking again and again."""
    smallest = list(range(count))
    for _ in range(count):
        for left, right in links.T.tolist():
            smallest[left] = smallest[right] = min(smallest[left], smallest[right])
    return smallest


@pytest.mark.parametrize("links", [0, 5, 20, 60])
@pytest.mark.parametrize("seed", range(5))
def test_components_are_those_that_links_lead_to(links, seed):
    drawn = torch.randint(0, 40, (2, links), generator=torch.Generator().manual_seed(seed))
    assert components(40, drawn).tolist() == slowly(40, drawn)


def test_a_long_chain_is_one_component():
    order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
    assert not components(1000, torch.stack([order[:-1], order[1:]])).any()


@torch.no_grad()
def test_ends_are_in_one_order():
    """Zeros in the place of one coordinate are the same where it is written as where it is read."""
    torch.manual_seed(0)
    net = net_of(
        lambda net, x: net.end((net.one(x).flip(-1) + net.two(x).roll(2, -1) + torch.arange(6.0)).flip(1)).flatten(1),
        one=nn.Linear(6, 6),
        two=nn.Linear(6, 6),
        end=nn.Linear(6, 3),
    )
    x = seeded(2, 5, 6)

    def without(coordinate: int, *, reads: bool) -> Tensor:
        graph = capture(net, x)
        (space,) = find_free(graph, (5, 6))
        mask = torch.ones(6, dtype=torch.float64).index_fill(0, torch.tensor([coordinate]), 0.0)
        for end in space.ends:
            if end.reads == reads:
                turn_(graph, end, mask.diag())
        return graph(x)

    given = [(without(each, reads=False), without(each, reads=True)) for each in range(6)]
    for written, read in given:
        torch.testing.assert_close(written, read)
    assert not torch.allclose(given[0][0], given[1][0])
