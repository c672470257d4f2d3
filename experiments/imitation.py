"""Without labels: the demo's network trained by what the pretrained one says, beside training by labels.

    python experiments/imitation.py [--seeds 3] [--data-dir DIR]

For each seed LeNet-300-100 is pretrained on MNIST. Two hypernetworks learn from the same images with the same recipe,
one of them without any label. Both give networks for the demo's 33 contexts, 23 of them never shown, with at least 20
and 100 times fewer weights; errors are those on test images, by their labels, pooled over contexts and images. Writes
``docs/results/imitation.json`` and its table.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import bhc
from bhc.cli import demo
from bhc.cli.demo import MODEL, SIZES, TRIPLE, choose_held_out
from bhc.data import DataSet
from bhc.files import write_bytes, write_json
from bhc.pretraining import Pretraining, error_of, pretrain
from bhc.results import answers, environment
from bhc.training import default_progress

RESULTS = Path(__file__).parents[1] / "docs" / "results"
RATIOS = (20, 100)  # times fewer weights
LEARN = replace(demo.LEARN, kl_weight=2.0)
CONSOLIDATE = replace(demo.CONSOLIDATE, ratios=(12.0, 400.0))  # thresholds that cover both
TASKS = {"labels": bhc.Classification(), "imitation": bhc.Imitation()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    dataset = bhc.data.load("mnist", data_dir=arguments.data_dir)
    runs = [run(dataset, seed) for seed in range(arguments.seeds)]
    result = {"experiment": "imitation", "model": MODEL, **environment(), "runs": runs}
    write_json(arguments.out / "imitation.json", result)
    text = table(runs)
    write_bytes(arguments.out / "imitation.md", text.encode())
    print(text)
    return 0


def run(dataset: DataSet, seed: int) -> dict[str, Any]:
    net = pretrain(MODEL, dataset, Pretraining(), seed=seed, progress=default_progress())
    found = {name: trained(net, dataset, task, seed) for name, task in TASKS.items()}
    return {"seed": seed, "original_error": error_of(net, dataset.test), "errors": found}


def trained(net: torch.nn.Module, dataset: DataSet, task: bhc.Task, seed: int) -> dict[str, Any]:
    """Errors of the networks that one of the two hypernetworks gives, by how many times smaller they are."""
    held_out = choose_held_out(dataset.num_classes)
    space = bhc.ClassSubsets(dataset.num_classes, bhc.RandomSubsets(SIZES, held_out), dataset.class_names)
    example = dataset.train.tensor[:1]
    model = bhc.wrap(net, space, example_input=example, std_limits=(0.2, None, None), seed=seed)
    parts = (dataset.train, dataset.validation)
    sets = [part.tensor if task.from_network else (part.tensor, part.known_labels) for part in parts]
    bhc.fit(model, *sets, task=task, recipe=(LEARN, CONSOLIDATE), seed=seed, progress=default_progress())
    pairs = [(first, first + 1) for first in range(dataset.num_classes - 1)]
    return {str(ratio): pooled(model, [*pairs, TRIPLE, *held_out], ratio, dataset) for ratio in RATIOS}


def pooled(model: bhc.Compressor, contexts: list[tuple[int, ...]], ratio: int, dataset: DataSet) -> dict[str, float]:
    wrong = seen = 0
    kept = []
    for classes in contexts:
        small = model.compress(classes=classes, max_flops=model.network.counts.flops // ratio)
        test = dataset.test.restricted_to(classes)
        wrong += int((answers(small.network, test.tensor) != test.known_labels).sum())
        seen += len(test)
        kept.append(small.report.weights_after)
    harmonic = len(kept) * model.network.num_weights / sum(kept)
    return {"error": 100 * wrong / seen, "images": seen, "pruning_ratio_harmonic": harmonic}


def table(runs: list[dict[str, Any]]) -> str:
    lines = [
        "# Without labels",
        "",
        f"LeNet-300-100 on MNIST, {len(runs)} seeds, the demo's 33 contexts and schedule; one hypernetwork learns from"
        " labels, the other from the pretrained network's answers alone (`bhc.Imitation()`). Test error by labels,"
        " pooled over contexts and images. Made by `python experiments/imitation.py`.",
        "",
        "| at least | seed | with labels | times smaller | without | times smaller | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for ratio in RATIOS:
        for each in runs:
            one, other = (each["errors"][name][str(ratio)] for name in TASKS)
            lines.append(
                f"| {ratio} x | {each['seed']} | {one['error']:.2f} % | {one['pruning_ratio_harmonic']:.0f} |"
                f" {other['error']:.2f} % | {other['pruning_ratio_harmonic']:.0f} |"
                f" {other['error'] - one['error']:+.2f} |"
            )
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
