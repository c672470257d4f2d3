"""Which public networks can be compressed at all, by source and family, beside torch-pruning.

    python benchmarks/coverage.py                          # all of them: an hour or two
    python benchmarks/coverage.py --only timm/ --jobs 2    # those whose name has this in it
    python benchmarks/coverage.py --resume                 # only those without a row yet
    python benchmarks/coverage.py --stages wrap same cut   # these anew, other columns stay: half an hour

``zoo/`` lists the networks; it needs pytorchcv, timm, transformers, torchvision, vit-pytorch and torch-pruning.
Weights are random, also those of norms and gates that start as zero or one. Every network runs in a process of its own,
every stage with a time limit. The stages, each "ok" or the first line of the reason why not:

    export    torch.export takes it, with a batch of any size
    wrap      bhc.wrap takes it
    same      what bhc runs gives the same outputs, on inputs that it was not wrapped with
    cut       half of the units that can go are gone, then all that can, and what is left gives what the masked network
              gives; beside it the part of the weights that goes in the end
    pt2       the small network as a PyTorch program that is read again
    bhc       as a packed file that is read again
    onnx      as an ONNX file, the same outputs in onnxruntime
    pruning   torch-pruning takes half of the channels of the original, and what is left runs

torch-pruning is called as its examples do, with the last layers left alone and nothing else said about the network.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import Any

import torch
import zoo
from timing import CPU, Results, options
from torch import Tensor, nn

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import Cutter, slim_model
from bhc.files import write_json
from bhc.formats import QuantisedNetwork, load_program, onnx_bytes, open_session, pack, parse_network, torch_bytes
from bhc.results import environment
from bhc.training import describe_device

STAGES = ("export", "wrap", "same", "cut", "pt2", "bhc", "onnx", "pruning")
OURS = STAGES[1:-1]  # each needs the ones that NEEDS says
NEEDS = {"same": "wrap", "cut": "wrap", "pt2": "cut", "bhc": "cut", "onnx": "cut"}
SKIPPED = tuple({f"no {stage}" for stage in NEEDS.values()})
FIGURES = {  # what a stage notes beside "ok"
    "export": ("export_nodes",), "wrap": ("whole",), "same": ("difference",),
    "cut": ("cut_difference", "ratio", "free_units", "can_go"), "bhc": ("file_bytes",), "pruning": ("pruning_kept",),
}  # fmt: skip
PACKAGES = ("pytorchcv", "timm", "transformers", "torchvision", "vit-pytorch", "torch-pruning", "onnxscript")
TOLERANCE = 1e-3  # of the largest output
PRUNED = 0.5  # of the channels
HARDEST = -1e30  # a threshold that is under every rate
MOST = 0.9  # of the weights of a network, which should be able to go
SEED = 0
ROW = "row: "  # before each line of a worker that is one
PAGE = Path(__file__).parents[1] / "docs" / "coverage.md"
QUICK = ("hand-written/depthwise", "hand-written/gru", "torchvision/squeezenet1_1")


class Failed(Exception):
    """A stage came to a result, and it is not good enough."""


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Stop what takes longer."""

    def stop(*_: object) -> None:
        raise Failed(f"not within {seconds:g} s")

    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


