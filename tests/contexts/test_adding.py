"""``docs/adding-a-context.md`` is executed: its context is trained, and asked for in Python, by command and service."""

import json
import math
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

import bhc
from bhc.contexts import (
    ContextBatch,
    Option,
    ProbeRequest,
    VectorEmbedder,
    check_space,
    checked_draw,
    checked_encoding,
    registry,
)
from bhc.errors import BhcError
from tests import pages
from tests.pages import blocks, executed
from tests.studio.serving import serving

PAGE = "adding-a-context.md"
CODE, _ = blocks(PAGE)


@pytest.fixture
def page(
    forgetful: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> dict[str, Any]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "time_of_day.py").write_text(CODE)
    names = executed(PAGE)
    assert capsys.readouterr().out == "14.0\n"
    return names


bhc_command = partial(pages.bhc_command, plugin="time_of_day.py")


def test_hours_have_different_networks_and_others_are_refused(page: dict[str, Any]) -> None:
    model = page["model"]
    morning, night = (model.compress(hour=hour, threshold=0.0).report for hour in (6, 0))
    assert morning.context["appearance"] != night.context["appearance"]
    assert morning.context["classes"] == [0, 1, 2, 3]
    with pytest.raises(BhcError, match="hour 25"):
        model.compress(hour=25)
    with pytest.raises(BhcError, match="lacks hour"):
        model.compress()
    joint = bhc.Joint(page["TimeOfDay"]((6.0, 12.0, 18.0, 0.0)), bhc.Budgets(), missing=0)
    check_space(joint, 4)
    with pytest.raises(BhcError, match="TimeOfDay"):  # it has no way to say nothing
        bhc.Joint(page["TimeOfDay"]((6.0, 12.0)), bhc.Budgets())


def test_the_command_line_asks_for_it(page: dict[str, Any]) -> None:
    assert "--hour" in bhc_command("compress", "--help").stdout
    done = bhc_command("compress", "run", "--hour", "14", "--out", "again.bhc", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["context"]["hour"] == 14
    x = page["images"](3)[0]
    assert torch.equal(bhc.read("again.bhc").module(x), page["small"].module(x))
    assert "hour: an hour of the day" in bhc_command("inspect", "run").stdout


@pytest.mark.usefixtures("page")
def test_the_command_line_trains_it() -> None:
    few = ("--steps", "3", "--consolidation-steps", "3", "--out", "digits-run")
    words = ("train", "--model", "lenet-300-100", "--data", "digits", "--context", "hour", *few)
    refused = bhc_command(*words, "--peaks", "6,12")
    assert (refused.returncode, "2 peaks for 10 classes" in refused.stderr) == (2, True)
    done = bhc_command(*words, "--force")
    assert done.returncode == 0, done.stderr
    assert "--hour 14" in done.stderr  # the command that comes next
    assert bhc.load("digits-run").compress(hour=3).report.context["hour"] == 3


@pytest.mark.usefixtures("page")
def test_the_service_asks_for_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BHC_IMPORT", str(tmp_path / "time_of_day.py"))
    with serving(tmp_path / "run") as server:
        assert server.get("/v1/model").json()["forms"]["hour"]["kind"] == "range"
        assert server.post("/v1/reports", {"hour": 14}).json()["context"]["hour"] == 14
        refused = server.post("/v1/reports", {"hour": 25})
        assert (refused.status, refused.json()["hint"]) == (422, "give a number from 0 to 23")
        done = bhc_command("pull", server.url, "--hour", "14", "--out", str(tmp_path / "small.onnx"))
        assert done.returncode == 0, done.stderr


def test_a_run_with_a_kind_that_is_not_registered_says_what_to_import(page: dict[str, Any]) -> None:
    del registry._KINDS["time-of-day"]
    with pytest.raises(BhcError, match="'time-of-day'") as caught:
        bhc.load("run")
    assert "--import" in caught.value.hint


@dataclass(frozen=True)
class Weather(bhc.ContextSpace):
    kind = "weather"
    conditions = ("rain",)
    options = (Option("rain", "Millimetres.", value_type=float, example="2"),)

    def form(self) -> dict[str, dict[str, Any]]:
        return {"rain": {"kind": "text", "words": "millimetres of rain"}}

    def resolve_parts(self, request: Any) -> dict[str, Any]:
        return {"rain": float(request["rain"])}

    def refine(self, batch: ContextBatch, *, rng: torch.Generator) -> ContextBatch:
        return replace(batch, values={"rain": torch.rand(len(batch), 1, generator=rng)})

    def encode(self, batch: ContextBatch) -> tuple[torch.Tensor, ...]:
        return (batch.values["rain"],)

    def embedder(self, width: int) -> torch.nn.Module:
        return VectorEmbedder(1, width)

    def probes(self, num_classes: int, limit: int) -> list[ProbeRequest]:
        return [ProbeRequest({"rain": 1.0})]


class Times(torch.nn.Module):
    def __init__(self, width: int, factor: float) -> None:
        super().__init__()
        self.linear, self.factor = torch.nn.Linear(1, width), factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.factor


def changed(**parts: Any) -> Any:
    return type("Changed", (Weather,), parts)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (int, "no kind of context"),
        (changed(kind="classes"), "taken by ClassSubsets"),
        (changed(kind=None), "lacks kind"),
        (changed(options=()), "an option for rain"),
        (changed(encode=bhc.ContextSpace.encode), "lacks encode"),
        (changed(conditions=("two words",), options=(Option("two words", ""),)), "'two words'"),
        (changed(conditions=("max_bytes",), options=(Option("max_bytes", ""),)), "'max_bytes'"),
    ],
)
def test_a_kind_with_something_missing_or_taken_is_refused(forgetful: None, kind: Any, problem: str) -> None:
    with pytest.raises(BhcError, match=re.escape(problem)):
        bhc.register_context(kind)


