import pytest
import torch

from bhc.graph.kinds import ACTIVATIONS, FUNCTIONS, KINDS, KINDS_BY_NAME, supported


def test_names_in_files_are_unique():
    assert len(KINDS_BY_NAME) == len(KINDS)


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.name)
def test_every_activation_maps_zero_to_zero(kind):
    assert torch.equal(kind.module()(torch.zeros(3)), torch.zeros(3))


def test_functions_stand_for_modules_of_the_table():
    assert set(FUNCTIONS.values()) <= set(KINDS)


def test_the_list_of_supported_layers_names_what_users_write():
    names = supported().split(", ")
    assert {"Linear", "Conv2d", "ReLU", "Normalise"} <= set(names)
    assert "Select" not in names
