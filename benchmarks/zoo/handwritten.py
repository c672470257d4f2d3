"""Small networks as people write them: what tutorials, course work and research code do beside plain layers."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize, prune

from zoo import Example, Network
from zoo.inputs import image, normal, token_numbers

CLASSES = 10
WORDS = 200


class FunctionalConvolutions(nn.Module):
    """Weights are parameters of the network itself; layers are calls of functions."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(16, 3, 3, 3) * 0.2), nn.Parameter(torch.zeros(16))
        self.w2 = nn.Parameter(torch.randn(32, 16, 3, 3) * 0.1)
        self.end = nn.Parameter(torch.randn(32, CLASSES) * 0.2)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(F.conv2d(x, self.w1, self.b1, padding=1)), 2)
        x = F.relu(F.conv2d(x, self.w2, stride=2, padding=1))
        return x.mean(dim=(2, 3)) @ self.end


class InPlace(nn.Module):
    """Operations that change their input, and slices that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)
        self.end = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.a(x).relu_()
        y = self.norm(self.b(x))
        y += x
        y.mul_(0.5).clamp_(min=0)
        y[:, :4] *= 2.0
        return self.end(F.adaptive_avg_pool2d(y, 1).view(y.size(0), -1))


class Hooks(nn.Module):
    """A hook scales what a layer returns, another one keeps it for later."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.end = nn.Linear(48, CLASSES)
        self.a.register_forward_hook(lambda module, inputs, output: torch.tanh(output) * 1.5)
        self.b.register_forward_pre_hook(lambda module, inputs: (inputs[0] - 0.1,))

    def forward(self, x: Tensor) -> Tensor:
        a = F.relu(self.a(x))
        b = F.relu(self.b(a))
        return self.end(torch.cat((a.mean((2, 3)), b.amax((2, 3))), dim=1))


class TiedWeights(nn.Module):
    """A decoder with the encoder's weights, transposed, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.again = nn.Linear(64, 32), nn.Linear(32, 32)
        self.shift = nn.Parameter(torch.zeros(64))
        self.end = nn.Linear(64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu(self.encode(x))
        hidden = torch.relu(self.again(torch.relu(self.again(hidden))))
        return self.end(F.relu(F.linear(hidden, self.encode.weight.t(), self.shift)))


def weight_norm() -> nn.Module:
    """Weights as a direction and a length, by parametrization."""
    norm = parametrizations.weight_norm
    return nn.Sequential(
        norm(nn.Conv2d(3, 16, 3, padding=1)),
        nn.ELU(),
        norm(nn.Conv2d(16, 32, 3, stride=2, padding=1)),
        nn.ELU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        norm(nn.Linear(32, CLASSES)),
    )


def spectral_norm() -> nn.Module:
    """Weights divided by their largest singular value, by parametrization."""
    norm = parametrizations.spectral_norm
    return nn.Sequential(
        norm(nn.Conv2d(3, 16, 3, padding=1)),
        nn.LeakyReLU(0.2),
        norm(nn.Conv2d(16, 32, 4, stride=2, padding=1)),
        nn.LeakyReLU(0.2),
        nn.Flatten(),
        norm(nn.Linear(32 * 64, CLASSES)),
    )


def pruned() -> nn.Module:
    """Masks of nn.utils.prune: single weights in one layer, whole filters in another."""
    net = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, CLASSES),
    )
    prune.random_unstructured(net[0], "weight", 0.5)
    prune.random_structured(net[3], "weight", 0.25, dim=0)
    prune.l1_unstructured(net[7], "weight", 0.3)
    return net


class Symmetric(nn.Module):
    """A parametrization of one's own."""

    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).transpose(-1, -2)


class OwnParametrization(nn.Module):
    """A symmetric layer between two plain ones."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.middle, self.end = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, CLASSES)
        parametrize.register_parametrization(self.middle, "weight", Symmetric())

    def forward(self, x: Tensor) -> Tensor:
        return self.end(torch.tanh(self.middle(torch.tanh(self.start(x)))))


class LSTMClassifier(nn.Module):
    """Words, an LSTM, the last step."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 24, padding_idx=0)
        self.lstm = nn.LSTM(24, 32, num_layers=2, batch_first=True)
        self.end = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        steps, _ = self.lstm(self.embed(tokens))
        return self.end(steps[:, -1])


