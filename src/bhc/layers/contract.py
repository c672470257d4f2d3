"""What every kind of layer must keep: tried on its own examples, when it is registered and in the tests."""

import inspect
from typing import Any

import torch
from torch import Tensor, nn

from bhc.errors import BhcError
from bhc.layers.kind import LayerKind
from bhc.layers.shapes import Shape

TOLERANCE = 1e-6


def check_contract(kind: type[LayerKind]) -> LayerKind:
    """The kind, if it answers what it must and its answers agree with its module; BhcError names what does not."""
    if not (isinstance(kind, type) and issubclass(kind, LayerKind)):
        raise BhcError(f"{kind!r} is no kind of layer", hint="give a subclass of bhc.layers.LayerKind")
    if inspect.isabstract(kind):
        missing = ", ".join(sorted(kind.__abstractmethods__))
        raise BhcError(f"{kind.__name__} leaves open: {missing}", hint="write these methods; nothing is guessed")
    name, module = getattr(kind, "name", None), getattr(kind, "module", None)
    if not isinstance(name, str) or "." not in name.strip(".") or not name.isprintable():
        raise _broken(kind, f"its name is {name!r}", "choose one with a dot in it, such as 'acme.mish'")
    if not (isinstance(module, type) and issubclass(module, nn.Module)):
        raise _broken(kind, f"its module is {module!r}", "name the class of nn.Module that it describes")
    if kind.number is not None:
        raise _broken(kind, f"it has the number {kind.number}", "numbers are for kinds that come with bhc")
    made = kind()
    examples = made.examples()
    if not examples:
        raise _broken(kind, "it has no examples", "give at least one module with the shapes that it reads")
    for example, shapes in examples:
        _check_example(made, example, shapes)
    return made


def _check_example(kind: LayerKind, module: nn.Module, shapes: tuple[Shape, ...]) -> None:
    if type(module) is not kind.module:
        raise _broken(type(kind), f"an example is a {type(module).__name__}", f"give a {kind.module.__name__}")
    values = [_values(shape, seed) for seed, shape in enumerate(shapes)]
    module = module.eval()
    with torch.no_grad():
        given = module(*values)
    said = tuple(kind.output_shape(module, *shapes))
    if said != tuple(given.shape):
        raise _broken(type(kind), f"output_shape says {said}, and its module gives {tuple(given.shape)}")
    described = kind.describe(module)
    twin: Any = kind.build(described)
    if type(twin) is not type(module) or kind.describe(twin) != described:
        raise _broken(type(kind), "build(describe(module)) is another module", "list all arguments in `arguments`")
    twin.load_state_dict(module.state_dict())
    with torch.no_grad():
        again = twin.eval()(*values)
    if not torch.allclose(given, again, atol=TOLERANCE):
        raise _broken(
            type(kind), "a module that is built again gives other numbers", "numbers must be arguments or parameters"
        )


def _values(shape: Shape, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def _broken(kind: type[LayerKind], what: str, hint: str | None = None) -> BhcError:
    return BhcError(f"layer {getattr(kind, 'name', kind.__name__)!r} cannot be registered: {what}", hint=hint or "")
