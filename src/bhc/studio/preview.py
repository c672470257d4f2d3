"""What the page shows of a context: the network layer by layer, the trade-off, the rates it was cut by."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import torch
from torch import Tensor

from bhc.emission import BranchCut, CandidateFactory, Compressed, Cut, Cutter, Judge, find_branch_cuts
from bhc.posterior import LayerDropout
from bhc.training import TrainedModel

POINTS = 13  # of a curve
MOST_PLACES = 4096
BINS = np.linspace(-12.0, 12.0, 49)
CURVE_FLOPS = 1e9  # what all judging for one curve may cost
LEAST_IMAGES = 50


def thresholds_of(model: TrainedModel) -> dict[str, float]:
    """The range that was consolidated, the default, and how far a slider goes."""
    low, high = model.thresholds or (-2.0, 2.0)
    return {"low": low, "high": high, "default": model.default_threshold, "least": low - 1.0, "most": high + 1.0}


class Preview:
    """One context, looked at from all sides."""

    def __init__(self, model: TrainedModel, cutter: Cutter) -> None:
        self.model, self.cutter = model, cutter
        self.curve = list(self._points())

    def show(self, small: Compressed) -> dict[str, Any]:
        """All that the page draws of one network of the context."""
        report = small.report
        cut = self.cutter.cut(report.threshold)
        return {
            "report": report.to_dict(),
            "layers": list(_layers(cut, report.bits)),
            "blocks": list(map(_block, find_branch_cuts(self.model.network, cut))),
            "curve": self.curve,
            "here": {
                "threshold": report.threshold,
                "ratio": report.pruning_ratio,
                "error": report.error,
                "bytes": report.file_bytes,
                "flops": report.flops_after,
            },
            "histograms": list(self._histograms(report.threshold)),
            "inputs_kept": self._inputs(cut),
            "threshold": report.threshold,
            "emit_ms": report.emit_ms,
        }

    def _inputs(self, cut: Cut) -> list[int] | None:
        """The values of an input that are read, where the first layer reads values."""
        first = cut.layers[0]
        values = prod(self.model.network.input_shape)
        whole = not first.layer.has_kernel and first.layer.num_inputs == values
        return _places(first.kept_inputs, values) if whole else None

    def _points(self) -> Iterator[dict[str, Any]]:
        """Cuts at thresholds across the slider, judged before rounding."""
        factory, judge = CandidateFactory(self.model, self.cutter), Judge.of(self.model, self.cutter.context)
        span = thresholds_of(self.model)
        for threshold in np.linspace(span["most"], span["least"], POINTS).tolist():
            floats = factory.at(threshold)
            cut = floats.cut
            yield {
                "threshold": threshold,
                "ratio": self.model.network.num_weights / cut.num_weights,
                "error": None if judge is None else _error(judge, floats.graph, cut),
                "weights": cut.num_weights,
                "flops": cut.num_flops,
            }

    def _histograms(self, threshold: float) -> Iterator[dict[str, Any]]:
        layers = self.cutter.network.layers
        for layer, dropout in zip(layers, self.cutter.scales.dropouts, strict=True):
            for which, rates in rate_groups(dropout):
                values = rates.numpy()
                counts, _ = np.histogram(np.clip(values, BINS[0], BINS[-1]), BINS)
                yield {
                    "layer": layer.name,
                    "which": which,
                    "edges": BINS.tolist(),
                    "counts": counts.tolist(),
                    "kept": int((values < threshold).sum()),
                }


def _error(judge: Judge, graph: Any, cut: Cut) -> float:
    count = int(max(LEAST_IMAGES, CURVE_FLOPS / POINTS / max(cut.num_flops, 1)))
    verdict = judge.sample(count).judge(graph)
    return 100 * verdict.wrong / min(count, judge.num_images)


def _layers(cut: Cut, bits: tuple[int, ...]) -> Iterator[dict[str, Any]]:
    widths = iter(bits)  # of those that did not go with a branch
    for kept in cut.layers:
        layer, width = kept.layer, None if kept.is_gone else next(widths)
        yield {
            "name": layer.name,
            "kind": "convolution" if layer.has_kernel else "linear",
            "inputs_before": layer.num_inputs,
            "inputs_after": len(kept.kept_inputs),
            "outputs_before": layer.num_outputs,
            "outputs_after": len(kept.kept_outputs),
            "bits": width,
            "weights_before": layer.num_weights,
            "weights_after": kept.num_weights,
            "kept_inputs": _places(kept.kept_inputs, layer.num_inputs),
            "kept_outputs": _places(kept.kept_outputs, layer.num_outputs),
        }


def _block(cut: BranchCut) -> dict[str, Any]:
    """A branch with what stays of it, of each of its heads, and of the stream that it adds to."""
    (units_before, units_after), (stream_before, stream_after) = cut.units, cut.stream
    return {
        "name": cut.name,
        "layers": list(cut.layers),
        "gone": cut.gone,
        "units_before": units_before,
        "units_after": units_after,
        "heads_before": len(cut.heads),
        "heads_after": sum(head.alive for head in cut.heads),
        "heads": [
            {
                "alive": head.alive,
                "query_keys_before": head.query_keys.before,
                "query_keys_after": head.query_keys.after,
                "values_before": head.values.before,
                "values_after": head.values.after,
            }
            for head in cut.heads
        ],
        "stream_before": stream_before,
        "stream_after": stream_after,
    }


def _places(kept: Tensor, count: int) -> list[int] | None:
    return kept.tolist() if count <= MOST_PLACES else None


def rate_groups(dropout: LayerDropout) -> Iterator[tuple[str, Tensor]]:
    """Every group of more than one scale, or single weights where those go, with its rates."""
    for which, rates in (("in", dropout.in_log_dropout), ("out", dropout.out_log_dropout)):
        if rates is not None and rates.shape[1] > 1:
            yield which, rates[0]
    if dropout.weights is not None:
        yield "weight", torch.flatten(dropout.weights[0])
