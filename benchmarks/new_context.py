"""A network for a new context: from a trained run, against what a user would do instead.

    python benchmarks/new_context.py RUN [RUN ...] --data mnist [--contexts 9] [--device cuda]

Contexts are drawn by a seed from those that the run was trained for. For each, our network is emitted at the run's own
threshold: the module alone, which is all that rivals make; then with ``compress``, which looks at validation images for
its report, as a float module and as a packed file. Rivals then make one of as many weights until its error on the
context's validation images is no higher than ours, or until a limit of steps: torch-pruning by Taylor importance,
BC-IO-GNJ for the one context, and the emitted architecture from scratch. Ratios are their time over ours; where a limit
was hit the ratio is a lower bound. Test images are looked at once, at the end of each. Emission is on the CPU, and so
are rivals unless a device is given. torch-pruning is optional: pip install -e '.[benchmarks]'
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from emission import emit
from rivals import Attempt, Effort, Task, bc_io_gnj, from_scratch, pruned_by_taylor, weights_of
from timing import Results, options, take_turns, write

import bhc
from bhc.data import DataSet, Split
from bhc.formats import QuantisedNetwork
from bhc.results import mean
from bhc.training import find_device

RIVALS = ("torch-pruning", "bc-io-gnj", "from-scratch")


def main() -> int:
    arguments = parse()
    try:
        rows = [row for run in arguments.runs for row in compare(run, arguments)]
    except bhc.BhcError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    summaries = [summary(name, rows) for name in dict.fromkeys(row["network"] for row in rows)]
    effort = {
        "limit_steps": arguments.limit,
        "rates": list(Effort.rates),
        "seed": arguments.seed,
        "threads": torch.get_num_threads(),  # that emission has
    }
    write(arguments, effort | {"summaries": summaries, "rows": rows}, device=find_device(arguments.device))
    for each in summaries:
        print(described(each))
    return 0


def parse() -> argparse.Namespace:
    parser = options(__file__, __doc__, rounds=7, device=True)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--contexts", type=int, default=9, help="drawn of each run (%(default)s)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=16_000, help="most steps of a rival (%(default)s)")
    parser.add_argument("--without", nargs="*", default=[], choices=RIVALS, help="rivals that are left out")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.contexts, arguments.limit, arguments.rounds = (
            min(2, arguments.contexts),
            min(1000, arguments.limit),
            2,
        )
    return arguments


def compare(run: Path, arguments: argparse.Namespace) -> list[Results]:
    model, data = bhc.load(run), bhc.data.load(arguments.data)
    kl_weight = model.model.training["recipe"][0]["kl_weight"]
    effort = Effort(limit=arguments.limit, kl_weight=kl_weight)
    rows = []
    for classes in drawn(model, arguments.contexts, seed=arguments.seed):
        row = {"run": run.name, "network": architecture(model), "classes": list(classes)}
        rows.append(row | compared(model, data, classes, effort, arguments))
        print(rows[-1], flush=True)
    return rows


def drawn(model: bhc.Compressor, count: int, *, seed: int) -> list[tuple[int, ...]]:
    """Different contexts of those that the run was trained for."""
    if not isinstance(model.space, bhc.ClassSubsets):
        raise bhc.BhcError(
            f"a run for {model.space.conditions}", hint="give one for class subsets: bhc train --subsets"
        )
    classes = model.network.num_classes
    rows = model.space.sampler.draw(100 * count, classes, rng=torch.Generator().manual_seed(seed)).tolist()
    return list(dict.fromkeys(tuple(label for label in range(classes) if row[label]) for row in rows))[:count]


def compared(
    model: bhc.Compressor, data: DataSet, classes: Sequence[int], effort: Effort, arguments: argparse.Namespace
) -> Results:
    """Ours and every rival's for one context."""
    asked: dict[str, Any] = {"classes": list(classes)}
    context = model.space.resolve(asked)
    ways_to_ours: dict[str, Callable[[], object]] = {
        "module": lambda: emit(model.network, context, model.model.default_threshold),
        "report": lambda: model.compress(**asked, quantisation=bhc.Float32()).module,
        "file": lambda: model.compress(**asked).to_bytes(),
    }
    times = take_turns(ways_to_ours, rounds=arguments.rounds)
    small, packed = model.compress(**asked, quantisation=bhc.Float32()), model.compress(**asked)
    validation, test = data.validation.restricted_to(classes), data.test.restricted_to(classes)
    ours = {
        **{f"{kind}_ms": spent for kind, spent in times.items()},
        "pruning_ratio": small.report.pruning_ratio,
        "validation_error": error_of(small, validation),
        "test_error": error_of(small, test),
        "file_bytes": packed.report.file_bytes,
        "file_test_error": error_of(packed, test),
    }
    device = find_device(arguments.device)
    task = Task.of(data, classes, weights=small.report.weights_after, error=ours["validation_error"], device=device)
    network = model.network
    original = QuantisedNetwork(network.base_model, network.input_shape, tuple(range(network.num_classes))).module()
    ways = {
        "torch-pruning": partial(pruned_by_taylor, original),
        "bc-io-gnj": partial(bc_io_gnj, model, data.train),
        "from-scratch": partial(from_scratch, small.module),
    }
    found = {
        name: rated(ways[name](task, effort), task, network.num_weights, times)
        for name in RIVALS
        if name not in arguments.without
    }
    return {"ours": ours, "rivals": found}


