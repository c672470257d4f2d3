"""The service under load, on loopback: clients that ask for networks of random contexts at random thresholds.

    python benchmarks/serve_load.py RUN [--clients 16] [--seconds 60] [--workers 2] [--hostile]

The cache is off, so every network is made for its request. Printed are networks a second, times from request to answer,
requests that failed, how much memory the service's processes gained after the warm-up, and the CPU time of a network,
which says more where the machine is busy with other things. With ``--hostile`` others send what no good client would
(oversized, malformed, slow, of the wrong type, paths that lead elsewhere); then networks are also compared with those
that the library makes for the same requests.
"""

import argparse
import asyncio
import json
import os
import random
import re
import statistics
import subprocess
import sys
import time
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from timing import options, write

import bhc

ADDRESS = re.compile(r"http://([\d.]+):(\d+)")
WARM_UP = 10.0  # seconds, not counted
LOOK_EVERY = 1.0  # seconds between looks at the memory
CHECKED = 200  # networks that are compared with the library's


@dataclass
class Tally:
    """What the clients saw."""

    times: list[float] = field(default_factory=list)  # seconds
    failures: list[str] = field(default_factory=list)
    answers: list[tuple[dict[str, Any], bytes]] = field(default_factory=list)
    hostile: dict[str, dict[int, int]] = field(default_factory=dict)  # by kind, how often each status


class Connection:
    """HTTP/1.1 with one connection kept: as little work as can be, for it runs beside what is measured."""

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, kind: str = "application/json") -> tuple[int, bytes]:
        head = f"POST {path} HTTP/1.1\r\nHost: bhc\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        return await self.send(head.encode() + body)

    async def send(self, message: bytes) -> tuple[int, bytes]:
        """A request as bytes; its status and content."""
        if self.streams is None:
            self.streams = await asyncio.open_connection(self.host, self.port)
        reader, writer = self.streams
        try:
            writer.write(message)
            await writer.drain()
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = re.search(rb"content-length: (\d+)", head)
            content = await reader.readexactly(int(length[1])) if length else await reader.read()
            if length is None or b"connection: close" in head:
                await self.close()
            return int(head.split(b" ", 2)[1]), content
        except BaseException:
            await self.close()
            raise

    async def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def random_request(rng: random.Random, thresholds: tuple[float, float], num_classes: int) -> dict[str, Any]:
    """Two or three classes, and a threshold in the consolidated range."""
    classes = sorted(rng.sample(range(num_classes), rng.choice((2, 3))))
    return {"classes": classes, "threshold": rng.uniform(*thresholds)}


async def good_client(
    tally: Tally, place: tuple[str, int], ask: Any, began: float, until: float, *, keep: bool
) -> None:
    """One network after the other."""
    connection = Connection(*place)
    while (now := time.perf_counter()) < until:
        asked = ask()
        try:
            status, content = await connection.post("/v1/networks", json.dumps(asked).encode())
            if status != 200:
                tally.failures.append(f"{status} {content[:200]!r}")
        except (OSError, asyncio.IncompleteReadError) as error:
            tally.failures.append(repr(error))
            continue
        if now >= began:
            tally.times.append(time.perf_counter() - now)
            if keep and len(tally.answers) < CHECKED:
                tally.answers.append((asked, content))
    await connection.close()


POST = b"POST /v1/networks HTTP/1.1\r\nHost: x\r\n"
HOSTILE: dict[str, bytes] = {
    "oversized": POST + b"Content-Length: 99999999999\r\n\r\n",
    "malformed": POST + b"Content-Type: application/json\r\nContent-Length: 3\r\n\r\n{[}",
    "not HTTP": b"\x16\x03\x01\x00\xa5 hello\r\n\r\n",
    "wrong type": POST + b'Content-Type: application/json\r\nContent-Length: 27\r\n\r\n{"classes": {"a": [1, {}]}}',
    "path tricks": b"GET /../../../../etc/passwd HTTP/1.1\r\nHost: x\r\n\r\n",
    "coded path tricks": b"GET /%2e%2e/%2e%2e/app.py HTTP/1.1\r\nHost: x\r\n\r\n",
    "long head": b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"y" * (1 << 20) + b"\r\n\r\n",
    "wrong array": b"POST /v1/domains HTTP/1.1\r\nHost: x\r\nContent-Length: 8\r\n\r\n\x93NUMPY\x01\x00",
}


async def hostile_client(tally: Tally, place: tuple[str, int], rng: random.Random, until: float) -> None:
    """What no good client sends, one after the other."""
    while time.perf_counter() < until:
        kind = rng.choice([*HOSTILE, "slow"])
        connection = Connection(*place)
        try:
            if kind == "slow":
                status = await _slowly(place, until)
            else:
                status, _ = await asyncio.wait_for(connection.send(HOSTILE[kind]), 30)
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            status = 0  # the connection was closed
        finally:
            await connection.close()
        seen = tally.hostile.setdefault(kind, {})
        seen[status] = seen.get(status, 0) + 1
        await asyncio.sleep(0.05)