class Ours:
    """What bhc does with one network. Each stage raises if it fails, and returns figures to note."""

    def __init__(self, network: zoo.Network, net: nn.Module, example: zoo.Example) -> None:
        self.network, self.net, self.example = network, net, example

    @torch.no_grad()
    def _expected(self, inputs: zoo.Example) -> Tensor:
        return zoo.chosen(zoo.call(self.net, inputs), self.network.output)

    def wrap(self) -> Results:
        """Prepare it for one context: what is asked here is whether it gets in, and can get smaller."""
        which = {} if self.network.output is None else {"output": self.network.output}
        space = bhc.SingleContext()
        self.model = bhc.wrap(self.net, space, example_input=self.example, initial=bhc.Initial(), **which)
        whole = sum(each.weights for each in self.model.network.whole)
        return {"whole": whole / self.model.network.num_weights}

    @torch.no_grad()
    def same(self) -> Results:
        """Compare on other inputs, and more of them."""
        inputs = zoo.several(self.example, 3)
        network = self.model.network
        return {"difference": agree(network.base_model.run(network.signature.taken(inputs)), self._expected(inputs))}

    @torch.no_grad()
    def cut(self) -> Results:
        """The noisier half of the free units goes, by rates that are drawn; slim equals masked."""
        network = self.model.network.eval()
        draws = torch.Generator().manual_seed(SEED)
        for name, parameter in network.hypernet.named_parameters():
            if "logvar" in name and name.endswith("offset") and "vectors" in name:
                parameter += 5 + 3 * torch.randn(parameter.shape, generator=draws)
        batch = ContextBatch.of([Context()], network.num_classes)
        rates = network.find_masks.noisiest_links(network.dropouts(batch), batch.outputs)
        free = rates[rates.isfinite()]
        threshold = float(free.median()) if len(free) else 0.0
        plan = Cutter(network, Context()).cut(threshold)
        self.inputs = network.signature.taken(zoo.several(self.example, 2))
        slim = slim_model(network, plan)
        self.expected = slim.run(self.inputs)
        masked = network.masked(self.inputs, batch, threshold=torch.tensor([[threshold]]))
        labels = tuple(range(self.expected.shape[1]))
        self.small = QuantisedNetwork(slim, network.input_shape, labels, card={"context": {}})
        figures = {"ratio": network.num_weights / plan.num_weights, "free_units": len(free)}
        return {"cut_difference": agree(masked, self.expected), "can_go": self._can_go(batch)} | figures

    def _can_go(self, batch: ContextBatch) -> float:
        """The part of the weights that goes when all goes that can, of a network that still runs as it should."""
        network = self.model.network
        plan = Cutter(network, Context()).cut(HARDEST)
        agree(
            network.masked(self.inputs, batch, threshold=torch.tensor([[HARDEST]])),
            slim_model(network, plan).run(self.inputs),
        )
        return 1 - plan.num_weights / network.num_weights

    @torch.no_grad()
    def pt2(self) -> Results:
        """The small network as a PyTorch program, read and run."""
        program, _ = load_program(torch_bytes(self.small))
        agree(program(*self.small.signature.cast(self.inputs)), self.expected)
        return {}

    @torch.no_grad()
    def bhc(self) -> Results:
        """The small network as a packed file, read and run."""
        content = pack(self.small)
        read = parse_network(content, Path("small.bhc")).network
        agree(read.graph(*read.signature.cast(self.inputs)), self.expected)
        return {"file_bytes": len(content)}

    def onnx(self) -> Results:
        """The small network as an ONNX file, run in onnxruntime."""
        session = open_session(onnx_bytes(self.small))
        signature = self.small.signature
        given = zip(signature.names, signature.cast(self.inputs), strict=True)
        (answer,) = session.run(None, {name: numbers.numpy() for name, numbers in given})
        agree(torch.from_numpy(answer), self.expected)
        return {}


def agree(given: Tensor, expected: Tensor) -> float:
    """The largest difference, in parts of the largest output."""
    if given.shape != expected.shape:
        raise Failed(f"outputs have the shape {tuple(given.shape)}, not {tuple(expected.shape)}")
    largest = expected.abs().max().clamp(min=torch.finfo(expected.dtype).tiny)  # of some nothing is left but zeros
    difference = float((given - expected).abs().max() / largest)
    if not difference <= TOLERANCE:
        raise Failed(f"outputs differ by {difference:.2g} of the largest")
    return difference


def export(net: nn.Module, example: zoo.Example) -> Results:
    """torch.export alone."""
    two = zoo.several(example, 2)
    named = two if isinstance(two, dict) else {}
    placed = () if named else two if isinstance(two, tuple) else (two,)
    batch = torch.export.Dim("batch")
    shapes: Any = {name: {0: batch} for name in named} or tuple({0: batch} for _ in placed)
    program = torch.export.export(net, placed, named, dynamic_shapes=shapes, strict=False)
    return {"export_nodes": len(program.graph.nodes)}


