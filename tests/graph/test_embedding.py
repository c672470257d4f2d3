"""Embeddings in the graph: rows are inputs, columns are units."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.errors import BhcError
from bhc.graph import INPUT, capture, find_features, find_layers, find_units
from bhc.layers import Embed

from .nets import net_of
from .test_taken import cut_in_half, near

WORDS, WIDTH, LENGTH = 12, 5, 7


class Reader(nn.Module):
    """Means over the words of a text, in code as people write it."""

    def __init__(self, embedding: nn.Module | None = None, between: Callable[[Tensor], Tensor] = lambda x: x) -> None:
        super().__init__()
        self.embedding = embedding or nn.Embedding(WORDS, WIDTH)
        self.mix, self.end, self.between = nn.Linear(WIDTH, 4), nn.Linear(4, 3), between

    def forward(self, x: Tensor) -> Tensor:
        x = self.embedding(self.between(x))
        return self.end(F.relu(self.mix(x)).mean(1))


def texts(count: int = 4) -> Tensor:
    return torch.randint(WORDS, (count, LENGTH), generator=torch.Generator().manual_seed(0))


def embedding_of(net: nn.Module) -> Embed:
    embed = capture(net, texts(1)).steps[0].module
    assert isinstance(embed, Embed)
    return embed


@pytest.mark.parametrize("between", [lambda x: x, lambda x: x.long(), lambda x: x.int()])
def test_an_embedding_is_traced_with_its_channels_first(between: Callable[[Tensor], Tensor]) -> None:
    net = Reader(between=between)
    graph = capture(net, texts(1))
    assert isinstance(graph.steps[0].module, Embed)
    assert graph.steps[0].reads == (INPUT,)
    torch.testing.assert_close(graph(texts()), net(texts()))
    torch.testing.assert_close(graph(texts().float()), net(texts()))


def test_rows_are_inputs_that_are_always_there_and_columns_are_units() -> None:
    graph = capture(Reader(), texts(1))
    units = find_units(graph, (LENGTH,))
    layer = find_layers(graph, (LENGTH,), units)[0]
    assert layer.weight_shape == (WIDTH, WORDS)
    assert len(layer.reads) == layer.width == WORDS
    assert layer.num_flops == 0
    assert units.always[layer.reads].all()
    assert not units.always[layer.writes].any()
    assert layer.kept_weights(*(torch.arange(size)[None] < some for size, some in ((WORDS, 3), (WIDTH, 2)))) == 6


def test_padding_that_is_zero_has_no_row() -> None:
    embed = embedding_of(Reader(nn.Embedding(WORDS, WIDTH, padding_idx=3)))
    assert embed.rows == WORDS - 1
    assert 3 not in embed.words
    trained = nn.Embedding(WORDS, WIDTH, padding_idx=3)
    nn.init.ones_(trained.weight)
    assert embedding_of(Reader(trained)).rows == WORDS


def test_words_without_a_row_give_zeros() -> None:
    embed = embedding_of(Reader())
    table = embed.weight.clone()
    embed.weight.data = table[:, [1, 4]]
    embed.has_rows_(torch.tensor([1, 4]))
    given = embed(torch.tensor([[0, 1, 4, 11]]))
    nothing = torch.zeros(WIDTH)
    torch.testing.assert_close(given, torch.stack([nothing, table[:, 1], table[:, 4], nothing], 1)[None])


def test_words_are_features() -> None:
    graph = capture(Reader(nn.Embedding(WORDS, WIDTH, padding_idx=0)), texts(1))
    layers = find_layers(graph, (LENGTH,), find_units(graph, (LENGTH,)))
    assert find_features(graph, layers, (LENGTH,), (WORDS,))["embedding"].tolist() == list(range(1, WORDS))
    with pytest.raises(BhcError, match="words of 12") as caught:
        find_features(graph, layers, (LENGTH,), (LENGTH,))
    assert "VocabularySubsets(12)" in (caught.value.hint or "")


def twice(net: Any, x: Tensor) -> Tensor:
    return (net.end(F.relu(net.mix(net.embedding(x)))) + net.other(net.embedding(x))).mean(1)


TWICE = net_of(
    twice, embedding=nn.Embedding(WORDS, WIDTH), mix=nn.Linear(WIDTH, 4), end=nn.Linear(4, 3), other=nn.Linear(WIDTH, 3)
)


@pytest.mark.parametrize(
    "net", [Reader(between=lambda x: x[:, ::2]), TWICE], ids=["some of the words", "a table that is used twice"]
)
def test_other_uses_of_embeddings_are_taken(net: nn.Module) -> None:
    _, slim, masked, _ = cut_in_half(net, texts(2))
    assert near(slim, masked)


def test_a_table_that_changes_when_it_is_read_is_refused() -> None:
    with pytest.raises(BhcError, match="writes"):
        capture(Reader(nn.Embedding(WORDS, WIDTH, max_norm=1.0)), texts(1))
