import pytest
import torch
from torch import nn

from bhc.graph import find_layers
from bhc.models import lenet_5_caffe
from bhc.posterior import LayerDropout, find_masks

from .toys import small_chain, small_layers

QUIET, NOISY = -5.0, 5.0


def dropouts(layers, *, contexts=1, value=QUIET):
    """The rates of two-group scales, all equal."""
    return [
        LayerDropout(
            torch.full((contexts, 1 if layer.is_convolution else layer.num_inputs), value),
            torch.full((contexts, layer.num_outputs), value),
        )
        for layer in layers
    ]


def random_dropouts(layers, *, contexts, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        LayerDropout(*(3 * torch.randn(part.shape, generator=generator) for part in parts))
        for parts in ((rates.in_log_dropout, rates.out_log_dropout) for rates in dropouts(layers, contexts=contexts))
    ]


def at(threshold, contexts=1):
    return torch.full((contexts, 1), float(threshold))


def all_classes(layers, contexts=1):
    return torch.ones(contexts, layers[-1].num_outputs).bool()


def mask(layers, rates, *, threshold=0.0):
    """Masks of a single context."""
    return find_masks(layers, rates, at(threshold), all_classes(layers))


def slow_masks(layers, rates, threshold, outputs):
    """The rules one unit at a time, for one context: kept positions and units, None where none was left."""
    keep_in, keep_out = [], []
    for index, layer in enumerate(layers):
        units = layer.num_inputs // layer.positions
        positions, alive = [], []
        for unit in range(units):
            readers = [True] * layer.positions
            if not layer.is_convolution:
                own = rates[index].in_log_dropout[unit * layer.positions : (unit + 1) * layer.positions]
                readers = [rate < threshold for rate in own.tolist()]
            written = index == 0 or rates[index - 1].out_log_dropout[unit].item() < threshold
            alive.append(written and any(readers))
            positions += [alive[-1] and reader for reader in readers]
        keep_in.append(positions if any(alive) else None)
        if index:
            keep_out.append(alive if any(alive) else None)
    return keep_in, [*keep_out, outputs.tolist()]


@pytest.fixture
def layers():
    """Units: 1 input, 3 filters (4 positions each), 5 hidden, 4 classes."""
    return small_layers(small_chain())


@pytest.mark.parametrize("threshold", [-6.0, -2.0, 0.0, 3.0])
def test_masks_follow_the_rules_one_unit_at_a_time(layers, threshold):
    contexts = 40
    rates = random_dropouts(layers, contexts=contexts)
    outputs = torch.rand(contexts, 4, generator=torch.Generator().manual_seed(3)) < 0.5
    masks = find_masks(layers, rates, at(threshold, contexts), outputs)
    for context in range(contexts):
        own = [LayerDropout(layer.in_log_dropout[context], layer.out_log_dropout[context]) for layer in rates]
        keep_in, keep_out = slow_masks(layers, own, threshold, outputs[context])
        for given, inputs in zip(masks, keep_in, strict=True):
            assert given.rescued[context].item() == (inputs is None)
            assert inputs is None or given.keep_in[context].tolist() == inputs
        for given, units in zip(masks, keep_out, strict=True):
            assert units is None or given.keep_out[context].tolist() == units


def test_everything_quiet_stays(layers):
    for given in mask(layers, dropouts(layers)):
        assert given.keep_in.all()
        assert given.keep_out.all()
        assert not given.rescued.any()


def test_a_unit_whose_writer_is_noisy_dies(layers):
    rates = dropouts(layers)
    rates[1].out_log_dropout[0, 2] = NOISY
    _, middle, last = mask(layers, rates)
    assert middle.keep_out.tolist() == [[True, True, False, True, True]]
    assert last.keep_in.tolist() == [[True, True, False, True, True]]


def test_a_unit_that_nobody_reads_dies(layers):
    rates = dropouts(layers)
    rates[2].in_log_dropout[0, 4] = NOISY
    _, middle, last = mask(layers, rates)
    assert middle.keep_out.tolist() == [[True, True, True, True, False]]
    assert last.keep_in.tolist() == [[True, True, True, True, False]]


def test_after_a_flatten_a_noisy_reader_skips_its_position_and_the_filter_lives(layers):
    rates = dropouts(layers)
    rates[1].in_log_dropout[0, [0, 5, 6, 7]] = NOISY
    first, middle, _ = mask(layers, rates)
    assert first.keep_out.all()
    assert middle.keep_in[0].nonzero().flatten().tolist() == [1, 2, 3, 4, 8, 9, 10, 11]


def test_after_a_flatten_a_filter_dies_with_its_last_position(layers):
    rates = dropouts(layers)
    rates[1].in_log_dropout[0, 4:8] = NOISY
    first, middle, _ = mask(layers, rates)
    assert first.keep_out.tolist() == [[True, False, True]]
    assert middle.keep_in[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 8, 9, 10, 11]


