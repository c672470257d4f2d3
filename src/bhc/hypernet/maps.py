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

    def at(self, embedding: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (E,) -> (R, C, ...)
        """``forward(embedding[None])[0, rows][:, columns]``, computing only those entries."""
        change = self._matrix_at(rows, columns) @ embedding
        return at(self.offset, rows, columns) + change.view(len(rows), len(columns), *self.offset.shape[2:])

    def at_all(self, embeddings: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (K, E) -> (K, R, C, ...)
        """``forward(embeddings)[:, rows][:, :, columns]``, computing only those entries."""
        offset = at(self.offset, rows, columns)
        flat = F.linear(embeddings, self._matrix_at(rows, columns), offset.flatten())
        return flat.view(-1, *offset.shape)

    def _matrix_at(self, rows: Tensor, columns: Tensor) -> Tensor:  # (R * C * kernel, E)
        outputs, inputs = self.offset.shape[:2]
        places = (rows[:, None] * inputs + columns).flatten()
        return self.matrix.view(outputs * inputs, -1).index_select(0, places).view(-1, self.matrix.shape[1])


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
