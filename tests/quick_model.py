"""The small model that many tests ask: kept in a file, so that it is the same on every machine.

    python -m tests.quick_model    trains it anew and writes the file

What a training ends at hangs on the processor. Here every number is a whole one of eight bits times a step, and nothing
is trained when tests run.
"""

import json
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

import bhc
from bhc.data import DataSet
from bhc.models import build
from bhc.pretraining import Pretraining, pretrain
from bhc.training import Silent, TrainedModel

FILE = Path(__file__).with_suffix(".npz")
LARGEST, KNOWN = 127, "known"
RECIPE = (
    bhc.Learn(steps=60, kl_weight=0.1, contexts=8, examples=8),
    bhc.Consolidate(steps=30, contexts=8, examples=8),
)


def pretrained() -> nn.Module:
    """LeNet-300-100, trained on the digits."""
    net = build("lenet-300-100", image_shape=(1, 8, 8), num_classes=10)
    net.load_state_dict(_numbers("base_model."))
    return net.eval().requires_grad_(False)


def quick_model(digits: DataSet) -> bhc.Compressor:
    """For any classes, after a short training."""
    network = bhc.wrap(pretrained(), bhc.ClassSubsets(10), example_input=digits.train.inputs[:1]).network
    network.hypernet.freeze_gates_()
    network.load_state_dict(_numbers())
    with np.load(FILE) as stored:
        known = json.loads(bytes(stored[KNOWN]))
    thresholds = tuple(known.pop("thresholds"))
    return bhc.Compressor(TrainedModel(network, validation=digits.validation, thresholds=thresholds, **known))


def same_model(one: bhc.Compressor, other: bhc.Compressor) -> bool:
    """Whether two models are the same to the bit, and what they emit too."""
    states = one.network.state_dict(), other.network.state_dict()
    assert states[0].keys() == states[1].keys()
    emitted = [model.compress(classes=[3, 4], threshold=0.5).to_bytes() for model in (one, other)]
    return emitted[0] == emitted[1] and all(torch.equal(states[0][name], states[1][name]) for name in states[0])


def _numbers(prefix: str = "") -> dict[str, Tensor]:
    with np.load(FILE) as stored:
        return {
            name.removeprefix(prefix): torch.from_numpy(np.asarray(stored[name] * stored[f"{name}/step"]))
            for name in stored.files
            if name.startswith(prefix) and f"{name}/step" in stored.files
        }


def write(digits: DataSet) -> None:
    """Train it, and put it into the file."""
    torch.manual_seed(0)
    net = pretrain("lenet-300-100", digits, Pretraining(epochs=12, batch=64, rate=5e-3))
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=digits.train.inputs[:1])
    bhc.fit(model, digits.train, digits.validation, recipe=RECIPE, progress=Silent())
    parts: dict[str, np.ndarray] = {}
    for name, tensor in model.network.state_dict().items():
        step = np.float32(tensor.abs().max() / LARGEST)
        parts[name], parts[f"{name}/step"] = np.round(tensor.numpy() / max(step, 1e-30)).astype(np.int8), step
    known = {name: getattr(model.model, name) for name in ("thresholds", "default_threshold", "training")}
    np.savez_compressed(FILE, **parts, **{KNOWN: np.frombuffer(json.dumps(known).encode(), dtype=np.uint8)})


if __name__ == "__main__":
    write(bhc.data.load("digits"))
