"""Headers that were changed, with checksums that fit, and the words in which they are refused."""

from collections.abc import Callable
from typing import Any

import pytest
from tools.fuzz.envelope import joined, split

from bhc.errors import BhcError
from bhc.formats import QuantisedNetwork, pack
from bhc.formats.coding import dumps

from .toys import parse

Change = Callable[[dict[int, Any]], Any]
DROP = object()
FC = [0, "fc", 2, [0.125, [0, -1, 4]], 0.015625]
CONV = [2, [1, 1], [1, 1], [0, 0], [1, 1], [0.5, [0, 0, 1]], False]


def put(*path: Any) -> Change:
    """Put the last of ``path`` at the place that the others lead to; to put ``DROP`` there takes it away."""

    def change(header: Any) -> None:
        *keys, last, value = path
        for key in keys:
            header = header[key]
        if value is DROP:
            del header[last]
        else:
            header[last] = value

    return change


def check_refused(network: QuantisedNetwork, change: Change, noun: str) -> None:
    content = pack(network)
    header, rest = split(content)
    assert joined(dumps(header), rest) == content
    change(header)
    with pytest.raises(BhcError, match=noun) as caught:
        parse(joined(dumps(header), rest))
    assert len(str(caught.value)) < 1000


Cases = dict[str, tuple[Change, str]]
NAN, INF = float("nan"), float("inf")


def tried(noun: str, *path: Any, to: list[Any]) -> Cases:
    """Each value put at one place; the error has the noun in it."""
    return {f"{'.'.join(map(str, path))} = {value}"[:60]: (put(*path, value), noun) for value in to}
