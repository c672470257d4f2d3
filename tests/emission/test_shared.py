"""Weights that are used several times get smaller, with one fate: whatever calls them, they are there once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import make_cut, slim_model
from bhc.formats import WeightForm, onnx_bytes, open_deployed
from bhc.graph import Graph, count, describe, rebuild
from bhc.hypernet import GeneratorSpec
from bhc.models import Normalise
from bhc.posterior import FAMILIES
from bhc.training import Silent

from .networks import assert_equal, masked, spread_

CLASSES, WORDS, TOKENS, WIDTH, HEADS, FULL = 4, 20, 6, 12, 3, 50
THRESHOLDS = (-4.0, -1.0, 1.0, 4.0, 9.0)


class Siamese(nn.Module):
    """One tower for both channels of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = Normalise(0.0, FULL)
        self.tower = nn.Sequential(
            nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 6, 3), nn.Flatten(), nn.Linear(24, 12)
        )
        self.end = nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.normalise(x)
        left, right = self.tower(x[:, :1]), self.tower(x[:, 1:])
        return self.end(torch.cat([left * right, (left - right).abs()], 1))


class Block(nn.Module):
    """Attention and two layers on a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.wide, self.narrow = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        y = self.before(x)
        heads = [layer(y).unflatten(-1, (HEADS, -1)).transpose(1, 2) for layer in (self.query, self.key, self.value)]
        x = x + self.out(F.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.between(x))))


class ThreeTimes(nn.Module):
    """The same block at every depth, as in ALBERT."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.block, self.norm = nn.Linear(5, WIDTH), Block(), nn.LayerNorm(WIDTH)
        self.end = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for _ in range(3):
            x = self.block(x)
        return self.end(self.norm(x).mean(1))


class TiedAutoencoder(nn.Module):
    """Two layers, and back through both, transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.outer, self.inner = nn.Linear(5, 16), nn.Linear(16, 12), nn.Linear(12, 8, bias=False)
        self.shift, self.end = nn.Parameter(torch.randn(12)), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = F.relu(self.inner(F.relu(self.outer(F.relu(self.first(x))))))
        hidden = F.relu(F.linear(hidden, self.inner.weight.t(), self.shift))
        return self.end(F.relu(hidden @ self.outer.weight))


class TiedGpt(nn.Module):
    """Logits of words by the table that the words were picked from."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, WIDTH), nn.Parameter(0.1 * torch.randn(TOKENS, WIDTH))
        self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.norm(self.block(self.words(x) + self.places))[:, -1])


