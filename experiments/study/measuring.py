"""From trained models to a result file: chosen on validation data, then test data once."""

import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

import bhc
from bhc.emission import ThresholdWarning
from bhc.results import Outcome, answers, environment, harmonic, judge, mean, summarise
from bhc.training import describe_device
from study import sparse
from study.choosing import Asked, Chosen, choose, curve, emit, log_dropout, thresholds_of
from study.config import Study
from study.methods import Case
from study.training import Member, tidy

WITH_HISTOGRAM = ("bc-gnj", "bc-ghs", "bc-io-gnj")


def measure(study: Study, seed: int, members: Sequence[Member], *, device: str = "cpu") -> dict[str, Any]:
    """The content of one result file; networks are emitted on the CPU and run on ``device``."""
    began = time.perf_counter()
    asked = [(member, case) for member in members for case in member.cases]
    trade_offs, rows, outcomes, chosen = [], [], [], []
    with _quiet():
        for number, (group, part) in enumerate(groupby(asked, key=lambda pair: pair[1].group)):
            own = list(part)
            thresholds = thresholds_of(own)
            seen = curve(own, thresholds, on="validation", device=device)
            settled = choose(own, seen, study.choice, number, device=device)
            unseen = curve(own, thresholds, on="test", device=device)
            trade_offs.append(
                {"name": group, "validation": [p.to_dict() for p in seen], "test": [p.to_dict() for p in unseen]}
            )
            chosen.append({"group": group, **asdict(settled)})
            for pair in own:
                outcome, row = _row(study, *pair, settled, torch.device(device))
                outcomes.append(outcome)
                rows.append(row)
    train_seconds = sum(member.seconds for member in members)
    return {
        "experiment": study.experiment,
        "model": study.model,
        "method": study.method.name,
        "trained_on": study.method.trained_on,
        "seed": seed,
        "config": tidy(study.settings),
        **environment(),
        "train_device": members[0].device,
        "emit_device": describe_device(torch.device("cpu")),
        "curve_device": describe_device(torch.device(device)),
        "seconds": train_seconds + time.perf_counter() - began,
        "train_seconds": train_seconds,
        "original_error": 100 * sum(o.wrong_before for o in outcomes) / sum(o.images for o in outcomes),
        "choice": {"rule": study.choice.rule, **chosen[0], "groups": chosen},
        "summary": _summary(outcomes, rows),
        "contexts": rows,
        "trade_offs": trade_offs,
        "per_class": per_class(outcomes),
        "log_dropout": _histogram(study, asked),
    }


def _row(
    study: Study, member: Member, case: Case, chosen: Chosen, device: torch.device
) -> tuple[Outcome, dict[str, Any]]:
    """One context on test data; its file is written, read back and judged as it was read."""
    pruned = emit(member, case.test, chosen.threshold, bhc.Float32())
    small = emit(member, case.test, chosen.threshold, bhc.VarianceBits(chosen.scale))
    examples = case.test.examples
    outcome = judge(small, pruned, member.model.network, examples, device=device)
    row = {"label": case.label, **outcome.to_dict()}
    if study.method.family == "sparse-vd":
        row |= {"pruning_ratio": sparse.pruning_ratio(pruned), "bits_ratio": sparse.bits_ratio(small)}
        row["pruning_ratio_ten_outputs"] = row["pruning_ratio"]
    with TemporaryDirectory() as folder:
        path = Path(folder) / "small.bhc"
        small.save(path)
        given = answers(bhc.read(path).network, examples.inputs, device=device)
        row["file_bytes"] = path.stat().st_size
    row["file_error"] = 100 * int((given != examples.labels).sum()) / len(examples)
    if len(member.cases) == 1:
        row["train_seconds"] = member.seconds
    return outcome, row


def _summary(outcomes: Sequence[Outcome], rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """``summarise``, with ratios as the rows count them."""
    pruning, bits = [row["pruning_ratio"] for row in rows], [row["bits_ratio"] for row in rows]
    images = sum(row["test_images"] for row in rows)
    return summarise(outcomes) | {
        "pruning_ratio_mean": mean(pruning),
        "pruning_ratio_harmonic": harmonic(pruning),
        "pruning_ratio_min": min(pruning),
        "pruning_ratio_ten_outputs_mean": mean([row["pruning_ratio_ten_outputs"] for row in rows]),
        "bits_ratio_mean": mean(bits),
        "bits_ratio_harmonic": harmonic(bits),
        "file_error": sum(row["file_error"] * row["test_images"] for row in rows) / images,
        "error_max": max(row["file_error"] for row in rows),
    }


def per_class(outcomes: Sequence[Outcome]) -> list[dict[str, Any]]:
    """Error of each class before and after, over all contexts it appears in."""
    labels = torch.cat([outcome.labels for outcome in outcomes])
    wrong = {
        "original_error": torch.cat([outcome.before for outcome in outcomes]) != labels,
        "pruning_error": torch.cat([outcome.pruned for outcome in outcomes]) != labels,
        "file_error": torch.cat([outcome.after for outcome in outcomes]) != labels,
    }
    return [
        {
            "class": label,
            "images": int((labels == label).sum()),
            **{name: 100 * float(misses[labels == label].float().mean()) for name, misses in wrong.items()},
        }
        for label in labels.unique().tolist()
    ]


def _histogram(study: Study, asked: Sequence[Asked]) -> dict[str, list[float]]:
    if study.method.name not in WITH_HISTOGRAM:
        return {}
    return {name: [round(rate, 3) for rate in rates.tolist()] for name, rates in log_dropout(*asked[0])}


@contextmanager
def _quiet() -> Iterator[None]:
    """Thresholds are tried everywhere; that some lie outside what was consolidated is known."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ThresholdWarning)
        yield
