"""Deep networks on a CPU: wrapping them, and emitting VGG for one context, to a module and to a packed file.

    python benchmarks/deep_emission.py

Scales are set so that about one unit in eight stays, as training for pairs of classes leaves it. A file is made twice:
from a model without validation images, and from one with 500 of each class, on which steps of rounding are chosen and
what the report says is measured; noise, since what they look like does not change what it costs. Last, what who calls
``bhc compress`` waits for: loading such a run, and the first file from it.
"""

import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from emission import CONTEXT, emit, prune_
from timing import options, take_turns, write

import bhc
from bhc.data import Split

WRAPPED = ("vgg", "resnet-56")
KEPT = 0.125  # part of the scales under the threshold
IMAGES = 500  # of each class


def main() -> None:
    arguments = options(__file__, __doc__, rounds=9).parse_args()
    rounds = 1 if arguments.quick else arguments.rounds
    images = torch.randint(0, 256, (10 if arguments.quick else 10 * IMAGES, 3, 32, 32), dtype=torch.uint8)
    sample = Split(images, torch.arange(len(images)) % 10)
    wrapping = {name: wrapped(name, images[:1]) for name in WRAPPED}
    model, _ = wrapping["vgg"]
    prune_(model.network, kept=KEPT)
    judged = bhc.Compressor(replace(model.model, validation=sample))
    ask = partial(dict, classes=list(CONTEXT.classes or ()), threshold=0.0)
    rivals = {
        "module": partial(emit, model.network),
        "file": lambda: model.compress(**ask()).to_bytes(),
        "file_with_validation": lambda: judged.compress(**ask()).to_bytes(),
    }
    times = take_turns(rivals, rounds=rounds, warm_up=1)
    ratio = model.compress(**ask()).report.pruning_ratio
    seconds = {name: spent for name, (_, spent) in wrapping.items()}
    load, first = from_disk(judged, ask())
    loaded = {"load_seconds": load, "first_file_seconds": first}
    write(arguments, {"wrap_seconds": seconds, "pruning_ratio": ratio, "emit_ms": times, "from_disk": loaded})
    print(", ".join(f"{name} wrapped in {spent:.2f} s" for name, spent in seconds.items()))
    print(f"vgg, {ratio:.0f} x smaller: " + ", ".join(f"{kind} {spent:.0f} ms" for kind, spent in times.items()))
    print(f"from disk: loaded in {load:.2f} s, the first file {first:.2f} s later")


def wrapped(name: str, example: torch.Tensor) -> tuple[bhc.Compressor, float]:
    """A network ready to be trained, and the seconds that took."""
    net = bhc.models.build(name, image_shape=(3, 32, 32), num_classes=10)
    began = time.perf_counter()
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=example)
    return model, time.perf_counter() - began


def from_disk(model: bhc.Compressor, asked: dict[str, Any]) -> tuple[float, float]:
    """Seconds to load a run, and from there to its first file."""
    with tempfile.TemporaryDirectory() as folder:
        model.save(Path(folder) / "run")
        began = time.perf_counter()
        loaded = bhc.load(Path(folder) / "run")
        ready = time.perf_counter()
        loaded.compress(**asked).to_bytes()
    return ready - began, time.perf_counter() - ready


if __name__ == "__main__":
    main()