class BothDirections(nn.Module):
    """One recurrence for a sequence and for what it is backwards."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn, self.end = nn.GRU(5, 8, batch_first=True), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.end(torch.cat([self.rnn(x)[0][:, -1], self.rnn(x.flip(1))[0][:, -1]], 1))


class SameTable(nn.Module):
    """Two halves of a text, picked from one table."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.mix = nn.Embedding(WORDS, WIDTH, padding_idx=0), nn.Linear(WIDTH, 9)
        self.end = nn.Linear(18, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        halves = [self.mix(self.words(part)).relu().mean(1) for part in (x[:, :3], x[:, 3:])]
        return self.end(torch.cat(halves, 1))


def numbers(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def texts(count: int) -> Tensor:
    return torch.randint(1, WORDS, (count, TOKENS), generator=torch.Generator().manual_seed(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Tensor, dict[str, int]]] = {
    "siamese": (Siamese, FULL * numbers(7, 2, 6, 6), {"tower_0": 2, "tower_3": 2, "tower_5": 2}),
    "three times": (ThreeTimes, numbers(7, 4, 5), {"block_query": 3, "block_out": 3, "block_narrow": 3}),
    "autoencoder": (TiedAutoencoder, numbers(7, 5), {"outer": 2, "inner": 2}),
    "gpt": (TiedGpt, texts(7), {"words": 2}),
    "recurrence": (BothDirections, numbers(7, 4, 5), {"rnn_ih_l0": 2, "rnn_hh_l0": 2}),
    "table": (SameTable, texts(7), {"words": 2, "mix": 2}),
}
CONTEXT = Context()


def wrapped(name: str, generator: GeneratorSpec | None = None, family: str = "io-gnj") -> tuple[bhc.Compressor, Tensor]:
    torch.manual_seed(0)
    build, x, _ = NETWORKS[name]
    options: dict[str, Any] = {"weight_generator": generator, "family": family}
    model = bhc.wrap(build().eval(), bhc.SingleContext(), example_input=x[:2], **options)
    spread_(model.network, family)
    return model, x


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_there_is_one_layer_and_nothing_stays_whole(name: str) -> None:
    build, x, calls = NETWORKS[name]
    net = build().eval()
    network = bhc.wrap(net, bhc.SingleContext(), example_input=x[:2]).network
    assert_equal(network.base_model(x), net(x))
    own = {layer.name: len(layer.calls) + len(layer.transposed) for layer in network.layers}
    assert own | calls == own
    assert {name for name, times in own.items() if times > 1} >= set(calls)
    assert not [whole for whole in network.whole if whole.name in own]
    assert sum(layer.num_weights for layer in network.layers) <= network.num_weights


@torch.no_grad()
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("name", NETWORKS)
def test_slim_equals_masked(name: str, family: str) -> None:
    model, x = wrapped(name, bhc.LowRank(rank=3), family)
    sizes = set()
    for threshold in THRESHOLDS:
        cut = make_cut(model.network, CONTEXT, threshold)
        slim = slim_model(model.network, cut)
        assert_equal(slim(x), masked(model.network, CONTEXT, x, threshold))
        assert_equal(slim.plain()(x), slim(x))
        counts = count(slim, model.network.input_shape)
        assert (counts.weights, counts.flops) == (cut.num_weights, cut.num_flops)
        sizes.add(cut.num_weights)
    assert len(sizes) > 2


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_a_description_and_every_file_have_the_numbers_once(name: str, tmp_path: Path) -> None:
    model, x = wrapped(name)
    small = model.compress(threshold=1.0)
    graph = small.network.graph
    again = rebuild(describe(graph))
    again.load_state_dict(graph.state_dict())
    assert torch.equal(again.eval()(x), graph(x))
    assert count(again, small.network.input_shape) == small.network.counts
    small.save(tmp_path / "net.bhc")
    read = bhc.read(tmp_path / "net.bhc")
    assert_equal(read.module(x), small.module(x))
    assert read.network.counts == small.network.counts
    assert len(read.network.layers) == len(small.network.layers)
    for suffix in ("onnx", "pt2"):
        small.export(tmp_path / f"net.{suffix}")
        assert_equal(open_deployed(tmp_path / f"net.{suffix}").logits(x), small.module(x))


def test_integer_weights_stand_in_a_model_once() -> None:
    model, _ = wrapped("gpt")
    network = model.compress(threshold=1.0).network
    for form, ending in ((WeightForm.FLOATS, "weight"), (WeightForm.INTEGERS, "codes")):
        written = onnx.load_from_string(onnx_bytes(network, weights=form)).graph.initializer
        stored = [numbers.name for numbers in written if numbers.name.endswith(f".{ending}")]
        assert sorted(stored) == sorted(f"{layer.name}.{ending}" for layer in network.layers)


@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=3), bhc.Full()], ids=lambda g: g.kind)
@pytest.mark.parametrize("name", NETWORKS)
def test_contexts_side_by_side_and_what_noise_reaches(name: str, generator: GeneratorSpec) -> None:
    torch.manual_seed(0)
    build, x, _ = NETWORKS[name]
    network = bhc.wrap(build().eval(), bhc.Budgets(), example_input=x[:2], weight_generator=generator).network
    batch = ContextBatch.of([Context(budget=0.3), Context(budget=0.9)], network.num_classes)
    both = torch.cat([x, x])
    noise = bhc.posterior.FreshNoise(torch.Generator().manual_seed(0))
    sample, posteriors = network.noisy(both, batch, noise=noise)
    assert sample.isfinite().all()
    (sample.square().mean() + network.hypernet.kl(posteriors).mean()).backward()
    for head in network.hypernet.weight_heads:
        assert all(each.grad is not None and each.grad.isfinite().all() for each in head.parameters())


def test_it_is_trained_kept_in_a_folder_and_read_again(tmp_path: Path) -> None:
    model, x = wrapped("siamese")
    data = ((FULL * numbers(64, 2, 6, 6)).clamp(0, 255).byte(), torch.arange(64) % CLASSES)
    recipe = (bhc.Learn(steps=4), bhc.Consolidate(steps=2))
    trained = bhc.fit(model, data, data, recipe=recipe, run=tmp_path / "run", progress=Silent())
    again = bhc.load(tmp_path / "run")
    assert [layer.calls for layer in again.network.layers] == [layer.calls for layer in trained.network.layers]
    assert_equal(again.compress().module(x), trained.compress().module(x))


def test_a_layer_that_reads_the_input_and_something_else_has_no_features() -> None:
    class Again(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.end = nn.Linear(5, 5), nn.Linear(5, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.end(self.first(self.first(x).relu()).relu())

    with pytest.raises(bhc.BhcError, match="another call"):
        bhc.wrap(Again(), bhc.FeatureSubsets((5,)), example_input=numbers(2, 5))


def test_a_transpose_alone_is_a_layer() -> None:
    """Where nobody reads the layer itself."""

    class Unread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.end = nn.Linear(5, 8), nn.Linear(5, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            self.table(x[:, :5])
            return self.end(F.linear(x, self.table.weight.t()))

    net, x = Unread().eval(), numbers(3, 8)
    graph: Graph = bhc.wrap(net, bhc.SingleContext(), example_input=x).network.base_model
    assert_equal(graph(x), net(x))
    assert [type(step.module) for step in graph.steps] == [nn.Linear, nn.Linear]
