"""A folder of images, one folder a class: a CNN of your own, cut for some of the classes.

    python examples/image_folder.py [FOLDER] [--out DIR] [--workers N] [--steps N]

FOLDER has train/CLASS/*.png (or .jpg), and validation/CLASS/ if you like. Without one the digits of scikit-learn are
written as PNGs first. Needs pip install 'bhc[images]' scikit-learn.
"""

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

import bhc


class Shifted(Dataset[tuple[Tensor, int]]):
    """Transforms of one's own: an image is moved by up to a pixel whenever it is read."""

    def __init__(self, images: bhc.data.ImageFolder) -> None:
        self.images, self.targets = images, images.targets  # with targets, fit need not read all for them

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, place: int) -> tuple[Tensor, int]:
        image, label = self.images[place]
        down, right = torch.randint(-1, 2, (2,)).tolist()
        return image.roll((down, right), (1, 2)), label


def network(channels: int, classes: int) -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(channels, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(128, classes)),
    )


def write_digits(folder: Path) -> Path:
    from PIL import Image
    from sklearn.datasets import load_digits

    digits = load_digits()
    for number, (label, pixels) in enumerate(zip(digits.target, digits.images, strict=True)):
        (folder / "train" / str(label)).mkdir(parents=True, exist_ok=True)
        Image.fromarray((15 * pixels).astype("uint8")).save(folder / "train" / str(label) / f"{number}.png")
    return folder


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--out", type=Path, default=Path("image-folder"))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=300)
    options = parser.parse_args()
    folder = options.folder or write_digits(options.out / "digits")
    splits = bhc.data.image_folders(folder, mean=0.5, std=0.5)  # of photographs also size=224
    train, classes = Shifted(splits.train), len(splits.classes)
    torch.manual_seed(0)
    net = network(splits.train.image_shape[0], classes)
    optimizer = torch.optim.Adam(net.parameters(), 3e-3)
    for _ in range(5):
        for x, y in DataLoader(train, batch_size=64, shuffle=True, num_workers=options.workers):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
    model = bhc.wrap(net.eval(), bhc.ClassSubsets(classes), example_input=train[0][0][None])
    recipe = (bhc.Learn(steps=options.steps, kl_weight=0.5), bhc.Consolidate(steps=options.steps // 2))
    bhc.fit(model, train, splits.validation, recipe=recipe, workers=options.workers, class_names=splits.classes)
    small = model.compress(classes=[0, 1]).save(options.out / "small.bhc", overwrite=True)
    print(small.to_onnx(options.out / "small.onnx", overwrite=True).report)


if __name__ == "__main__":
    main()