def prune(network: zoo.Network, net: nn.Module, example: zoo.Example) -> Results:
    """torch-pruning: channels with small weights go from every layer but the last ones."""
    import torch_pruning

    with torch.no_grad():
        before = zoo.chosen(zoo.call(net, example), network.output)
    weights = sum(value.numel() for value in net.parameters())
    last = [each for each in net.modules() if _width(each) == before.shape[1]]
    pruner = torch_pruning.BasePruner(
        net.requires_grad_(True),
        (example,) if isinstance(example, Tensor) else example,  # a tensor alone would be taken apart along its batch
        importance=torch_pruning.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=PRUNED,
        ignored_layers=last,
        output_transform=lambda outputs: zoo.chosen(outputs, network.output),
    )
    pruner.step()
    with torch.no_grad():
        after = zoo.chosen(zoo.call(net, example), network.output)
    if after.shape != before.shape:
        raise Failed(f"outputs have the shape {tuple(after.shape)}, not {tuple(before.shape)}")
    kept = sum(value.numel() for value in net.parameters()) / weights
    if kept >= 1:
        raise Failed("nothing was cut")
    return {"pruning_kept": kept}


def _width(layer: nn.Module) -> int | None:
    """Outputs of a layer with weights."""
    if isinstance(layer, nn.Linear):
        return layer.out_features
    return layer.out_channels if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d) else None


def warm_up() -> None:
    """What torch and we import and prepare at a first call is no network's doing."""
    net, x = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2)), torch.ones(1, 2)
    export(net, x)
    bhc.wrap(net, bhc.SingleContext(), example_input=x)


def try_network(network: zoo.Network, limit: float, stages: Sequence[str] = STAGES) -> None:
    """Stages of one network in this process; the row is printed after each, so that none is lost."""
    row: Results = {}

    def attempt(stage: str, action: Callable[[], Results]) -> None:
        row[stage] = "unfinished"
        print(ROW + json.dumps(row), flush=True)
        began = time.perf_counter()
        try:
            with within(limit):
                row.update(action())
            row[stage] = "ok"
        except Exception as error:
            row[stage] = _reason(error)
        row[f"{stage}_seconds"] = round(time.perf_counter() - began, 3)
        print(ROW + json.dumps(row), flush=True)

    def build() -> nn.Module:
        torch.manual_seed(SEED)
        return zoo.randomise(network.build(), SEED, network.example())

    try:
        net, example = build(), network.example()
    except Exception as error:
        row.update({stage: f"not built: {_reason(error)}" for stage in stages})
        print(ROW + json.dumps(row), flush=True)
        return
    row["weights"] = sum(value.numel() for value in net.parameters())
    warm_up()
    if "export" in stages:
        attempt("export", partial(export, net, example))
    ours = Ours(network, net, example)
    for stage in (each for each in OURS if each in stages):
        needed = NEEDS.get(stage)
        if needed is not None and row[needed] != "ok":
            row[stage] = f"no {needed}"
            print(ROW + json.dumps(row), flush=True)
        else:
            attempt(stage, getattr(ours, stage))
    del ours, net  # the pruner gets memory, and a network that nobody has touched
    if "pruning" in stages:
        attempt("pruning", lambda: prune(network, build(), example))


def _reason(error: Exception) -> str:
    """Its first line."""
    if isinstance(error, NotImplementedError) and not str(error):
        return "not implemented"
    lines = str(error).strip().splitlines()
    kind = "" if isinstance(error, Failed | bhc.BhcError) else f"{type(error).__name__}: "
    return (kind + (lines[0] if lines else ""))[:300]


