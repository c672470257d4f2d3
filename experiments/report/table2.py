"""Table 2: widths and bits per layer, the paper's and ours."""

from collections.abc import Mapping, Sequence
from typing import Any

from .load import Results, Run
from .markdown import bullets, document, table
from .methods import TABLE_METHODS, TITLES
from .numbers import FEW_LAYERS, NOT_RECORDED, NOT_RUN, NOTHING, dashes, layers_text
from .paper import Paper

HEADER = [
    "method",
    "paper: architecture",
    "ours: architecture",
    "paper: bits",
    "ours: bits",
    "ours: bits by the published rule",
]
RULES = (
    "An architecture lists, layer by layer, the filters kept of a convolution and the inputs kept of a linear layer.",
    "Where there are several contexts or seeds, a layer shows its mean over all of them, rounded, and in brackets the"
    f" smallest and the largest; with more than {FEW_LAYERS} layers all means come first, then the brackets. A network"
    " of mean widths is none that was emitted; those stand in [contexts.md](contexts.md).",
    "Bits are those of a layer's weights in the emitted network. The last column counts them as the code published with"
    " BC-GNJ does, from the posterior's variances; nothing is stored that way.",
)


def table2(results: Results, paper: Paper) -> str:
    models = [_model(results, paper, model) for model in paper.models]
    title = f"# Table 2: architectures and bits per layer on {paper.dataset}"
    return document(title, *models, "## How to read it", bullets((*RULES, *paper.notes("table2"))))


def _model(results: Results, paper: Paper, model: str) -> str:
    methods = paper.methods(model, TABLE_METHODS)
    rows = [_row(results.of(model, method), paper.row(model, method), method) for method in methods]
    original = dashes(paper.model(model)["architecture"])
    return document(f"## {paper.title(model)}, {original}", table(HEADER, rows)).rstrip()


def _row(runs: Sequence[Run], printed: Mapping[str, Any] | None, method: str) -> list[str]:
    architecture, bits = (NOTHING if printed is None else dashes(printed[key]) for key in ("architecture", "bits"))
    if not runs:
        return [TITLES[method], architecture, NOT_RUN, bits, NOT_RUN, NOT_RUN]
    ours = [layer_text(runs, key) for key in ("architecture", "bits", "reference_bits")]
    return [TITLES[method], architecture, ours[0], bits, ours[1], ours[2]]


def layer_text(runs: Sequence[Run], key: str) -> str:
    """Each layer over all contexts and seeds."""
    lists = [context[key] for run in runs for context in run.contexts if context.get(key)]
    if not lists:
        return NOT_RECORDED
    return layers_text([list(layer) for layer in zip(*lists, strict=True)])
