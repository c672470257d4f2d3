import pytest
import torch
from torch import nn

from bhc.graph import INPUT, Add, Concat, GlobalMean, Graph, Multiply, PadChannels, Step
from bhc.models import lenet_5_caffe
from bhc.posterior import LayerDropout

from .toys import chain_of, finder_of, small_chain

QUIET, NOISY = -5.0, 5.0


def dropouts(finder, *, contexts=1, value=QUIET):
    """The rates of two-group scales, all equal."""
    return [
        LayerDropout(
            torch.full((contexts, 1 if layer.is_convolution else layer.num_inputs), value),
            torch.full((contexts, layer.num_outputs), value),
        )
        for layer in finder.layers
    ]


def random_dropouts(finder, *, contexts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        LayerDropout(*(3 * torch.randn(part.shape, generator=generator) for part in parts))
        for parts in ((rates.in_log_dropout, rates.out_log_dropout) for rates in dropouts(finder, contexts=contexts))
    ]


def at(threshold, contexts=1):
    return torch.full((contexts, 1), float(threshold))


def all_classes(finder, contexts=1):
    return torch.ones(contexts, len(finder.outputs)).bool()


def mask(finder, rates, *, threshold=0.0):
    """Masks of a single context."""
    return finder(rates, at(threshold), all_classes(finder)).layers


def positions_of(layer):
    """How often a layer reads each unit of a chain."""
    return len(layer.reads) // len(layer.reads.unique())


def slow_masks(layers, rates, threshold, outputs):
    """The rules one unit at a time, for one context: kept positions and units, None where none was left."""
    keep_in, keep_out = [], []
    for index, layer in enumerate(layers):
        units = layer.num_inputs // positions_of(layer)
        positions, alive = [], []
        for unit in range(units):
            readers = [True] * positions_of(layer)
            if not layer.is_convolution:
                own = rates[index].in_log_dropout[unit * positions_of(layer) : (unit + 1) * positions_of(layer)]
                readers = [rate < threshold for rate in own.tolist()]
            written = index == 0 or rates[index - 1].out_log_dropout[unit].item() < threshold
            alive.append(written and any(readers))
            positions += [alive[-1] and reader for reader in readers]
        keep_in.append(positions if any(alive) else None)
        if index:
            keep_out.append(alive if any(alive) else None)
    return keep_in, [*keep_out, outputs.tolist()]


@pytest.fixture
def finder():
    """Units: 1 input, 3 filters (4 positions each), 5 hidden, 4 classes."""
    return finder_of(small_chain())


@pytest.mark.parametrize("threshold", [-6.0, -2.0, 0.0, 3.0])
def test_masks_follow_the_rules_one_unit_at_a_time(finder, threshold):
    contexts = 40
    rates = random_dropouts(finder, contexts=contexts)
    outputs = torch.rand(contexts, 4, generator=torch.Generator().manual_seed(3)) < 0.5
    masks = finder(rates, at(threshold, contexts), outputs).layers
    for context in range(contexts):
        own = [LayerDropout(layer.in_log_dropout[context], layer.out_log_dropout[context]) for layer in rates]
        keep_in, keep_out = slow_masks(finder.layers, own, threshold, outputs[context])
        for given, inputs in zip(masks, keep_in, strict=True):
            assert given.rescued[context].item() == (inputs is None)
            assert inputs is None or given.keep_in[context].tolist() == inputs
        for given, units in zip(masks, keep_out, strict=True):
            assert units is None or given.keep_out[context].tolist() == units


def test_everything_quiet_stays(finder):
    for given in mask(finder, dropouts(finder)):
        assert given.keep_in.all()
        assert given.keep_out.all()
        assert not given.rescued.any()


def test_a_unit_whose_writer_is_noisy_dies(finder):
    rates = dropouts(finder)
    rates[1].out_log_dropout[0, 2] = NOISY
    _, middle, last = mask(finder, rates)
    assert middle.keep_out.tolist() == [[True, True, False, True, True]]
    assert last.keep_in.tolist() == [[True, True, False, True, True]]


