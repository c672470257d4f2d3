import math

import numpy as np
import pytest
import torch
from torch import nn

from bhc.formats import LARGEST_BIAS_CODE, Codes, QuantisedNetwork, with_numbers
from bhc.formats.quantised import LARGEST_CODE, SIGNIFICANT_BITS, round_step

from .chains import CHAINS, TORCH_REMARKS, chain_of, inputs, named, quantised

pytestmark = TORCH_REMARKS


def test_codes_are_the_nearest_multiples_of_the_step() -> None:
    codes = Codes.of(torch.tensor([[0.0, 0.24, 0.26], [-0.24, -0.26, 10.0]]), 0.5)
    assert codes.codes.tolist() == [[0, 0, 1], [0, -1, 20]]
    assert codes.codes.dtype == np.int32
    assert codes.step == 0.5
    assert codes.values().tolist() == [[0.0, 0.0, 0.5], [0.0, -0.5, 10.0]]


def test_no_number_moves_by_more_than_half_a_step() -> None:
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for step in (1e-3, 0.01, 0.3, 5.0):
        codes = Codes.of(values, step)
        assert codes.step == round_step(step)
        assert (codes.values() - values).abs().max() <= 0.5 * codes.step * (1 + 1e-5)


@pytest.mark.parametrize("largest", [LARGEST_BIAS_CODE, LARGEST_CODE])
def test_a_step_too_fine_for_the_codes_is_made_coarser(largest: int) -> None:
    values = torch.tensor([-3.0, 1.0, 2.9])
    codes = Codes.of(values, 1e-9, largest=largest)
    assert largest - 200 * largest // 2**SIGNIFICANT_BITS - 1 <= -codes.codes.min() <= largest
    torch.testing.assert_close(codes.values(), values, rtol=0, atol=codes.step / 2 + 1e-6)


@pytest.mark.parametrize("step", [0.0, 1e-30, 0.1])
@pytest.mark.parametrize("values", [torch.zeros(3), torch.zeros(0), torch.tensor([1e-42, 0.0])])
def test_zeros_and_next_to_nothing_have_a_positive_step(values: torch.Tensor, step: float) -> None:
    codes = Codes.of(values, step)
    assert codes.step > 0
    assert np.float32(codes.step) == codes.step
    assert not codes.codes.any()
    assert torch.equal(codes.values(), torch.zeros_like(values))
    assert codes.bits == 1


@pytest.mark.parametrize(
    ("codes", "bits"),
    [([0, 0], 1), ([-1, 0], 1), ([0, 1], 2), ([-2, 1], 2), ([-3, 0], 3), ([3, -4], 3), ([127, -128], 8), ([128], 9)],
)
def test_bits_are_those_of_the_narrowest_two_s_complement(codes: list[int], bits: int) -> None:
    assert Codes(np.array(codes, dtype=np.int32), 1.0).bits == bits
    assert all(-(2 ** (bits - 1)) <= code < 2 ** (bits - 1) for code in codes)


def test_no_codes_need_a_bit_at_least() -> None:
    assert Codes(np.zeros((0, 3), dtype=np.int32), 1.0).bits == 1


def test_a_step_is_rounded_up_to_few_significant_bits() -> None:
    for step in torch.logspace(-30, 5, 200, dtype=torch.float64).tolist():
        rounded = round_step(step)
        assert step <= rounded <= step * (1 + 2.0 ** (1 - SIGNIFICANT_BITS))
        assert (math.frexp(rounded)[0] * 2**SIGNIFICANT_BITS).is_integer()
        assert np.float32(rounded) == rounded
        assert round_step(rounded) == rounded


def test_powers_of_two_are_their_own_steps() -> None:
    assert [round_step(2.0**power) for power in (-20, 0, 3)] == [2.0**-20, 1.0, 8.0]


def test_other_numbers_leave_the_original_alone_and_share_the_other_steps() -> None:
    chain = named(flatten=nn.Flatten(), fc1=nn.Linear(4, 3), act=nn.ReLU(), fc2=nn.Linear(3, 2))
    before = {key: value.clone() for key, value in chain.state_dict().items()}
    changed = with_numbers(chain, {"fc1.weight": torch.ones(3, 4), "fc1.bias": None})
    assert torch.equal(changed[1].weight, torch.ones(3, 4))
    assert changed[1].bias is None
    assert all(torch.equal(value, before[key]) for key, value in chain.state_dict().items())
    assert chain[1].bias is not None
    assert [changed[place] is chain[place] for place in range(4)] == [True, False, True, True]
    x = torch.rand(5, 1, 2, 2)
    torch.testing.assert_close(changed(x), chain[3](torch.relu(x.flatten(1) @ torch.ones(4, 3))))


def test_a_built_network_has_the_numbers_that_the_codes_stand_for() -> None:
    chain, shape = chain_of("plain-conv")
    weight = chain[1].weight.clone()
    network = QuantisedNetwork.build(
        chain, weights={"step0": Codes.of(weight, 0.25)}, biases={}, input_shape=shape, labels=(1, 2, 3, 4)
    )
    assert torch.equal(network.chain[1].weight, Codes.of(weight, 0.25).values())
    assert torch.equal(chain[1].weight, weight)
    assert network.chain[1].bias is chain[1].bias
    assert [layer.bits for layer in network.layers] == [Codes.of(weight, 0.25).bits, 32]


def test_a_module_is_a_copy_that_the_caller_may_change() -> None:
    network = quantised("relu")
    x = inputs(network.input_shape, 3)
    expected = network.chain(x)
    module = network.module()
    assert torch.equal(module(x), expected)
    module.double()
    module[3].weight.zero_()
    assert torch.equal(network.chain(x), expected)


@pytest.mark.parametrize("name", CHAINS)
def test_layers_count_what_the_modules_do(name: str) -> None:
    network = quantised(name)
    flops, sizes = [], []

    def note(module: nn.Module, _: object, output: torch.Tensor) -> None:
        places = output[0, 0].numel() if output.dim() == 4 else 1
        flops.append(2 * module.weight.numel() * places)
        sizes.append(tuple(output.shape[1:]))

    module = network.module()
    for step in module:
        if isinstance(step, nn.Linear | nn.Conv2d):
            step.register_forward_hook(note)
    module(inputs(network.input_shape, 1))
    assert [layer.num_flops for layer in network.layers] == flops
    assert [layer.output_shape for layer in network.layers] == sizes
    for layer in network.layers:
        assert layer.num_weights == layer.module.weight.numel()
        convolution = isinstance(layer.module, nn.Conv2d)
        assert layer.width == (layer.module.out_channels if convolution else layer.module.in_features)
        assert layer.weight is not None
        assert layer.bits == layer.weight.bits


def test_floats_have_32_bits() -> None:
    chain, shape = chain_of("one-layer")
    (layer,) = QuantisedNetwork(chain, shape, (0, 1, 2)).layers
    assert (layer.bits, layer.weight, layer.bias) == (32, None, None)
