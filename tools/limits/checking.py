"""Requests at and around what can be reached; what comes back is measured by other means than the library's own."""

import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from tools.limits.models import CLASSES, SHAPE, draw
from torch import nn

import bhc
from bhc.emission import from_file
from bhc.formats import c_memory, parse_network
from bhc.studio.service import Service

COUNTS = ("max_bytes", "max_flops", "max_ram_bytes")
NAMED = re.compile(r"(max_\w+)=([\d.e+-]+)")
CASES_A_MODEL, CASES_A_CONTEXT = 40, 4
ROUNDED = 1e-6  # counts of weighted images are stored as 32-bit floats
FILE = Path("small.bhc")

Asked = dict[str, Any]


@dataclass
class Tally:
    """What came of the cases."""

    cases: int = 0
    emitted: int = 0
    refused: int = 0
    named: int = 0  # figures that refusals named as reachable, each asked for in turn
    failures: list[str] = field(default_factory=list)

    def add_(self, other: "Tally") -> None:
        for name in ("cases", "emitted", "refused", "named", "failures"):
            setattr(self, name, getattr(self, name) + getattr(other, name))

    def __str__(self) -> str:
        return (
            f"{self.cases:,} cases: {self.emitted:,} networks, {self.refused:,} refusals that named {self.named:,}"
            f" figures; {len(self.failures)} failures"
        )


def check(cases: int, seed: int, *, latency: bool = True) -> Tally:
    """So many cases, from models of their own."""
    tally = Tally()
    while tally.cases < cases:
        tally.add_(check_model(seed, min(CASES_A_MODEL, cases - tally.cases), latency=latency))
        seed += 1
    return tally


def check_model(seed: int, cases: int, *, latency: bool = True) -> Tally:
    """Cases of one model."""
    model, rng, tally = draw(seed), random.Random(seed), Tally()
    roads = Roads(model)
    for number in range(cases):
        if number % CASES_A_CONTEXT == 0:
            context = _context(model, rng)
            near = _near_network(model, context, rng)
        asked = context | _limits(near, rng, latency=latency)
        road = rng.choice(roads.all)
        tally.cases += 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tally.failures += [
                f"model {seed}, case {number}, {road.__name__}({asked}): {problem}"
                for problem in _problems(model, road, asked, tally, rng)
            ]
    return tally


class Roads:
    """Every way that a network is asked for."""

    def __init__(self, model: bhc.Compressor) -> None:
        self.model, self.service = model, Service(model, "drawn")
        self.all = (self.compress, self.compress, self.compress_many, self.serve)

    def compress(self, asked: Asked) -> bhc.Compressed:
        return self.model.compress(**asked)

    def compress_many(self, asked: Asked) -> bhc.Compressed:
        """With another beside it, so that the hypernetwork is called for both at once."""
        other = {name: asked[name] for name in ("classes", "budget") if name in asked} | {"quantisation": bhc.Float32()}
        outcome, _ = self.model.try_many([asked, other])
        if isinstance(outcome, bhc.BhcError):
            raise outcome
        return outcome

    def serve(self, asked: Asked) -> bhc.Compressed:
        precision = asked.get("quantisation")
        if isinstance(precision, bhc.VarianceBits):
            return self.compress(asked)  # nothing that JSON could say
        rest = {name: value for name, value in asked.items() if name != "quantisation"}
        return self.service.emitted(rest | ({} if precision is None else {"float32": True}))


def _problems(model: bhc.Compressor, road: Any, asked: Asked, tally: Tally, rng: random.Random) -> Iterator[str]:
    try:
        small = road(asked)
    except bhc.BhcError as error:
        tally.refused += 1
        yield from _problems_of_refusal(model, road, asked, error, tally, rng)
        return
    except Exception as error:
        yield f"{type(error).__name__}: {error}"
        return
    tally.emitted += 1
    yield from _broken(model, small, asked)


def _problems_of_refusal(
    model: bhc.Compressor, road: Any, asked: Asked, error: bhc.BhcError, tally: Tally, rng: random.Random
) -> Iterator[str]:
    """Each figure that is named, alone or with others, must be had by asking for it; a count under it must not."""
    alternatives = [dict(NAMED.findall(part)) for part in error.hint.split(" or for ")]
    for named in filter(None, alternatives):
        tally.named += 1
        figures = {name: int(text) if name in COUNTS else float(text) for name, text in named.items()}
        again = asked | figures
        try:
            yield from _broken(model, road(again), again)
        except bhc.BhcError as second:
            yield f"{error} | but {figures} gives: {second}"
        if len(figures) == 1 and "confidence" not in asked and "smallest" in error.problem and rng.random() < 0.25:
            (name, figure), *_ = figures.items()
            if name in COUNTS and figure > 1:
                try:
                    road(again | {name: figure - 1})
                    yield f"{error} | but {figure - 1} can be reached"
                except bhc.BhcError:
                    pass