def test_a_dead_filter_is_read_at_none_of_its_positions(layers):
    rates = dropouts(layers)
    rates[0].out_log_dropout[0, 0] = NOISY
    _, middle, _ = mask(layers, rates)
    assert middle.keep_in[0].nonzero().flatten().tolist() == list(range(4, 12))


def test_the_input_scale_of_a_convolution_decides_nothing():
    layers = find_layers(lenet_5_caffe(image_shape=(1, 16, 16)), torch.zeros(1, 1, 16, 16))
    quiet, noisy = dropouts(layers), dropouts(layers)
    for rates in noisy[:2]:
        rates.in_log_dropout.fill_(NOISY)
    for first, second in zip(mask(layers, quiet), mask(layers, noisy), strict=True):
        assert torch.equal(first.keep_in, second.keep_in)
        assert torch.equal(first.keep_out, second.keep_out)
        assert not second.rescued.any()


def test_noisy_pixels_of_a_linear_first_layer_are_not_read():
    chain = small_chain()[4:]
    layers = find_layers(chain, torch.zeros(1, 12))
    rates = dropouts(layers)
    rates[0].in_log_dropout[0, :10] = NOISY
    first, _ = mask(layers, rates)
    assert first.keep_in[0].nonzero().flatten().tolist() == [10, 11]


def test_a_layer_that_would_be_empty_keeps_its_least_noisy_unit(layers):
    rates = dropouts(layers)
    rates[1].out_log_dropout[0] = torch.tensor([5.0, 4.0, 2.0, 3.0, 1.0])
    rates[2].in_log_dropout[0] = torch.tensor([1.0, 1.0, 1.5, 1.0, 9.0])
    first, middle, last = mask(layers, rates)
    assert [layer.rescued.item() for layer in (first, middle, last)] == [False, False, True]
    assert middle.keep_out.tolist() == [[False, False, True, False, False]]
    assert torch.equal(last.keep_in, middle.keep_out)


def test_a_rescued_filter_is_read_at_its_least_noisy_position(layers):
    rates = dropouts(layers)
    rates[1].in_log_dropout[0] = torch.arange(12.0).flip(0) + 1
    first, middle, _ = mask(layers, rates)
    assert middle.rescued.item()
    assert first.keep_out.tolist() == [[False, False, True]]
    assert middle.keep_in[0].nonzero().flatten().tolist() == [11]


def test_rescue_is_a_matter_of_one_context(layers):
    rates = dropouts(layers, contexts=2)
    rates[2].in_log_dropout[1] = NOISY
    last = find_masks(layers, rates, at(0, 2), all_classes(layers, 2))[-1]
    assert last.rescued.tolist() == [False, True]
    assert last.keep_in.sum(1).tolist() == [5, 1]


def test_every_context_has_a_threshold_of_its_own(layers):
    rates = dropouts(layers, contexts=2)
    rates[2].in_log_dropout[:] = torch.arange(5.0)
    threshold = torch.tensor([[1.5], [3.5]])
    last = find_masks(layers, rates, threshold, all_classes(layers, 2))[-1]
    assert last.keep_in.sum(1).tolist() == [2, 4]


def test_the_last_layer_keeps_the_classes_of_the_context(layers):
    rates = dropouts(layers, contexts=2)
    rates[2].out_log_dropout.fill_(NOISY)
    outputs = torch.tensor([[True, False, False, True], [False, True, False, False]])
    assert torch.equal(find_masks(layers, rates, at(0, 2), outputs)[-1].keep_out, outputs)


def test_layers_without_output_scales_are_cut_by_their_readers(layers):
    rates = [
        LayerDropout(None, torch.tensor([[QUIET, NOISY, QUIET]])),
        LayerDropout(torch.full((1, 12), QUIET), None),
        LayerDropout(torch.tensor([[QUIET, QUIET, QUIET, NOISY, NOISY]]), None),
    ]
    first, middle, last = mask(layers, rates)
    assert first.keep_out.tolist() == [[True, False, True]]
    assert middle.keep_out.tolist() == [[True, True, True, False, False]]
    assert last.keep_out.all()


@pytest.mark.parametrize(("lower", "higher"), [(-8, -4), (-4, -2), (-2, 0), (0, 2), (2, 8)])
def test_a_lower_threshold_never_keeps_more(layers, lower, higher):
    contexts = 50
    rates = random_dropouts(layers, contexts=contexts, seed=1)
    outputs = all_classes(layers, contexts)
    few, many = (find_masks(layers, rates, at(threshold, contexts), outputs) for threshold in (lower, higher))
    for small, large in zip(few, many, strict=True):
        free = ~small.rescued
        assert not (small.keep_in & ~large.keep_in)[free].any()
        assert (small.keep_in.sum(1) >= 1).all()
    assert sum(int(small.keep_in.sum()) for small in few) < sum(int(large.keep_in.sum()) for large in many)


