"""From a context to a runnable module, on a CPU: both LeNets, the three generators.

    python benchmarks/emission.py

The networks are pruned about as far as trained models are: a quarter of the scales lie under the threshold, so
that of the units between two layers one in sixteen stays. Scales are generated first, then only the rows and
columns that stay; generating everything and then cutting is timed beside it.
"""

from functools import partial

import torch
from timing import Results, options, take_turns, write

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import Cutter, make_plan
from bhc.emission.slim import Slimmer, assemble
from bhc.hypernet import ConditionalNetwork

GENERATORS = {"scales-only": bhc.ScalesOnly(), "low-rank": bhc.LowRank(), "full": bhc.Full()}
KEPT = 0.25  # part of the scales under the threshold
CONTEXT, THRESHOLD = Context(classes=(3, 4)), 0.0


def pruned_network(name: str, generator: bhc.ScalesOnly) -> ConditionalNetwork:
    """A network as training leaves it: most rates far over the threshold."""
    net = bhc.models.build(name, image_shape=(1, 28, 28), num_classes=10)
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=torch.zeros(1, 1, 28, 28), generator=generator)
    prune_(model.network)
    return model.network


@torch.no_grad()
def prune_(network: ConditionalNetwork) -> None:
    """Leave a quarter of the scales under the threshold."""
    rng = torch.Generator().manual_seed(0)
    offset = network.hypernet.vectors.logvar_map.offset
    offset.copy_(torch.where(torch.rand(offset.shape, generator=rng) < KEPT, -6.0, 6.0))


def emit(network: ConditionalNetwork, context: Context = CONTEXT) -> None:
    """The module for a context."""
    cutter = Cutter(network, context)
    plan = cutter.cut(THRESHOLD)
    assemble(network, plan, Slimmer(cutter.generated).layers(plan))


@torch.no_grad()
def generate_everything(network: ConditionalNetwork) -> None:
    """What emission would cost if it generated all weights first."""
    encoding = network.space.encode(ContextBatch.of([CONTEXT], 10))
    for mean in network.hypernet.means(encoding):
        mean.weight.dense()
    emit(network)


def main() -> None:
    arguments = options(__file__, __doc__, rounds=50).parse_args()
    rows: list[Results] = []
    for name in ("lenet-300-100", "lenet-5-caffe"):
        for kind, spec in GENERATORS.items():
            network = pruned_network(name, spec)
            times = take_turns(
                {"emit": partial(emit, network), "all": partial(generate_everything, network)},
                rounds=2 if arguments.quick else arguments.rounds,
            )
            weights = make_plan(network, CONTEXT, THRESHOLD).num_weights
            ratio = network.num_weights / weights
            rows.append(
                {
                    "model": name,
                    "generator": kind,
                    "pruning_ratio": ratio,
                    "emit_ms_median": times["emit"],
                    "everything_first_ratio": times["all"] / times["emit"],
                }
            )
            print(
                f"{name}, {kind}: {times['emit']:.2f} ms for a network {ratio:.0f} x smaller;"
                f" generating everything first takes {times['all'] / times['emit']:.1f} x as long",
                flush=True,
            )
    write(arguments, {"rows": rows})


if __name__ == "__main__":
    main()
