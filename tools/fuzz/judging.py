"""Reading changed files: refused, or sound, in bounded time and memory."""

import math
import random
import resource
import sys
import time
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from tools.fuzz.changes import Changed, change
from tools.fuzz.envelope import NAME
from tools.fuzz.sources import make_extremes, make_sources

from bhc.emission import Compressed, from_file
from bhc.errors import BhcError
from bhc.formats import NetworkFile, QuantisedNetwork, parse_network
from bhc.graph import INPUT, Graph, ShapedStep, shaped_steps
from bhc.layers import is_weighted, sizes

LONGEST_MS, LARGEST_BYTES = 400.0, 100 << 20
WATCHED, BATCH = 10, 200  # of every tenth file Python's and numpy's memory is watched too, so many files together
SMALL = 1 << 22  # operations; larger networks are run on paper only


class Unsound(Exception):
    """A file was read that should have been refused, or not read as it should."""


@dataclass
class Tally:
    """What came of many files."""

    count: int = 0
    refused: int = 0
    read: int = 0
    slowest_ms: float = 0.0
    traced_bytes: int = 0
    grown_bytes: int = 0
    failures: list[tuple[bytes, str]] = field(default_factory=list)

    def __str__(self) -> str:
        return (
            f"{self.count:,} files: {self.refused:,} refused, {self.read:,} read, {len(self.failures)} failures;"
            f" slowest {self.slowest_ms:.1f} ms; memory: {self.traced_bytes / 1e6:.1f} MB at most in Python and numpy,"
            f" the process grew by {self.grown_bytes / 1e6:.1f} MB"
        )


def fuzz(
    count: int, seed: int, *, longest_ms: float = LONGEST_MS, progress: Callable[[Tally], None] | None = None
) -> Tally:
    """Change and read ``count`` files."""
    rng, tally = random.Random(seed), Tally()
    sources = make_sources(seed)
    originals = [_read(source) for source in sources]
    _warm_up(sources, originals)
    start, watched = _resident(), []
    extremes = [Changed(content, mended=True) for content in make_extremes()]
    for number in range(count):
        changed = extremes[number] if number < len(extremes) else change(rng, sources)
        if number % WATCHED == 0 or number < len(extremes):
            watched.append(changed.content)
        try:
            _judge(changed, originals, tally, longest_ms)
            tally.grown_bytes = _resident() - start
            if tally.grown_bytes > LARGEST_BYTES:
                start = _resident()  # so that one file is blamed, not all that follow
                raise Unsound(f"memory grew by {tally.grown_bytes:,} bytes")
        except Exception as error:  # whatever it is, it is a finding
            tally.failures.append((changed.content, f"{type(error).__name__}: {error}"))
        tally.count += 1
        if len(watched) == BATCH or tally.count == count:
            before = _resident()
            _watch_memory(watched, tally)
            watched.clear()
            start += _resident() - before  # the watch takes memory of its own
        if progress is not None and tally.count % 5000 == 0:
            progress(tally)
    return tally


def _warm_up(sources: list[bytes], originals: list[Compressed]) -> None:
    """Have tables made, modules imported and memory fetched that are needed once and not for each file."""
    rng = random.Random(0)
    for _ in range(200):
        _attempt(change(rng, sources).content)
    for original in originals:
        check_sound(original, largest=0)
        check_sound(original)


def _judge(changed: Changed, originals: list[Compressed], tally: Tally, longest_ms: float) -> None:
    began = time.perf_counter()
    result = _attempt(changed.content)
    took = 1e3 * (time.perf_counter() - began)
    if took > longest_ms:
        took = min(_time(changed.content) for _ in range(3))
    tally.slowest_ms = max(tally.slowest_ms, took)
    if took > longest_ms:
        raise Unsound(f"took {took:.0f} ms")
    if result is None:
        tally.refused += 1
        return
    tally.read += 1
    check_sound(result)
    if not changed.mended and not any(same(result.network, original.network) for original in originals):
        raise Unsound("a damaged file was read, and not to the network it was made from")


def _watch_memory(contents: list[bytes], tally: Tally) -> None:
    """Read again with an eye on what Python and numpy allocate; in one go, for each start of the watch costs some."""
    tracemalloc.start()
    for content in contents:
        tracemalloc.reset_peak()
        before, _ = tracemalloc.get_traced_memory()
        _attempt(content)
        taken = tracemalloc.get_traced_memory()[1] - before
        tally.traced_bytes = max(tally.traced_bytes, taken)
        if taken > LARGEST_BYTES:
            tally.failures.append((content, f"took {taken:,} bytes"))
    tracemalloc.stop()


def _read(content: bytes) -> Compressed:
    file: NetworkFile = parse_network(content, NAME)
    compressed = from_file(file, NAME)
    str(compressed.report)  # what is read can be shown
    return compressed


def _attempt(content: bytes) -> Compressed | None:
    """None if the file was refused as it should be."""
    try:
        return _read(content)
    except BhcError:
        return None


def _time(content: bytes) -> float:
    """By the clock of this process, which stands still while others have the processor."""
    began = time.process_time()
    _attempt(content)
    return 1e3 * (time.process_time() - began)


def _resident() -> int:
    """The most memory the process ever had, in bytes; macOS counts bytes, others kilobytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


@torch.no_grad()
def check_sound(compressed: Compressed, *, largest: int = SMALL) -> None:
    """The network runs on what it says it takes, if only on paper, and its weights are what its codes say."""
    network = compressed.network
    for layer in network.layers:
        if layer.weight is not None and not torch.equal(layer.module.weight, layer.weight.values()):
            raise Unsound(f"the weights of {layer.name} are not what their codes say")
    small = sum(map(_operations, shaped_steps(network.graph, network.input_shape))) < largest
    device = "cpu" if small else "meta"
    outputs = network.module().to(device)(*[zeros.to(device) for zeros in network.signature.zeros(1)])
    if outputs.shape[:2] != (1, len(network.labels)):  # of pixels, each has an answer
        raise Unsound(f"outputs of shape {tuple(outputs.shape)} for {len(network.labels)} labels")


def _operations(shaped: ShapedStep) -> int:
    """About how many a step takes for one input."""
    module, window = shaped.module, 1
    if is_weighted(module):
        window = module.weight[0].numel()
    elif hasattr(module, "kernel_size"):
        window = math.prod(sizes(module.kernel_size, len(shaped.leaving) - 2))
    return sum(map(math.prod, shaped.arriving)) + math.prod(shaped.leaving) * window


def same(one: QuantisedNetwork, other: QuantisedNetwork) -> bool:
    """Whether two networks are equal to the last bit, what is known about them included."""
    numbers = [list(network.graph.state_dict().values()) for network in (one, other)]
    wiring = [_wiring(network.graph) for network in (one, other)]
    about = [(n.input_shape, n.labels, n.temperature, n.card) for n in (one, other)]
    return (
        about[0] == about[1]
        and wiring[0] == wiring[1]
        and len(numbers[0]) == len(numbers[1])
        and all(map(torch.equal, *numbers))
    )


def _wiring(graph: Graph) -> list[tuple[str, list[int]]]:
    """What each step is and which steps it reads: by their places, for a file keeps the names of layers alone."""
    places = {name: place for place, name in enumerate((INPUT, *[step.name for step in graph.steps]))}
    return [(str(step.module), [places[name] for name in step.reads]) for step in graph.steps]
