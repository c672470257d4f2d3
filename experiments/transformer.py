"""A small transformer on MNIST, narrowed for pairs of classes; beside it the same with attention and stream whole.

    python experiments/transformer.py --seeds 0 1 2 --data-dir DATA --out docs/results

Images are 49 patches of 4 x 4 pixels. One model is trained for the nine consecutive pairs of digits, and cut at the one
threshold that makes the pairs' networks 20 times smaller together (harmonic), which takes no data; where whole parts
allow no such ratio, three quarters as small as can be. Test errors are pooled over pairs and images, over three seeds;
the schedule was chosen on validation data. Writes ``transformer.json`` and its table, ``transformer.md``; what is there
is not run again.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable
from itertools import product
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import bhc
from bhc.contexts import ConsecutivePairs, ContextBatch
from bhc.files import write_bytes, write_json
from bhc.models import Normalise
from bhc.pretraining import Pretraining, train_plainly_
from bhc.results import environment
from bhc.training import Consolidate, Learn, Narrow, describe_device
from bhc.training.evaluation import harmonic, largest_ratio, threshold_for

PATCH, WIDTH, HEADS, DEPTH = 4, 48, 4, 2
RATIO = 20.0
PAIRS = [(first, first + 1) for first in range(9)]
Row = dict[str, Any]


class Block(nn.Module):
    """Attention, then a small network on each patch, both beside a stream."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.mix, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        batch, places, _ = x.shape
        parts = self.mix(self.before(x)).reshape(batch, places, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(*parts.unbind(0))
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.narrow(F.gelu(self.wide(self.after(x))))


class Transformer(nn.Module):
    """(N, 1, 28, 28) pixels -> (N, 10)."""

    def __init__(self) -> None:
        super().__init__()
        self.normalise = Normalise(128.0, 64.0)
        self.patches = nn.Conv2d(1, WIDTH, PATCH, PATCH)
        self.places = nn.Parameter(0.02 * torch.randn((28 // PATCH) ** 2, WIDTH))
        self.blocks = nn.Sequential(*(Block() for _ in range(DEPTH)))
        self.norm, self.end = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patches(self.normalise(x)).flatten(2).transpose(1, 2) + self.places
        return self.end(self.norm(self.blocks(x)).mean(1))


WHOLE = ("patches", *[f"blocks.{place}.{layer}" for place in range(DEPTH) for layer in ("mix", "out")])
ARMS = ("everything", "everything, in principal axes", "all but attention and stream")
ACTIVATIONS = 500  # images whose activations say what the principal axes are
MOST_OF_IT = 0.75  # of the largest ratio there can be, where that is less than what is asked


def options(arm: str, train: bhc.data.Split) -> dict[str, Any]:
    if arm == ARMS[1]:
        return {"basis": bhc.PrincipalAxes(train.inputs[:ACTIVATIONS])}
    return {"keep": WHOLE} if arm == ARMS[2] else {}


def pretrained(seed: int, data: bhc.data.DataSet, folder: Path, epochs: int, device: str) -> nn.Module:
    path = folder / f"transformer-{seed}.pt"
    torch.manual_seed(seed)
    net = Transformer()
    if path.exists():
        net.load_state_dict(torch.load(path, weights_only=True))
    else:
        rng = torch.Generator(device).manual_seed(seed)
        train_plainly_(net.to(device), data.train, Pretraining(epochs=epochs, batch=128, rate=2e-3), rng=rng)
        torch.save(net.cpu().state_dict(), path)
    return net.cpu().eval().requires_grad_(False)


def recipe(arguments: argparse.Namespace, ratio: float) -> bhc.training.Recipe:
    learn, narrow, consolidate = arguments.steps
    common = {"kl_weight": arguments.kl_weight}
    return (
        Learn(steps=learn, **common),
        Narrow(steps=narrow, final_ratio=ratio, **common),
        Consolidate(steps=consolidate, ratios=(max(1.05, 0.5 * ratio), 1.25 * ratio), rate=arguments.rate),
    )


def run(seed: int, arm: str, data: bhc.data.DataSet, arguments: argparse.Namespace) -> Row:
    began = time.perf_counter()
    net = pretrained(seed, data, arguments.runs, arguments.epochs, arguments.device)
    space = bhc.ClassSubsets(10, ConsecutivePairs())
    model = bhc.wrap(net, space, example_input=data.train.inputs[:64], **options(arm, data.train))
    batch = ContextBatch.of([space.resolve({"classes": pair}) for pair in PAIRS], 10)
    most = largest_ratio(model.network, batch)
    ratio = min(RATIO, MOST_OF_IT * most)
    bhc.fit(
        model, data.train, data.validation, recipe=recipe(arguments, ratio), seed=seed, device=arguments.device,
        progress=bhc.training.default_progress() if arguments.verbose else bhc.training.Silent(),
    )  # fmt: skip
    network = model.network.cpu()
    threshold = threshold_for(network, batch, ratio)
    split = data.validation if arguments.validation else data.test
    rows = [judged(model, net, split, pair, threshold) for pair in PAIRS]
    return {
        "seed": seed,
        "arm": arm,
        "device": describe_device(torch.device(arguments.device)),
        "seconds": round(time.perf_counter() - began),
        "threshold": threshold,
        "largest_ratio": most,
        "ratio_harmonic": harmonic([row["ratio"] for row in rows]),
        "ratio_min": min(row["ratio"] for row in rows),
        "error_full": pooled(rows, "wrong_full"),
        "error": pooled(rows, "wrong"),
        "error_bits": pooled(rows, "wrong_bits"),
        "error_worst": max(100 * row["wrong"] / row["images"] for row in rows),
        "file_bytes": mean(row["file_bytes"] for row in rows),
        "pairs": rows,
    }


@torch.no_grad()
def judged(
    model: bhc.Compressor, net: nn.Module, split: bhc.data.Split, pair: tuple[int, int], threshold: float
) -> Row:
    part = torch.isin(split.labels, torch.tensor(pair))
    x, labels = split.inputs[part], split.labels[part]
    small = model.compress(classes=pair, threshold=threshold, quantisation=bhc.Float32())
    rounded = model.compress(classes=pair, threshold=threshold)
    classes = torch.tensor(pair)

    def wrong(answer: Callable[[Tensor], Tensor]) -> int:
        logits = torch.cat([answer(some) for some in x.split(500)])
        return int((classes[logits.argmax(1)] != labels).sum())

    return {
        "pair": pair,
        "images": len(x),
        "ratio": small.report.pruning_ratio,
        "heads": small.report.heads,
        "gone": small.report.gone,
        "architecture": small.report.architecture,
        "file_bytes": rounded.report.file_bytes,
        "wrong_full": wrong(lambda some: net(some)[:, classes]),
        "wrong": wrong(small.module),
        "wrong_bits": wrong(rounded.module),
    }


def key_of(row: Row) -> tuple[str, str, int]:
    return row["arm"], row["device"], row["seed"]


def pooled(rows: list[Row], key: str) -> float:
    return 100 * sum(row[key] for row in rows) / sum(row["images"] for row in rows)


def table(results: list[Row], settings: Row) -> str:
    weights = sum(p.numel() for name, p in Transformer().named_parameters() if "bias" not in name and p.dim() > 1)
    lines = [
        "# A small transformer, narrowed for pairs of digits",
        "",
        f"MNIST as 49 patches, {DEPTH} blocks of width {WIDTH} with {HEADS} heads ({weights:,} weights); nine pairs of"
        f" digits, one model each seed, test error pooled over pairs and images. {settings['steps']} steps of"
        f" learning, narrowing and consolidating. Networks at the one threshold that makes them {RATIO:g} x"
        f" smaller together (harmonic), or {MOST_OF_IT:g} of the most that can go where that is less.",
        "",
        "| what can be cut | seed | full network | cut | with bits | worst pair | times smaller | least pair | file,"
        " mean | trained on |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for arm in ARMS:
        for row in (row for row in results if row["arm"] == arm):
            lines.append(
                f"| {arm} | {row['seed']} | {row['error_full']:.2f} % | {row['error']:.2f} % |"
                f" {row['error_bits']:.2f} % | {row['error_worst']:.2f} % | {row['ratio_harmonic']:.1f} |"
                f" {row['ratio_min']:.1f} | {row['file_bytes']:,.0f} bytes | {row['device']} |"
            )
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0, 1, 2], help="none: only --take")
    parser.add_argument("--arms", nargs="+", default=list(ARMS), choices=ARMS)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--runs", type=Path, default=Path("experiments/runs"))
    parser.add_argument("--out", type=Path, default=Path("docs/results"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--steps", type=int, nargs=3, default=[400, 700, 700])
    parser.add_argument("--kl-weight", type=float, default=0.3)
    parser.add_argument("--rate", type=float, default=1e-2)
    parser.add_argument("--take", type=Path, nargs="+", default=[], help="files of runs made elsewhere, to be added")
    parser.add_argument("--validation", action="store_true", help="errors on validation data: to choose a schedule")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    arguments.runs.mkdir(parents=True, exist_ok=True)
    data = bhc.data.load("mnist", data_dir=arguments.data_dir) if arguments.seeds else None
    path = arguments.out / "transformer.json"
    result = json.loads(path.read_text()) if path.exists() else {"experiment": "transformer", "runs": []}
    result |= environment() | {"settings": {key: getattr(arguments, key) for key in ("steps", "kl_weight", "epochs")}}
    known = {key_of(row): row for row in result["runs"]}
    for other in (json.loads(path.read_text()) for path in arguments.take):
        known |= {key_of(row): row for row in ({"device": other["device"]} | row for row in other["runs"])}
    device = describe_device(torch.device(arguments.device))
    for seed, arm in product(arguments.seeds, arguments.arms):
        if (arm, device, seed) not in known:
            row = known[arm, device, seed] = run(seed, arm, data, arguments)
            print({key: value for key, value in row.items() if key != "pairs"}, flush=True)
            write_json(path, result | {"runs": list(known.values())})
    result["runs"] = [known[key] for key in sorted(known)]
    write_json(path, result)
    text = table(result["runs"], result["settings"])
    write_bytes(path.with_suffix(".md"), text.encode())
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