def test_writers_and_readers_agree_about_who_lives(layers):
    rates = random_dropouts(layers, contexts=30, seed=2)
    masks = find_masks(layers, rates, at(-1, 30), all_classes(layers, 30))
    for layer, writer, reader in zip(layers[1:], masks, masks[1:], strict=False):
        read = reader.keep_in.reshape(30, -1, layer.positions).any(2)
        assert torch.equal(writer.keep_out, read)


def test_rates_are_not_changed(layers):
    rates = random_dropouts(layers, contexts=3)
    before = [(layer.in_log_dropout.clone(), layer.out_log_dropout.clone()) for layer in rates]
    find_masks(layers, rates, at(0, 3), all_classes(layers, 3))
    for layer, (inputs, outputs) in zip(rates, before, strict=True):
        assert torch.equal(layer.in_log_dropout, inputs)
        assert torch.equal(layer.out_log_dropout, outputs)


def weight_rates(layers, *, contexts=1, value=QUIET):
    """The rates of single weights, all equal."""
    return [LayerDropout(None, None, torch.full((contexts, *layer.weight_shape), value)) for layer in layers]


def random_weight_rates(layers, *, contexts, centre=0.0, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [
        LayerDropout(None, None, centre + 3 * torch.randn(contexts, *layer.weight_shape, generator=generator))
        for layer in layers
    ]


@pytest.fixture
def two_convolutions():
    """Units: 1 channel, 3 filters, 2 filters (4 positions each), 5 hidden, 4 classes."""
    chain = nn.Sequential(
        nn.Conv2d(1, 3, 2),
        nn.ReLU(),
        nn.Conv2d(3, 2, 2),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(8, 5),
        nn.ReLU(),
        nn.Linear(5, 4),
    )
    return find_layers(chain, torch.zeros(1, 1, 6, 6))


def slow_weight_masks(layers, kept):
    """Kept positions, kept units (None where none is left) of one context, weight by weight."""
    keep_in, keep_out = [], []
    for index, layer in enumerate(layers):
        units = layer.num_inputs // layer.positions
        positions, alive = [], []
        for unit in range(units):
            places = range(unit * layer.positions, (unit + 1) * layer.positions)
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


@pytest.mark.parametrize("chain", ["layers", "two_convolutions"])
@pytest.mark.parametrize("threshold", [-12.0, -7.0, -5.0, 0.0])
def test_a_unit_lives_if_a_kept_weight_leads_to_it_and_one_leads_from_it(request, chain, threshold):
    contexts, layers = 30, request.getfixturevalue(chain)
    rates = random_weight_rates(layers, contexts=contexts)
    masks = find_masks(layers, rates, at(threshold, contexts), all_classes(layers, contexts))
    for context in range(contexts):
        kept = [layer.weights[context] < threshold for layer in rates]
        keep_in, keep_out = slow_weight_masks(layers, kept)
        for given, own, inputs in zip(masks, kept, keep_in, strict=True):
            assert torch.equal(given.keep_weight[context], own)
            assert given.rescued[context].item() == (inputs is None)
            assert inputs is None or given.keep_in[context].tolist() == inputs
        for given, units in zip(masks, keep_out, strict=False):
            assert units is None or given.keep_out[context].tolist() == units


def test_weights_shared_by_all_contexts_are_cut_at_the_threshold_of_each(layers):
    rates = random_weight_rates(layers, contexts=1)
    threshold = torch.tensor([[-4.0], [0.0], [4.0]])
    masks = find_masks(layers, rates, threshold, all_classes(layers, 3))
    for context, own in enumerate(threshold):
        alone = find_masks(layers, rates, own[None], all_classes(layers))
        for together, single in zip(masks, alone, strict=True):
            assert torch.equal(together.keep_weight[context], single.keep_weight[0])
            assert torch.equal(together.keep_in[context], single.keep_in[0])
            assert torch.equal(together.keep_out[context], single.keep_out[0])


def test_a_noisy_weight_goes_alone(layers):
    rates = weight_rates(layers)
    rates[1].weights[0, 2, 7] = NOISY
    for index, given in enumerate(mask(layers, rates)):
        assert given.keep_in.all()
        assert given.keep_out.all()
        assert int((~given.keep_weight).sum()) == (index == 1)


def test_a_unit_goes_with_the_last_weight_that_leads_from_it(layers):
    rates = weight_rates(layers)
    rates[2].weights[0, :, 4] = NOISY
    _, middle, last = mask(layers, rates)
    assert middle.keep_out.tolist() == [[True, True, True, True, False]]
    assert torch.equal(last.keep_in, middle.keep_out)


def test_families_with_groups_keep_every_single_weight(layers):
    assert all(given.keep_weight is None for given in mask(layers, dropouts(layers)))
