"""A network for short texts: numbers of words in."""

from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.models.named import named

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
