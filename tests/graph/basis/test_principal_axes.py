"""In principal axes a network computes the same, and its last coordinates carry the least."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.graph import Graph, basis, capture, describe, rebuild
from bhc.graph.spaces import balanced, principal

from ..nets import net_of, seeded
from . import networks as ours

Made = tuple[nn.Module, Tensor]
NETWORKS: dict[str, Callable[[], Made]] = {
    "ViT, qkv unflattened": lambda: (ours.Patches(*[ours.Before(ours.Fused()) for _ in range(2)]), ours.images(200)),
    "ViT, qkv by head, einsum": lambda: (
        ours.Patches(ours.Before(ours.Fused(ours.by_head, ours.by_einsum), scale=True)),
        ours.images(200),
    ),
    "ViT, qkv interleaved": lambda: (
        ours.Patches(ours.Before(ours.Fused(ours.interleaved, ours.by_matmul))),
        ours.images(200),
    ),
    "GPT, qkv in chunks": lambda: (
        ours.Words(ours.Before(ours.Fused(ours.chunked)), ours.Before(ours.Apart(ours.masked)), norm=nn.LayerNorm),
        ours.words(200),
    ),
    "BERT": lambda: (ours.Words(ours.After(ours.Apart()), ours.After(ours.Apart(ours.causal))), ours.words(200)),
    "LLaMA, keys expanded": lambda: (
        ours.Words(ours.Gated(ours.Grouped(ours.by_expanding)), width=16, norm=ours.RootMeanSquare),
        ours.words(200),
    ),
    "grouped heads, keys repeated, no places": lambda: (
        ours.Words(ours.Gated(ours.Grouped(ours.by_repeating, nn.Identity()), nn.RMSNorm), width=16, norm=nn.RMSNorm),
        ours.words(200),
    ),
    "grouped heads in one call": lambda: (
        ours.Words(ours.Gated(ours.Grouped(None, nn.Identity()), nn.RMSNorm), width=16, norm=nn.RMSNorm),
        ours.words(200),
    ),
    "torch's own attention": lambda: (
        ours.Words(nn.TransformerEncoderLayer(12, 3, 16, 0.0, "gelu", batch_first=True, norm_first=True)),
        ours.words(200),
    ),
}
# Of these, how large the streams are that are turned, and how many spaces of heads.
FOUND = {
    "ViT, qkv unflattened": ([12], 12),
    "ViT, qkv by head, einsum": ([12], 6),
    "ViT, qkv interleaved": ([12], 6),
    "GPT, qkv in chunks": ([12], 12),
    "BERT": ([], 12),
    "LLaMA, keys expanded": ([16], 2),
    "grouped heads, keys repeated, no places": ([16], 4),
    "grouped heads in one call": ([16], 4),
}


def trained(net: nn.Module) -> nn.Module:
    """With gains and shifts that are not those of a new network."""
    for module in net.modules():
        for name, numbers in module.named_parameters(recurse=False):
            if numbers.dim() == 1:
                nn.init.uniform_(numbers, 0.5, 1.5) if name == "weight" else nn.init.normal_(numbers)
    return net.eval()


def made(name: str) -> Made:
    torch.manual_seed(0)
    net, x = NETWORKS[name]()
    return trained(net), x


def turned(net: nn.Module, x: Tensor) -> Graph:
    graph = capture(net, x[:2])
    return bhc.PrincipalAxes(x).turned(graph, x[:1], tuple(x.shape[1:]))


@torch.no_grad()
def value_of(graph: Graph, name: str, x: Tensor) -> Tensor:
    """What a step gives."""
    seen: dict[str, Tensor] = {}

    def note(step, *values):
        seen[step.name] = step.module(*values)
        return seen[step.name]

    graph.run(x, note)
    return seen[name]


@torch.no_grad()
def read_by(graph: Graph, name: str, x: Tensor) -> Tensor:
    (step,) = (step for step in graph.steps if step.name == name)
    return value_of(graph, step.reads[0], x)


def second_moment(x: Tensor) -> Tensor:
    rows = x.flatten(0, -2).double()
    return rows.mT @ rows / len(rows)


def assert_diagonal_and_falling(moment: Tensor) -> None:
    on, off = moment.diagonal(), moment - moment.diagonal().diag()
    assert off.abs().max() < 1e-4 * on.max()
    assert (on.diff() < 1e-6 * on.max()).all()


@torch.no_grad()
@pytest.mark.parametrize("name", NETWORKS)
def test_the_network_computes_the_same(name):
    net, x = made(name)
    graph, wanted = turned(net, x), net(x)
    assert (graph(x) - wanted).abs().max() < 1e-5 * wanted.abs().max()
    other = x.flip(-1)[:50]  # of the same kind, but others
    assert (graph(other) - net(other)).abs().max() < 1e-4 * wanted.abs().max()
    again = rebuild(describe(graph))
    again.load_state_dict(graph.state_dict())
    assert torch.equal(again.eval()(x), graph(x))


@pytest.mark.parametrize("name", FOUND)
def test_what_is_free_is_found(name):
    net, x = made(name)
    graph = capture(net, x[:2])
    bare = basis.without_norms_numbers(graph, tuple(x.shape[1:]))
    spaces = basis.find_free(bare, tuple(x.shape[1:]))
    streams, heads = FOUND[name]
    assert [space.size for space in spaces if space.orthogonal and space.size > 4] == streams
    assert sum(space.size == 4 and not space.orthogonal for space in spaces) == heads


HEADS = [("ViT, qkv unflattened", "blocks_0_attend_out", 3), ("BERT", "blocks_1_attend_out", 3),
         ("LLaMA, keys expanded", "blocks_0_attend_out", 4)]  # fmt: skip


@pytest.mark.parametrize(("name", "layer", "heads"), HEADS)
def test_values_of_a_head_and_the_weights_that_read_them_are_balanced(name, layer, heads):
    net, x = made(name)
    graph = turned(net, x)
    weight = graph.get_submodule(layer).weight.double()
    values = read_by(graph, layer, x).unflatten(-1, (heads, -1))
    own = range(heads) if heads == 3 else [(0, 1), (2, 3)]  # heads that share their values
    for index in own:
        members = [index] if isinstance(index, int) else list(index)
        written = sum(second_moment(values[..., head, :]) for head in members)
        columns = [weight.unflatten(1, (heads, -1))[:, head] for head in members]
        read = sum(part.mT @ part for part in columns)
        assert_diagonal_and_falling(written)
        torch.testing.assert_close(read, written, rtol=1e-3, atol=1e-4 * float(written.max()))


def test_queries_and_keys_of_a_head_are_balanced():
    net, x = made("BERT")
    graph = turned(net, x)
    query, key = (value_of(graph, f"blocks_0_attend_{name}", x).unflatten(-1, (3, -1)) for name in "qk")
    for head in range(3):
        asked, answered = second_moment(query[..., head, :]), second_moment(key[..., head, :])
        assert_diagonal_and_falling(asked)
        torch.testing.assert_close(answered, asked, rtol=1e-3, atol=1e-4 * float(asked.max()))


@pytest.mark.parametrize("name", [name for name, (streams, _) in FOUND.items() if streams])
def test_the_stream_is_read_along_its_principal_axes(name):
    net, x = made(name)
    graph = turned(net, x)
    layers = [step for step in graph.steps if step.name.endswith(("qkv", "qkv_0", "attend_q", "think_0", "up", "end"))]
    assert_diagonal_and_falling(sum(second_moment(read_by(graph, step.name, x)) for step in layers))
    assert not [step for step in graph.steps if getattr(step.module, "op", "") == "layer_norm"]


@torch.no_grad()
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, ours.RootMeanSquare])
def test_a_stream_of_few_directions_shows_that_it_is(norm):
    torch.manual_seed(0)
    net, x, rank = ours.Words(ours.Before(ours.Fused(), norm), norm=norm), ours.words(200), 5
    few = torch.linalg.qr(torch.randn(12, 12))[0][:, :rank]
    within = few @ few.mT
    for writer in (net.blocks[0].attend.out, net.blocks[0].think[2]):
        writer.weight.data, writer.bias.data = within @ writer.weight, within @ writer.bias
    for table in (net.embed, net.place):
        table.weight.data = table.weight @ within
    graph = turned(net, x)
    kept = rank if norm is not nn.LayerNorm else rank + 1  # taking a mean off may lead out of the few, in one direction
    stream = value_of(graph, graph.steps[[step.name for step in graph.steps].index("blocks_0_think_2") + 1].name, x)
    assert stream[..., kept:].abs().max() < 1e-3 * stream.abs().max()
    assert stream[..., kept - 2].abs().max() > 1e-2 * stream.abs().max()


def test_between_linear_layers_the_last_coordinates_are_the_best_to_leave_out():
    """As good as the best approximation of that rank (Eckart and Young), for real inputs."""
    torch.manual_seed(0)
    net, x = nn.Sequential(nn.Linear(8, 6, bias=False), nn.Linear(6, 5)), torch.randn(300, 8) @ torch.randn(8, 8)
    graph = turned(net, x)
    hidden, last = value_of(graph, "0", x).double(), graph.get_submodule("1").weight.double()
    original = (net[1].weight @ net[0].weight).double()
    values = torch.linalg.svdvals(original @ torch.linalg.cholesky(second_moment(x)))
    for rank in range(6):
        error = (hidden[:, rank:] @ last[:, rank:].mT).square().sum(1).mean()
        torch.testing.assert_close(error, values[rank:].square().sum(), rtol=1e-3, atol=1e-6)


def test_an_embedding_and_the_layers_that_read_it():
    torch.manual_seed(0)

    def forward(net, x):
        embedded = net.words(x)
        return (net.one(embedded).relu() + net.two(embedded).tanh()).mean(1).softmax(-1)

    net = net_of(
        forward,
        words=nn.Embedding(20, 6),
        one=nn.Linear(6, 4),
        two=nn.Linear(6, 4),
    )
    x = torch.randint(0, 20, (200, 7))
    graph = turned(net, x)
    assert_diagonal_and_falling(second_moment(read_by(graph, "one", x)))
    assert not torch.equal(graph.get_submodule("words").weight, net.words.weight.mT)


@pytest.mark.parametrize("seed", range(3))
def test_balanced_coordinates_by_their_definition(seed):
    draws = torch.Generator().manual_seed(seed)
    written, read = (
        factor.mT @ factor for factor in torch.randn(2, 9, 5, generator=draws, dtype=torch.float64).unbind()
    )
    matrix, inverse = balanced(written, read)
    torch.testing.assert_close(matrix @ inverse, torch.eye(5).double())
    one, other = matrix @ written @ matrix.mT, inverse.mT @ read @ inverse
    torch.testing.assert_close(one, other)
    torch.testing.assert_close(one.diagonal().square(), torch.linalg.eigvals(written @ read).real.sort().values.flip(0))


IDENTITY = torch.eye(5).double()


@pytest.mark.parametrize("axes", [lambda m: balanced(m, IDENTITY), lambda m: balanced(IDENTITY, m), principal])
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_directions_that_nothing_reaches_are_completed_to_a_basis(axes, rank):
    factor = torch.randn(rank, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    matrix, inverse = axes(factor.mT @ factor)
    torch.testing.assert_close(matrix @ inverse, IDENTITY)
    assert matrix.abs().max() < 1e4


@torch.no_grad()
@pytest.mark.parametrize("name", ["ViT, qkv unflattened", "GPT, qkv in chunks", "BERT"])
@pytest.mark.parametrize("given", [lambda x: x[:1], lambda x: torch.zeros_like(x[:1])], ids=["one", "nothing"])
def test_too_few_examples_give_other_axes_and_the_same_network(name, given):
    net, x = made(name)
    graph = capture(net, x[:2])
    other = bhc.PrincipalAxes().turned(graph, given(x), tuple(x.shape[1:]))
    wanted = net(x)
    assert (other(x) - wanted).abs().max() < 1e-4 * wanted.abs().max()


@torch.no_grad()
def test_inputs_may_be_several_by_name():
    torch.manual_seed(0)
    net = net_of(
        lambda net, left, right: net.end(net.one(left) + net.two(right)),
        one=nn.Linear(4, 6),
        two=nn.Linear(3, 6),
        end=nn.Linear(6, 2),
    )
    x = {"left": seeded(100, 4), "right": seeded(100, 3)}
    example = {name: values[:2] for name, values in x.items()}
    model = bhc.wrap(net, bhc.ClassSubsets(2), example_input=example, basis=bhc.PrincipalAxes(x))
    small = model.compress(classes=[0, 1], threshold=1e6, quantisation=bhc.Float32())
    torch.testing.assert_close(small.module(x["left"], x["right"]), net(**x), rtol=1e-4, atol=1e-5)
    written = model.network.base_model.get_submodule("one").weight
    assert not torch.equal(written, net.one.weight)
    for wrong, what in ((bhc.PrincipalAxes(x["left"]), "inputs"), (x, "basis")):
        with pytest.raises(BhcError, match=what):
            bhc.wrap(net, bhc.ClassSubsets(2), example_input=x, basis=wrong)


@torch.no_grad()
def test_a_wrapped_network_is_turned_and_emitted_and_without_a_basis_stays_as_it_was(tmp_path):
    net, x = made("ViT, qkv unflattened")
    plain = bhc.wrap(net, bhc.ClassSubsets(5), example_input=x[:1])
    model = bhc.wrap(net, bhc.ClassSubsets(5), example_input=x[:1], basis=bhc.PrincipalAxes(x))
    weights = [each.network.base_model.get_submodule("blocks_0_attend_qkv_0").weight for each in (plain, model)]
    assert torch.equal(weights[0], net.blocks[0].attend.qkv.weight[:12])
    assert not torch.equal(*weights)
    small = model.compress(classes=[1, 3], threshold=1e6, quantisation=bhc.Float32())
    torch.testing.assert_close(small.module(x), net(x)[:, [1, 3]], rtol=1e-4, atol=1e-5)
    model.save(tmp_path / "run")
    again = bhc.load(tmp_path / "run").compress(classes=[1, 3], threshold=1e6, quantisation=bhc.Float32())
    assert torch.equal(again.module(x), small.module(x))
    assert model.network.base_model.original == plain.network.base_model.original


def test_inputs_that_are_not_finite_are_refused():
    net, x = made("ViT, qkv unflattened")
    graph = capture(net, x[:2])
    with pytest.raises(BhcError, match="finite"):
        bhc.PrincipalAxes(x / 0).turned(graph, x, tuple(x.shape[1:]))


def test_a_network_that_would_compute_something_else_is_refused(monkeypatch):
    monkeypatch.setattr(basis, "principal", lambda moment: (2 * torch.eye(12).double(),) * 2)
    net, x = made("ViT, qkv unflattened")
    with pytest.raises(BhcError, match="coordinates"):
        turned(net, x)