def run_apart(
    network: zoo.Network, limit: float, stages: Sequence[str] = STAGES, before: Results | None = None
) -> Results:
    """A network's row, from a process of its own; columns of stages that do not run are as they were before."""
    settings = os.environ | {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive"}
    command = [sys.executable, __file__, "--network", network.title, "--limit", str(limit), "--stages", *stages]
    began = time.perf_counter()
    try:  # the second limit is for what does not listen to the first
        ran = subprocess.run(command, capture_output=True, timeout=len(STAGES) * limit, env=settings, check=False)
        printed, ended = ran.stdout, f"ended with {ran.returncode}"
    except subprocess.TimeoutExpired as error:
        printed, ended = error.stdout or b"", f"not within {limit:g} s"
    lines = [line for line in printed.decode(errors="replace").splitlines() if line.startswith(ROW)]
    renewed = {*stages, *(f"{stage}_seconds" for stage in stages), *(key for s in stages for key in FIGURES.get(s, ()))}
    row: Results = {key: value for key, value in (before or {}).items() if key not in renewed}
    row |= {"network": network.name, "source": network.source, "family": network.family}
    row |= json.loads(lines[-1].removeprefix(ROW)) if lines else {}
    for stage in STAGES:
        if row.get(stage, "unfinished") == "unfinished":
            row[stage] = ended if stage in stages else "not run"
    return row | {"seconds": round(time.perf_counter() - began, 1)}


def describe(row: Results) -> str:
    """One line for a network."""
    good = " ".join(stage for stage in STAGES if row[stage] == "ok")
    bad = [f"{stage}: {row[stage]}" for stage in STAGES if row[stage] not in ("ok", "not implemented", *SKIPPED)]
    return f"{row['source']}/{row['network']} ({row['seconds']:.0f} s): {good}{''.join(f'; {each}' for each in bad)}"


def by_family(rows: list[Results]) -> list[Results]:
    """Of each family, and of all, the number of networks and the percentage that passes each stage."""
    families = [family for family in zoo.FAMILIES if any(row["family"] == family for row in rows)]
    table = []
    for family in (*families, "all"):
        members = [row for row in rows if family in (row["family"], "all")]
        passed = {stage: sum(row[stage] == "ok" for row in members) for stage in STAGES}
        line: Results = {"family": family, "networks": len(members)}
        line |= {stage: 100 * count / len(members) for stage, count in passed.items()}
        table.append(line | _can_go([row.get("can_go") for row in members]))
    return table


def _can_go(parts: Sequence[float | None]) -> Results:
    """Percentages of weights that can go: the median, the lowest, and how many of all networks reach ``MOST``."""
    known = sorted(part for part in parts if part is not None)
    if not known:
        return {"can_go_median": None, "can_go_lowest": None, "can_go_most": None}
    enough = sum(part >= MOST for part in known)
    figures = {"can_go_median": median(known), "can_go_lowest": known[0], "can_go_most": enough / len(parts)}
    return {name: 100 * figure for name, figure in figures.items()}


CAN_GO = {"can_go_median": "can go", "can_go_lowest": "lowest", "can_go_most": "most can"}


def show(table: list[Results]) -> None:
    columns = [*STAGES, *CAN_GO]
    print(f"{'family':14}{'networks':>9}" + "".join(f"{CAN_GO.get(name, name):>9}" for name in columns))
    for line in table:
        cells = ["-" if line[name] is None else f"{line[name]:.0f}%" for name in columns]
        print(f"{line['family']:14}{line['networks']:9}" + "".join(f"{cell:>9}" for cell in cells))


INTRO = """# Which networks get in

{count} public networks with random weights ({packages}), each in a process of its own; norms and gates have
random numbers too, so that nothing is the identity by chance. Percent of the networks of a family that pass:
`export`, torch.export takes it with a batch of any size; `wrap`, we do; `same`, what we run gives the same
outputs; `cut`, without half of the units that can go it gives what the masked network gives; `pt2`, `bhc` and
`onnx`, the small network is written, read and run as that (differences at most {tolerance:g} of the largest
output); `pruning`, torch-pruning takes half of the channels and what is left runs; it is told nothing of heads,
and nothing cut, or another shape, counts as a failure. `can go` is the part of a network's weights that goes when all
goes that can, in the median, and `lowest` in the worst network; `most can`: percent of the networks in which at least
{most:.0f} % can go. Made by `benchmarks/coverage.py`."""

REST = """`wrap` takes {middle:.1f} times as long as torch.export alone in the median, up to three times for {within} of
{count} networks, and {most:.0f} times at most, for one that is short and wide: `wrap` copies a network and runs it
three times, to see that it computes the same. {whole:.0f} % of the weights of a network stay whole in the median.

## What does not pass

| network | stage | reason |
|---|---|---|"""


def page(found: Results) -> str:
    """``docs/coverage.md``: the table by family, and the reasons of the rest."""
    rows, families = found["rows"], found["families"]
    packages = ", ".join(f"{name} {number}" for name, number in found["packages"].items())
    head = ["family", "networks", *STAGES, *CAN_GO.values()]
    intro = INTRO.format(count=len(rows), packages=packages, tolerance=found["tolerance"], most=100 * MOST)
    lines = [*intro.splitlines(), "", f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for line in families:
        percent = ["" if line.get(name) is None else f"{line[name]:.1f}" for name in (*STAGES, *CAN_GO)]
        lines.append(f"| {line['family']} | {line['networks']} | {' | '.join(percent)} |")
    taken = [row for row in rows if row["wrap"] == "ok" and row["export"] == "ok"]
    times = sorted(row["wrap_seconds"] / row["export_seconds"] for row in taken)
    whole = sorted(row["whole"] for row in taken)
    figures = {"middle": times[len(times) // 2], "most": times[-1], "whole": 100 * whole[len(whole) // 2]}
    figures |= {"within": sum(ratio <= 3 for ratio in times), "count": len(times)}
    lines += ["", *REST.format(**figures).splitlines()]
    for row in rows:
        first = next((stage for stage in OURS if row[stage] not in ("ok", *SKIPPED)), None)
        for stage in OURS:
            if row[stage] not in ("ok", *SKIPPED) and (stage == first or stage in ("pt2", "bhc", "onnx")):
                reason = row[stage].replace("|", "/")[:160]
                lines.append(f"| {row['source']}/{row['network']} | {stage} | {reason} |")
    short = [row for row in rows if row.get("can_go", 1) < MOST]
    if short:
        lines += ["", f"## Where less than {100 * MOST:.0f} % can go", "", "| network | can go |", "|---|---|"]
        lines += [f"| {row['source']}/{row['network']} | {100 * row['can_go']:.1f} |" for row in short]
    return "\n".join(lines) + "\n"


def versions() -> dict[str, str]:
    """Of the packages that networks come from."""
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def try_all(arguments: argparse.Namespace, chosen: list[zoo.Network], path: Path) -> list[Results]:
    """Rows in the order of the zoo; the file is whole after each."""
    head: Results = {"benchmark": "coverage", **environment(), "device": describe_device(CPU), "packages": versions()}
    head |= {"limit_seconds": arguments.limit, "tolerance": TOLERANCE} | ({"quick": True} if arguments.quick else {})
    some = tuple(arguments.stages) != STAGES
    rows: dict[str, Results] = {}
    if (arguments.resume or some) and path.exists():
        rows = {f"{row['source']}/{row['network']}": row for row in json.loads(path.read_text())["rows"]}
    order = [network.title for network in zoo.networks()]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        waiting = [network for network in chosen if not (arguments.resume and network.title in rows)]
        running = {
            pool.submit(run_apart, each, arguments.limit, arguments.stages, rows.get(each.title)): each
            for each in waiting
        }
        for done in as_completed(running):
            row = rows[running[done].title] = done.result()
            print(describe(row), flush=True)
            listed = [rows[title] for title in order if title in rows]
            write_json(path, head | {"families": by_family(listed), "rows": listed})
    return [rows[title] for title in order if title in rows]


def main() -> None:
    parser = options(__file__, __doc__)
    parser.add_argument("--limit", type=float, default=180.0, help="seconds for each stage of a network (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, help="networks at the same time (%(default)s)")
    parser.add_argument("--only", metavar="SUBSTRING", default="", help="only networks whose source/name has it")
    parser.add_argument("--resume", action="store_true", help="keep the rows that the file has")
    parser.add_argument("--stages", nargs="+", choices=STAGES, default=list(STAGES), help="only these (all)")
    parser.add_argument("--network", help=argparse.SUPPRESS)  # one, in this process
    arguments = parser.parse_args()
    for stage in arguments.stages:
        if NEEDS.get(stage, stage) not in arguments.stages:
            parser.error(f"{stage} needs {NEEDS[stage]}; hint: --stages {NEEDS[stage]} {stage}")
    networks = zoo.networks()
    if arguments.network is not None:
        warnings.filterwarnings("ignore")
        torch.set_num_threads(1)
        try_network(
            next(each for each in networks if each.title == arguments.network), arguments.limit, arguments.stages
        )
        return
    chosen = [
        each for each in networks if arguments.only in each.title and not (arguments.quick and each.title not in QUICK)
    ]
    path: Path = arguments.out or arguments.path.with_suffix(".quick.json" if arguments.quick else ".json")
    rows = try_all(arguments, chosen, path)
    if rows:
        show(by_family(rows))
        print(f"wrote {path}")
        if path == arguments.path.with_suffix(".json"):
            PAGE.write_text(page(json.loads(path.read_text())))
            print(f"wrote {PAGE}")


if __name__ == "__main__":
    main()