class BidirectionalLSTM(nn.Module):
    """Both directions, the largest over time."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(12, 16, bidirectional=True, batch_first=True)
        self.drop, self.end = nn.Dropout(0.5), nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.lstm(x)
        return self.end(self.drop(steps.max(dim=1).values))


class GRUClassifier(nn.Module):
    """A GRU with time first, and its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(12, 32)
        self.end = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        _, state = self.gru(x.permute(1, 0, 2))
        return self.end(state.squeeze(0))


class ConvolutionThenGRU(nn.Module):
    """A convolution over time, then a GRU of two layers, as speech is read."""

    def __init__(self) -> None:
        super().__init__()
        self.convolve = nn.Sequential(nn.Conv1d(12, 24, 5, stride=2, padding=2), nn.BatchNorm1d(24), nn.ReLU())
        self.gru = nn.GRU(24, 24, num_layers=2, batch_first=True, bidirectional=True)
        self.end = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.gru(self.convolve(x.transpose(1, 2)).transpose(1, 2))
        return self.end(steps.mean(1))


class CellByCell(nn.Module):
    """An LSTM cell in a loop of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.cell, self.end = nn.LSTMCell(12, 24), nn.Linear(24, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        hidden, cell = x.new_zeros(x.size(0), 24), x.new_zeros(x.size(0), 24)
        for step in range(x.size(1)):
            hidden, cell = self.cell(x[:, step], (hidden, cell))
        return self.end(hidden)


def _twice(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Down by pooling, up by transposed convolutions, with the maps from before beside."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.bottom = _twice(3, 8), _twice(8, 16), _twice(16, 32)
        self.up2, self.up1 = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.join2, self.join1 = _twice(32, 16), _twice(16, 8)
        self.end = nn.Conv2d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        x = self.bottom(F.max_pool2d(second, 2))
        x = self.join2(torch.cat([self.up2(x), second], 1))
        return self.end(self.join1(torch.cat([self.up1(x), first], 1)))


class Depthwise(nn.Module):
    """Depthwise and pointwise convolutions with a gate on channels."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.Hardswish())
        self.depth = nn.Sequential(nn.Conv2d(24, 24, 3, padding=1, groups=24), nn.BatchNorm2d(24), nn.ReLU6())
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), nn.Conv2d(24, 6, 1), nn.ReLU(), nn.Conv2d(6, 24, 1), nn.Hardsigmoid()
        )
        self.point = nn.Sequential(nn.Conv2d(24, 48, 1), nn.BatchNorm2d(48), nn.SiLU())
        self.end = nn.Linear(48, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.start(x)
        y = self.depth(x)
        x = x + y * self.gate(y)
        return self.end(self.point(x).mean([-2, -1]))


class ChannelShuffle(nn.Module):
    """Grouped convolutions, channels shuffled by hand and by the layer for it."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 24, 3, padding=1), nn.Conv2d(24, 24, 1, groups=3)
        self.shuffle, self.c = nn.ChannelShuffle(2), nn.Conv2d(24, 32, 3, groups=2)
        self.end = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.b(F.relu(self.a(x))))
        n, c, h, w = x.shape
        x = x.view(n, 3, c // 3, h, w).transpose(1, 2).contiguous().view(n, c, h, w)
        x = F.relu(self.c(self.shuffle(x)))
        return self.end(torch.flatten(F.adaptive_avg_pool2d(x, (1, 1)), 1))


class LearnedScalars(nn.Module):
    """Scalars that are learned: weights of branches, a temperature, a slope."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = (nn.Conv2d(3, 16, k, padding=k // 2) for k in (1, 3, 5))
        self.parts = nn.Parameter(torch.ones(3))
        self.slope, self.temperature = nn.PReLU(16), nn.Parameter(torch.tensor(2.0))
        self.alpha = nn.Parameter(torch.zeros(1))
        self.end = nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        a, b, c = self.parts.softmax(0)
        x = self.slope(a * self.a(x) + b * self.b(x) + c * self.c(x))
        x = x + self.alpha * torch.sin(x)
        return self.end(x.mean((2, 3))) / self.temperature.exp()


class SeveralInputs(nn.Module):
    """A picture and a few numbers beside it, by position."""

    def __init__(self) -> None:
        super().__init__()
        self.see = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.ReLU(), nn.AdaptiveMaxPool2d(2), nn.Flatten())
        self.read = nn.Sequential(nn.Linear(5, 16), nn.ReLU())
        self.end = nn.Linear(64 + 16, CLASSES)

    def forward(self, picture: Tensor, numbers: Tensor) -> Tensor:
        return self.end(torch.cat([self.see(picture), self.read(numbers)], dim=-1))


