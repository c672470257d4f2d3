"""Goes through a graph: who moves numbers moves their coordinates, who adds two values turns them alike."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

from bhc.graph.basis import layer_rules, value_rules
from bhc.graph.basis.coordinates import Marked, Search
from bhc.graph.basis.layer_rules import Rule, Visit
from bhc.graph.graph import Graph, Step
from bhc.layers import (
    EXAMPLES,
    Add,
    Concat,
    Embed,
    FlattenPlaces,
    GlobalMean,
    Movement,
    Multiply,
    Select,
    Shape,
    Shift,
    Subsample,
    is_product,
    is_weighted,
)
from bhc.layers.aten import AtenCall

MOVES = (nn.Flatten, FlattenPlaces, Concat, Select, Subsample)
REDUCTIONS = ("mean", "sum", *value_rules.LENGTHS)
CALLS: dict[str, Rule] = {
    **dict.fromkeys(("add", "sub"), value_rules.added),
    **dict.fromkeys(("mul", "div"), value_rules.scaled),
    **dict.fromkeys(("pow", "square"), value_rules.squared),
    **dict.fromkeys(("_to_copy", "to"), value_rules.cast),
    "neg": value_rules.negated,
    **dict.fromkeys(("layer_norm", "rms_norm"), value_rules.normed),
    **dict.fromkeys(REDUCTIONS, value_rules.reduced),
    **dict.fromkeys(("matmul", "bmm", "mm"), value_rules.matmul),
    **dict.fromkeys(("zeros_like", "ones_like", "full_like", "new_zeros", "new_ones", "new_full"), Visit.fixed),
    "masked_fill": value_rules.masked,
    "einsum": value_rules.by_letters,
    "scaled_dot_product_attention": value_rules.attention,
    "repeat_interleave": layer_rules.repeated,
}
LAYERS: dict[type[nn.Module], Rule] = {
    nn.Linear: layer_rules.linear,
    Embed: layer_rules.written,
    Add: value_rules.joined,
    Multiply: value_rules.multiplied,
    Shift: value_rules.shifted,
    GlobalMean: value_rules.averaged,
    **dict.fromkeys(MOVES, layer_rules.rearranged),
}
ONLY_FLOATS = ("im2col", "pixel_shuffle", "pixel_unshuffle")  # these move no whole numbers


def follow(graph: Graph, input_shape: Shape) -> Search:
    """What is found with a batch of two; what the network gives stays, and what a step without a rule reads."""
    search = Search()
    uses = Counter(id(numbers) for step in graph.steps for numbers in step.module.parameters())
    shared = frozenset(number for number, count in uses.items() if count > 1)

    def apply(step: Step, *values: Marked) -> Marked:
        visit, rule = Visit(search, step, values, shared), _rule(step.module, values)
        again = is_weighted(step.module) and any(id(numbers) in shared for numbers in step.module.parameters())
        given = None if rule is None or again else rule(visit)  # axes of one call are not those of another
        if given is not None:
            return given
        search.stay(*values)
        return visit.fixed()

    given: Any = search.fixed((EXAMPLES, *input_shape))
    result: Any = graph.run(given, apply)  # type: ignore[arg-type]
    search.stay(result)
    return search


def _rule(module: nn.Module, values: Sequence[Marked]) -> Rule | None:
    is_movement = isinstance(module, (Movement, *MOVES))
    has_own = any(True for _ in (*module.parameters(), *module.buffers()))
    if not (is_movement or has_own or any(value.moves for value in values)):
        return Visit.fixed
    if any(value.squared for value in values):
        return _rule_of_squares(module) if all(value.squared for value in values if value.moves) else None
    if isinstance(module, AtenCall):
        return CALLS.get(module.op, _movement(module))
    return LAYERS.get(type(module), layer_rules.written if is_product(module) else None)


def _rule_of_squares(module: nn.Module) -> Rule | None:
    """They may be moved and summed."""
    if isinstance(module, AtenCall):
        return value_rules.reduced if module.op in ("mean", "sum") else _movement(module)
    return value_rules.averaged if isinstance(module, GlobalMean) else None


def _movement(module: AtenCall) -> Rule | None:
    """Zeros that are put beside numbers stay; other numbers would be taken for coordinates."""
    plain = module.argument("mode", "constant") == "constant" and module.argument("value") in (None, 0)
    return layer_rules.moved if isinstance(module, Movement) and plain and module.op not in ONLY_FLOATS else None
