"""Networks as people write them go through every stage of the coverage benchmark; those of others need its extra."""

import warnings

import pytest
import torch
import zoo
from coverage import Ours, by_family, run_apart
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


def test_the_hardest_cut_leaves_little_of_a_network_of_layers_alone() -> None:
    ours = tried("depthwise", "wrap")
    assert 0.9 < ours.cut()["can_go"] < 1


def test_only_some_stages_run_again_and_other_columns_stay() -> None:
    before = {"export": "ok", "onnx": "ok", "export_nodes": 7, "cut": "ok", "can_go": 2.0, "ratio": 3.0}
    network = NETWORKS["depthwise"]
    row = run_apart(network, 100.0, ("wrap", "cut"), before)
    assert row["wrap"] == row["cut"] == row["onnx"] == "ok"
    assert row["export_nodes"] == 7
    assert row["can_go"] < 1
    assert row["same"] == "not run"
    assert "can_go" not in run_apart(network, 1e-3, ("wrap", "cut"), before), "a figure of what did not pass"


def test_a_family_has_the_median_the_lowest_and_the_share_of_what_can_go() -> None:
    stages = dict.fromkeys(("export", "wrap", "same", "cut", "pt2", "bhc", "onnx", "pruning"), "ok")
    rows = [{"family": "VGG", "can_go": part} | stages for part in (0.99, 0.5, 0.95)] + [{"family": "VGG"} | stages]
    line = by_family(rows)[-1]
    assert (line["can_go_median"], line["can_go_lowest"], line["can_go_most"]) == (95, 50, 50)
    assert by_family(rows[3:])[-1]["can_go_median"] is None
