"""A user's own kinds of layers: what is taken, and what is refused by name."""

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.errors import BhcError
from bhc.layers import Elementwise, LayerKind, Whole, kind_named, kind_of, kind_tagged, kinds, register_layer, registry
from bhc.layers.kind import Example


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    """What a test registers is gone after it."""
    before = [dict(table) for table in (registry._BY_MODULE, registry._BY_NAME, registry._BY_TAG)]
    yield
    for table, old in zip((registry._BY_MODULE, registry._BY_NAME, registry._BY_TAG), before, strict=True):
        table.clear()
        table.update(old)


class Cube(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x**3


class CubeKind(Elementwise):
    name, module = "tests.cube", Cube

    def examples(self) -> Sequence[Example]:
        return [(Cube(), ((2, 3),))]


def test_a_kind_of_ones_own_is_found_by_module_name_and_tag() -> None:
    assert register_layer(CubeKind) is CubeKind
    assert isinstance(kind_of(Cube()), CubeKind)
    assert isinstance(kind_named("tests.cube"), CubeKind)
    assert isinstance(kind_tagged("tests.cube"), CubeKind)
    assert any(isinstance(kind, CubeKind) for kind in kinds())
    assert bhc.register_layer is register_layer


def test_names_and_modules_that_are_taken_are_refused() -> None:
    register_layer(CubeKind)
    with pytest.raises(BhcError, match=r"tests\.cube is taken"):
        register_layer(CubeKind)
    other = type("Other", (CubeKind,), {"name": "tests.other"})
    with pytest.raises(BhcError, match="Cube is taken"):
        register_layer(other)


class Wrong(Elementwise):
    name, module = "tests.wrong", Cube

    def examples(self) -> Sequence[Example]:
        return [(Cube(), ((2, 3),))]


class WithNumber(nn.Module):
    def __init__(self, power: float = 2.0) -> None:
        super().__init__()
        self.power = power

    def forward(self, x: Tensor) -> Tensor:
        return x.abs() ** self.power


def changed(**attributes: Any) -> type[LayerKind]:
    return type("Changed", (Wrong,), attributes)


BROKEN = {
    "a name without a dot": (changed(name="wrong"), "its name is 'wrong'"),
    "no module": (changed(module="Cube"), "its module is 'Cube'"),
    "a number of ours": (changed(number=2), "it has the number 2"),
    "no examples": (changed(examples=lambda self: []), "it has no examples"),
    "an example of something else": (changed(examples=lambda self: [(nn.ReLU(), ((2, 3),))]), "an example is a ReLU"),
    "another shape": (changed(output_shape=lambda self, module, *arriving: (2, 4)), r"output_shape says \(2, 4\)"),
    "an argument that is not told": (
        changed(module=WithNumber, examples=lambda self: [(WithNumber(3.0), ((2, 3),))]),
        "gives other numbers",
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

    with pytest.raises(BhcError, match="Silent leaves open: examples, follow, narrowed, output_shape"):
        register_layer(Silent)
    with pytest.raises(BhcError, match="Half leaves open: examples, output_shape"):
        register_layer(Half)
    with pytest.raises(BhcError, match="is no kind of layer"):
        register_layer(nn.ReLU)  # type: ignore[arg-type]


def test_a_layer_that_is_not_registered_here_is_named() -> None:
    with pytest.raises(BhcError, match=r"layer 'acme\.mish' is not registered here"):
        kind_named("acme.mish")
    with pytest.raises(ValueError, match=r"'acme\.mish' is not registered here"):
        kind_tagged("acme.mish")
    with pytest.raises(BhcError, match="no kind of layer is registered for Cube"):
        kind_of(Cube())
    assert torch.is_tensor(Cube()(torch.ones(1)))
