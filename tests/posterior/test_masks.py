import pytest
import torch
from torch import nn

from bhc.posterior import LayerDropout

from ..formats.graphs import in_a_row
from .toys import (
    NOISY,
    QUIET,
    all_classes,
    at,
    branching_graph,
    dropouts,
    finder_of,
    grouped_chain,
    mask,
    random_dropouts,
    random_weight_rates,
    small_chain,
)


def positions_of(layer):
    """How often a layer reads each unit of a chain."""
    return len(layer.reads) // len(layer.reads.unique())


@pytest.fixture
def finder():
    """Units: 1 input, 3 filters (4 positions each), 5 hidden, 4 classes."""
    return finder_of(small_chain())


SECOND_GROUP = {
    ("0", "out"): [2, 3], ("1", "in"): [2, 3], ("1", "out"): [3, 4, 5], ("3", "in"): [*range(12, 24)],
}  # fmt: skip

# The network, which rates are noisy, as places by layer and side, and what goes with them.
NOISY_UNITS = {
    "everything quiet stays": (small_chain, {}, {}),
    "a unit whose writer is noisy dies": (
        small_chain, {("4", "out"): [2]}, {("4", "out"): [2], ("6", "in"): [2]},
    ),
    "a unit that nobody reads dies": (small_chain, {("6", "in"): [4]}, {("4", "out"): [4], ("6", "in"): [4]}),
    "after a flatten a noisy reader skips its position and the filter lives": (
        small_chain, {("4", "in"): [0, 5, 6, 7]}, {("4", "in"): [0, 5, 6, 7]},
    ),
    "after a flatten a filter dies with its last position": (
        small_chain, {("4", "in"): [4, 5, 6, 7]}, {("0", "out"): [1], ("4", "in"): [4, 5, 6, 7]},
    ),
    "a dead filter is read at none of its positions": (
        small_chain, {("0", "out"): [0]}, {("0", "out"): [0], ("4", "in"): [0, 1, 2, 3]},
    ),
    "a noisy writer leaves a unit of a stream to the others": (
        branching_graph, {("one", "out"): [2]}, {("one", "out"): [2]},
    ),
    "a unit of a stream dies with its last writer": (
        branching_graph,
        {("one", "out"): [2], ("other", "out"): [2]},
        {("one", "out"): [2], ("other", "out"): [2], ("end", "in"): [2]},
    ),
    "factors and groups are written by all": (branching_graph, {("gate", "out"): [1], ("branch", "out"): [1]}, {}),
    "a noisy reader skips a unit that another reads": (branching_graph, {("one", "in"): [1]}, {("one", "in"): [1]}),
    "groups keep as many channels each: one that is noisy in one of them stays": (
        grouped_chain, {("1", "out"): [3]}, {},
    ),
    "a group whose outputs are noisy goes, and nobody else reads what it read": (
        grouped_chain, {("1", "out"): [3, 4, 5]}, SECOND_GROUP,
    ),
    "a group goes with what writes it": (grouped_chain, {("0", "out"): [2, 3]}, SECOND_GROUP),
}  # fmt: skip


@pytest.mark.parametrize(("build", "noisy", "gone"), NOISY_UNITS.values(), ids=NOISY_UNITS)
def test_what_goes_with_noisy_units(build, noisy, gone):
    finder = finder_of(build())
    rates = dropouts(finder)
    for layer, own in zip(finder.layers, rates, strict=True):
        own.in_log_dropout[0, noisy.get((layer.name, "in"), [])] = NOISY
        own.out_log_dropout[0, noisy.get((layer.name, "out"), [])] = NOISY
    for layer, given in zip(finder.layers, mask(finder, rates), strict=True):
        for side, keep in (("in", given.keep_in), ("out", given.keep_out)):
            assert (~keep[0]).nonzero().flatten().tolist() == gone.get((layer.name, side), [])
        assert not given.rescued.any()
        assert given.keep_weight is None, "families with groups keep every single weight"


def test_a_layer_that_would_be_empty_keeps_its_least_noisy_unit(finder):
    rates = dropouts(finder)
    rates[1].out_log_dropout[0] = torch.tensor([5.0, 4.0, 2.0, 3.0, 1.0])
    rates[2].in_log_dropout[0] = torch.tensor([1.0, 1.0, 1.5, 1.0, 9.0])
    first, middle, last = mask(finder, rates)
    assert [layer.rescued.item() for layer in (first, middle, last)] == [False, False, True]
    assert middle.keep_out.tolist() == [[False, False, True, False, False]]
    assert torch.equal(last.keep_in, middle.keep_out)


