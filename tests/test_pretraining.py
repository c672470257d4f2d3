from dataclasses import replace
from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.pretraining import (
    BatchNormPretraining,
    Pretraining,
    error_of,
    load_weights,
    pretrain,
    save_weights,
    train_plainly_,
    usual_recipe,
)
from bhc.training import Silent

QUICK = BatchNormPretraining(epochs=6, batch=32, rate=0.05)


def squares(count: int, seed: int) -> Split:
    """Noise with a bright square, whose colour is the class."""
    rng = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 100, (count, 3, 16, 16), generator=rng, dtype=torch.uint8)
    labels = torch.arange(count) % 3
    for image, label, place in zip(images, labels, torch.randint(2, 8, (count, 2), generator=rng), strict=True):
        top, left = place.tolist()
        image[label, top : top + 6, left : left + 6] = 255
    return Split(images, labels)


@pytest.fixture(scope="module")
def colours() -> DataSet:
    names = ("red", "green", "blue")
    return DataSet("colours", names, train=squares(192, 0), validation=squares(60, 1), test=squares(60, 2))


class Heard(Silent):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.updates: list[tuple[int, dict[str, float]]] = []

    def update(self, done: int, terms: dict[str, float]) -> None:
        self.updates.append((done, terms))


def test_a_network_with_batch_norm_learns(colours: DataSet) -> None:
    heard = Heard()
    net = pretrain("resnet-20", colours, QUICK, progress=heard)
    ((done, terms),) = heard.updates
    assert done == 36
    assert terms["loss"] < 0.5
    assert error_of(net, colours.test) < 10
    assert not net.training
    assert not any(parameter.requires_grad for parameter in net.parameters())


def test_the_same_seed_gives_the_same_network_and_a_file_keeps_its_running_statistics(
    colours: DataSet, tmp_path: Path
) -> None:
    plan = replace(QUICK, epochs=2)
    net, *others = (pretrain("resnet-20", colours, plan, seed=seed) for seed in (0, 0, 1))
    first, again, other = (each.state_dict() for each in (net, *others))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["conv1.weight"], other["conv1.weight"])
    assert first["bn1.num_batches_tracked"] == 12
    save_weights(tmp_path / "net.safetensors", "resnet-20", net, colours, errors={})
    read = load_weights(tmp_path / "net.safetensors", "resnet-20", colours)
    with torch.no_grad():
        assert torch.equal(read(colours.test.inputs), net(colours.test.inputs))


def test_each_epoch_has_every_image_once_and_altered(colours: DataSet) -> None:
    plan = BatchNormPretraining(epochs=2, batch=48)
    rng = torch.Generator().manual_seed(0)
    batches = list(plan.batches(colours.train, rng))
    assert len(batches) == plan.steps(colours.train) == 8
    labels = torch.cat([labels for _, labels in batches])
    assert labels.bincount().tolist() == [128] * 3
    images = torch.cat([images for images, _ in batches])
    assert images.dtype == torch.uint8
    same = (images[:, None] == colours.train.inputs[None]).flatten(2).all(2).any(1)
    assert same.float().mean() < 0.1

    plain = list(replace(plan, augmentation=None).batches(colours.train, rng))[:4]
    shown = torch.cat([images for images, _ in plain]).flatten(1)
    assert torch.equal(shown.unique(dim=0), colours.train.inputs.flatten(1).unique(dim=0))


def test_smoothed_labels_cost_a_certain_answer_something() -> None:
    logits, labels = torch.tensor([[9.0, -9.0]]), torch.tensor([0])
    assert BatchNormPretraining().loss(logits, labels) < 1e-6
    assert BatchNormPretraining(label_smoothing=0.1).loss(logits, labels) > 0.5


def test_the_optimiser_and_the_cycle_of_the_rate() -> None:
    optimizer = QUICK.optimizer(torch.nn.Linear(2, 2))
    group = optimizer.param_groups[0]
    assert (group["momentum"], group["nesterov"], group["weight_decay"]) == (0.9, True, 5e-4)
    schedule, rates = QUICK.schedule(optimizer, 50), []
    for _ in range(50):
        rates.append(group["lr"])
        optimizer.step()
        schedule.step()
    assert max(rates) == rates[9] == pytest.approx(QUICK.rate)
    assert rates[-1] < QUICK.rate / 1000
    assert group["momentum"] == 0.9


@pytest.mark.parametrize("name", bhc.models.NAMES)
def test_networks_with_batch_norm_have_a_plan_of_their_own(name: str) -> None:
    expected = BatchNormPretraining if name.startswith(("vgg", "resnet")) else Pretraining
    assert type(usual_recipe(name)) is expected


def test_too_few_images_for_a_batch_are_refused(colours: DataSet) -> None:
    plan = BatchNormPretraining(batch=193)
    with pytest.raises(BhcError, match="batch of 193"):
        train_plainly_(torch.nn.Identity(), colours.train, plan, rng=torch.Generator())


def test_an_absent_device_is_refused(colours: DataSet) -> None:
    with pytest.raises(BhcError, match="'nonsense'"):
        pretrain("resnet-20", colours, QUICK, device="nonsense")


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_learns_as_well(colours: DataSet) -> None:
    net = pretrain("resnet-20", colours, QUICK, device="cuda")
    assert {parameter.device.type for parameter in net.parameters()} == {"cuda"}
    assert error_of(net, colours.test) < 10
