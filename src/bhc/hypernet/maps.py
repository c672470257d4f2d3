"""The hypernetwork's smallest part: an affine map from the embedding to a tensor."""

from torch import Generator, Tensor, nn
from torch.nn import functional as F

from bhc.hypernet.initial import Initial


class Map(nn.Module):
    """``offset + matrix e``, shaped like the offset. At a zero embedding it gives the offset, bit for bit."""

    def __init__(self, offset: Tensor, width: int, initial: Initial, *, generator: Generator | None) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset.detach().clone())
        self.matrix = nn.Parameter(initial.map(offset.numel(), width, generator=generator))

    def forward(self, embedding: Tensor) -> Tensor:  # (K, E) -> (K, *shape)
        flat = F.linear(embedding, self.matrix, self.offset.flatten())
        return flat.reshape(len(embedding), *self.offset.shape)

    def at(
        self, embedding: Tensor, rows: Tensor, columns: Tensor
    ) -> Tensor:  # (K, E), (K, R), (K, C) -> (K, R, C, ...)
        """In each context ``forward(embedding)[rows][:, columns]``, computing only those entries."""
        (count, height), width, shape = rows.shape, columns.shape[1], self.offset.shape
        matrix = self.matrix.view(shape[0] * shape[1], -1).index_select(0, _places(rows, columns, shape[1]))
        change = matrix.view(count, -1, embedding.shape[1]) @ embedding[:, :, None]
        return at(self.offset, rows, columns) + change.view(count, height, width, *shape[2:])


class Constant(nn.Module):
    """The same tensor for every context."""

    def __init__(self, offset: Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset.detach().clone())

    def forward(self, embedding: Tensor) -> Tensor:  # (K, E) -> (1, *shape)
        return self.offset[None]


def at(tensor: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (K, R), (K, C) -> (K, R, C, ...)
    """In each of K contexts ``tensor[rows][:, columns]``."""
    if len(rows) == 1:  # several times faster than by both indices at once
        return tensor.index_select(0, rows[0]).index_select(1, columns[0])[None]
    flat = tensor.flatten(0, 1).index_select(0, _places(rows, columns, tensor.shape[1]))
    return flat.view(*rows.shape, columns.shape[1], *tensor.shape[2:])


def _places(rows: Tensor, columns: Tensor, width: int) -> Tensor:  # (K * R * C,)
    """Where the entries are in a tensor whose first two dimensions are one."""
    return (rows[:, :, None] * width + columns[:, None]).flatten()
