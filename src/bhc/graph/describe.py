"""A graph as plain data and back: what run folders and emitted files store instead of code."""

from collections.abc import Sequence
from typing import Any

from bhc.errors import BhcError
from bhc.graph.graph import INPUT, Graph, Step
from bhc.layers import kind_named, kind_of

ABOUT_STEPS = ("kind", "name", "reads")  # what a description says beside its kind's own


def describe(graph: Graph) -> list[dict[str, Any]]:
    """One dict a step: the kind's name, the step's name, the constructor's arguments, and what it reads.

    A step that reads just the one before it does not say so.
    """
    described, before = [], INPUT
    for step in graph.steps:
        kind = kind_of(step.module)
        described.append({"kind": kind.name, "name": step.name} | kind.describe(step.module))
        if step.reads != (before,):
            described[-1]["reads"] = list(step.reads)
        before = step.name
    return described


def rebuild(steps: Sequence[Any]) -> Graph:
    """The graph that ``steps`` describe, its tensors uninitialised: load a state dict into it."""
    try:
        built, before = [], INPUT
        for step in steps:
            name, reads = str(step["name"]), tuple(map(str, step.get("reads", (before,))))
            own = {key: _argument(value) for key, value in step.items() if key not in ABOUT_STEPS}
            built.append(Step(name, kind_named(step["kind"]).build(own), reads))
            before = name
        return Graph(built)
    except BhcError:
        raise
    except (KeyError, TypeError, ValueError, RuntimeError, OverflowError, AttributeError) as error:
        raise BhcError(f"the description of the network is damaged: {error!r}") from error


def _argument(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value
