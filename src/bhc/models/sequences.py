"""Networks for short recordings and short texts: samples and numbers of words go in as they are stored."""

from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.layers import LogMel, Normalise
from bhc.models.parts import named

RATE = 8_000
BANDS, WINDOW, HOP = 32, 256, 160  # 32 ms, every 20 ms
# Of the log energies of spoken digits.
MEAN, STD = -8.5, 5.4
SHORTEST = WINDOW + 15 * HOP  # of which 16 frames come


def speech_cnn(
    *, image_shape: tuple[int, ...] = (1, 6_400), num_classes: int = 10, full_scale: float = 32_768.0
) -> nn.Sequential:
    """Log-mel energies, two 5 x 5 convolutions and two linear layers, 16-32-960-128: 137,360 weights."""
    if len(image_shape) != 2 or image_shape[0] != 1 or image_shape[1] < SHORTEST:
        raise BhcError(
            f"speech-cnn takes one channel of at least {SHORTEST:,} samples, these are {image_shape}",
            hint="use it for sounds, such as --data fsdd",
        )
    log_mel = LogMel(RATE, BANDS, WINDOW, HOP)
    rows, columns = (((side - 4) // 2 - 4) // 2 for side in (BANDS, log_mel.frames(image_shape[1])))
    return named(
        normalise=Normalise(0.0, full_scale),
        log_mel=log_mel,
        scale=Normalise(MEAN, STD),
        conv1=nn.Conv2d(1, 16, 5),
        relu1=nn.ReLU(),
        pool1=nn.MaxPool2d(2),
        conv2=nn.Conv2d(16, 32, 5),
        relu2=nn.ReLU(),
        pool2=nn.MaxPool2d(2),
        flatten=nn.Flatten(),
        fc1=nn.Linear(32 * rows * columns, 128),
        relu3=nn.ReLU(),
        fc2=nn.Linear(128, num_classes),
    )


WIDTH, FILTERS, WORDS = 64, 128, 3


class WholeNumbers(nn.Module):
    """Numbers of words, of any type, as an embedding takes them."""

    def forward(self, x: Tensor) -> Tensor:
        return x.long()


class ChannelsFirst(nn.Module):
    """(N, T, C) -> (N, C, T), as convolutions take it."""

    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


def text_cnn(
    *, image_shape: tuple[int, ...] = (40,), num_classes: int = 6, full_scale: float = 3_297.0
) -> nn.Sequential:
    """An embedding of 64 numbers a word, 128 filters over three words, the largest of each, and a linear layer.

    ``full_scale`` is the number of the last word. Number 0 is no word: it has no row, and gives zeros.
    """
    if len(image_shape) != 1 or image_shape[0] < WORDS:
        raise BhcError(
            f"text-cnn takes texts of at least {WORDS} words, these inputs are {image_shape}",
            hint="use it for texts, such as --data trec",
        )
    return named(
        words=WholeNumbers(),
        embedding=nn.Embedding(int(full_scale) + 1, WIDTH, padding_idx=0),
        turn=ChannelsFirst(),
        conv=nn.Conv1d(WIDTH, FILTERS, WORDS, padding=1),
        relu=nn.ReLU(),
        pool=nn.MaxPool1d(image_shape[0]),
        flatten=nn.Flatten(),
        fc=nn.Linear(FILTERS, num_classes),
    )