def rated(attempt: Attempt, task: Task, weights_before: int, times: dict[str, float]) -> Results:
    return {
        "seconds": attempt.seconds,
        "steps": attempt.steps,
        "reached": attempt.reached,
        "pruning_ratio": weights_before / weights_of(attempt.net),
        "validation_error": attempt.error,
        "test_error": task.error_of(attempt.net, task.test),
        **{f"times_{kind}": 1e3 * attempt.seconds / spent for kind, spent in times.items()},
    }


def error_of(small: bhc.Compressed, examples: Split) -> float:
    return 100 * float((small.predict(examples.inputs).labels != examples.labels).float().mean())


def architecture(model: bhc.Compressor) -> str:
    return "-".join(str(layer.width) for layer in model.network.layers)


def summary(network: str, rows: Sequence[Results]) -> Results:
    """Over the contexts of one network."""
    own = [row for row in rows if row["network"] == network]
    ours = {f"{key}_mean": mean([row["ours"][key] for row in own]) for key in ("test_error", "pruning_ratio")}
    rivals = {name: rival_summary([row["rivals"][name] for row in own]) for name in own[0]["rivals"]}
    return {"network": network, "contexts": len(own), "ours": ours, "rivals": rivals}


def rival_summary(rows: Sequence[Results]) -> Results:
    times = {
        f"{key}_{how.__name__}": how([row[key] for row in rows])
        for key in ("times_module", "times_report", "times_file")
        for how in (median, min)
    }
    means = {f"{key}_mean": mean([row[key] for row in rows]) for key in ("test_error", "pruning_ratio")}
    return times | means | {"reached": sum(row["reached"] for row in rows)}


def described(each: Results) -> str:
    lines = [f"{each['network']}, {each['contexts']} contexts: {_errors(each['ours'])}"]
    for name, rival in each["rivals"].items():
        lines.append(
            f"  {name}: {rival['times_module_median']:,.0f} x as long (least {rival['times_module_min']:,.0f}),"
            f" {rival['times_report_median']:,.0f} x with our report, {rival['times_file_median']:,.0f} with the file;"
            f" no worse in {rival['reached']}; {_errors(rival)}"
        )
    return "\n".join(lines)


def _errors(means: Results) -> str:
    return f"test error {means['test_error_mean']:.2f} %, {means['pruning_ratio_mean']:.0f} x smaller"


if __name__ == "__main__":
    raise SystemExit(main())
