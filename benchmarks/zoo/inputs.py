"""Examples that networks read: a batch of one, the same at each call."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Generator, Tensor, nn
from torch.utils import _pytree as pytree

Example = Tensor | tuple[Tensor, ...] | dict[str, Tensor]

FIRST_WORD = 3  # numbers below mean the start, the end and padding


def normal(*shape: int) -> Callable[[], Tensor]:
    """Numbers as normalised images have them."""
    return lambda: torch.randn(1, *shape, generator=Generator().manual_seed(0))


def image(size: int, channels: int = 3) -> Callable[[], Tensor]:
    return normal(channels, size, size)


def token_numbers(length: int, vocabulary: int) -> Callable[[], Tensor]:
    """Numbers of words, none of them special."""
    return lambda: torch.randint(FIRST_WORD, vocabulary, (1, length), generator=Generator().manual_seed(0))


def call(net: nn.Module, example: Example) -> Any:
    """What a network makes of an example."""
    if isinstance(example, dict):
        return net(**example)
    return net(*example) if isinstance(example, tuple) else net(example)


def several(example: Example, count: int) -> Example:
    """A batch of different inputs of the same kind. Special tokens and masks are where they were."""
    rng = Generator().manual_seed(count)

    def more(value: Tensor) -> Tensor:
        repeated = torch.cat([value] * count)
        if value.is_floating_point():
            return torch.randn(repeated.shape, generator=rng)
        words = int(value.max()) - FIRST_WORD + 1
        if words < 1:
            return repeated
        moved = (repeated - FIRST_WORD + 7 * torch.arange(count)[:, None]) % words + FIRST_WORD
        return torch.where(repeated < FIRST_WORD, repeated, moved)

    return pytree.tree_map(more, example)
