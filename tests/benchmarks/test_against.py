"""Figures of two commits are paired by what they are of, not by where they stand."""

import re

from against import TIMES, figures


def test_rows_go_by_their_texts_and_others_by_their_place() -> None:
    results = {
        "rows": [{"model": "vgg", "emit_ms_median": 2.0}, {"model": "lenet", "kind": "full", "emit_ms_median": 1}],
        "seconds": [{"ms": 3.0}, {"ms": 4.0}],
        "ok": True,
    }
    assert dict(figures(results)) == {
        "/rows/vgg/emit_ms_median": 2.0,
        "/rows/lenet-full/emit_ms_median": 1.0,
        "/seconds/0/ms": 3.0,
        "/seconds/1/ms": 4.0,
    }


def test_times_are_shown_and_counts_are_not() -> None:
    names = ["/rows/vgg/emit_ms_median", "/networks_per_second", "/rows/a/ratios/plain/full", "/rows/a/pruning_ratio"]
    assert [bool(re.search(TIMES, name)) for name in names] == [True, True, True, False]