async def _slowly(place: tuple[str, int], until: float) -> int:
    """A head, a byte at a time, for as long as it is let."""
    _, writer = await asyncio.open_connection(*place)
    try:
        for letter in b"POST /v1/networks HTTP/1.1\r\nX-Slow: " + b"y" * 200:
            writer.write(bytes([letter]))
            await writer.drain()
            if writer.transport.is_closing() or time.perf_counter() > until:
                break
            await asyncio.sleep(0.2)
    finally:
        writer.close()
    return 0


@dataclass(frozen=True)
class Look:
    """What the service says of its processes, all together."""

    bytes: int
    cpu_seconds: float
    networks: int

    @classmethod
    async def at(cls, place: tuple[str, int]) -> "Look":
        connection = Connection(*place)
        _, text = await connection.send(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        await connection.close()
        found = {
            name: re.findall(rf"^bhc_{name}\{{[^}}]*\}} ([\d.]+)$".encode(), text, re.MULTILINE)
            for name in ("resident_bytes", "cpu_seconds_total", "networks_total")
        }
        memory, seconds, networks = (sum(map(float, values)) for values in found.values())
        return cls(int(memory), seconds, int(networks))


async def watch(place: tuple[str, int], began: float, until: float) -> list[Look]:
    """A look every second, once it is warm."""
    looks = []
    while (now := time.perf_counter()) < until:
        if now >= began:
            looks.append(await Look.at(place))
        await asyncio.sleep(LOOK_EVERY)
    return looks


async def load(
    place: tuple[str, int], arguments: argparse.Namespace, model: bhc.Compressor
) -> tuple[Tally, list[Look]]:
    """All clients at once."""
    tally, rng = Tally(), random.Random(arguments.seed)
    thresholds = model.model.thresholds or (-2.0, 2.0)
    began = time.perf_counter() + arguments.warm_up
    until = began + arguments.seconds

    def ask() -> dict[str, Any]:
        return random_request(rng, thresholds, model.network.num_classes)

    good = (good_client(tally, place, ask, began, until, keep=arguments.hostile) for _ in range(arguments.clients))
    bad = (hostile_client(tally, place, rng, until) for _ in range(4 * arguments.hostile))
    looks, *_ = await asyncio.gather(watch(place, began, until), *good, *bad)
    return tally, looks


def wrong_networks(model: bhc.Compressor, answers: list[tuple[dict[str, Any], bytes]]) -> int:
    """How many of the files are not those of the library."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return sum(model.compress(**asked).to_bytes() != content for asked, content in answers)


def summary(tally: Tally, looks: list[Look], arguments: argparse.Namespace) -> dict[str, Any]:
    times, sizes = sorted(tally.times), [look.bytes for look in looks]
    made, spent = (looks[-1].networks - looks[0].networks, looks[-1].cpu_seconds - looks[0].cpu_seconds)
    tenth = max(len(sizes) // 10, 1)
    return {
        "clients": arguments.clients,
        "workers": arguments.workers,
        "seconds": arguments.seconds,
        "networks": len(times),
        "networks_per_second": round(len(times) / arguments.seconds, 1),
        "median_ms": round(1e3 * statistics.median(times), 1),
        "p99_ms": round(1e3 * times[int(0.99 * (len(times) - 1))], 1),
        "slowest_ms": round(1e3 * times[-1], 1),
        "cpu_ms_per_network": round(1e3 * spent / max(made, 1), 1),
        "load_average": os.getloadavg()[0],
        "failed": len(tally.failures),
        "failures": tally.failures[:5],
        "resident_mib": round(statistics.mean(sizes[-tenth:]) / 2**20, 1),
        "growth_mib": round((statistics.mean(sizes[-tenth:]) - statistics.mean(sizes[:tenth])) / 2**20, 2),
        "hostile": tally.hostile,
    }


def main() -> None:
    parser = options(__file__, __doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--warm-up", type=float, default=WARM_UP)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--hostile", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.seconds, arguments.warm_up = 3.0, 1.0
    model = bhc.load(arguments.run)
    command = [sys.executable, "-m", "bhc", "serve", str(arguments.run), "--port", "0", "--cache", "0"]
    command += ["--workers", str(arguments.workers)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        try:
            assert service.stderr is not None
            found = ADDRESS.search(service.stderr.readline())
            if found is None:
                sys.exit(f"the service did not start: {service.stderr.read()}")
            tally, looks = asyncio.run(load((found[1], int(found[2])), arguments, model))
        finally:
            service.terminate()
    results = {"run": arguments.run.name, **summary(tally, looks, arguments)}
    results |= {"checked": len(tally.answers), "wrong": wrong_networks(model, tally.answers)}
    print(json.dumps(results, indent=2))
    write(arguments, results)


if __name__ == "__main__":
    main()
