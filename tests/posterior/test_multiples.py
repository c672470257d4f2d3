"""Channels in multiples: what is kept beside the living units, and who reads and writes it."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import INPUT, find_layers, find_units
from bhc.layers import Add, Concat, Embed, GlobalMean
from bhc.posterior import ChannelRounding, LayerDropout, MaskFinder, Multiples

from ..formats.graphs import in_a_row, wired
from .toys import all_classes, at, branching_graph, finder_of, random_dropouts, random_weight_rates

CONTEXTS = 40


def chain():
    """A convolution, and after a flatten two linear layers: 10 filters at 4 places each, 23 hidden."""
    steps = (nn.Conv2d(1, 10, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
    return in_a_row(*steps, nn.Linear(40, 23), nn.ReLU(), nn.Linear(23, 4))


def stream():
    """Two layers that add to one stream of 12, one that reads of it, and what it says beside it."""
    return wired(
        ("stem", nn.Conv2d(1, 12, 3, padding=1)),
        ("inner", nn.Conv2d(12, 9, 1)),
        ("back", nn.Conv2d(9, 12, 1)),
        ("sum", Add(), "stem", "back"),
        ("flat", nn.Flatten()),
        ("one", nn.Linear(432, 20)),
        ("other", nn.Linear(432, 11), "flat"),
        ("beside", Concat(), "one", "other"),
        ("end", nn.Linear(31, 4)),
    )


def grouped():
    """Of four groups, in which the first layer writes two channels and the second three."""
    return in_a_row(nn.Conv2d(1, 8, 3), nn.Conv2d(8, 12, 3, groups=4), nn.Flatten(), nn.Linear(48, 4))


def linear():
    return in_a_row(nn.Flatten(), nn.Linear(36, 13), nn.ReLU(), nn.Linear(13, 4))


def beside_the_input():
    """A layer that reads what another one writes and the network's input."""
    return wired(
        ("flat", nn.Flatten()),
        ("one", nn.Linear(36, 11)),
        ("beside", Concat(), "one", "flat"),
        ("end", nn.Linear(47, 4)),
    )


NETWORKS = {
    "beside the input": beside_the_input,
    "chain": chain,
    "stream": stream,
    "grouped": grouped,
    "linear": linear,
    "branches": branching_graph,
}


def rounded_network(build, round_to, *, shape=(1, 6, 6), nested=False):
    """A mask finder, and what rounds its units."""
    graph = build()
    units = find_units(graph, shape)
    layers = find_layers(graph, shape, units)
    finder = MaskFinder(layers, units, graph.last_step, nested=nested)
    multiples = Multiples.of(round_to, layers, finder.outputs)
    assert multiples is not None
    rounding = ChannelRounding(multiples, layers, units, graph, device=torch.device("cpu"))
    return SimpleNamespace(finder=finder, rounding=rounding, units=units, multiples=multiples, last=layers[-1].name)


def found(network, rates, threshold, *, rounded=True):
    outputs = torch.rand(CONTEXTS, 4, generator=torch.Generator().manual_seed(3)) < 0.7
    rounding = network.rounding if rounded else None
    return network.finder(rates, at(threshold, CONTEXTS), outputs, rounding=rounding)


@pytest.mark.parametrize("threshold", [-9.0, -1.0, 1.0, 4.0])
@pytest.mark.parametrize("multiple", [2, 4, 7])
@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
@pytest.mark.parametrize("rates_of", [random_dropouts, random_weight_rates], ids=["scales", "single weights"])
def test_every_layer_has_a_multiple_or_all_of_what_it_could(build, multiple, threshold, rates_of):
    network = rounded_network(build, multiple)
    rates = rates_of(network.finder, contexts=CONTEXTS)
    plain, rounded = (found(network, rates, threshold, rounded=each) for each in (False, True))
    assert (plain.alive <= rounded.alive).all()
    more = 0
    for layer, before, after in zip(network.finder.layers, plain.layers, rounded.layers, strict=True):
        # Where nothing is under the threshold the least noisy place is read, unless others are read whole.
        compared = ~before.rescued if build is beside_the_input else before.keep_in.any(1)
        assert (before.keep_in <= after.keep_in)[compared].all()
        assert (before.keep_out <= after.keep_out).all()
        more += int((after.keep_out & ~before.keep_out).sum())
        arriving, living = rounded.alive[:, layer.reads], rounded.alive[:, layer.writes]
        assert torch.equal(after.keep_out, living), "nothing is left to others"
        reads = after.keep_in.sum(1)
        given = torch.isin(layer.reads, torch.from_numpy(network.units.carried[INPUT]))
        assert torch.equal(after.keep_in[:, ~given], arriving[:, ~given]), "nothing is skipped but of the input"
        assert ((reads % multiple == 0) | (after.keep_in == arriving).all(1)).all()
        if layer.name != network.last:
            assert ((living.sum(1) % multiple == 0) | living.all(1)).all()
    assert more or threshold > -9


