"""What tests of layers register is forgotten after them."""

from collections.abc import Iterator

import pytest

from bhc.layers import registry


@pytest.fixture
def forgetful() -> Iterator[None]:
    tables = (registry._BY_MODULE, registry._BY_NAME, registry._BY_TAG)
    before = [dict(table) for table in tables]
    yield
    for table, old in zip(tables, before, strict=True):
        table.clear()
        table.update(old)  # type: ignore[arg-type]
