"""A user's own files: images in folders, arrays, and Python files with networks, data and tasks."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from bhc.data import DataSet

NAMES = tuple(f"d{number}" for number in range(10))
QUICK = ("--steps", "4", "--consolidation-steps", "2", "--kl-weight", "0.05", "--contexts", "2")
SCALED = ("--mean", "0.5", "--std", "0.25")

NETS = """
import torch
from torch import nn
import bhc

class Net(nn.Module):
    def __init__(self, channels=1):
        super().__init__()
        self.net = bhc.models.build("lenet-300-100", image_shape=(channels, 8, 8), num_classes=10)

    def forward(self, x):
        return self.net((x * 0.25 + 0.5) * 17)  # images as --mean 0.5 --std 0.25 reads them, then 0 to 16

def build():
    print("printed while it is built")
    net = Net()
    net.load_state_dict(torch.load("WEIGHTS", weights_only=True))
    return net

def colour(): return Net(3)
def needs(channels): return Net(channels)
def raises():
    raise ValueError("no disk")
def a_dict(): return {}
def floats(): return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
def two_results():
    class Two(Net):
        def forward(self, x): return super().forward(x), x
    return Two()

class Words(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.layer, self.out = nn.Embedding(20, 8), nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, input_ids, attention_mask):
        mean = (self.rows(input_ids) * attention_mask[..., None]).sum(1) / attention_mask.sum(1, keepdim=True)
        return self.out(torch.relu(self.layer(mean)))

class Maps(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 4, 1)

    def forward(self, image):
        return self.last(torch.relu(self.first(image)))

loaded = build()
"""

DATA = """
import bhc, numpy as np, torch
from torch.utils.data import DataLoader, Dataset

class Texts(Dataset):
    def __init__(self, count, seed):
        rng = torch.Generator().manual_seed(seed)
        self.ids, self.mask = torch.randint(0, 20, (count, 6), generator=rng), torch.ones(count, 6)
        self.labels = self.ids[:, 0] % 4
    def __len__(self): return len(self.ids)
    def __getitem__(self, place):
        named = {"input_ids": self.ids[place], "attention_mask": self.mask[place], "text": "-"}
        return named | {"label": self.labels[place]}

class Maps(Dataset):
    def __init__(self, count, seed):
        rng = torch.Generator().manual_seed(seed)
        self.images, self.labels = torch.rand(count, 1, 8, 8, generator=rng), torch.arange(count) % 3
    def __len__(self): return len(self.images)
    def __getitem__(self, place):
        wanted = torch.full((8, 8), 3)
        wanted[2:5, 2:5] = self.labels[place]
        return {"image": self.images[place], "label": wanted}

class Broken(Dataset):
    def __len__(self): return 20
    def __getitem__(self, place): raise OSError("disk on fire")

def texts(): return bhc.data.DatasetSplits(Texts(80, 0), Texts(40, 1), Texts(40, 2), ("a b", "c", "d", "e"))
def loaders(): return tuple(DataLoader(Texts(count, count), batch_size=7) for count in (80, 40, 41))
def maps(): return Maps(60, 0), Maps(30, 1), Maps(30, 2)
def broken(): return Broken(), Broken()
def ours(): return bhc.data.load("digits")
def vectors():
    x = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.zeros(200, 10)
    return {"train": (x, y), "validation": (x[:50], y[:50]), "test": (x[:60], y[:60])}
def with_calibration():
    data, held_out = bhc.data.load("digits").held_out(300)
    as_read = lambda split: ((split.inputs / 17 - 0.5) / 0.25, split.labels)
    return {name: as_read(part) for name, part in
            {"train": data.train, "validation": data.validation, "calibration": held_out}.items()}
def inputs_alone():
    return dict.fromkeys(("train", "validation", "test"), torch.rand(60, 1, 8, 8))
def lists():
    data = bhc.data.load("digits")
    def listed(split): return (((split.inputs / 17 - 0.5) / 0.25).tolist(), split.labels.tolist())
    return tuple(listed(split.at(slice(count))) for split, count in
                 ((data.train, 100), (data.validation, 50), (data.test, 50)))
def items():
    data = bhc.data.load("digits").test
    own = [((x / 17 - 0.5) / 0.25, int(y)) for x, y in zip(data.inputs[:100], data.labels[:100])]
    return own, own[:50], own[50:]
def triples(): return (1, 2, 3), (1, 2, 3)
def two_arrays(): return np.zeros((4, 8)), np.zeros(4)
def four(): return 1, 2, 3, 4
def other_names(): return {"train": 1, "valid": 2}
def a_number(): return 7
def numbers(): return 1, 2
"""

TASKS = """
import torch
from torch.nn import functional as F
import bhc

class Distance(bhc.Task):
    name, error_name = "distance", "absolute error"
    def loss(self, outputs, targets): return (outputs - targets).square().mean(1)
    def error(self, outputs, targets): return (outputs - targets).abs().mean(1).clamp(max=1)

class Overlap(bhc.Task):
    name, error_name, higher_is_better = "overlap", "overlap", True
    def loss(self, outputs, targets): return F.cross_entropy(outputs, targets, reduction="none").mean((1, 2))
    def error(self, outputs, targets): return (outputs.argmax(1) != targets).float().mean((1, 2))
    def class_outputs(self, num_outputs): return [[0], [1], [2]]
    def labels(self, targets): return targets[:, 3, 3]

class Half(bhc.Task):
    name = "half"
    def loss(self, outputs, targets): return outputs.mean(1)

def make(): return Overlap()
def no_task(): return 3
"""


def fill(folder: Path, digits: DataSet, pretrained: nn.Module) -> Path:
    """Everything a user could have brought along."""
    torch.save({f"net.{name}": tensor for name, tensor in pretrained.state_dict().items()}, folder / "net.pt")
    for name, code in (("nets", NETS), ("data", DATA), ("tasks", TASKS)):
        (folder / f"my_{name}.py").write_text(code.replace("WEIGHTS", str(folder / "net.pt")))
    parts = {"train": (digits.train, 400), "test": (digits.test, 150)}
    for part, (split, count) in parts.items():
        write_images(folder / "images" / part, split.tensor[:count], split.known_labels[:count], NAMES)
        write_images(folder / "flat" / part, split.tensor[:count], split.known_labels[:count], ("",) * 10)
    arrays = {}
    for end, (split, count) in (("", parts["train"]), ("_test", parts["test"])):
        arrays[f"x{end}"] = ((split.tensor[:count] / 17 - 0.5) / 0.25).numpy()
        arrays[f"y{end}"] = split.known_labels[:count].numpy()
    np.savez(folder / "arrays.npz", **arrays, classes=NAMES)
    np.savez(folder / "inputs.npz", **{name: array for name, array in arrays.items() if name[0] == "x"})
    return folder


def write_images(folder: Path, images: torch.Tensor, labels: torch.Tensor, names: tuple[str, ...]) -> None:
    """Grey PNG files, pixels 0 to 16 as 0 to 240."""
    for name in set(names):
        (folder / name).mkdir(parents=True, exist_ok=True)
    for place, (image, label) in enumerate(zip(images, labels.tolist(), strict=True)):
        Image.fromarray((image[0] * 15).numpy().astype(np.uint8)).save(folder / names[label] / f"{place:04}.png")