@pytest.mark.parametrize("threshold", [-9.0, -1.0, 1.0])
def test_the_least_noisy_of_the_dead_are_kept_too(threshold):
    """Group by group, with the rules as they are told."""
    network = rounded_network(stream, {"stem": 4, "inner": 2, "back": 6, "one": 8})
    rates = random_dropouts(network.finder, contexts=CONTEXTS)
    noise = network.finder.noisiest_links(rates, all_classes(network.finder, CONTEXTS))
    plain, rounded = (found(network, rates, threshold, rounded=each).alive for each in (False, True))
    written = {layer.name: layer.writes for layer in network.finder.layers}
    for name, multiple in {"stem": 12, "inner": 2, "one": 8, "other": 1}.items():  # of 4 and of 6 is of 12
        group = written[name]
        for context in range(CONTEXTS):
            alive = plain[context, group]
            count = min(-(-int(alive.sum()) // multiple) * multiple, len(group))
            order = sorted(range(len(group)), key=lambda unit: (not alive[unit], noise[context, group[unit]].item()))
            kept = torch.zeros(len(group), dtype=torch.bool)
            kept[order[:count]] = True
            assert torch.equal(rounded[context, group], kept), name


def test_a_group_of_fewer_than_the_multiple_stays_whole_and_outputs_are_those_of_the_context():
    network = rounded_network(stream, 16)
    rates = random_dropouts(network.finder, contexts=CONTEXTS)
    alive = found(network, rates, -2.0).alive
    outputs = torch.rand(CONTEXTS, 4, generator=torch.Generator().manual_seed(3)) < 0.7
    for layer in network.finder.layers:
        living = alive[:, layer.writes]
        if layer.name == "end":
            assert torch.equal(living, outputs)
        elif layer.name == "one":
            assert set(living.sum(1).tolist()) <= {16, 20}
        else:
            assert living.all()


def test_channels_are_counted_and_not_groups():
    """Of four groups the layers write two and three channels each: six of one are no four of the other."""
    network = rounded_network(grouped, {"0": 4, "1": 3})
    rates = random_dropouts(network.finder, contexts=CONTEXTS)
    first, second, _ = found(network, rates, -1.0).layers
    assert set(first.keep_out.sum(1).tolist()) == {4, 8}
    assert set(second.keep_out.sum(1).tolist()) == {6, 12}


def test_units_that_are_never_cut_count():
    graph, shape = stream(), (1, 6, 6)
    units = find_units(graph, shape, keep=["inner"])  # all that it reads and writes: the stream too
    layers = find_layers(graph, shape, units)
    finder = MaskFinder(layers, units, graph.last_step)
    multiples = Multiples.of(5, layers, finder.outputs)
    rounding = ChannelRounding(multiples, layers, units, graph, device=torch.device("cpu"))
    rates = random_dropouts(finder, contexts=CONTEXTS)
    masks = finder(rates, at(-1.0, CONTEXTS), all_classes(finder, CONTEXTS), rounding=rounding)
    counts = [set(masks.alive[:, layer.writes].sum(1).tolist()) for layer in layers]
    assert counts[:3] == [{12}, {9}, {12}]
    assert counts[3] <= {5, 10, 15, 20}


def test_of_the_input_a_linear_layer_reads_the_least_noisy_until_they_are_a_multiple():
    network = rounded_network(linear, 8)
    rates = random_dropouts(network.finder, contexts=CONTEXTS)
    own = rates[0].in_log_dropout
    kept = found(network, rates, -1.0).layers[0].keep_in
    for context in range(CONTEXTS):
        quiet = int((own[context] < -1).sum())
        count = min(-(-quiet // 8) * 8, 36)
        assert kept[context].nonzero().flatten().tolist() == sorted(own[context].argsort()[:count].tolist())


def test_features_that_are_missing_are_not_read_for_the_sake_of_a_multiple():
    network = rounded_network(linear, 8)
    graph, shape = linear(), (1, 6, 6)
    finder = MaskFinder(
        find_layers(graph, shape, network.units), network.units, graph.last_step, features={"1": torch.arange(36)}
    )
    present = torch.rand(CONTEXTS, 36, generator=torch.Generator().manual_seed(5)) < 0.4
    rates = random_dropouts(finder, contexts=CONTEXTS)
    outputs = all_classes(finder, CONTEXTS)
    kept = finder(rates, at(0, CONTEXTS), outputs, present, rounding=network.rounding).layers[0].keep_in
    assert (kept <= present).all()
    assert ((kept.sum(1) % 8 == 0) | (kept == present).all(1)).all()
    assert len(set(kept.sum(1).tolist())) > 1


def test_rows_of_words_are_no_channels():
    def texts():
        return in_a_row(Embed(40, 40, 6), GlobalMean(False), nn.Linear(6, 4))

    network = rounded_network(texts, 4, shape=(5,))
    rates = random_dropouts(network.finder, contexts=CONTEXTS)
    plain, rounded = (found(network, rates, 0.0, rounded=each).layers for each in (False, True))
    assert torch.equal(plain[0].keep_in, rounded[0].keep_in)
    assert set(rounded[0].keep_out.sum(1).tolist()) == {4, 6}


def test_layers_without_rates_at_one_end_are_rounded_too():
    network = rounded_network(linear, 4)
    rates = [LayerDropout(layer.in_log_dropout, None) for layer in random_dropouts(network.finder, contexts=CONTEXTS)]
    rates[0] = LayerDropout(None, rates[0].out_log_dropout)
    first, last = found(network, rates, 0.0).layers
    assert first.keep_in.all()
    assert set(last.keep_in.sum(1).tolist()) <= {4, 8, 12, 13}


def test_a_layer_that_is_not_named_is_cut_as_ever():
    network = rounded_network(chain, {"4": 8})
    rates = random_dropouts(network.finder, contexts=CONTEXTS)
    plain, rounded = (found(network, rates, 0.0, rounded=each).layers for each in (False, True))
    assert torch.equal(plain[0].keep_out, rounded[0].keep_out)
    assert set(rounded[1].keep_out.sum(1).tolist()) <= {8, 16, 23}
    # What the named layer reads is not picked: of each filter that lives it reads all places.
    assert torch.equal(rounded[1].keep_in, rounded[0].keep_out.repeat_interleave(4, dim=1))


def weights_of(network, masks):
    each = zip(network.finder.layers, masks.layers, strict=True)
    return sum(layer.kept_weights(mask.keep_in, mask.keep_out) for layer, mask in each)


@pytest.mark.parametrize("round_to", [1, 2, 3, 5, 8])
@pytest.mark.parametrize("build", NETWORKS.values(), ids=NETWORKS)
def test_as_rates_rise_weights_only_get_fewer(build, round_to):
    """Units that are kept may be others; of one layer there are never more."""
    of_one_layer = {next(layer.name for layer in finder_of(build()).layers): 4}
    network = rounded_network(build, of_one_layer if round_to == 1 else round_to, nested=True)
    rng, fewer = torch.Generator().manual_seed(0), 0
    for seed in range(10):
        rates = random_dropouts(network.finder, contexts=CONTEXTS, seed=seed)
        higher = [
            LayerDropout(
                *(
                    part + torch.randn(part.shape, generator=rng).clamp(min=0)
                    for part in vars(layer).values()
                    if part is not None
                )
            )
            for layer in rates
        ]
        for threshold in (-9.0, -2.0, 0.0, 2.0):
            before, after = (weights_of(network, found(network, each, threshold)) for each in (rates, higher))
            assert (after <= before).all()
            fewer += int((after < before).sum())
    assert fewer or round_to > 4, "of so few units all stay"


LAYERS, OUTPUTS = (lambda n: (n.finder.layers, n.finder.outputs))(rounded_network(stream, 2))


@pytest.mark.parametrize(
    "round_to", [0, -8, 8.0, True, "8", [8], 10**400, {"one": 0}, {"one": 2.5}, {"one": False}, {"one": None}], ids=str
)
def test_what_is_no_multiple_is_refused(round_to):
    with pytest.raises(BhcError, match="whole number from 1") as caught:
        Multiples.of(round_to, LAYERS, OUTPUTS)
    assert isinstance(round_to, dict) == ("layer 'one'" in caught.value.problem)
    assert "{'fc1': 16}" in caught.value.hint


@pytest.mark.parametrize(("name", "noun"), [("two", "none of the network's"), ("end", "outputs"), (5, "'5'")])
def test_what_is_no_layer_to_be_rounded_is_refused_with_those_that_are(name, noun):
    with pytest.raises(BhcError, match=noun) as caught:
        Multiples.of({"one": 8, name: 4}, LAYERS, OUTPUTS)
    assert caught.value.hint == "the layers are: stem, inner, back, one, other"


@pytest.mark.parametrize("round_to", [None, 1, {}, {"one": 1}], ids=str)
def test_nothing_to_round_is_nothing(round_to):
    assert Multiples.of(round_to, LAYERS, OUTPUTS) is None


def test_multiples_are_plain_data_again():
    for round_to in (8, {"one": 16, "inner": 8}):
        assert Multiples.of(round_to, LAYERS, OUTPUTS).given == round_to
    assert Multiples.of({"one": 16, "inner": 8}, LAYERS, OUTPUTS).of_layer("other") == 1
    assert str(Multiples(8)) == "of 8"
