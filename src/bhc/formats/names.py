"""Names of steps that torch can take: it makes attributes of them, and writes them into code that it then runs."""

import keyword
import re

from torch import fx, nn

from bhc.graph import INPUT, Graph, Step

PLAIN = re.compile(r"\w+", re.ASCII)
_CHAIN, _BRANCHING = nn.Sequential(), fx.GraphModule(nn.Module(), fx.Graph())


def with_plain_names(graph: Graph) -> Graph:
    """The same steps, those that have an impossible name under another one."""
    container = _CHAIN if graph.is_chain else _BRANCHING
    names = {INPUT: INPUT}
    taken = {step.name for step in graph.steps}
    for step in graph.steps:
        names[step.name] = name = step.name if _fits(step.name, container) else _other_name(step.name, taken)
        taken.add(name)
    return Graph(
        Step(names[step.name], step.module, tuple(names[source] for source in step.reads)) for step in graph.steps
    ).train(graph.training)


def _fits(name: str, container: nn.Module) -> bool:
    is_word = PLAIN.fullmatch(name) and not keyword.iskeyword(name) and name != "self"
    return bool(is_word) and not hasattr(container, name)


def _other_name(name: str, taken: set[str]) -> str:
    other = "step_" + re.sub(r"\W+", "_", name, flags=re.ASCII)
    while other in taken:
        other += "_"
    return other
