"""Original against emitted networks in onnxruntime: what pruning is worth when the network runs.

    python benchmarks/inference.py RUN [RUN ...]      run folders for class subsets (bhc train)

For each run the nine pairs of neighbouring classes are emitted at the run's own threshold. Original and emitted
networks take turns, on one and two threads, with one input and with 256; the ratio of FLOPs stands beside the
ratio of times.
"""

from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from timing import Results, options, pairs, take_turns, write

import bhc
from bhc.formats import QuantisedNetwork, onnx_bytes, open_session

SETTINGS = [(threads, batch) for threads in (1, 2) for batch in (1, 256)]


def original(model: bhc.Compressor) -> QuantisedNetwork:
    """The pretrained network as it is."""
    network = model.network
    return QuantisedNetwork(network.base_model, network.input_shape, tuple(range(network.num_classes)))


def measure(full: bytes, small: bytes, shape: tuple[int, ...], *, threads: int, batch: int) -> dict[str, float]:
    """Median milliseconds of both, by turns."""
    x = np.random.default_rng(0).integers(0, 256, (batch, *shape)).astype(np.float32)
    rivals = {
        name: partial(open_session(content, threads=threads).run, None, {"input": x})
        for name, content in (("original", full), ("emitted", small))
    }
    return take_turns(rivals, rounds=30 if batch > 1 else 200)


def main() -> None:
    parser = options(__file__, __doc__)
    parser.add_argument("runs", nargs="+", type=Path)
    arguments = parser.parse_args()
    rows: list[Results] = []
    for run in arguments.runs:
        model = bhc.load(run)
        full = onnx_bytes(original(model))
        for classes in pairs(model, arguments):
            small = model.compress(classes=classes)
            report, content = small.report, onnx_bytes(small.network)
            row: Results = {
                "network": "-".join(map(str, report.architecture_before)),
                "classes": classes,
                "architecture": list(report.architecture),
                "flop_ratio": report.flops_before / report.flops_after,
                "weight_ratio": report.pruning_ratio,
            }
            for threads, batch in SETTINGS:
                times = measure(full, content, small.input_shape, threads=threads, batch=batch)
                key = f"threads_{threads}_batch_{batch}"
                row[key] = {f"{name}_ms": value for name, value in times.items()}
                row[key]["ratio"] = times["original"] / times["emitted"]
            rows.append(row)
            ratios = ", ".join(
                f"{row[f'threads_{threads}_batch_{batch}']['ratio']:.1f} (threads {threads}, batch {batch})"
                for threads, batch in SETTINGS
            )
            print(
                f"{row['network']} classes {classes[0]}, {classes[1]}: {'-'.join(map(str, report.architecture))};"
                f" FLOPs {row['flop_ratio']:.1f} x fewer; times faster: {ratios}",
                flush=True,
            )
    for name in dict.fromkeys(row["network"] for row in rows):
        same = [row for row in rows if row["network"] == name]
        for threads, batch in SETTINGS:
            ratios = [row[f"threads_{threads}_batch_{batch}"]["ratio"] for row in same]
            flops = median(row["flop_ratio"] for row in same)
            print(
                f"{name}, {threads} threads, batch {batch}: {median(ratios):.1f} x faster (median),"
                f" {min(ratios):.1f} at least; FLOPs {flops:.1f} x fewer (median)"
            )
    write(arguments, {"rows": rows})


if __name__ == "__main__":
    main()
