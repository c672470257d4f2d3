"""Heads, what they keep, and the stream of transformers: their units, and that cuts compute what masks say."""

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import Cutter, slim_model
from bhc.graph import Units, capture, find_units

from .test_taken import cut_in_half, near
from .transformers import CLASSES, FORMS, INPUTS, PLACES, transformer

X = torch.randn(3, PLACES, INPUTS, generator=torch.Generator().manual_seed(2))


def units_of(name: str) -> Units:
    return find_units(capture(transformer(name), X), (PLACES, INPUTS))


@pytest.mark.parametrize("name", FORMS)
def test_what_is_left_computes_what_the_masks_say(name: str) -> None:
    _, slim, masked, ratio = cut_in_half(transformer(name), X)
    assert near(slim, masked)
    assert ratio > 1.5


@pytest.mark.parametrize("name", FORMS)
def test_every_layer_can_be_cut_and_every_attention_has_heads(name: str) -> None:
    net = transformer(name)
    graph, units = capture(net, X), units_of(name)
    assert torch.allclose(graph(X), net(X), atol=1e-5)
    for step in graph.steps:
        if isinstance(step.module, nn.Linear):
            assert not units.always[units.writes[step.name]].any()
    assert len(units.heads) == 2
    width = FORMS[name][1].get("shared", 3)
    for heads in units.heads:
        assert len(heads.rows) == (2 if name == "keys that heads share" else width)
        pairs = 2 if "rotary" in name else 12 // FORMS[name][1].get("heads", 3)  # both halves of a turn go together
        assert sorted(part.units.shape[1] for part in heads.parts) == sorted(
            [pairs, 12 // FORMS[name][1].get("heads", 3)]
        )


def test_only_where_all_heads_share_a_norm_they_keep_the_same_places() -> None:
    assert {part.alike for heads in units_of("a norm of each head").heads for part in heads.parts} == {True, False}
    assert not any(part.alike for heads in units_of("three layers").heads for part in heads.parts)


def test_one_layer_for_all_becomes_one_for_each() -> None:
    def layers(name: str) -> list[tuple[int, int]]:
        steps = capture(transformer(name), X).steps
        return [tuple(step.module.weight.shape) for step in steps if isinstance(step.module, nn.Linear)]

    assert layers("one layer") == layers("one layer in pieces") == layers("torch's own") == layers("three layers")


def test_outputs_go_with_their_classes() -> None:
    assert units_of("one layer").outputs_are_free
    assert len(units_of("one layer").carried[capture(transformer("one layer"), X).last_step]) == CLASSES


class ByTurns(nn.Module):
    """Attention whose result has the places of all heads by turns, and not head after head."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last, self.end = nn.Linear(INPUTS, 12), nn.Linear(12, 12), nn.Linear(12, CLASSES)
        self.parts = nn.ModuleList(nn.Linear(12, 12) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        query, key, value = (part(x).unflatten(2, (3, 4)).transpose(1, 2) for part in self.parts)
        attended = (query @ key.mT / 2).softmax(-1) @ value
        return self.end((x + self.last(attended.permute(0, 2, 3, 1).flatten(2))).mean(1))


@torch.no_grad()
def test_heads_whose_places_lie_by_turns_keep_the_same_ones() -> None:
    torch.manual_seed(0)
    network = bhc.wrap(ByTurns(), bhc.SingleContext(), example_input=X, initial=bhc.Initial()).network.eval()
    (heads,) = network.units.heads
    assert sorted(part.alike for part in heads.parts) == [False, True]
    for name, parameter in network.hypernet.named_parameters():
        if "logvar" in name and name.endswith("offset") and "vectors" in name:
            parameter += 5 + 3 * torch.randn(parameter.shape)
    batch = ContextBatch.of([Context()], network.num_classes)
    for threshold in (-4.0, -3.0, -2.0, -1.0, 0.0):
        slim = slim_model(network, Cutter(network, Context()).cut(threshold))
        assert near(slim.run(X), network.masked(X, batch, threshold=torch.tensor([[threshold]])))
