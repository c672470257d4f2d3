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

    def at(self, embedding: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (K, E) -> (K, R, C, ...)
        """``forward(embedding)[:, rows][:, :, columns]``, computing only those entries."""
        shape = self.offset.shape
        places = (rows[:, None] * shape[1] + columns).flatten()
        matrix = self.matrix.view(shape[0] * shape[1], -1).index_select(0, places)  # (R * C, kernel * E)
        change = F.linear(embedding, matrix.view(-1, embedding.shape[1]))
        return at(self.offset, rows, columns) + change.view(len(embedding), len(rows), len(columns), *shape[2:])


class Constant(nn.Module):
    """The same tensor for every context."""

    def __init__(self, offset: Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset.detach().clone())

    def forward(self, embedding: Tensor) -> Tensor:  # (K, E) -> (1, *shape)
        return self.offset[None]


def at(tensor: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (R, C, ...)
    """``tensor[rows][:, columns]``, several times faster than by both indices at once."""
    return tensor.index_select(0, rows).index_select(1, columns)
