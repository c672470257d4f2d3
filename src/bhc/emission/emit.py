"""From a context to a runnable network and its report."""

import time
import warnings
from dataclasses import dataclass

import torch
from torch import Tensor

from bhc.contexts import Context
from bhc.emission.compressed import Compressed
from bhc.emission.plan import Plan, make_plan
from bhc.emission.report import Report
from bhc.emission.slim import slim_model
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.training import TrainedModel

FLOAT_BITS = 32
LARGEST_THRESHOLD = 1_000_000  # no log dropout rate comes near it


class ThresholdWarning(UserWarning):
    """A network was emitted at a threshold that consolidation did not cover."""


def emit(model: TrainedModel, context: Context, *, threshold: float | None = None) -> Compressed:
    """The network for ``context``: scales, cut, then only the kept weights."""
    chosen = model.default_threshold if threshold is None else float(threshold)
    if not abs(chosen) <= LARGEST_THRESHOLD:
        raise BhcError(f"the threshold must be a number within {LARGEST_THRESHOLD:,}, given {threshold}")
    began = time.perf_counter()
    plan = make_plan(model.network, context, chosen)
    module = slim_model(model.network, plan)
    emit_ms = 1e3 * (time.perf_counter() - began)
    notes = _notes(model, plan)
    quality = _judge(model, plan, module)
    report = _report(model.network, plan, quality, emit_ms=emit_ms, notes=notes)
    return Compressed(module, report, model.network.input_shape, quality.temperature)


@dataclass(frozen=True)
class _Quality:
    error_before: float | None
    error: float | None
    images: int
    temperature: float


@torch.no_grad()
def _judge(model: TrainedModel, plan: Plan, module: torch.nn.Module) -> _Quality:
    """Errors before and after on the run's validation sample, and the temperature that calibrates."""
    if model.validation is None or plan.context.domain is not None:
        # Which of the sample's images lie in a domain is not known, so there is nothing to judge it on.
        return _Quality(None, None, 0, 1.0)
    examples = model.validation.restricted_to(plan.classes)
    labels = torch.searchsorted(torch.tensor(plan.classes), examples.labels)
    base = model.network.base_model(examples.images.to(model.network.device))[:, list(plan.classes)].cpu()
    logits = module(examples.images)
    return _Quality(
        error_before=_percent_wrong(base, labels) if model.network.pretrained else None,
        error=_percent_wrong(logits, labels),
        images=len(labels),
        temperature=_calibrate(logits, labels),
    )


def _percent_wrong(logits: Tensor, labels: Tensor) -> float:
    return 100 * float((logits.argmax(1) != labels).float().mean())


def _calibrate(logits: Tensor, labels: Tensor) -> float:
    """The temperature with the lowest validation cross-entropy, from a grid of ten numbers a decade."""
    candidates = torch.logspace(-1, 1.4, 25)
    scaled = logits[None] / candidates[:, None, None]
    losses = -torch.log_softmax(scaled, dim=2)[:, torch.arange(len(labels)), labels].mean(1)
    return float(candidates[losses.argmin()])


def _notes(model: TrainedModel, plan: Plan) -> tuple[str, ...]:
    notes = [
        f"no input of {cut.layer.name} had its writer and its reader under the threshold; the least noisy was kept"
        for cut in plan.layers
        if cut.rescued
    ]
    if len(plan.classes) == 1:
        notes.append("one class leaves one possible answer, so the error says nothing")
    if plan.context.domain is not None and model.validation is not None:
        notes.append("no error is given: the run's labelled sample is not limited to this domain")
    if model.thresholds is not None:
        low, high = model.thresholds
        if not low <= plan.threshold <= high:
            notes.append(
                f"threshold {plan.threshold:g} lies outside {low:g} to {high:g}, the range this model was"
                " consolidated for; expect a higher error"
            )
            warnings.warn(notes[-1], ThresholdWarning, stacklevel=4)
    return tuple(notes)


def _report(
    network: ConditionalNetwork, plan: Plan, quality: _Quality, *, emit_ms: float, notes: tuple[str, ...]
) -> Report:
    layers = network.layers
    biases = sum(layer.num_outputs for layer in layers if layer.module.bias is not None)
    return Report(
        context=plan.context.to_dict(),
        classes=plan.classes,
        threshold=plan.threshold,
        layers=tuple(layer.name for layer in layers),
        architecture_before=tuple(layer.num_outputs if layer.is_convolution else layer.num_inputs for layer in layers),
        architecture=tuple(cut.width for cut in plan.layers),
        bits=(FLOAT_BITS,) * len(layers),
        layer_weights=tuple(cut.num_weights for cut in plan.layers),
        weights_before=network.num_weights,
        weights_after=plan.num_weights,
        parameter_bytes_before=4 * (network.num_weights + biases),
        flops_before=sum(2 * layer.num_weights * layer.output_area for layer in layers),
        flops_after=plan.num_flops,
        error_before=quality.error_before,
        error=quality.error,
        validation_images=quality.images,
        emit_ms=emit_ms,
        notes=notes,
    )
