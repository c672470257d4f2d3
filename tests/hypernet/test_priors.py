import pytest
import torch
from torch import nn

import bhc
from bhc.errors import BhcError
from bhc.hypernet import FEW_LAYERS, ConditionalNetwork


def chain(layers: int, size: float) -> nn.Sequential:
    net = nn.Sequential(*[part for _ in range(layers - 1) for part in (nn.Linear(4, 4), nn.ReLU())], nn.Linear(4, 3))
    for number, layer in enumerate(net[::2], start=1):
        nn.init.constant_(layer.weight, size * number)
    return net


def wrapped(layers: int, size: float = 0.02, **options: object) -> ConditionalNetwork:
    return bhc.wrap(chain(layers, size), bhc.ClassSubsets(3), example_input=torch.zeros(1, 4), **options).network


def test_few_layers_have_the_paper_s_prior_and_many_that_of_their_weights() -> None:
    assert wrapped(FEW_LAYERS).hypernet.prior_stds == (1.0,) * FEW_LAYERS
    assert wrapped(6, prior_stds=(1.0,) * 6).hypernet.prior_stds == (1.0,) * 6, "given by hand"
    assert wrapped(6).hypernet.prior_stds == pytest.approx([0.02 * number for number in range(1, 7)])


def test_a_layer_of_zeros_has_a_prior_too() -> None:
    assert all(std > 0 for std in wrapped(6, size=0.0).hypernet.prior_stds)


def test_the_prior_counts_in_the_divergence_and_noise_starts_under_it() -> None:
    network = wrapped(6)
    batch = network.space.sample(2, 3, rng=torch.Generator().manual_seed(0))
    posteriors = network.hypernet.posterior(network.space.encode(batch))
    assert [layer.prior_std for layer in posteriors] == list(network.hypernet.prior_stds)
    for layer in posteriors:
        # A weight as large as its prior, and noise a fifth of it at most.
        assert (layer.weight_logvar.exp().sqrt() < 0.25 * layer.prior_std).all()


def test_it_is_kept_with_a_run() -> None:
    network = wrapped(6)
    again = ConditionalNetwork.from_dict(network.to_dict())
    assert again.hypernet.prior_stds == network.hypernet.prior_stds
    older = {key: value for key, value in network.to_dict().items() if key != "prior_stds"}
    assert ConditionalNetwork.from_dict(older).hypernet.prior_stds == (1.0,) * 6


@pytest.mark.parametrize(("given", "message"), [((1.0, 1.0), "3 layers"), ((1.0, 0.0, 1.0), "positive")])
def test_a_prior_that_cannot_be_is_refused(given: tuple[float, ...], message: str) -> None:
    with pytest.raises(BhcError, match=message):
        wrapped(3, prior_stds=given)


def test_it_does_not_depend_on_the_number_of_threads() -> None:
    net = nn.Sequential(*[part for _ in range(5) for part in (nn.Linear(700, 700), nn.ReLU())], nn.Linear(700, 3))
    threads = torch.get_num_threads()
    found = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            model = bhc.wrap(net, bhc.ClassSubsets(3), example_input=torch.zeros(1, 700))
            found.append(model.network.hypernet.prior_stds)
    finally:
        torch.set_num_threads(threads)
    assert found[0] == found[1] == found[2]