class NamedInputs(nn.Module):
    """Two sequences by name; one asks the other by nn.Bilinear."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 16)
        self.join, self.end = nn.Bilinear(16, 16, 24), nn.Linear(24, CLASSES)

    def forward(self, question: Tensor, answer: Tensor) -> Tensor:
        return self.end(torch.relu(self.join(self.embed(question).mean(1), self.embed(answer).mean(1))))


class Attention(nn.Module):
    """nn.MultiheadAttention on the places of a picture."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, 32, 4, 4)
        self.attend, self.norm = nn.MultiheadAttention(32, 4, batch_first=True), nn.LayerNorm(32)
        self.end = nn.Linear(32, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = self.norm(x + self.attend(x, x, x)[0])
        return self.end(x[:, 0])


class Encoder(nn.Module):
    """nn.TransformerEncoder on words with sines for places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        self.encode = nn.TransformerEncoder(layer, 2)
        places = torch.arange(12)[:, None] * torch.exp(torch.arange(0, 32, 2) * (-math.log(1e4) / 32))
        self.register_buffer("places", torch.stack((places.sin(), places.cos()), -1).flatten(1))
        self.end = nn.Linear(32, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * math.sqrt(32) + self.places[: tokens.size(1)]
        return self.end(self.encode(x).mean(dim=1))


class SmallGPT(nn.Module):
    """Attention written out with a mask for what comes later; the last step decides."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 32), nn.Embedding(12, 32)
        self.before, self.qkv, self.out = nn.LayerNorm(32), nn.Linear(32, 96, bias=False), nn.Linear(32, 32)
        self.think = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))
        self.register_buffer("mask", torch.tril(torch.ones(12, 12)).view(1, 1, 12, 12))
        self.end = nn.Linear(32, WORDS, bias=False)
        self.end.weight = self.words.weight

    def forward(self, tokens: Tensor) -> Tensor:
        n, t = tokens.shape
        x = self.words(tokens) + self.places(torch.arange(t, device=tokens.device))
        q, k, v = (each.view(n, t, 4, 8).transpose(1, 2) for each in self.qkv(self.before(x)).split(32, dim=2))
        weights = (q @ k.transpose(-2, -1)) * 8**-0.5
        weights = weights.masked_fill(self.mask[:, :, :t, :t] == 0, float("-inf")).softmax(-1)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, t, 32))
        return self.end((x + self.think(x))[:, -1])


class Standardised(nn.Module):
    """Convolutions whose weights are standardised at each call, and group norm."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.norm_a, self.norm_b = nn.GroupNorm(4, 16), nn.GroupNorm(8, 32)
        self.end = nn.Linear(32, CLASSES)

    @staticmethod
    def standardised(layer: nn.Conv2d, x: Tensor) -> Tensor:
        weight = layer.weight
        mean = weight.mean(dim=(1, 2, 3), keepdim=True)
        deviation = weight.view(weight.size(0), -1).std(dim=1).view(-1, 1, 1, 1) + 1e-5
        return F.conv2d(x, (weight - mean) / deviation, layer.bias, layer.stride, layer.padding)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.norm_a(self.standardised(self.a, x)))
        x = F.relu(self.norm_b(self.standardised(self.b, F.avg_pool2d(x, 2))))
        return self.end(x.flatten(2).mean(-1))


class WindowsAndViews(nn.Module):
    """Pixel (un)shuffle, unfold, einsum, chunk, flip, pad and upsampling."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.mix = nn.Conv2d(12, 16, 1), nn.Parameter(torch.randn(16, 16) * 0.2)
        self.grow, self.end = nn.Conv2d(16, 32, 3), nn.Linear(72, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.start(F.pixel_unshuffle(x, 2)))
        x = torch.einsum("nchw,dc->ndhw", x, self.mix)
        a, b = self.grow(F.pad(x, (1, 1, 1, 1), mode="reflect")).chunk(2, dim=1)
        x = a * torch.sigmoid(b.flip(3))
        x = F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)
        x = F.pixel_shuffle(x, 2).mean((2, 3), keepdim=True).expand(-1, -1, 6, 6)
        return self.end(F.unfold(x, 3, stride=3).mean(-1).repeat(1, 2))


