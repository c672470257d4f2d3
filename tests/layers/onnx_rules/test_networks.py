"""Small transformers in every form in which people write attention: written by our rules, run at any batch."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bhc.formats import Codes, QuantisedNetwork, WeightForm, onnx_bytes, open_session
from bhc.graph import Graph, capture
from bhc.layers import is_weighted

from ...graph.nets import net_of, seeded
from .test_rules import no_exporter  # noqa: F401

WIDTH, HEADS, TOKENS, WORDS = 8, 2, 6, 11
HEAD = WIDTH // HEADS
MASK = torch.ones(TOKENS, TOKENS).tril().bool()

Attend = Callable[[Any, Tensor], Tensor]


def apart(x: Tensor, heads: int = HEADS) -> Tensor:
    """(N, T, C) -> (N, heads, T, width)."""
    return x.view(x.shape[0], -1, heads, HEAD).transpose(1, 2)


def together(x: Tensor) -> Tensor:
    return x.transpose(1, 2).reshape(x.shape[0], -1, WIDTH)


def fused(net: Any, x: Tensor) -> Tensor:
    batch, tokens, _ = x.shape
    query, key, value = net.qkv(x).view(batch, tokens, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4).unbind(0)
    return together(F.scaled_dot_product_attention(query, key, value))


def chunked(net: Any, x: Tensor) -> Tensor:
    query, key, value = map(apart, net.qkv(x).chunk(3, -1))
    return together(((query @ key.transpose(-2, -1)) * HEAD**-0.5).softmax(-1) @ value)


def split_and_masked(net: Any, x: Tensor) -> Tensor:
    query, key, value = map(apart, net.qkv(x).split(WIDTH, 2))
    scores = (query @ key.mT / HEAD**0.5).masked_fill(~net.mask, float("-inf"))
    return together(torch.softmax(scores, -1) @ value)


def shifted(net: Any, x: Tensor) -> Tensor:
    """A mask that is added: most negative numbers, and a bias for each distance."""
    query, key, value = map(apart, net.qkv(x).chunk(3, -1))
    bias = torch.where(net.mask, 0.0, torch.finfo(torch.float32).min) + net.distances[net.index].permute(2, 0, 1)
    return together(F.scaled_dot_product_attention(query, key, value, attn_mask=bias))


def causal(net: Any, x: Tensor) -> Tensor:
    query, key, value = map(apart, net.qkv(x).chunk(3, -1))
    return together(F.scaled_dot_product_attention(query, key, value, is_causal=True, scale=0.4))


def masked_by_truths(net: Any, x: Tensor) -> Tensor:
    query, key, value = map(apart, net.qkv(x).chunk(3, -1))
    return together(F.scaled_dot_product_attention(query, key, value, attn_mask=net.mask))


def in_batches_of_matrices(net: Any, x: Tensor) -> Tensor:
    query, key, value = (apart(part).reshape(-1, TOKENS, HEAD) for part in net.qkv(x).chunk(3, -1))
    scores = torch.baddbmm(torch.zeros(1), query, key.transpose(1, 2), beta=0, alpha=HEAD**-0.5)
    mixed = torch.bmm(scores.softmax(-1), value)
    return together(mixed.view(-1, HEADS, TOKENS, HEAD))


def by_einstein(net: Any, x: Tensor) -> Tensor:
    query, key, value = net.qkv(x).view(x.shape[0], TOKENS, 3, HEADS, HEAD).unbind(2)
    shares = torch.einsum("nqhd,nkhd->nhqk", query, key).mul(0.5).softmax(-1)
    return torch.einsum("nhqk,nkhd->nqhd", shares, value).flatten(2)


def rotated(x: Tensor) -> Tensor:
    """Rotary places."""
    angles = torch.arange(x.shape[-2])[:, None] * 10.0 ** -torch.arange(0, HEAD, 2)
    first, second = x.chunk(2, -1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1)


def grouped(net: Any, x: Tensor) -> Tensor:
    """One head of keys and values for all heads of queries."""
    query, key, value = net.qkv(x)[..., : WIDTH + 2 * HEAD].split([WIDTH, HEAD, HEAD], -1)
    heads = rotated(apart(query)), rotated(apart(key, 1)), apart(value, 1)
    return together(F.scaled_dot_product_attention(*heads, is_causal=True, enable_gqa=True))


def in_windows(net: Any, x: Tensor) -> Tensor:
    """Of three tokens, moved by one."""
    moved = torch.roll(x, -1, 1).view(-1, 2, 3, WIDTH).reshape(-1, 3, WIDTH)
    query, key, value = net.qkv(moved).reshape(-1, 3, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
    mixed = together(F.scaled_dot_product_attention(query, key, value))
    return torch.roll(mixed.view(-1, TOKENS, WIDTH), 1, 1)


def by_learned_queries(net: Any, x: Tensor) -> Tensor:
    _, key, value = map(apart, net.qkv(x).chunk(3, -1))
    queries = apart(net.queries.expand(x.shape[0], -1, -1))
    return together(F.scaled_dot_product_attention(queries, key, value))


FORMS = [
    fused, chunked, split_and_masked, shifted, causal, masked_by_truths, in_batches_of_matrices, by_einstein, grouped,
    in_windows, by_learned_queries,
]  # fmt: skip


def transformer(attend: Attend, norm: type[nn.Module] = nn.LayerNorm) -> nn.Module:
    def forward(net: Any, words: Tensor) -> Tensor:
        x = net.words(words) + net.places
        x = x + net.mix(attend(net, net.before(x)))
        x = x + net.think(net.after(x))
        return net.end(net.last(x).mean(1))

    torch.manual_seed(0)
    return net_of(
        forward,
        words=nn.Embedding(WORDS, WIDTH),
        places=nn.Parameter(torch.randn(TOKENS, WIDTH)),
        qkv=nn.Linear(WIDTH, 3 * WIDTH),
        mix=nn.Linear(WIDTH, WIDTH),
        think=nn.Sequential(nn.Linear(WIDTH, 12), nn.GELU("tanh"), nn.Linear(12, WIDTH)),
        **{name: norm(WIDTH) for name in ("before", "after", "last")},
        end=nn.Linear(WIDTH, 3),
        mask=MASK,
        distances=nn.Parameter(torch.randn(2 * TOKENS, HEADS)),
        index=torch.arange(TOKENS)[:, None] - torch.arange(TOKENS) + TOKENS,
        queries=nn.Parameter(torch.randn(1, TOKENS, WIDTH)),
    ).eval()


def words(count: int, length: int = TOKENS) -> Tensor:
    return torch.randint(WORDS, (count, length), generator=torch.Generator().manual_seed(count))


def answers(content: bytes, *values: Tensor) -> Tensor:
    session = open_session(content)
    names = [given.name for given in session.get_inputs()]
    feed = {name: value.numpy() for name, value in zip(names, values, strict=True)}
    return torch.from_numpy(session.run(None, feed)[0])


def check(graph: Graph, shape: tuple[int, ...], inputs: Callable[[int], Tensor], net: nn.Module) -> None:
    content = onnx_bytes(QuantisedNetwork(graph, shape, (0, 1, 2)))
    for count in (2, 5, 1):
        x = inputs(count)
        torch.testing.assert_close(answers(content, x.float()), net(x), rtol=0, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("attend", FORMS, ids=lambda form: form.__name__)
def test_a_transformer_is_written_without_the_exporter(attend: Attend) -> None:
    net = transformer(attend)
    check(capture(net, words(2)), (TOKENS,), words, net)


@torch.no_grad()
def test_one_with_norms_of_the_root_mean_square() -> None:
    net = transformer(grouped, nn.RMSNorm)
    check(capture(net, words(2)), (TOKENS,), words, net)


@torch.no_grad()
def test_one_of_torch_s_own_layers() -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 12, activation="gelu", batch_first=True)
    net = net_of(lambda net, x: net.end(net.body(x)[:, 0]), body=layer, end=nn.Linear(WIDTH, 3)).eval()
    check(capture(net, seeded(2, TOKENS, WIDTH)), (TOKENS, WIDTH), lambda count: seeded(count, TOKENS, WIDTH), net)


@torch.no_grad()
def test_one_on_patches_of_images_with_a_token_for_the_class() -> None:
    def forward(net: Any, x: Tensor) -> Tensor:
        x = net.patches(x).flatten(2).transpose(1, 2)
        x = net.before(torch.cat([net.first.expand(x.shape[0], -1, -1), x], 1))
        return net.end((x + net.mix(fused(net, x)))[:, 0])

    torch.manual_seed(0)
    net = net_of(
        forward,
        patches=nn.Conv2d(3, WIDTH, 4, 4),
        first=nn.Parameter(torch.randn(1, 1, WIDTH)),
        before=nn.LayerNorm(WIDTH),
        qkv=nn.Linear(WIDTH, 3 * WIDTH),
        mix=nn.Linear(WIDTH, WIDTH),
        end=nn.Linear(WIDTH, 3),
    ).eval()
    check(capture(net, seeded(2, 3, 12, 8)), (3, 12, 8), lambda count: seeded(count, 3, 12, 8), net)


@torch.no_grad()
@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize(
    "pool",
    [
        lambda x: F.max_pool2d(x, 3, 2),
        lambda x: F.avg_pool2d(x, 3, 2),
        lambda x: F.avg_pool2d(x, 1, 2),
        lambda x: F.avg_pool2d(x, 2, 2, 0, False, False),
    ],
)
def test_a_pool_reads_the_zeros_that_were_put_around(pool: Callable[[Tensor], Tensor], width: int) -> None:
    net = net_of(lambda net, x: pool(F.pad(x, (width,) * 4)).flatten(1), end=nn.Identity())
    x = seeded(2, 3, 9, 8) - 3
    content = onnx_bytes(QuantisedNetwork(capture(net, x), (3, 9, 8), tuple(range(net(x).shape[1]))))
    torch.testing.assert_close(answers(content, x), net(x))


class Masked(nn.Module):
    """Texts of any length under a mask of what is padding; one may be empty."""

    def __init__(self, *, causal: bool) -> None:
        super().__init__()
        self.words, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.norm, self.end = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.causal = causal

    def forward(self, words: Tensor, mask: Tensor) -> Tensor:
        x = self.words(words)
        query, key, value = map(apart, self.qkv(x).chunk(3, -1))
        allowed = None if self.causal else mask[:, None, None].bool()
        mixed = together(F.scaled_dot_product_attention(query, key, value, allowed, is_causal=self.causal))
        return self.end((self.norm(x + mixed) * mask[..., None]).sum(1))


@torch.no_grad()
@pytest.mark.parametrize("causal", [False, True])
def test_texts_of_any_length_under_a_mask(causal: bool) -> None:
    torch.manual_seed(0)
    net = Masked(causal=causal).eval()
    example = {"words": words(2), "mask": torch.ones(2, TOKENS).long()}
    graph = capture(net, example, dynamic_axes=(1,))
    content = onnx_bytes(QuantisedNetwork(graph, (), (0, 1, 2)))
    for count, length in ((2, TOKENS), (3, 4), (1, 13)):
        texts = words(count, length)
        mask = (torch.arange(length) < torch.arange(count)[:, None] + 1).long()
        mask[-1] = 0
        torch.testing.assert_close(answers(content, texts, mask), net(texts, mask), rtol=0, atol=1e-5)


@torch.no_grad()
def test_weights_as_integers_beside_a_call_s_own_floats() -> None:
    graph = capture(transformer(fused), words(2))
    weights = {step.name: Codes.of(step.module.weight, 0.02) for step in graph.steps if is_weighted(step.module)}  # type: ignore[arg-type]
    network = QuantisedNetwork.build(graph, weights=weights, biases={}, input_shape=(TOKENS,), labels=(0, 1, 2))
    content = onnx_bytes(network, weights=WeightForm.INTEGERS)
    x = words(3).float()
    torch.testing.assert_close(answers(content, x), network.graph(x), rtol=0, atol=1e-5)


@torch.no_grad()
def test_numbers_that_two_steps_share_are_written_once() -> None:
    def forward(net: Any, words: Tensor) -> Tensor:
        return F.linear(net.table(words).mean(1), net.table.weight)

    net = net_of(forward, table=nn.Embedding(1000, WIDTH)).eval()
    content = onnx_bytes(QuantisedNetwork(capture(net, words(2)), (TOKENS,), tuple(range(1000))))
    assert len(content) < 1.5 * 4 * 1000 * WIDTH
    torch.testing.assert_close(answers(content, words(3).float()), net(words(3)), rtol=0, atol=1e-5)
