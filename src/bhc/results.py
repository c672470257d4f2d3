"""Results as files: one run's figures in a form that tables can be built from."""

import platform
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy
import torch
from torch import Tensor

from bhc.emission import Compressed
from bhc.examples import Split
from bhc.formats import QuantisedNetwork, unrolled
from bhc.graph import Graph
from bhc.hypernet import ConditionalNetwork
from bhc.training.evaluation import harmonic

CHUNK = 1000
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Outcome:
    """One context on test data: what was emitted, and how it does beside the full network."""

    small: Compressed
    labels: Tensor  # (n,) what the images are
    before: Tensor  # (n,) what the full network says, its outputs restricted to the same classes
    pruned: Tensor  # (n,) what the same cut says before its weights are rounded
    after: Tensor  # (n,)
    num_classes: int  # of the full network

    @property
    def images(self) -> int:
        return len(self.labels)

    @property
    def wrong(self) -> int:
        return int((self.after != self.labels).sum())

    @property
    def wrong_pruned(self) -> int:
        return int((self.pruned != self.labels).sum())

    @property
    def wrong_before(self) -> int:
        return int((self.before != self.labels).sum())

    @property
    def error(self) -> float:
        return 100 * self.wrong / self.images

    @property
    def pruning_error(self) -> float:
        return 100 * self.wrong_pruned / self.images

    @property
    def error_before(self) -> float:
        return 100 * self.wrong_before / self.images

    def to_dict(self) -> dict[str, Any]:
        report = self.small.report
        return {
            "context": report.context,
            "threshold": report.threshold,
            "architecture": list(report.architecture),
            "bits": list(report.bits),
            "reference_bits": list(report.reference_bits or ()),
            "scale": report.scale,
            "weights_after": report.weights_after,
            "pruning_ratio": report.pruning_ratio,
            "pruning_ratio_ten_outputs": self.ratio_with_all_outputs,
            "bits_ratio": report.bits_ratio,
            "file_bytes": report.file_bytes,
            "file_ratio": report.file_ratio,
            "reference_bits_ratio": report.reference_bits_ratio,
            "pruning_error": self.pruning_error,
            "bits_error": self.error,
            "file_error": self.error,
            "original_error": self.error_before,
            "test_images": self.images,
            "emit_ms": report.emit_ms,
        }

    @property
    def ratio_with_all_outputs(self) -> float:
        """The ratio had the output layer kept every class, as the paper counts."""
        report = self.small.report
        outputs, inputs = self.small.network.layers[-1].module.weight.shape
        total = report.weights_before / (report.weights_after + (self.num_classes - outputs) * inputs)
        return float(total)


def judge(
    small: Compressed, pruned: Compressed, network: ConditionalNetwork, examples: Split, *, device: torch.device = CPU
) -> Outcome:
    """What the full, the pruned and the quantised network say to the labelled images of a context."""
    classes = torch.tensor(small.classes)
    full = logits(network.base_model, examples.tensor, device=device)
    cut, rounded = (answers(each.network, examples.tensor, device=device) for each in (pruned, small))
    return Outcome(
        small=small,
        labels=examples.known_labels,
        before=classes[full[:, classes].argmax(1)],
        pruned=cut,
        after=rounded,
        num_classes=network.num_classes,
    )


@torch.no_grad()
def logits(network: Graph, images: Tensor, *, device: torch.device = CPU) -> Tensor:  # (n, outputs)
    """What a network gives for images, worked out on a device."""
    there = unrolled(network) if device.type == "cpu" else deepcopy(network).to(device)
    with exact_convolutions():
        return torch.cat([there(part.to(device)) for part in images.split(CHUNK)]).cpu()


def answers(network: QuantisedNetwork, images: Tensor, *, device: torch.device = CPU) -> Tensor:  # (n,)
    """The labels that an emitted network gives images, in the original numbering."""
    return torch.tensor(network.labels)[logits(network.graph, images, device=device).argmax(1)]


def exact_convolutions() -> AbstractContextManager[None]:
    """In full float32, as emitted networks have them, where a GPU would round their inputs."""
    return torch.backends.cudnn.flags(enabled=True, allow_tf32=False)


def summarise(outcomes: Sequence[Outcome]) -> dict[str, Any]:
    """Means over contexts: arithmetic as papers print them, harmonic as bytes add up, and the worst."""
    ratios = [outcome.small.report.pruning_ratio for outcome in outcomes]
    bits = [outcome.small.report.bits_ratio for outcome in outcomes]
    sizes = [outcome.small.report.file_bytes or 0 for outcome in outcomes]
    files = [outcome.small.report.file_ratio or 0.0 for outcome in outcomes]
    images = sum(outcome.images for outcome in outcomes)
    pooled = 100 * sum(outcome.wrong for outcome in outcomes) / images
    return {
        "pruning_ratio_mean": mean(ratios),
        "pruning_ratio_harmonic": harmonic(ratios),
        "pruning_ratio_min": min(ratios),
        "pruning_ratio_ten_outputs_mean": mean([outcome.ratio_with_all_outputs for outcome in outcomes]),
        "pruning_error": 100 * sum(outcome.wrong_pruned for outcome in outcomes) / images,
        "bits_ratio_mean": mean(bits),
        "bits_ratio_harmonic": harmonic(bits),
        "bits_error": pooled,
        "file_bytes_mean": mean(sizes),
        "file_bytes_max": max(sizes),
        "file_ratio_mean": mean(files),
        "file_error": pooled,
        "error_max": max(outcome.error for outcome in outcomes),
        "emit_ms_median": median(outcome.small.report.emit_ms or 0.0 for outcome in outcomes),
    }


def environment() -> dict[str, Any]:
    return {
        "commit": _commit(),
        "device": f"cpu, {torch.get_num_threads()} threads ({platform.machine()})",
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__},
    }


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _commit() -> str:
    """The commit of the checkout this runs from, or nothing when it was installed from a package.

    With a ``+`` after it where files of the package differ from that commit.
    """
    commit = _git("rev-parse", "HEAD")
    return commit + ("+" if commit and _git("status", "--porcelain", "--", ".") else "")


def _git(*words: str) -> str:
    try:
        done = subprocess.run(
            ["git", *words], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=5, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip()
