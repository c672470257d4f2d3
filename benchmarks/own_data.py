"""A user's own data set beside tensors in memory: what a step costs, and whether memory grows with the examples.

    python benchmarks/own_data.py [--data-dir DIR] [--steps 20]

CIFAR-10's 60,000 images are written as PNG files, one folder a class, and ResNet-20 learns from them: from tensors in
memory, and from the files, decoded by two processes while the step before is computed on the same two cores. The
decoder's own cost is the processor time of one batch read by a single process; on two cores that work is at best half
as long. Then a data set of a million images that are made when they are asked for is trained on beside one of a
thousand, each in a process of its own, and their peaks of memory compared, those of the processes that read included.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
from timing import Results, options, write
from torch.utils.data import Dataset

import bhc
from bhc.data import ImageFolder, Split
from bhc.training import Learn, Silent, Taking, configure_process
from bhc.training.batches import BatchSource
from bhc.training.loading import LoadedSource
from bhc.training.step import make_step

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.247, 0.243, 0.261)
STAGE = Learn(contexts=16, examples=16, steps=10_000)
SHAPE = (3, 32, 32)


def main() -> None:
    parser = options(__file__, __doc__)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--steps", type=int, default=20, help="that are timed, of each (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="of each rival (%(default)s)")
    parser.add_argument("--made", type=int, help=argparse.SUPPRESS)  # the process that is measured
    arguments = parser.parse_args()
    if arguments.made:
        print(json.dumps(peak_of(arguments.made)))
        return
    configure_process()
    if arguments.quick:
        arguments.steps, arguments.turns = 2, 1
    with tempfile.TemporaryDirectory() as folder:
        results: Results = {
            "files": files(arguments, Path(folder)),
            "memory": memory(1000 if arguments.quick else 10**6),
        }
    print(json.dumps(results, indent=2))
    write(arguments, results)


def files(arguments: argparse.Namespace, folder: Path) -> Results:
    """Seconds of a step from files and from memory, and of a batch alone."""
    data = bhc.data.load("cifar10", data_dir=arguments.data_dir)
    parts = [data.train, data.validation, data.test]
    count = write_pngs(parts, folder, most=2_000 if arguments.quick else None)
    images = ImageFolder(folder, mean=MEAN, std=STD)
    net = bhc.models.build("resnet-20", image_shape=SHAPE, num_classes=10)[1:]  # floats go in
    x = torch.zeros(2, *SHAPE)
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=x)
    network = model.network
    taking = Taking(network, Silent(), workers=2)
    loaded = LoadedSource(taking.examples(images, "images"), network, seed=0)  # type: ignore[arg-type]
    some = torch.randn(count, *SHAPE)
    in_memory = BatchSource.of(Split(some, torch.as_tensor(images.targets)), 10, device=x.device, seed=0)
    del some
    seconds: dict[str, list[float]] = {"memory": [], "files": []}
    for _ in range(arguments.turns):
        for name, source in (("memory", in_memory), ("files", loaded)):
            seconds[name] += steps_of(network, source, arguments.steps)
    decode = [decoded(loaded, network) for _ in range(3 if arguments.quick else 9)]
    step, streamed, alone = median(seconds["memory"]), median(seconds["files"]), median(decode)
    return {
        "images": count,
        "batch": STAGE.contexts * STAGE.examples,
        "memory_step_ms": 1e3 * step,
        "files_step_ms": 1e3 * streamed,
        "decode_batch_ms": 1e3 * alone,
        "decode_image_us": 1e6 * alone / STAGE.contexts / STAGE.examples,
        "ratio": streamed / step,
        "ratio_beyond_decoder": (streamed - alone / 2) / step,
    }


def write_pngs(parts: list[Split], folder: Path, *, most: int | None) -> int:
    from PIL import Image

    place = 0
    for split in parts:
        for pixels, label in zip(
            split.tensor[:most].permute(0, 2, 3, 1).numpy(), split.known_labels.tolist(), strict=False
        ):
            own = folder / str(label)
            own.mkdir(exist_ok=True)
            Image.fromarray(pixels).save(own / f"{place}.png")
            place += 1
    return place


def steps_of(network: Any, source: BatchSource, count: int) -> list[float]:
    """Seconds of so many steps, after some that fill queues and caches."""
    warm_up = 4
    source.begin(network, STAGE, range(count + warm_up))
    take, found = make_step(STAGE, network, source), []
    for number in range(count + warm_up):
        began = time.perf_counter()
        take()
        if number >= warm_up:
            found.append(time.perf_counter() - began)
    source.end()
    return found


def decoded(source: LoadedSource, network: Any) -> float:
    """Processor seconds of one batch, read here."""
    batch = network.space.sample(STAGE.contexts, 10, rng=source.rng)
    places = source.data.places[source.index.draw(batch, STAGE.examples, rng=source.rng)].tolist()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    began = time.process_time()
    source.data.reader.read(places)
    seconds = time.process_time() - began
    torch.set_num_threads(threads)
    return seconds


class Made(Dataset[Any]):
    """Images that are made when they are asked for."""

    def __init__(self, count: int) -> None:
        self.targets = torch.arange(count) % 10

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, place: int) -> Any:
        rng = np.random.default_rng(place)
        return torch.from_numpy(rng.standard_normal(SHAPE, dtype=np.float32)), int(self.targets[place])


def peak_of(count: int) -> float:
    """MiB at the highest, of this process and those that read for it."""
    net = bhc.models.build("lenet-5-caffe", image_shape=SHAPE, num_classes=10)[1:]
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=torch.zeros(2, *SHAPE))
    recipe = (Learn(steps=30), bhc.Consolidate(steps=30))
    bhc.fit(model, Made(count), Made(1000), recipe=recipe, workers=2, progress=Silent())
    own, children = (resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return (own + 2 * children) / 1024


def memory(count: int) -> Results:
    def peak(images: int) -> float:
        command = [sys.executable, __file__, "--made", str(images)]
        return float(json.loads(subprocess.run(command, capture_output=True, check=True, text=True).stdout))

    few, many = peak(1000), peak(count)
    return {"images": count, "few_mib": few, "many_mib": many, "more_mib": many - few}


if __name__ == "__main__":
    main()
