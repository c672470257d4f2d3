"""A short run of ``tools/fuzz``; the long one is run by hand."""

from pathlib import Path

import pytest
from tools.fuzz.judging import check_sound, fuzz, same
from tools.fuzz.sources import make_extremes, make_sources

from bhc.emission import from_file
from bhc.errors import BhcError
from bhc.formats import parse_network

IT = Path("it.bhc")


def test_sources_are_valid_and_differ() -> None:
    networks = [from_file(parse_network(content, IT), IT) for content in make_sources()]
    for place, one in enumerate(networks):
        check_sound(one)
        assert [same(one.network, other.network) for other in networks].index(True) == place
    assert {one.network.graph.is_chain for one in networks} == {True, False}


def test_extremes_reach_both_sides_of_the_limits() -> None:
    read = 0
    for content in make_extremes():
        try:
            check_sound(from_file(parse_network(content, IT), IT))
            read += 1
        except BhcError:
            pass
    assert 0 < read < len(make_extremes())


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.long) for seed in (2, 3))])
def test_changed_files_are_refused_or_sound(seed: int) -> None:
    # A loaded machine may take its time; the limit here only catches what has no limit.
    tally = fuzz(500, seed, longest_ms=1000)
    assert not tally.failures, tally.failures[0][1]
    assert tally.count == tally.refused + tally.read == 500
    assert tally.read > 0
    assert tally.traced_bytes < 100 << 20
