"""Counters in the text form that Prometheus reads. One process speaks HTTP, so its counters are those of all."""

import os
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path

EDGES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)  # seconds


class Metrics:
    """What has happened since the start."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.networks: Counter[str] = Counter()
        self.cached: Counter[str] = Counter()
        self.seconds: dict[str, float] = defaultdict(float)
        self.buckets: dict[str, list[int]] = defaultdict(lambda: [0] * (len(EDGES) + 1))

    def note(self, route: str, status: int, seconds: float) -> None:
        """A request was answered."""
        self.requests[route, status] += 1
        self.seconds[route] += seconds
        self.buckets[route][bisect_left(EDGES, seconds)] += 1

    def text(self, gauges: Mapping[str, tuple[str, float]], processes: Mapping[str, int | None]) -> str:
        """Everything, with ``gauges`` (help and value by name) and the processes that are measured."""
        lines = [
            *_family("bhc_requests_total", "counter", "Requests by route and status."),
            *(
                f'bhc_requests_total{{route="{route}",status="{status}"}} {count}'
                for (route, status), count in sorted(self.requests.items())
            ),
            *_family("bhc_request_seconds", "histogram", "Time from a request to its answer."),
            *(line for route in sorted(self.buckets) for line in self._histogram(route)),
            *_family("bhc_networks_total", "counter", "Networks handed out, by format."),
            *(f'bhc_networks_total{{format="{form}"}} {n}' for form, n in sorted(self.networks.items())),
            *_family("bhc_cache_total", "counter", "Looks into the cache, by what was found."),
            *(f'bhc_cache_total{{result="{result}"}} {self.cached[result]}' for result in ("hit", "miss")),
        ]
        for name, (meaning, value) in gauges.items():
            lines += [*_family(name, "counter" if name.endswith("_total") else "gauge", meaning), f"{name} {value:g}"]
        for name, (kind, meaning, measure) in MEASURES.items():
            lines += _family(name, kind, meaning)
            for process, number in processes.items():
                measured = None if number is None else measure(number)
                if measured is not None:
                    lines.append(f'{name}{{process="{process}"}} {measured}')
        return "\n".join(lines) + "\n"

    def _histogram(self, route: str) -> list[str]:
        total, lines = 0, []
        for edge, count in zip([*map(str, EDGES), "+Inf"], self.buckets[route], strict=True):
            total += count
            lines.append(f'bhc_request_seconds_bucket{{route="{route}",le="{edge}"}} {total}')
        return [
            *lines,
            f'bhc_request_seconds_sum{{route="{route}"}} {self.seconds[route]:.6f}',
            f'bhc_request_seconds_count{{route="{route}"}} {total}',
        ]


def resident_bytes(process: int) -> int | None:
    """Memory of a process; None where the system does not say."""
    try:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return None


def cpu_seconds(process: int) -> float | None:
    """CPU time that a process has used; None where the system does not say."""
    try:
        ticks = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[11:13]
        return sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError):
        return None


MEASURES: dict[str, tuple[str, str, Callable[[int], float | None]]] = {
    "bhc_resident_bytes": ("gauge", "Resident memory by process.", resident_bytes),
    "bhc_cpu_seconds_total": ("counter", "CPU time by process.", cpu_seconds),
}


def _family(name: str, kind: str, meaning: str) -> list[str]:
    return [f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"]
