import pytest
import torch
from torch import nn

from bhc.graph import capture, find_units
from bhc.layers import ChannelNorm, SelfAttention

from ..emission.networks import Transformer
from .test_taken import cut_in_half, near


def tokens(count: int = 2, places: int = 5, channels: int = 6) -> torch.Tensor:
    return torch.randn(count, places, channels, generator=torch.Generator().manual_seed(0))


def randomised(module: nn.Module) -> nn.Module:
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=rng))
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


def test_the_heads_and_the_stream_of_a_transformer_can_be_cut() -> None:
    net, x = Transformer().eval(), torch.randn(1, 3, 6, 6)
    graph = capture(net, x)
    torch.testing.assert_close(graph(x), net(x))
    units = find_units(graph, (3, 6, 6))
    for step in graph.steps:
        if isinstance(step.module, nn.Linear) and step.name != graph.last_step:
            assert not units.always[units.writes[step.name]].any()
    (heads,) = units.heads
    width = net.attend.head_dim
    assert [part.units.shape for part in heads.parts] == [(net.attend.num_heads, width)] * 2


class Oddity(Transformer):
    """A transformer that does something else with its attention."""

    def __init__(self, forward: object) -> None:
        super().__init__()
        self.tail = forward

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.before(self.think(self.after(self.patches(x).flatten(2).transpose(1, 2) + self.places)))
        return self.end(self.tail(self, x).mean(1))  # type: ignore[operator]


@pytest.mark.parametrize(
    "tail",
    [
        lambda net, x: net.attend(x, x, x.relu())[0],
        lambda net, x: net.attend(x, x, x, key_padding_mask=x[:, :, 0] > 9)[0],
        lambda net, x: net.attend(x, x, x)[0][:, :3],
        lambda net, x: net.attend(x, x, x)[0].softmax(1),
        lambda net, x: net.attend(x, x, x)[1],
    ],
)
def test_attention_is_taken_in_whatever_way_it_is_used(tail: object) -> None:
    net = Oddity(tail).eval()
    if tail(net, torch.randn(2, 9, net.end.in_features)).shape[-1] != net.end.in_features:  # type: ignore[operator]
        net.end = nn.Linear(9, 10)
    _, slim, masked, _ = cut_in_half(net, torch.randn(1, 3, 6, 6))
    assert near(slim, masked)