def _broken(model: bhc.Compressor, small: bhc.Compressed, asked: Asked) -> Iterator[str]:
    """Limits that do not hold, by the file as another program would read it."""
    content = small.to_bytes()
    read = from_file(parse_network(content, FILE), FILE)
    real: dict[str, float] = {"max_bytes": len(content)}
    if "max_flops" in asked:
        real["max_flops"] = _real_flops(read)
    if "max_ram_bytes" in asked:
        real["max_ram_bytes"] = c_memory(read.network).total
    if "max_error" in asked and "confidence" not in asked:
        real["max_error"] = _real_error(model, read, asked)
    for name, figure in real.items():
        if name in asked and figure > asked[name] * (1 + ROUNDED):
            yield f"{name}={asked[name]} is broken: {figure}"
    told = {
        "max_bytes": small.report.file_bytes,
        "max_flops": small.report.flops_after,
        "max_error": small.report.error,
    }
    for name, figure in real.items():
        if name in told and abs(figure - (told[name] or 0)) > 1e-4:
            yield f"the report says {told[name]} for {name}, it is {figure}"
    if "round_to" in asked:
        yield from _no_multiples(model, read, asked["round_to"])
    if "confidence" in asked and small.report.guarantee is None:
        yield "nothing is guaranteed"
    if "max_latency_ms" in asked and not (small.report.latency_ms or 1e9) <= asked["max_latency_ms"]:
        yield f"max_latency_ms={asked['max_latency_ms']} is broken: {small.report.latency_ms}"


def _no_multiples(model: bhc.Compressor, read: bhc.Compressed, asked: int | dict[str, int]) -> Iterator[str]:
    """Layers but the last that write neither a multiple nor all that they could."""
    if read.report.round_to != asked:
        yield f"the file says that channels are rounded to {read.report.round_to}"
    kept = dict(read.network.module().named_modules())
    for layer in model.network.layers[:-1]:
        multiple, width = asked if isinstance(asked, int) else asked.get(layer.name, 1), len(kept[layer.name].weight)
        if width % multiple and width != layer.num_outputs:
            yield f"{layer.name} writes {width} channels, and {multiple} were to be a factor of them"


def _real_flops(small: bhc.Compressed) -> int:
    """Two a multiply-add, counted as the module runs."""
    total = 0

    def note(module: nn.Module, _: object, output: torch.Tensor) -> None:
        nonlocal total
        total += 2 * output[0].numel() * module.weight[0].numel()  # type: ignore[operator, union-attr, index]

    module = small.network.module()
    for step in module.modules():
        if isinstance(step, nn.Linear | nn.Conv2d):
            step.register_forward_hook(note)
    module(torch.zeros(1, *SHAPE))
    return total


def _real_error(model: bhc.Compressor, small: bhc.Compressed, asked: Asked) -> float:
    validation = model.model.validation
    assert validation is not None
    given = asked.get("classes") or range(CLASSES)
    examples = validation.restricted_to(given)
    missed = small.predict(examples.inputs).labels != examples.labels
    if not isinstance(given, dict) or len(set(given.values())) == 1:
        return 100 * int(missed.sum()) / len(missed)
    rates = {label: float(missed[examples.labels == label].double().mean()) for label in given}
    return 100 * sum(given[label] * rates[label] for label in given) / sum(given.values())


def _near_network(model: bhc.Compressor, context: Asked, rng: random.Random) -> bhc.Report:
    """Some network for a context, whose figures can be reached."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return model.compress(**context, threshold=rng.uniform(-9, 5)).report


def _limits(near: bhc.Report, rng: random.Random, *, latency: bool) -> Asked:
    """Limits at and around the figures of a network."""
    asked: Asked = {}
    if rng.random() < 0.1 and near.error is not None:
        asked["flag_outside"] = rng.choice([0.2, 0.1])
    names = ["max_bytes", "max_flops"]
    names += ["max_ram_bytes"] if near.ram_bytes is not None else []
    names += ["max_error"] if near.error is not None else []
    for name in rng.sample(names, rng.choice([1, 1, 1, 2, 2, min(3, len(names)), len(names)])):
        asked[name] = _near(name, near, rng)
    if latency and rng.random() < 0.01:
        asked["max_latency_ms"] = rng.choice([1e-6, 1.0, 50.0])
    if rng.random() < 0.12:
        asked["threshold"] = near.threshold if rng.random() < 0.5 else rng.uniform(-6, 4)
    if rng.random() < 0.12:
        asked |= {"max_error": asked.get("max_error", rng.choice([2.0, 10, 25.0, 60.0])), "confidence": 0.9}
    return asked


def _context(model: bhc.Compressor, rng: random.Random) -> Asked:
    classes = sorted(rng.sample(range(CLASSES), rng.randint(1, CLASSES)))
    asked: Asked = {"classes": classes}
    if getattr(model.space, "concentration", None) is not None and rng.random() < 0.5:
        asked["classes"] = {label: rng.choice([0.1, 0.3, 0.5, 0.9]) for label in classes}
    if "budget" in model.space.conditions:
        asked["budget"] = rng.choice([0.0, 1.0, rng.random()])
    if rng.random() < 0.15:
        asked["quantisation"] = rng.choice([bhc.Float32(), bhc.VarianceBits(2.0 ** rng.randint(-7, 4))])
    if rng.random() < 0.25:
        named = rng.choice(model.network.layers[:-1]).name
        asked["round_to"] = rng.choice([2, 3, 4, {named: rng.choice([2, 4])}])
    return asked


def _near(name: str, report: bhc.Report, rng: random.Random) -> float:
    """At a figure that a network has, next to it, or somewhere around it."""
    if name == "max_error":
        return max(0.001, round((report.error or 0.0) * rng.choice([1.0, 1.0, 0.8, 1.5]) + rng.choice([0, 0.001]), 3))
    figure = {"max_bytes": report.file_bytes, "max_flops": report.flops_after, "max_ram_bytes": report.ram_bytes}[name]
    assert figure is not None
    around = int(figure * rng.uniform(0.4, 2.0))
    return max(1, rng.choice([figure, figure, figure - 1, figure + 1, figure + 2, figure + 9, around, 2 * around]))