@pytest.mark.parametrize(
    ("parts", "problem"),
    [
        ({"encode": lambda self, batch: (batch.values["rain"] / 0,)}, "NaN or infinity"),
        ({"encode": lambda self, batch: (batch.values["rain"][:1],)}, "for 3 contexts"),
        ({"encode": lambda self, batch: batch.values["rain"]}, "gives Tensor"),
        ({"encode": lambda self, batch: (batch.values["rain"].repeat(1, len(batch)),)}, "for its example"),
        ({"refine": lambda self, batch, rng: replace(batch, class_rates=batch.class_rates * 2)}, "no probabilities"),
        ({"refine": lambda self, batch, rng: replace(batch, outputs=batch.outputs[:, 1:])}, "outputs of (3, 3)"),
        ({"refine": lambda self, batch, rng: replace(batch, values={"rain": torch.zeros(2, 1)})}, "values['rain']"),
        ({"refine": lambda self, batch, rng: None}, "refine gives NoneType"),
        ({"refine": lambda self, batch, rng: replace(batch, values={"rain": [1, 2, 3]})}, "values['rain'] of list"),
        ({"refine": lambda self, batch: batch}, "fails with TypeError"),
        ({"encode": lambda self, batch: (batch.values["snow"],)}, "encode fails with KeyError"),
        ({"embedder": lambda self, width: VectorEmbedder(1, width + 1)}, "embedder(8) gives (3, 9)"),
        ({"embedder": lambda self, width: VectorEmbedder(2, width)}, "embedder does not take"),
        (
            {"embedder": lambda self, width: Times(width, math.nan)},
            "embedder(8) gives (3, 8) of torch.float32 with NaN",
        ),
        ({"divergence_weights": lambda self, batch: torch.ones(2)}, "divergence_weights gives (2,)"),
        ({"divergence_weights": lambda self, batch: torch.full((len(batch),), math.inf)}, "divergence_weights"),
        ({"probes": lambda self, num_classes, limit: []}, "probes"),
        ({"probes": lambda self, num_classes, limit: [{"rain": 1}]}, "probes"),
        ({"form": lambda self: {}}, "form"),
        ({"form": lambda self: {"rain": None}}, "of kind None"),
        ({"form": lambda self: {"rain": {"kind": "wheel", "words": "rain"}}}, "'wheel'"),
        ({"form": lambda self: {"rain": {"kind": "range", "words": "rain", "low": 0}}}, "lacks high, step"),
        ({"example": lambda self, seen: {"rain": "much", "snow": 1}}, "example"),
        ({"resolve_parts": lambda self, request: None}, "resolve_parts gives NoneType"),
        ({"resolve_parts": lambda self, request: {"rain": "much"}}, "rain is no number"),
        ({"resolve_parts": lambda self, request: {"rain": math.nan}}, "NaN"),
        ({"resolve_parts": lambda self, request: {"rain": 1.0, "classes": (0, 4)}}, "classes (0, 4)"),
        ({"resolve_parts": lambda self, request: {"rain": 1.0, "classes": (0, 1), "appearance": (1,)}}, "appear (1,)"),
        ({"to_dict": lambda self: {"kind": "weather", "rain": {1, 2}}}, "JSON"),
        ({"to_dict": lambda self: {"kind": "weather", "rain": math.nan}}, "JSON"),
        ({"to_dict": lambda self: {"kind": "weather", "rain": 1}}, "from_dict does not take"),
        ({"to_dict": lambda self: {"kind": "wind"}}, "the kind 'weather'"),
    ],
)
def test_a_space_that_contradicts_itself_is_named_before_it_is_trained(
    forgetful: None, parts: dict[str, Any], problem: str
) -> None:
    kind = bhc.register_context(changed(**parts))
    net = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.ReLU(), torch.nn.Linear(6, 4))
    for space in (kind(), bhc.Joint(kind(), bhc.Budgets(), missing=0)):
        with pytest.raises(BhcError, match=f"Changed.*{re.escape(problem)}"):
            bhc.wrap(net, space, example_input=torch.zeros(1, 4))


