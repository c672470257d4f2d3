"""The files handed out last, as long as they are small."""

from collections import OrderedDict
from typing import Generic, TypeVar

V = TypeVar("V")


class Cache(Generic[V]):
    """At most ``entries`` values of at most ``size`` bytes in all; the one not asked for the longest goes first."""

    def __init__(self, entries: int, size: int = 64 << 20) -> None:
        self.entries, self.size = entries, size
        self.held = 0
        self._values: OrderedDict[str, tuple[V, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> V | None:
        """What was kept under a key."""
        if key not in self._values:
            return None
        self._values.move_to_end(key)
        return self._values[key][0]

    def put(self, key: str, value: V, size: int = 0) -> None:
        """Keep a value of ``size`` bytes, and let others go for it."""
        if not self.entries or size + len(key) > self.size:
            return
        self._drop(key)
        self._values[key] = value, size + len(key)
        self.held += size + len(key)
        while len(self._values) > self.entries or self.held > self.size:
            self._drop(next(iter(self._values)))

    def _drop(self, key: str) -> None:
        if key in self._values:
            self.held -= self._values.pop(key)[1]
