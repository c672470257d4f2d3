"""What an export format is: one object that writes networks, and opens what it has written."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, ClassVar

from torch import nn

from bhc.errors import BhcError
from bhc.formats.deployed import Deployed
from bhc.formats.quantised import QuantisedNetwork
from bhc.layers import NoForm, kind_of

Rule = Callable[..., Any]


class WeightForm(Enum):
    """Floats run everywhere; integers are smaller; bit-packed ones smaller still and slower to read."""

    FLOATS = "floats"
    INTEGERS = "integers"
    BIT_PACKED = "bit-packed"


@dataclass(frozen=True)
class Export:
    """What a writer is told beside the network."""

    weights: WeightForm = WeightForm.FLOATS
    name: str = "network"  # of functions, in formats that are code
    metadata: Mapping[str, Any] = field(default_factory=dict)  # plain data: context, classes, report


@dataclass(frozen=True)
class Figure:
    """One number about a file that its bytes do not show."""

    key: str  # in JSON
    title: str
    value: int
    unit: str


class Format(ABC):
    """One export format; ``bhc.register_format`` makes it known to the command line, the service and the page.

    ``name`` is what users type and requests say, ``label`` what a button shows, ``suffix`` what files end in, with the
    dot. ``weight_forms`` are the ways in which it can hold weights, the usual one first.

    A format brings ``rules`` for kinds of layers, by the kind's name, which know nothing of it. ``rule_for`` finds the
    one that counts: the layer's own, then the format's.
    """

    name: ClassVar[str]
    label: ClassVar[str]
    suffix: ClassVar[str]
    media_type: ClassVar[str] = "application/octet-stream"
    weight_forms: ClassVar[tuple[WeightForm, ...]] = (WeightForm.FLOATS,)
    aliases: ClassVar[tuple[str, ...]] = ()  # other names on the command line
    is_code: ClassVar[bool] = False  # whether its functions have a name that can be chosen
    rules: ClassVar[Mapping[str, Rule]] = {}

    @abstractmethod
    def write(self, network: QuantisedNetwork, export: Export) -> bytes:
        """The content of the file; BhcError says what the format cannot hold, and by which name."""

    def open(self, path: Path) -> Deployed:
        """A file, ready to answer: what ``bhc evaluate`` runs."""
        raise BhcError(f"{path} cannot be run here: it is a {self.label} file", hint="evaluate the .bhc file")

    def figures(self, network: QuantisedNetwork, export: Export) -> tuple[Figure, ...]:
        """Numbers about the file that ``bhc export`` shows beside its size."""
        return ()

    def rule_for(self, module: nn.Module, name: str) -> Rule:
        """How a step is written: as its kind says, else as this format does; NoForm where neither knows."""
        kind = kind_of(module)
        rule = kind.forms.get(self.name) or self.rules.get(kind.name)
        if rule is None:
            raise NoForm(f"step {name!r} is a {type(module).__name__}")
        return rule

    def weights_for(self, network: QuantisedNetwork, wanted: WeightForm | None) -> WeightForm:
        """The wanted form of weights, or the usual one; BhcError where the format or the network has no such."""
        if wanted is None:
            return self.weight_forms[0] if network.weights else WeightForm.FLOATS
        if not isinstance(wanted, WeightForm):
            raise BhcError(
                f"weights={wanted!r} is not a form", hint="give bhc.WeightForm.FLOATS, INTEGERS or BIT_PACKED"
            )
        if wanted not in self.weight_forms:
            raise BhcError(
                f"{self.name} files do not hold weights as {wanted.value}",
                hint=f"choose --weights {' or '.join(choice.value for choice in self.weight_forms)}",
            )
        if wanted is not WeightForm.FLOATS and not network.weights:
            raise BhcError(
                f"this network has 32-bit weights and cannot be written with {wanted.value}",
                hint="emit it with bit widths (without Float32() or --float32), or choose floats",
            )
        return wanted