def test_a_space_without_an_embedder_or_a_description_or_not_registered_is_named(forgetful: None) -> None:
    net = torch.nn.Linear(4, 4)
    with pytest.raises(BhcError, match="'weather'") as caught:
        bhc.wrap(net, Weather(), example_input=torch.zeros(1, 4))
    assert "bhc.register_context" in caught.value.hint
    plain = type("Plain", (bhc.ContextSpace,), {k: v for k, v in vars(Weather).items() if not k.startswith("__")})
    with pytest.raises(BhcError, match="Plain is no dataclass"):
        bhc.wrap(net, bhc.register_context(plain)(), example_input=torch.zeros(1, 4))
    blind = bhc.register_context(changed(kind="blind", embedder=lambda self, width: None))
    with pytest.raises(BhcError, match="Changed: embedder gives NoneType"):
        bhc.wrap(net, blind(), example_input=torch.zeros(1, 4))


def test_a_context_that_is_drawn_wrongly_later_is_named_and_not_drawn_from(forgetful: None) -> None:
    calls = iter((1.0, 1.0, math.nan))
    space = bhc.register_context(
        changed(refine=lambda self, batch, rng: replace(batch, class_rates=batch.class_rates * next(calls)))
    )()
    for _ in range(2):
        checked_draw(space, 5, 4, rng=torch.Generator())
    with pytest.raises(BhcError, match="Changed: refine gives class_rates"):
        checked_draw(space, 5, 4, rng=torch.Generator())


def test_what_is_not_a_number_later_is_named_too(forgetful: None) -> None:
    space = bhc.register_context(Weather)()
    batch = replace(ContextBatch.unconditioned(2, 4), values={"rain": torch.tensor([[1.0], [float("nan")]])})
    with pytest.raises(BhcError, match=r"Weather: .*NaN"):
        checked_encoding(space, batch)


def test_reserved_names_are_all_that_commands_and_limits_take() -> None:
    from bhc.cli.compress import compress_command
    from bhc.cli.inspect import inspect_command
    from bhc.cli.serve import pull_command
    from bhc.emission import Limits

    conditions = {option.name for option in registry.request_options()}
    taken = set(Limits.__dataclass_fields__)
    for command in (compress_command, pull_command, inspect_command):
        taken |= set(command.__annotations__) - conditions - {"conditions", "return", "as_json"}
    assert taken <= registry.RESERVED
