import pytest
import torch

from bhc.graph.kinds import ACTIVATIONS, FUNCTIONS, IN_PLACE, JOINING, KINDS, KINDS_BY_NAME, supported


def test_names_in_files_are_unique():
    assert len(KINDS_BY_NAME) == len(KINDS)


@pytest.mark.parametrize("kind", ACTIVATIONS, ids=lambda kind: kind.name)
def test_every_activation_is_applied_number_by_number(kind):
    x = torch.linspace(-4, 4, 24)
    assert torch.equal(kind.module()(x.reshape(2, 3, 4)), kind.module()(x).reshape(2, 3, 4))
    assert torch.allclose(kind.module()(x.flip(0)), kind.module()(x).flip(0))


def test_functions_stand_for_modules_of_the_table():
    assert set(FUNCTIONS.values()) | set(JOINING.values()) <= set(KINDS)


def test_functions_that_write_into_a_value_are_known_otherwise_too():
    assert set(IN_PLACE) <= set(FUNCTIONS) | set(JOINING)


def test_the_list_of_supported_layers_names_what_users_write():
    layers, _, joints = supported().partition("; ")
    names = layers.split(", ")
    assert {"Linear", "Conv2d", "ReLU", "BatchNorm2d", "AdaptiveAvgPool2d"} <= set(names)
    assert "Select" not in names
    assert "torch.cat" in joints
