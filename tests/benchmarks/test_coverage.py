"""Networks as people write them go through every stage of the coverage benchmark; those of others need its extra."""

import warnings

import pytest
import torch
import zoo
from coverage import Ours
from torch import Tensor
from zoo import handwritten

NETWORKS = {network.name: network for network in handwritten.networks() if isinstance(network.example(), Tensor)}


def tried(name: str, *stages: str) -> Ours:
    network = NETWORKS[name]
    torch.manual_seed(0)
    net = zoo.randomise(network.build(), 0, network.example())
    ours = Ours(network, net, network.example())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about what stays whole
        for stage in stages:
            getattr(ours, stage)()
    return ours


@pytest.mark.parametrize("name", NETWORKS)
def test_it_gets_in_gets_smaller_and_into_a_file(name: str) -> None:
    tried(name, "wrap", "same", "cut", "bhc")


@pytest.mark.long
@pytest.mark.parametrize("name", NETWORKS)
def test_it_becomes_a_program_and_onnx(name: str) -> None:
    tried(name, "wrap", "cut", "pt2", "onnx")


def test_the_zoo_has_every_family_of_two_hundred_networks() -> None:
    networks = zoo.networks()
    assert len(networks) >= 200
    assert {network.family for network in networks} == set(zoo.FAMILIES)
    assert len({network.title for network in networks}) == len(networks)
