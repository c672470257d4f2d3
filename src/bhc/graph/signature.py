"""What a network takes: one tensor, or several by their places and names."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bhc.errors import BhcError
from bhc.graph.graph import Graph, Inputs
from bhc.layers import Given, Shape, kind_named

ONE = "input"  # what an input is called that has no name of its own


@dataclass(frozen=True)
class Input:
    """One of them; ``shape`` is of one example."""

    name: str
    shape: Shape
    dtype: torch.dtype = torch.float32
    dynamic: tuple[int, ...] = ()  # axes along which other sizes are welcome; the batch, 0, is not among them

    def fits(self, x: Any) -> bool:
        """Whether a batch has the shape that it must have."""
        if not isinstance(x, Tensor) or x.dim() != 1 + len(self.shape):
            return False
        pairs = enumerate(zip(x.shape[1:], self.shape, strict=True), start=1)
        return all(given == wanted or axis in self.dynamic for axis, (given, wanted) in pairs)

    def sizes(self) -> tuple[int | str, ...]:
        """The shape of a batch, names in the place of sizes that are not fixed."""
        own = (f"{self.name}_{axis}" if axis in self.dynamic else size for axis, size in enumerate(self.shape, start=1))
        return ("batch", *own)

    def __str__(self) -> str:
        return f"{self.name} ({', '.join(map(str, self.sizes()))})"


@dataclass(frozen=True)
class Signature:
    """The inputs of a network, in their order."""

    inputs: tuple[Input, ...]

    @classmethod
    def of(cls, graph: Graph, input_shape: Shape) -> "Signature":
        """``input_shape`` counts where the graph has no steps that say more."""
        own = tuple(
            Input(module.called, module.shape, getattr(torch, module.dtype), module.dynamic)
            for module in map(graph.get_submodule, graph.given)
            if isinstance(module, Given)
        )
        return cls(own) if own else cls.one(input_shape)

    @classmethod
    def one(cls, shape: Shape) -> "Signature":
        """One tensor of floats."""
        return cls((Input(ONE, shape),))

    def __len__(self) -> int:
        return len(self.inputs)

    def __iter__(self) -> Iterator[Input]:
        return iter(self.inputs)

    def __str__(self) -> str:
        return ", ".join(map(str, self.inputs))

    @property
    def shape(self) -> Shape:
        """Of one example, where there is one input; nothing where there are several."""
        return self.inputs[0].shape if len(self) == 1 else ()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.inputs)

    def zeros(self, count: int) -> tuple[Tensor, ...]:
        """So many examples of nothing."""
        return tuple(torch.zeros(count, *each.shape, dtype=each.dtype) for each in self.inputs)

    def dynamic_shapes(self) -> tuple[dict[int, Any], ...]:
        """As ``torch.export`` is told what may have another size."""
        return tuple(dict.fromkeys((0, *each.dynamic), torch.export.Dim.DYNAMIC) for each in self.inputs)

    def cast(self, x: Inputs) -> tuple[Tensor, ...]:
        """A batch in the dtypes that the network's files take."""
        several = (x,) if isinstance(x, Tensor) else x
        return tuple(given.to(each.dtype) for each, given in zip(self.inputs, several, strict=True))

    def to_list(self) -> list[dict[str, Any]]:
        """As plain data."""
        return [
            {
                "name": each.name,
                "shape": list(each.shape),
                "dtype": str(each.dtype).removeprefix("torch."),
                "dynamic": list(each.dynamic),
            }
            for each in self.inputs
        ]

    @classmethod
    def from_list(cls, inputs: Any) -> "Signature":
        """What ``to_list`` made plain; ValueError, KeyError or TypeError for anything else."""
        described = [
            {"called": each["name"], "place": place, "dtype": each["dtype"]}
            | {key: tuple(each[key]) for key in ("shape", "dynamic")}
            for place, each in enumerate(inputs)
        ]
        modules: list[Any] = list(map(kind_named("given").build, described))
        return cls(tuple(Input(m.called, m.shape, getattr(torch, m.dtype), m.dynamic) for m in modules))

    def taken(self, x: Any) -> Inputs:
        """A batch as the graph takes it: a tensor, or several as a tuple or a dict; BhcError where it does not fit."""
        if isinstance(x, Tensor):
            x = (x,)
        elif isinstance(x, Mapping):
            if set(x) != set(self.names):
                raise self._refused(f"inputs named {', '.join(map(str, x)) or 'nothing'}")
            x = tuple(x[name] for name in self.names)
        if not isinstance(x, Sequence) or len(x) != len(self):
            raise self._refused(f"{len(x)} inputs" if isinstance(x, Sequence) else f"a {type(x).__name__}")
        for each, given in zip(self.inputs, x, strict=True):
            if not each.fits(given):
                what = f"shape {tuple(given.shape)}" if isinstance(given, Tensor) else f"type {type(given).__name__}"
                raise self._refused(f"{'inputs' if len(self) == 1 else each.name} of {what}")
        if len({len(given) for given in x}) > 1:
            raise self._refused(f"batches of {', '.join(str(len(given)) for given in x)} examples")
        x = tuple(given.float() if given.is_floating_point() else given for given in x)
        return x[0] if len(x) == 1 else x

    def _refused(self, what: str) -> BhcError:
        return BhcError(what, hint=f"this network takes {self}")
