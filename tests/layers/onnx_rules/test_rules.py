"""Every rule against torch: the same numbers for the example's batch and for others, and not by torch's exporter."""

import re
from pathlib import Path
from typing import Any

import onnx
import pytest
import torch

from bhc.formats import onnx_bytes, onnx_model, open_session
from bhc.layers.calls import OPERATORS
from bhc.layers.onnx_rules import RULES

from ...formats.chains import TORCH_REMARKS
from . import cases, placed_cases

pytestmark = TORCH_REMARKS

TABLES = {
    cases: ("POINTWISE", "REDUCTIONS", "NORMS", "CONTRACTIONS"),
    placed_cases: ("MOVEMENT", "INDEXING", "WINDOWS", "GATES"),
}
ALL = [case for module, tables in TABLES.items() for table in tables for case in getattr(module, table)]


def named(case: cases.Case) -> str:
    return f"{case.operator} {case.arguments[1:]}"[:60]


@pytest.fixture(autouse=True)
def no_exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: Any) -> None:
        raise AssertionError("torch's exporter wrote it")

    monkeypatch.setattr(onnx_model, "_by_torch", refuse)


@torch.no_grad()
@pytest.mark.parametrize("case", ALL, ids=named)
def test_it_gives_what_torch_gives_for_any_batch(case: cases.Case) -> None:
    network = case.network()
    content = onnx_bytes(network)
    onnx.checker.check_model(onnx.load_from_string(content), full_check=True)
    session = open_session(content)
    for count in (2, 5, 1):
        values = case.values(count)
        wanted = network.graph(*values)
        (given,) = session.run(None, {f"x{place}": value.numpy() for place, value in enumerate(values)})
        tolerance = 1e-5 * max(1.0, float(wanted.nan_to_num(0, 0, 0).abs().max()))
        torch.testing.assert_close(torch.from_numpy(given), wanted, rtol=0, atol=tolerance, equal_nan=True)


def test_every_rule_is_tried() -> None:
    assert {case.target for case in ALL} == set(RULES)


def test_the_document_lists_the_operators_without_a_rule() -> None:
    text = (Path(__file__).parents[3] / "docs" / "exports.md").read_text()
    listed = text.split("these have no rule:")[1].split("A network that")[0]
    missing = [name.removeprefix("aten.").removesuffix(".default") for name in OPERATORS if name not in RULES]
    assert sorted(re.findall(r"`([\w.]+)`", listed)) == sorted(missing)


@pytest.mark.parametrize(
    "case",
    [
        cases.call("digamma", cases.R0),  # no rule
        cases.call("_to_copy", cases.R0, dtype=cases.Dtype("float64")),  # another precision
        cases.call("native_layer_norm", cases.R0, [4], None, None, 1e-5, pick=1),  # a statistic
        cases.call("roll", cases.R0, [1], [0]),  # by a size that is not fixed
        cases.call("elu", cases.R0, 1.0, 1.0, 2.0),
        cases.call("arange.start_step", 0, cases.BATCH, 0.1),  # how many there are hangs on rounding
        cases.call("upsample_nearest1d.vec", cases.R0, None, [1.16], shapes=((4, 25),)),  # and so does a size
    ],
    ids=named,
)
def test_what_has_no_rule_is_left_to_the_exporter(case: cases.Case) -> None:
    with pytest.raises(AssertionError, match="exporter"):
        onnx_bytes(case.network())