class OneDimensional(nn.Module):
    """Dilated convolutions over time with gates and a sum of skips, as WaveNet has."""

    def __init__(self) -> None:
        super().__init__()
        self.start = nn.Conv1d(4, 16, 1)
        self.tanh = nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=2**i) for i in range(3))
        self.gate = nn.ModuleList(nn.Conv1d(16, 16, 2, dilation=2**i) for i in range(3))
        self.skip = nn.ModuleList(nn.Conv1d(16, 24, 1) for _ in range(3))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(24, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.start(x), 0
        for i, (tanh, gate, skip) in enumerate(zip(self.tanh, self.gate, self.skip, strict=True)):
            padded = F.pad(x, (2**i, 0))
            x = x + torch.tanh(tanh(padded)) * torch.sigmoid(gate(padded))
            total = total + skip(x)
        return self.end(total)[..., -1]


class Autoencoder(nn.Module):
    """A variational one: it returns what it rebuilds, a mean and a log-variance."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Flatten(), nn.Linear(192, 48), nn.ReLU())
        self.mean, self.logvar = nn.Linear(48, 8), nn.Linear(48, 8)
        self.decode = nn.Sequential(nn.Linear(8, 48), nn.ReLU(), nn.Linear(48, 192), nn.Sigmoid())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.encode(x)
        mean, logvar = self.mean(hidden), self.logvar(hidden)
        return self.decode(mean + 0.1 * torch.exp(0.5 * logvar)), mean, logvar


class Experts(nn.Module):
    """A soft mixture of experts, all of them asked, in a ModuleList."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(20, 4)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(20, 24), nn.ReLU(), nn.Linear(24, CLASSES)) for _ in range(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        answers = torch.stack([expert(x) for expert in self.experts], dim=1)
        return (self.gate(x).softmax(-1).unsqueeze(-1) * answers).sum(1)


class Siamese(nn.Module):
    """One tower for two pictures, normalised, and how alike they are."""

    def __init__(self) -> None:
        super().__init__()
        self.tower = nn.Sequential(
            nn.Conv2d(3, 16, 3, 2, 1),
            nn.BatchNorm2d(16),
            nn.ReLU(True),
            nn.Conv2d(16, 32, 3, 2, 1),
            nn.ReLU(True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
            nn.Linear(32, 24),
        )
        self.end = nn.Linear(25, CLASSES)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = F.normalize(self.tower(a), dim=1), F.normalize(self.tower(b), dim=1)
        return self.end(torch.cat([(a - b).abs(), (a * b).sum(1, keepdim=True)], 1))


PICTURE, SERIES, WORD_NUMBERS = image(16), normal(10, 12), token_numbers(12, WORDS)


def networks() -> tuple[Network, ...]:
    """All of them."""

    def network(
        name: str,
        build: Callable[[], nn.Module],
        example: Callable[[], Example],
        family: str = "hand-written",
        output: int | None = None,
    ) -> Network:
        return Network(name, "hand-written", family, build, example, output)

    return (
        network("functional", FunctionalConvolutions, PICTURE),
        network("in-place", InPlace, PICTURE),
        network("hooks", Hooks, PICTURE),
        network("tied", TiedWeights, normal(64)),
        network("weight-norm", weight_norm, PICTURE),
        network("spectral-norm", spectral_norm, PICTURE),
        network("pruned", pruned, PICTURE),
        network("parametrization", OwnParametrization, normal(20)),
        network("lstm", LSTMClassifier, WORD_NUMBERS, "LSTM/GRU"),
        network("bidirectional-lstm", BidirectionalLSTM, SERIES, "LSTM/GRU"),
        network("gru", GRUClassifier, SERIES, "LSTM/GRU"),
        network("convolution-gru", ConvolutionThenGRU, SERIES, "LSTM/GRU"),
        network("lstm-cell", CellByCell, SERIES, "LSTM/GRU"),
        network("u-net", UNet, PICTURE, "segmentation"),
        network("depthwise", Depthwise, PICTURE),
        network("channel-shuffle", ChannelShuffle, PICTURE),
        network("learned-scalars", LearnedScalars, PICTURE),
        network("several-inputs", SeveralInputs, lambda: (PICTURE(), normal(5)())),
        network("named-inputs", NamedInputs, lambda: {"question": WORD_NUMBERS(), "answer": WORD_NUMBERS() // 2}),
        network("multihead-attention", Attention, PICTURE),
        network("transformer-encoder", Encoder, WORD_NUMBERS),
        network("small-gpt", SmallGPT, WORD_NUMBERS),
        network("standardised-weights", Standardised, PICTURE),
        network("windows-and-views", WindowsAndViews, PICTURE),
        network("wavenet", OneDimensional, normal(4, 16)),
        network("autoencoder", Autoencoder, normal(3, 8, 8), output=0),
        network("experts", Experts, normal(20)),
        network("siamese", Siamese, lambda: (PICTURE(), PICTURE().flip(2))),
    )
