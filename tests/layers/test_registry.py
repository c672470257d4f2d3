"""A user's own kinds of layers: what is taken, and what is refused by name."""

from collections.abc import Sequence
from typing import Any

import pytest
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.layers import Elementwise, LayerKind, Whole, kind_named, kind_of, kind_tagged, kinds, register_layer
from bhc.layers.kind import Example

pytestmark = pytest.mark.usefixtures("forgetful")


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


class CubeKind(Elementwise):
    name, module = "tests.cube", Cube

    def examples(self) -> Sequence[Example]:
        return [(Cube(), ((2, 3),))]


def test_a_kind_of_ones_own_is_found_by_module_name_and_tag_and_may_not_be_taken_again() -> None:
    assert register_layer(CubeKind) is CubeKind
    assert isinstance(kind_of(Cube()), CubeKind)
    assert isinstance(kind_named("tests.cube"), CubeKind)
    assert isinstance(kind_tagged("tests.cube"), CubeKind)
    assert any(isinstance(kind, CubeKind) for kind in kinds())
    assert bhc.register_layer is register_layer
    with pytest.raises(BhcError, match=r"tests\.cube is taken"):
        register_layer(CubeKind)
    with pytest.raises(BhcError, match="Cube is taken"):
        register_layer(changed(name="tests.other"))


class WithNumber(nn.Module):
    def __init__(self, power: float = 2.0) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return x.abs() ** self.power


def changed(**attributes: Any) -> type[LayerKind]:
    return type("Changed", (CubeKind,), attributes)


BROKEN = {
    "a name without a dot": (changed(name="wrong"), "'wrong'"),
    "no module": (changed(module="Cube"), "'Cube'"),
    "a number of ours": (changed(number=2), "number 2"),
    "no examples": (changed(examples=lambda self: []), "no examples"),
    "an example of something else": (changed(examples=lambda self: [(nn.ReLU(), ((2, 3),))]), "ReLU"),
    "another shape": (changed(output_shape=lambda self, module, *arriving: (2, 4)), r"\(2, 4\)"),
    "an argument that is not told": (
        changed(module=WithNumber, examples=lambda self: [(WithNumber(3.0), ((2, 3),))]),
        "numbers",
    ),
}


@pytest.mark.parametrize(("kind", "said"), BROKEN.values(), ids=BROKEN)
def test_a_kind_that_breaks_its_contract_is_refused_when_it_is_registered(kind: type[LayerKind], said: str) -> None:
    with pytest.raises(BhcError, match=said):
        register_layer(kind)
    assert not any(other.name.startswith("tests.") for other in kinds())


def test_a_kind_that_leaves_questions_open_is_refused_with_their_names() -> None:
    class Silent(LayerKind):
        name, module = "tests.silent", Cube

    class Half(Whole):
        name, module = "tests.half", Cube

    with pytest.raises(BhcError, match="examples, follow, narrowed, output_shape"):
        register_layer(Silent)
    with pytest.raises(BhcError, match="examples, output_shape"):
        register_layer(Half)
    with pytest.raises(BhcError, match="no kind"):
        register_layer(nn.ReLU)  # type: ignore[arg-type]


def test_a_layer_that_is_not_registered_here_is_named() -> None:
    with pytest.raises(BhcError, match=r"acme\.mish"):
        kind_named("acme.mish")
    with pytest.raises(BhcError, match=r"acme\.mish"):
        kind_tagged("acme.mish")
    with pytest.raises(BhcError, match="Cube"):
        kind_of(Cube())
