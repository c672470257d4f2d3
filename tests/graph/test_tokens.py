import pytest
import torch
from torch import nn

from bhc.errors import BhcError
from bhc.graph import find_units, trace
from bhc.graph.translate import as_convolution
from bhc.layers import ChannelNorm, FlattenPlaces, SelfAttention, Shift

from ..emission.networks import Transformer


def tokens(count: int = 2, places: int = 5, channels: int = 6) -> torch.Tensor:
    return torch.randn(count, places, channels, generator=torch.Generator().manual_seed(0))


def randomised(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator))
    return module.eval()


@pytest.mark.parametrize("options", [{}, {"bias": False}, {"elementwise_affine": False}, {"eps": 0.3}])
def test_a_norm_of_channels_is_a_layer_norm(options: dict[str, float]) -> None:
    norm = randomised(nn.LayerNorm(6, **options))  # type: ignore[arg-type]
    x = tokens()
    torch.testing.assert_close(ChannelNorm.of(norm)(x.mT).mT, norm(x))  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
def test_attention_is_that_of_torch(heads: int, bias: bool) -> None:
    attention = randomised(nn.MultiheadAttention(6, heads, bias=bias, batch_first=True))
    x = tokens()
    torch.testing.assert_close(SelfAttention.of(attention)(x.mT).mT, attention(x, x, x)[0])  # type: ignore[arg-type]


@pytest.mark.parametrize("bias", [True, False])
def test_a_linear_layer_on_tokens_is_a_convolution(bias: bool) -> None:
    linear = randomised(nn.Linear(6, 4, bias=bias))
    torch.testing.assert_close(as_convolution(linear)(tokens().mT).mT, linear(tokens()))  # type: ignore[arg-type]


def test_a_transformer_is_traced_with_its_channels_first() -> None:
    graph = trace(Transformer(), torch.randn(1, 3, 6, 6))
    kinds = [type(step.module) for step in graph.steps]
    assert [kinds.count(kind) for kind in (FlattenPlaces, Shift, ChannelNorm, SelfAttention, nn.Conv1d)] == [
        1,
        1,
        2,
        1,
        2,
    ]


def test_only_the_units_inside_the_network_on_each_token_can_be_cut() -> None:
    graph = trace(Transformer(), torch.randn(1, 3, 6, 6))
    units = find_units(graph, (3, 6, 6))
    assert units.always[units.carried["patches"]].all()
    assert not units.always[units.carried["think_0"]].any()


class Oddity(Transformer):
    """A transformer that does something else with its attention."""

    def __init__(self, forward: object) -> None:
        super().__init__()
        self.tail = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(self.think(self.after(self.patches(x).flatten(2).transpose(1, 2) + self.places)))
        return self.end(self.tail(self, x).mean(1))  # type: ignore[operator]


@pytest.mark.parametrize(
    ("tail", "words"),
    [
        (lambda net, x: net.attend(x, x, x.relu())[0], "attention 'attend' of other than one value"),
        (lambda net, x: net.attend(x, x, x, key_padding_mask=x[:, :, 0] > 0)[0], "getitem"),
        (lambda net, x: net.attend(x, x, x)[0][:, :3], "getitem"),
        (lambda net, x: net.attend(x, x, x)[0].softmax(1), "softmax"),
    ],
)
def test_other_uses_of_attention_are_refused_by_name(tail: object, words: str) -> None:
    with pytest.raises(BhcError, match=words):
        trace(Oddity(tail), torch.randn(1, 3, 6, 6))