def test_a_rescued_filter_is_read_at_its_least_noisy_position(finder):
    rates = dropouts(finder)
    rates[1].in_log_dropout[0] = torch.arange(12.0).flip(0) + 1
    first, middle, _ = mask(finder, rates)
    assert middle.rescued.item()
    assert first.keep_out.tolist() == [[False, False, True]]
    assert middle.keep_in[0].nonzero().flatten().tolist() == [11]


def test_rescue_is_a_matter_of_one_context(finder):
    rates = dropouts(finder, contexts=2)
    rates[2].in_log_dropout[1] = NOISY
    last = finder(rates, at(0, 2), all_classes(finder, 2)).layers[-1]
    assert last.rescued.tolist() == [False, True]
    assert last.keep_in.sum(1).tolist() == [5, 1]


def test_layers_without_output_scales_are_cut_by_their_readers(finder):
    rates = [
        LayerDropout(None, torch.tensor([[QUIET, NOISY, QUIET]])),
        LayerDropout(torch.full((1, 12), QUIET), None),
        LayerDropout(torch.tensor([[QUIET, QUIET, QUIET, NOISY, NOISY]]), None),
    ]
    first, middle, last = mask(finder, rates)
    assert first.keep_out.tolist() == [[True, False, True]]
    assert middle.keep_out.tolist() == [[True, True, True, False, False]]
    assert last.keep_out.all()


def test_rates_are_not_changed(finder):
    rates = random_dropouts(finder, contexts=3)
    before = [(layer.in_log_dropout.clone(), layer.out_log_dropout.clone()) for layer in rates]
    finder(rates, at(0, 3), all_classes(finder, 3))
    for layer, (inputs, outputs) in zip(rates, before, strict=True):
        assert torch.equal(layer.in_log_dropout, inputs)
        assert torch.equal(layer.out_log_dropout, outputs)


def two_convolutions():
    """Units: 1 channel, 3 filters, 2 filters (4 positions each), 5 hidden, 4 classes."""
    steps = (nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Conv2d(3, 2, 2), nn.MaxPool2d(2), nn.Flatten())
    return in_a_row(*steps, nn.Linear(8, 5), nn.ReLU(), nn.Linear(5, 4))


def slow_weight_masks(layers, kept):
    """Kept positions, kept units (None where none is left) of one context, weight by weight."""
    keep_in, keep_out = [], []
    for index, layer in enumerate(layers):
        units = layer.num_inputs // positions_of(layer)
        positions, alive = [], []
        for unit in range(units):
            places = range(unit * positions_of(layer), (unit + 1) * positions_of(layer))
            images = index == 0 and layer.has_kernel  # all of their channels arrive
            readers = [
                images or any(kept[index][out, place].any() for out in range(layer.num_outputs)) for place in places
            ]
            written = index == 0 or bool(kept[index - 1][unit].any())
            alive.append(written and any(readers))
            positions += [alive[-1] and reader for reader in readers]
        keep_in.append(positions if any(alive) else None)
        if index:
            keep_out.append(alive if any(alive) else None)
    return keep_in, keep_out


@pytest.mark.parametrize("chain", [small_chain, two_convolutions])
@pytest.mark.parametrize("threshold", [-12.0, -7.0, -5.0, 0.0])
def test_a_unit_lives_if_a_kept_weight_leads_to_it_and_one_leads_from_it(chain, threshold):
    contexts, finder = 30, finder_of(chain())
    rates = random_weight_rates(finder, contexts=contexts)
    masks = finder(rates, at(threshold, contexts), all_classes(finder, contexts)).layers
    for context in range(contexts):
        kept = [layer.weights[context] < threshold for layer in rates]
        keep_in, keep_out = slow_weight_masks(finder.layers, kept)
        for given, own, inputs in zip(masks, kept, keep_in, strict=True):
            assert torch.equal(given.keep_weight[context], own)
            assert given.rescued[context].item() == (inputs is None)
            assert inputs is None or given.keep_in[context].tolist() == inputs
        for given, units in zip(masks, keep_out, strict=False):
            assert units is None or given.keep_out[context].tolist() == units


def test_weights_shared_by_all_contexts_are_cut_at_the_threshold_of_each(finder):
    rates = random_weight_rates(finder, contexts=1)
    threshold = torch.tensor([[-4.0], [0.0], [4.0]])
    masks = finder(rates, threshold, all_classes(finder, 3)).layers
    for context, own in enumerate(threshold):
        alone = finder(rates, own[None], all_classes(finder)).layers
        for together, single in zip(masks, alone, strict=True):
            assert torch.equal(together.keep_weight[context], single.keep_weight[0])
            assert torch.equal(together.keep_in[context], single.keep_in[0])
            assert torch.equal(together.keep_out[context], single.keep_out[0])
