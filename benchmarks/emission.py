"""From a context to a runnable module, on a CPU: both LeNets, the three generators.

    python benchmarks/emission.py

The networks are pruned about as far as trained models are: a quarter of the scales lie under the threshold, so
that of the units between two layers one in sixteen stays. Scales are generated first, then only the rows and
columns that stay; generating everything and then cutting is timed beside it. Of 1,000 contexts masks and kept
weights are made together, and beside that those of the same contexts one by one; each keeps units of its own, a quarter
of the scales again.
"""

import gc
from functools import partial
from statistics import mean

import torch
from timing import Results, options, take_turns, write

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import ContextScales, Cutter, Slimmer, assemble, cut_all, make_cut
from bhc.graph import Graph
from bhc.hypernet import ConditionalNetwork

GENERATORS = {"scales-only": bhc.ScalesOnly(), "low-rank": bhc.LowRank(), "full": bhc.Full()}
KEPT = 0.25  # part of the scales under the threshold
CONTEXT, THRESHOLD = Context(classes=(3, 4)), 0.0
TOGETHER = 1000  # contexts


def pruned_network(name: str, generator: bhc.ScalesOnly) -> ConditionalNetwork:
    """A network as training leaves it: most rates far over the threshold."""
    net = bhc.models.build(name, image_shape=(1, 28, 28), num_classes=10)
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=torch.zeros(1, 1, 28, 28), weight_generator=generator)
    prune_(model.network)
    return model.network


@torch.no_grad()
def prune_(network: ConditionalNetwork, *, kept: float = KEPT) -> None:
    """Leave a part of the scales under the threshold."""
    rng = torch.Generator().manual_seed(0)
    offset = network.hypernet.vectors.logvar_map.offset
    offset.copy_(torch.where(torch.rand(offset.shape, generator=rng) < kept, -6.0, 6.0))


@torch.no_grad()
def vary_(network: ConditionalNetwork, contexts: list[Context]) -> None:
    """Let contexts keep different units: rates move by as much as those that stay are under the threshold."""
    vectors = network.hypernet.vectors
    embedding = ContextScales.of(network, contexts).embedding
    rng = torch.Generator().manual_seed(0)
    vectors.logvar_map.matrix.normal_(0.0, 6.0 / float(embedding.norm(dim=1).mean()), generator=rng)
    vectors.logvar_map.offset.copy_(torch.where(vectors.logvar_map.offset < 0, -6.0, 10.0))


def emit(network: ConditionalNetwork, context: Context = CONTEXT, threshold: float = THRESHOLD) -> Graph:
    """The module for a context."""
    cutter = Cutter(network, context)
    cut = cutter.cut(threshold)
    return assemble(network, cut, Slimmer(cutter.scales).layers(cut))


def weigh_each(network: ConditionalNetwork, contexts: list[Context]) -> None:
    """Masks and kept weights of contexts, one after the other."""
    for context in contexts:
        cutter = Cutter(network, context)
        Slimmer(cutter.scales).layers(cutter.cut(THRESHOLD))


def weigh_together(network: ConditionalNetwork, contexts: list[Context]) -> None:
    """The same, all at once."""
    scales = ContextScales.of(network, contexts)
    Slimmer(scales).layers_of_all(cut_all(scales, THRESHOLD))


@torch.no_grad()
def generate_everything(network: ConditionalNetwork) -> None:
    """What emission would cost if it generated all weights first."""
    encoding = network.space.encode(ContextBatch.of([CONTEXT], 10))
    for layer in network.hypernet.means(encoding):
        layer.weight.dense()
    emit(network)


def main() -> None:
    gc.disable()  # a collection takes as long as a thousand networks, and falls on whichever row it likes
    arguments = options(__file__, __doc__, rounds=50).parse_args()
    rows: list[Results] = []
    subsets = bhc.RandomSubsets((2, 3, 4, 5)).draw(TOGETHER, 10, rng=torch.Generator().manual_seed(0))
    contexts = [Context(classes=tuple(row.nonzero().flatten().tolist())) for row in subsets]
    for name in ("lenet-300-100", "lenet-5-caffe"):
        for kind, spec in GENERATORS.items():
            network = pruned_network(name, spec)
            times = take_turns(
                {"emit": partial(emit, network), "all": partial(generate_everything, network)},
                rounds=2 if arguments.quick else arguments.rounds,
            )
            ratio = network.num_weights / make_cut(network, CONTEXT, THRESHOLD).num_weights
            vary_(network, contexts)
            kept = [cut.num_weights for cut in cut_all(ContextScales.of(network, contexts), THRESHOLD)]
            batches = take_turns(
                {
                    "each": partial(weigh_each, network, contexts[: TOGETHER // 10]),
                    "together": partial(weigh_together, network, contexts),
                },
                rounds=1 if arguments.quick else max(1, arguments.rounds // 5),
            )
            each, alone = batches["together"] / TOGETHER, 10 * batches["each"] / TOGETHER
            rows.append(
                {
                    "model": name,
                    "generator": kind,
                    "pruning_ratio": ratio,
                    "emit_ms_median": times["emit"],
                    "everything_first_ratio": times["all"] / times["emit"],
                    "together_pruning_ratio": network.num_weights / mean(kept),
                    "together_ms_a_context": each,
                    "alone_ratio": alone / each,
                }
            )
            print(
                f"{name}, {kind}: {times['emit']:.2f} ms for a network {ratio:.0f} x smaller;"
                f" generating everything first takes {times['all'] / times['emit']:.1f} x as long;"
                f" masks and weights {each:.2f} ms each in {TOGETHER:,}, {alone / each:.1f} x that one by one",
                flush=True,
            )
    write(arguments, {"rows": rows})


if __name__ == "__main__":
    main()
