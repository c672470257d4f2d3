"""The table of docs/performance.md, made from the result files beside this script.

python benchmarks/table.py
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

HERE = Path(__file__).parent
DOCUMENT = HERE.parent / "docs" / "performance.md"
BEGIN, END = "<!-- figures: python benchmarks/table.py -->", "<!-- end of figures -->"
HEADER = ("measured", "network", "ratios", "on")
NOT_RUN = "not run"
RIVALS = {"torch-pruning": "torch-pruning", "bc-io-gnj": "BC-IO-GNJ", "from-scratch": "from scratch"}
GENERATORS = {"scales-only": "`ScalesOnly`", "low-rank": "`LowRank`", "full": "`Full`"}

Results = dict[str, Any]
Row = tuple[str, str]  # network, ratios


@dataclass(frozen=True)
class Figure:
    """What one file is shown as."""

    file: str
    measured: str
    rows: Callable[[Results], Iterator[Row]]


def main() -> None:
    DOCUMENT.write_text(renewed(DOCUMENT.read_text(), HERE))
    print(f"wrote {DOCUMENT}")


def renewed(document: str, results: Path) -> str:
    """The document with the table of these results."""
    before, rest = document.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{table(results)}\n\n{END}{after}"


def table(results: Path) -> str:
    rows = [row for figure in FIGURES for row in shown(figure, results)]
    return "\n".join(_line(row) for row in (HEADER, ["---"] * len(HEADER), *rows))


def shown(figure: Figure, folder: Path) -> Iterator[tuple[str, ...]]:
    """The rows of one file; what a quick run found is no result."""
    path = folder / f"{figure.file}.json"
    found = json.loads(path.read_text()) if path.exists() else {"quick": True}
    if found.get("quick"):
        yield figure.measured, "", NOT_RUN, ""
        return
    on = found.get("device") or f"cpu, {found['threads']} threads"
    for network, ratios in figure.rows(found):
        yield figure.measured, network, ratios, on


def new_context(found: Results) -> Iterator[Row]:
    for each in found["summaries"]:
        ours = each["ours"]
        yield each["network"], f"ours: {_quality(ours)}"
        for name, rival in each["rivals"].items():
            yield (
                each["network"],
                f"{RIVALS[name]}: {rival['times_module_median']:,.0f} x ({rival['times_module_min']:,.0f});"
                f" with our report {rival['times_report_median']:,.0f} x ({rival['times_report_min']:,.0f}),"
                f" with the file {rival['times_file_median']:,.0f} x ({rival['times_file_min']:,.0f});"
                f" no worse in {rival['reached']} of {each['contexts']}; {_quality(rival)}",
            )


def grown(found: Results) -> Iterator[Row]:
    for row in found["networks"]:
        step, memory = _by_generator(row["step_ratio"]), _by_generator(row["memory_ratio"])
        wrapping, emitting = row["wrap_in_plain_steps"], row["emission_in_plain_steps"]
        yield (
            f"{row['network']}, {row['parameters']:.1e} parameters",
            f"learning step over plain step {step}; memory {memory};"
            f" in plain steps: wrapping {wrapping:.2g}, emission {emitting:.2g}",
        )
    counts = [f"{row['contexts']:,}: {row['latest_beside_the_first_ten']:.2f} x" for row in found["contexts_emitted"]]
    yield "mlp-1e6", f"emission by contexts emitted so far, {', '.join(counts)}"
    for row in found["contexts_a_step"]:
        ratios = ", ".join(f"{count}: {ratio:.1f} x" for count, ratio in row["step_ratio"].items())
        yield "mlp-1e6", f"learning step over plain step by contexts in it, {GENERATORS[row['generator']]}, {ratios}"


def training_step(found: Results) -> Iterator[Row]:
    for row in found["rows"]:
        yield row["model"], _by_generator(row["ratios"]["plain-fused"])


def deep_step(found: Results) -> Iterator[Row]:
    for row in found["rows"]:
        if "time_ratio" in row:
            kind, stage = row["training"].split(", ")
            ratios = f"time {row['time_ratio']:.1f} x, memory {row['memory_ratio']:.1f} x"
            yield row["model"], f"{GENERATORS[kind]}, {stage}: {ratios}"


def gpu_step(found: Results) -> Iterator[Row]:
    for row in found["rows"]:
        yield row["model"], f"{GENERATORS[row['generator']]}, {row['stage']}: {row['ratio']:.1f} x"


def gpu_step_over_plain(found: Results) -> Iterator[Row]:
    for row in found["rows"]:
        yield row["model"], f"{GENERATORS[row['generator']]}, {row['stage']}: {row['plain_ratio']:.1f} x"


def emission(found: Results) -> Iterator[Row]:
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        own = [row for row in found["rows"] if row["model"] == model]
        yield model, _by_generator({row["generator"]: row["everything_first_ratio"] for row in own})


def together(found: Results) -> Iterator[Row]:
    for model in dict.fromkeys(row["model"] for row in found["rows"]):
        own = [row for row in found["rows"] if row["model"] == model]
        yield model, _by_generator({row["generator"]: row.get("alone_ratio") for row in own})


def inference(found: Results) -> Iterator[Row]:
    for network in dict.fromkeys(row["network"] for row in found["rows"]):
        own = [row for row in found["rows"] if row["network"] == network]
        parts = []
        for batch in (1, 256):
            ratios = [row[f"threads_1_batch_{batch}"]["ratio"] for row in own]
            parts.append(f"batch {batch}: {median(ratios):.1f} x ({min(ratios):.1f})")
        yield network, ", ".join(parts)


def beside(found: Results) -> Iterator[Row]:
    for name, row in found["rows"].items():
        times = f"{row['alone_s']:.1f} s alone, {row['together_s']:.1f} s each of two"
        yield "lenet-300-100", f"{name}: {row['ratio']:.2f} x ({times})"


def fixed_costs(found: Results) -> Iterator[Row]:
    for row in found["rows"]:
        yield row["network"], f"{row['passes_beside_training']:.1f} passes over {found['examples']} examples"


NEW_CONTEXT = "a new context: rivals' time over ours, median (least)"


def own_data(found: Results) -> Iterator[Row]:
    files = found["files"]
    yield (
        "ResNet-20, CIFAR-10",
        f"{files['ratio']:.2f}, {files['ratio_beyond_decoder']:.2f} beyond the decoder's own cost"
        f" ({files['decode_image_us']:.0f} us an image)",
    )


FIGURES = (
    Figure("new_context", NEW_CONTEXT, new_context),
    Figure("new_context_gpu", f"{NEW_CONTEXT}, rivals on a GPU", new_context),
    Figure("training_step", "a learning step over a plain one, fused Adam", training_step),
    Figure("deep_step", "a step of deep networks over a plain one", deep_step),
    Figure("growth", "growth", grown),
    Figure("growth_gpu", "growth, on a GPU", grown),
    Figure("gpu_step", "a step over a plain one, both captured as one graph", gpu_step_over_plain),
    Figure("gpu_step", "a step kernel by kernel over one captured graph", gpu_step),
    Figure("emission", "generating everything first over emission", emission),
    Figure("emission", "masks and kept weights of contexts one by one over those of 1,000 together", together),
    Figure("inference", "the original over emitted networks in onnxruntime, one thread, median (least)", inference),
    Figure("beside", "each of two trainings at once over one alone", beside),
    Figure("own_data", "a step from PNG files that two processes decode over one from memory", own_data),
    Figure("fixed_costs", "what fit takes beside its steps, in passes of the network", fixed_costs),
)


def _quality(means: Results) -> str:
    return f"test error {means['test_error_mean']:.2f} %, {means['pruning_ratio_mean']:,.0f} x smaller"


def _by_generator(ratios: dict[str, float | None]) -> str:
    return ", ".join(
        f"{GENERATORS[kind]} " + ("unknown" if ratio is None else f"{ratio:.1f} x") for kind, ratio in ratios.items()
    )


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


if __name__ == "__main__":
    main()
