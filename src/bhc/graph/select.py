"""Reading only some of a layer's inputs: what pruning the first layer or a flattened map comes to."""

from torch import Tensor, nn


class Select(nn.Module):
    """Keep the listed features of a flat input, in order: ``x[:, index]``."""

    index: Tensor

    def __init__(self, index: Tensor) -> None:
        super().__init__()
        self.register_buffer("index", index.long())

    def forward(self, x: Tensor) -> Tensor:
        return x.index_select(1, self.index)

    def extra_repr(self) -> str:
        return f"kept={len(self.index)}"
