"""Pair networks as packed files: how small, how good, how fast they are made.

    python benchmarks/packing.py RUN [RUN ...] --max-bytes 600 --data mnist

For each run the nine pairs of neighbouring classes, once at the run's own threshold and once under ``--max-bytes``.
Prints sizes, the coded weights against their entropy, validation error and, at the end, test error; times are from
the context to the bytes of the file.
"""

from pathlib import Path
from statistics import median
from typing import Any

import torch
from timing import Results, options, pairs, write

import bhc
from bhc.cli.inspect import weight_stream
from bhc.formats import parse_network

REPEATS = 7


def best_of(model: bhc.Compressor, classes: list[int], **limits: Any) -> tuple[bhc.Compressed, float]:
    """The network, and the median milliseconds it took."""
    smalls = [model.compress(classes=classes, **limits) for _ in range(REPEATS)]
    return smalls[0], median(small.report.emit_ms or 0.0 for small in smalls)


def overhead(small: bhc.Compressed) -> dict[str, float]:
    """The coded weights and their priors against the per-layer entropy."""
    stream = weight_stream(parse_network(small.to_bytes(), Path("file")))
    allowed = 1.03 * stream["entropy_bytes"] + 40
    used = stream["coded_bytes"] + stream["prior_bytes"]
    return stream | {"over_bytes": used - stream["entropy_bytes"], "allowed_bytes": allowed, "used_bytes": used}


def main() -> None:
    parser = options(__file__, __doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--max-bytes", type=int, default=600)
    parser.add_argument("--data", default="mnist")
    arguments = parser.parse_args()
    test = bhc.data.load(arguments.data).test
    runs: list[Results] = []
    for run in arguments.runs:
        model = bhc.load(run)
        model.compress(classes=[0, 1])  # the first call also looks at the pretrained network
        for limits in ({"threshold": model.model.default_threshold}, {"max_bytes": arguments.max_bytes}):
            result = measure(model, pairs(model, arguments), limits, test)
            runs.append({"run": run.name, "limits": limits, **result})
            print_result(runs[-1])
    write(arguments, {"runs": runs})


def measure(model: bhc.Compressor, asked: list[list[int]], limits: dict[str, Any], test: bhc.data.Split) -> Results:
    rows: list[Results] = []
    wrong = images = 0
    for classes in asked:
        small, milliseconds = best_of(model, classes, **limits)
        examples = test.restricted_to(classes)
        misses = int((small.predict(examples.inputs).labels != examples.labels).sum())
        wrong, images = wrong + misses, images + len(examples)
        rows.append(
            {
                "classes": classes,
                "file_bytes": small.report.file_bytes,
                "architecture": list(small.report.architecture),
                "bits": list(small.report.bits),
                "threshold": small.report.threshold,
                "scale": small.report.scale,
                "validation_error": small.report.error,
                "test_error": 100 * misses / len(examples),
                "emit_ms": milliseconds,
                "weight_stream": overhead(small),
            }
        )
    return {
        "network": "-".join(map(str, small.report.architecture_before)),
        "file_bytes_max": max(row["file_bytes"] for row in rows),
        "file_bytes_mean": sum(row["file_bytes"] for row in rows) / len(rows),
        "test_error": 100 * wrong / images,
        "test_error_max": max(row["test_error"] for row in rows),
        "emit_ms_median": median(row["emit_ms"] for row in rows),
        "worst_over_bytes": max(row["weight_stream"]["over_bytes"] for row in rows),
        "all_within_allowance": all(
            row["weight_stream"]["used_bytes"] <= row["weight_stream"]["allowed_bytes"] for row in rows
        ),
        "contexts": rows,
    }


def print_result(result: Results) -> None:
    print(f"{result['network']}, {result['limits']}")
    for row in result["contexts"]:
        print(
            f"  classes {row['classes'][0]}, {row['classes'][1]}: {row['file_bytes']} bytes,"
            f" {'-'.join(map(str, row['architecture']))} at {'-'.join(map(str, row['bits']))} bits,"
            f" validation {row['validation_error']:.2f} %, test {row['test_error']:.2f} %, {row['emit_ms']:.1f} ms"
        )
    print(
        f"  largest {result['file_bytes_max']} bytes, mean {result['file_bytes_mean']:.0f}; test error"
        f" {result['test_error']:.2f} % in all, worst {result['test_error_max']:.2f} %;"
        f" {result['emit_ms_median']:.1f} ms (median); coded weights at most {result['worst_over_bytes']:.1f} bytes"
        f" over their entropy; within 3 % + 40 bytes: {result['all_within_allowance']}",
        flush=True,
    )


if __name__ == "__main__":
    torch.set_grad_enabled(False)
    main()
