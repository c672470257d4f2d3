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

    def at(self, embedding: Tensor, rows: Tensor, columns: Tensor) -> Tensor:  # (1, E) -> (1, R, C, ...)
        """``forward(embedding)[:, rows][:, :, columns]``, computing only those entries."""
        offset = self.offset[rows[:, None], columns]
        matrix = self.matrix.view(*self.offset.shape, -1)[rows[:, None], columns]
        return (offset + matrix @ embedding[0])[None]


class Constant(nn.Module):
    """The same tensor for every context."""

    def __init__(self, offset: Tensor) -> None:
        super().__init__()
        self.offset = nn.Parameter(offset.detach().clone())

    def forward(self, embedding: Tensor) -> Tensor:  # (K, E) -> (1, *shape)
        return self.offset[None]