def test_a_unit_that_nobody_reads_dies(finder):
    rates = dropouts(finder)
    rates[2].in_log_dropout[0, 4] = NOISY
    _, middle, last = mask(finder, rates)
    assert middle.keep_out.tolist() == [[True, True, True, True, False]]
    assert last.keep_in.tolist() == [[True, True, True, True, False]]


def test_after_a_flatten_a_noisy_reader_skips_its_position_and_the_filter_lives(finder):
    rates = dropouts(finder)
    rates[1].in_log_dropout[0, [0, 5, 6, 7]] = NOISY
    first, middle, _ = mask(finder, rates)
    assert first.keep_out.all()
    assert middle.keep_in[0].nonzero().flatten().tolist() == [1, 2, 3, 4, 8, 9, 10, 11]


def test_after_a_flatten_a_filter_dies_with_its_last_position(finder):
    rates = dropouts(finder)
    rates[1].in_log_dropout[0, 4:8] = NOISY
    first, middle, _ = mask(finder, rates)
    assert first.keep_out.tolist() == [[True, False, True]]
    assert middle.keep_in[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_dead_filter_is_read_at_none_of_its_positions(finder):
    rates = dropouts(finder)
    rates[0].out_log_dropout[0, 0] = NOISY
    _, middle, _ = mask(finder, rates)
    assert middle.keep_in[0].nonzero().flatten().tolist() == list(range(4, 12))


def test_the_input_scale_of_a_convolution_decides_nothing():
    net = lenet_5_caffe(image_shape=(1, 16, 16))
    finder = finder_of(Graph.chain(net.named_children()), (1, 16, 16))
    quiet, noisy = dropouts(finder), dropouts(finder)
    for rates in noisy[:2]:
        rates.in_log_dropout.fill_(NOISY)
    for first, second in zip(mask(finder, quiet), mask(finder, noisy), strict=True):
        assert torch.equal(first.keep_in, second.keep_in)
        assert torch.equal(first.keep_out, second.keep_out)
        assert not second.rescued.any()


def test_noisy_pixels_of_a_linear_first_layer_are_not_read():
    finder = finder_of(chain_of(nn.Linear(12, 5), nn.ReLU(), nn.Linear(5, 4)), (12,))
    rates = dropouts(finder)
    rates[0].in_log_dropout[0, :10] = NOISY
    first, _ = mask(finder, rates)
    assert first.keep_in[0].nonzero().flatten().tolist() == [10, 11]


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


def test_every_context_has_a_threshold_of_its_own(finder):
    rates = dropouts(finder, contexts=2)
    rates[2].in_log_dropout[:] = torch.arange(5.0)
    threshold = torch.tensor([[1.5], [3.5]])
    last = finder(rates, threshold, all_classes(finder, 2)).layers[-1]
    assert last.keep_in.sum(1).tolist() == [2, 4]


def test_the_last_layer_keeps_the_classes_of_the_context(finder):
    rates = dropouts(finder, contexts=2)
    rates[2].out_log_dropout.fill_(NOISY)
    outputs = torch.tensor([[True, False, False, True], [False, True, False, False]])
    assert torch.equal(finder(rates, at(0, 2), outputs).layers[-1].keep_out, outputs)


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


@pytest.mark.parametrize(("lower", "higher"), [(-8, -4), (-4, -2), (-2, 0), (0, 2), (2, 8)])
def test_a_lower_threshold_never_keeps_more(finder, lower, higher):
    contexts = 50
    rates = random_dropouts(finder, contexts=contexts, seed=1)
    outputs = all_classes(finder, contexts)
    few, many = (finder(rates, at(threshold, contexts), outputs).layers for threshold in (lower, higher))
    for small, large in zip(few, many, strict=True):
        free = ~small.rescued
        assert not (small.keep_in & ~large.keep_in)[free].any()
        assert (small.keep_in.sum(1) >= 1).all()
    assert sum(int(small.keep_in.sum()) for small in few) < sum(int(large.keep_in.sum()) for large in many)


def test_writers_and_readers_agree_about_who_lives(finder):
    rates = random_dropouts(finder, contexts=30, seed=2)
    masks = finder(rates, at(-1, 30), all_classes(finder, 30)).layers
    for layer, writer, reader in zip(finder.layers[1:], masks, masks[1:], strict=False):
        read = reader.keep_in.reshape(30, -1, positions_of(layer)).any(2)
        assert torch.equal(writer.keep_out, read)


def test_rates_are_not_changed(finder):
    rates = random_dropouts(finder, contexts=3)
    before = [(layer.in_log_dropout.clone(), layer.out_log_dropout.clone()) for layer in rates]
    finder(rates, at(0, 3), all_classes(finder, 3))
    for layer, (inputs, outputs) in zip(rates, before, strict=True):
        assert torch.equal(layer.in_log_dropout, inputs)
        assert torch.equal(layer.out_log_dropout, outputs)


def weight_rates(finder, *, contexts=1, value=QUIET):
    """The rates of single weights, all equal."""
    return [LayerDropout(None, None, torch.full((contexts, *layer.weight_shape), value)) for layer in finder.layers]


def random_weight_rates(finder, *, contexts, centre=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        LayerDropout(None, None, centre + 3 * torch.randn(contexts, *layer.weight_shape, generator=generator))
        for layer in finder.layers
    ]


@pytest.fixture
def two_convolutions():
    """Units: 1 channel, 3 filters, 2 filters (4 positions each), 5 hidden, 4 classes."""
    chain = chain_of(
        nn.Conv2d(1, 3, 2),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.ReLU(),
        nn.Linear(5, 4),
    )
    return finder_of(chain)


def slow_weight_masks(layers, kept):
    """Kept positions, kept units (None where none is left) of one context, weight by weight."""
    keep_in, keep_out = [], []
    for index, layer in enumerate(layers):
        units = layer.num_inputs // positions_of(layer)
        positions, alive = [], []
        for unit in range(units):
            places = range(unit * positions_of(layer), (unit + 1) * positions_of(layer))
            images = index == 0 and layer.is_convolution  # all of their channels arrive
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


@pytest.mark.parametrize("chain", ["finder", "two_convolutions"])
@pytest.mark.parametrize("threshold", [-12.0, -7.0, -5.0, 0.0])
def test_a_unit_lives_if_a_kept_weight_leads_to_it_and_one_leads_from_it(request, chain, threshold):
    contexts, finder = 30, request.getfixturevalue(chain)
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


def test_a_noisy_weight_goes_alone(finder):
    rates = weight_rates(finder)
    rates[1].weights[0, 2, 7] = NOISY
    for index, given in enumerate(mask(finder, rates)):
        assert given.keep_in.all()
        assert given.keep_out.all()
        assert int((~given.keep_weight).sum()) == (index == 1)


def test_a_unit_goes_with_the_last_weight_that_leads_from_it(finder):
    rates = weight_rates(finder)
    rates[2].weights[0, :, 4] = NOISY
    _, middle, last = mask(finder, rates)
    assert middle.keep_out.tolist() == [[True, True, True, True, False]]
    assert torch.equal(last.keep_in, middle.keep_out)


def test_families_with_groups_keep_every_single_weight(finder):
    assert all(given.keep_weight is None for given in mask(finder, dropouts(finder)))


def branching_graph():
    """A residual stream, a value beside it, a gate on both, and two layers that read what is gated."""
    return Graph(
        [
            Step("stem", nn.Conv2d(1, 3, 3, padding=1), (INPUT,)),
            Step("branch", nn.Conv2d(3, 3, 3, padding=1, groups=3), ("stem",)),
            Step("more", nn.Conv2d(3, 5, 1), ("stem",)),
            Step("wide", PadChannels(1, 1), ("branch",)),
            Step("sum", Add(), ("more", "wide")),
            Step("beside", Concat(), ("sum", "stem")),
            Step("mean", GlobalMean(False), ("beside",)),
            Step("gate", nn.Linear(8, 8), ("mean",)),
            Step("gated", Multiply(), ("mean", "gate")),
            Step("one", nn.Linear(8, 5), ("gated",)),
            Step("other", nn.Linear(8, 5), ("mean",)),
            Step("both", Add(), ("one", "other")),
            Step("end", nn.Linear(5, 4), ("both",)),
        ]
    )


def links(finder, rates, unit):
    """The rates of all that write a unit, and of all that read it; a convolution's inputs have none of their own."""
    writers, readers = [], []
    for layer, own in zip(finder.layers, rates, strict=True):
        writers += [
            own.out_log_dropout[at].item() for at, written in enumerate(layer.writes.tolist()) if written == unit
        ]
        for place, read in enumerate(layer.reads.tolist()):
            if read == unit:
                readers.append(-torch.inf if layer.is_convolution else own.in_log_dropout[place].item())
    return writers, readers


def slow_alive(finder, rates, threshold, outputs):
    """Which units of any graph live in one context, before anything is rescued."""
    alive = []
    for unit in range(finder.num_units):
        writers, readers = links(finder, rates, unit)
        quiet = all(any(rate < threshold for rate in side) for side in (writers, readers))
        alive.append(bool(finder.always[unit]) or quiet)
    for place, unit in enumerate(finder.outputs.tolist()):
        alive[unit] = bool(outputs[place])
    return torch.tensor(alive)


def must_write(finder):
    """By layer, the outputs that it may not leave to others: it has no others, or they are factors, groups, kept."""
    written = [unit for layer in finder.layers for unit in layer.writes.tolist()]
    tied = {
        unit for layer in finder.layers if layer.groups > 1 or layer.name == "gate" for unit in layer.writes.tolist()
    }
    outputs = set(finder.outputs.tolist())
    return {
        layer.name: torch.tensor(
            [
                written.count(unit) == 1 or unit in tied | outputs or bool(finder.always[unit])
                for unit in layer.writes.tolist()
            ]
        )
        for layer in finder.layers
    }


def is_empty(alive, layer):
    return not alive[layer.writes].any()


@pytest.mark.parametrize("keep", [(), ("gate",), ("branch", "one")], ids=str)
@pytest.mark.parametrize("threshold", [-3.0, 0.0, 3.0])
def test_units_of_a_branching_network_follow_the_rules_one_at_a_time(threshold, keep):
    contexts, finder = 40, finder_of(branching_graph(), keep=keep)
    rates = random_dropouts(finder, contexts=contexts)
    outputs = torch.rand(contexts, 4, generator=torch.Generator().manual_seed(3)) < 0.7
    fates, compared = finder(rates, at(threshold, contexts), outputs), 0
    musts = must_write(finder)
    for context in range(contexts):
        own = [LayerDropout(layer.in_log_dropout[context], layer.out_log_dropout[context]) for layer in rates]
        expected = slow_alive(finder, own, threshold, outputs[context])
        given = fates.alive[context]
        assert not any(is_empty(given, layer) for layer in finder.layers[:-1])
        if any(is_empty(expected, layer) for layer in finder.layers[:-1]):
            assert (expected & ~given).sum() == 0
            assert given.sum() > expected.sum()
            continue
        compared += 1
        assert torch.equal(given, expected)
        for layer, belief, mask_ in zip(finder.layers, own, fates.layers, strict=True):
            arriving = expected[layer.reads]
            read = arriving if layer.is_convolution else arriving & (belief.in_log_dropout < threshold)
            writes = expected[layer.writes] & (musts[layer.name] | (belief.out_log_dropout < threshold))
            assert not writes.any() or torch.equal(mask_.keep_out[context], writes)
            assert mask_.rescued[context].item() == (not read.any())
            assert not read.any() or torch.equal(mask_.keep_in[context], read)
    assert compared > 10 or threshold < 0


def test_a_writer_that_is_noisy_leaves_a_unit_of_the_stream_to_the_others():
    finder = finder_of(branching_graph())
    rates = dropouts(finder, value=QUIET)
    by_name = {layer.name: place for place, layer in enumerate(finder.layers)}
    rates[by_name["one"]].out_log_dropout[0, 2] = NOISY
    fates = finder(rates, at(0.0), all_classes(finder))
    assert fates.alive.all()
    without, whole = [[True, True, False, True, True]], [[True] * 5]
    assert [fates.layers[by_name[name]].keep_out.tolist() for name in ("one", "other")] == [without, whole]
    rates[by_name["other"]].out_log_dropout[0, 2] = NOISY
    fates = finder(rates, at(0.0), all_classes(finder))
    assert (~fates.alive).sum() == 1
    assert [fates.layers[by_name[name]].keep_out.tolist() for name in ("one", "other")] == [without, without]


def test_a_writer_that_is_noisy_throughout_writes_one_unit_of_the_stream_all_the_same():
    finder = finder_of(branching_graph())
    rates = dropouts(finder, value=QUIET)
    by_name = {layer.name: place for place, layer in enumerate(finder.layers)}
    rates[by_name["one"]].out_log_dropout[0] = torch.tensor([NOISY, NOISY, NOISY - 1, NOISY, NOISY])
    assert mask(finder, rates)[by_name["one"]].keep_out.tolist() == [[False, False, True, False, False]]


def test_factors_and_groups_are_written_by_all():
    finder = finder_of(branching_graph())
    rates = dropouts(finder, value=QUIET)
    by_name = {layer.name: place for place, layer in enumerate(finder.layers)}
    for name in ("gate", "branch"):
        rates[by_name[name]].out_log_dropout[0, 1] = NOISY
    assert all(given.keep_out.all() for given in mask(finder, rates))


def test_a_reader_that_is_noisy_skips_a_unit_that_another_reads():
    finder = finder_of(branching_graph())
    rates = dropouts(finder, value=QUIET)
    by_name = {layer.name: place for place, layer in enumerate(finder.layers)}
    rates[by_name["one"]].in_log_dropout[0, 1] = NOISY
    masks = mask(finder, rates)
    assert masks[by_name["one"]].keep_in[0].nonzero().flatten().tolist() == [0, 2, 3, 4, 5, 6, 7]
    assert masks[by_name["other"]].keep_in.all()
    assert masks[by_name["more"]].keep_out.all()


def test_a_group_goes_or_stays():
    graph = chain_of(nn.Conv2d(1, 4, 3), nn.Conv2d(4, 6, 3, groups=2), nn.Flatten(), nn.Linear(24, 4))
    finder = finder_of(graph)
    rates = dropouts(finder)
    rates[1].out_log_dropout[0, 3:] = NOISY
    assert all(given.keep_out.all() for given in mask(finder, rates)), "the first layer still writes the group"
    rates[0].out_log_dropout[0, 2:] = NOISY
    first, grouped, _ = mask(finder, rates)
    assert first.keep_out.tolist() == [[True, True, False, False]]
    assert grouped.keep_out.tolist() == [[True, True, True, False, False, False]]


@pytest.mark.parametrize("threshold", [-12.0, -10.0, -9.0, -8.0, -7.0, 0.0])
def test_single_weights_of_groups_are_read_by_their_own_group(threshold):
    graph = chain_of(nn.Conv1d(2, 4, 3), nn.Conv1d(4, 6, 2, groups=2), nn.Flatten(), nn.Linear(18, 4))
    contexts, finder = 30, finder_of(graph, (2, 6))
    rates = random_weight_rates(finder, contexts=contexts, centre=-2.0)
    fates = finder(rates, at(threshold, contexts), all_classes(finder, contexts))
    for context in range(contexts):
        first, grouped, last = (layer.weights[context] < threshold for layer in rates)
        expected = []
        for group in range(2):
            inputs, outputs = slice(2 * group, 2 * group + 2), slice(3 * group, 3 * group + 3)
            writes = first[inputs].any() or grouped[outputs].any()
            reads = grouped[outputs].any() or last[:, 9 * group : 9 * group + 9].any()
            expected.append(bool(writes and reads))
        if any(expected):
            assert fates.layers[0].keep_out[context].tolist() == [alive for alive in expected for _ in range(2)]
            assert fates.layers[1].keep_out[context].tolist() == [alive for alive in expected for _ in range(3)]
        else:
            assert fates.layers[1].keep_out[context].sum() == 3
