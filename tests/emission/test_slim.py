"""What stays of both LeNets: which weights, with what variance. (``test_branches``: it computes what is masked.)"""

from pathlib import Path

import pytest
import torch

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import Cut, Cutter, SlimLayer, Slimmer, make_cut, slim_model
from bhc.hypernet import ConditionalNetwork, GeneratorSpec
from bhc.posterior import LogNormalScales, NormalScales, Scales
from bhc.training import TrainedModel

from .networks import LENETS, assert_equal, lenet, masked


def _num_kept(cut: Cut) -> int:
    """Weights that are not zero, where single ones go; else all of those of the kept units."""
    kept = [layer.num_weights if layer.kept_weights is None else int(layer.kept_weights.sum()) for layer in cut.layers]
    return sum(kept)


@torch.no_grad()
@pytest.mark.parametrize("name", LENETS)
def test_single_weights_go_by_their_own_rates(name: str) -> None:
    network, context = lenet(name, bhc.Full(), family="sparse-vd"), Context(classes=(0, 5, 9))
    cutter = Cutter(network, context)
    posterior = network.hypernet.posterior(network.space.encode(ContextBatch.of([context], 10)))
    for layer, belief in zip(Slimmer(cutter.scales).layers(cutter.cut(1.0)), posterior, strict=True):
        rows, columns = layer.cut.kept_outputs, layer.cut.kept_inputs
        mean, logvar = (t[0][rows][:, columns] for t in (belief.mean.weight.dense(), belief.weight_logvar))
        kept = logvar - (mean.square() + 1e-8).log() < 1.0
        assert torch.equal(layer.cut.kept_weights, kept)
        assert torch.equal(layer.weight != 0, kept)
        torch.testing.assert_close(layer.weight, mean * kept)
        assert 0 < int(kept.sum()) < kept.numel()


def test_a_layer_of_which_no_weight_stays_has_the_variance_of_all() -> None:
    network = lenet("lenet-300-100", bhc.ScalesOnly(), family="sparse-vd")
    cutter = Cutter(network, Context(classes=(3, 4)))
    for layer in Slimmer(cutter.scales).layers(cutter.cut(-1e5)):
        assert not layer.cut.kept_weights.any()
        assert torch.equal(layer.kept_variance, layer.variance)
        assert not layer.weight.any()


@pytest.mark.parametrize("precision", [bhc.Float32(), bhc.VarianceBits(1e-3), bhc.VarianceBits(0.1)], ids=str)
@pytest.mark.parametrize("name", LENETS)
def test_the_zeros_of_single_weights_survive_rounding_and_packing(
    name: str, precision: bhc.Float32 | bhc.VarianceBits, tmp_path: Path
) -> None:
    network = lenet(name, bhc.ScalesOnly(), family="sparse-vd")
    context = Context(classes=(3, 4))
    small = bhc.Compressor(TrainedModel(network)).compress(classes=[3, 4], threshold=0.0, quantisation=precision)
    small.save(tmp_path / "small.bhc")
    again = bhc.read(tmp_path / "small.bhc")
    for layer in make_cut(network, context, 0.0).layers:
        weight = again.module.get_submodule(layer.layer.name).weight
        assert torch.equal(weight, small.module.get_submodule(layer.layer.name).weight)
        assert not weight[~layer.kept_weights].any()
        assert (~layer.kept_weights).any()
        if isinstance(precision, bhc.Float32):
            assert torch.equal(weight != 0, layer.kept_weights)
        else:
            assert weight.any()


@torch.no_grad()
@pytest.mark.parametrize("family", ["io-gnj", "ghs", "sparse-vd"])
def test_after_consolidation_the_cut_is_that_of_the_end_of_learning(family: str) -> None:
    network, context = lenet("lenet-300-100", bhc.LowRank(rank=3), family=family), Context(classes=(3, 4))
    before = make_cut(network, context, 0.0)
    network.hypernet.freeze_gates_()
    for key, parameter in network.hypernet.named_parameters():
        if not key.startswith("gates."):
            parameter.mul_(1.5)
    after = make_cut(network, context, 0.0)
    for one, other in zip(before.layers, after.layers, strict=True):
        assert torch.equal(one.kept_inputs, other.kept_inputs)
        assert torch.equal(one.kept_outputs, other.kept_outputs)
        if family == "sparse-vd":
            assert torch.equal(one.kept_weights, other.kept_weights)
    network.hypernet.thaw_()
    assert _num_kept(make_cut(network, context, 0.0)) != _num_kept(before)


def variance_in_double(network: ConditionalNetwork, layer: SlimLayer, index: int, context: Context) -> torch.Tensor:
    """``V(w_ij)`` from the posterior that training sees, every factor written out."""
    posterior = network.hypernet.posterior(network.space.encode(ContextBatch.of([context], network.num_classes)))[index]
    rows, columns, mean = layer.cut.kept_outputs, layer.cut.kept_inputs, posterior.mean

    def moments(scales: Scales | None, places: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance of each scale."""
        if scales is None:
            return torch.ones(len(places)).double(), torch.zeros(len(places)).double()
        if isinstance(scales, LogNormalScales):
            centre, variance = scales.centre.double(), scales.variance.double()
            first, second = (centre + variance / 2).exp(), (2 * centre + 2 * variance).exp()
            mean, variance = first[0], (second - first.square())[0]
        else:
            assert isinstance(scales, NormalScales)
            mean, variance = scales.mean[0].double(), scales.logvar[0].double().exp()
        return tuple(t.expand(len(places)) if len(t) == 1 else t[places] for t in (mean, variance))

    ones = [1] * layer.cut.layer.module.weight[0, 0].dim()
    (z, z_var), (s, s_var) = moments(posterior.in_scale, columns), moments(posterior.out_scale, rows)
    w = mean.weight.dense()[0].double()[rows][:, columns]
    w_var = posterior.weight_logvar[0].double()[rows][:, columns].exp()
    z, z_var = z.view(1, -1, *ones), z_var.view(1, -1, *ones)
    s, s_var = s.view(-1, 1, *ones), s_var.view(-1, 1, *ones)
    return (z_var + z**2) * (w_var + w**2) * (s_var + s**2) - (z * w * s) ** 2


@torch.no_grad()
@pytest.mark.parametrize("name", LENETS)
@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=3), bhc.Full()], ids=lambda g: g.kind)
@pytest.mark.parametrize("family", ["io-gnj", "gnj", "ghs", "sparse-vd"])
def test_the_variance_of_a_weight_is_that_of_the_posterior(name: str, generator: GeneratorSpec, family: str) -> None:
    network, context = lenet(name, generator, family=family), Context(classes=(0, 5, 9))
    cutter = Cutter(network, context)
    for threshold in (-1.0, 0.0, 1e5):
        for index, layer in enumerate(Slimmer(cutter.scales).layers(cutter.cut(threshold))):
            assert layer.variance.shape == layer.weight.shape
            expected = variance_in_double(network, layer, index, context)
            torch.testing.assert_close(layer.variance.double(), expected, rtol=2e-3, atol=1e-9)
            kept = layer.cut.kept_weights
            typical = (expected if kept is None else expected[kept]).log().mean().exp().item()
            assert layer.typical_variance == pytest.approx(typical, rel=1e-3)


@torch.no_grad()
def test_after_consolidation_a_scale_keeps_the_rate_of_the_end_of_learning() -> None:
    network, context = lenet("lenet-300-100", bhc.ScalesOnly()), Context(classes=(3, 4))
    rates = network.hypernet.dropouts(network.space.encode(ContextBatch.of([context], 10)))[0]
    network.hypernet.freeze_gates_()
    network.hypernet.vectors.mean_map.offset.mul_(1.5)
    cutter = Cutter(network, context)
    layer = Slimmer(cutter.scales).layers(cutter.cut(1e5))[0]
    embedding, head = cutter.scales.embedding, network.hypernet.weight_heads[0]
    vectors = network.hypernet.vectors.means(embedding)[0]
    z2, s2 = vectors.in_scale[0].square(), vectors.out_scale[0].square()
    w, w_var = head.mean(embedding).dense()[0], head.logvar(embedding)[0].exp()
    noisy = (1 + rates.in_log_dropout.exp()) * (1 + rates.out_log_dropout[0, :, None].exp()) * (w_var + w.square())
    expected = s2[:, None] * z2 * (noisy - w.square())
    torch.testing.assert_close(layer.variance, expected, rtol=1e-3, atol=1e-9)


@pytest.mark.parametrize("name", LENETS)
@pytest.mark.parametrize("classes", [(3, 4), (0, 5, 9), tuple(range(10))], ids=str)
def test_without_rounding_the_module_is_the_slim_network(name: str, classes: tuple[int, ...]) -> None:
    network, context = lenet(name, bhc.ScalesOnly()), Context(classes=classes)
    model, x = bhc.Compressor(TrainedModel(network)), torch.randint(0, 256, (8, *LENETS[name])).to(torch.uint8)
    sizes = []
    for threshold in (-12.0, -3.0, 0.0, 12.0):
        emitted = model.compress(classes=classes, threshold=threshold, quantisation=bhc.Float32())
        cut = make_cut(network, context, threshold)
        assert torch.equal(emitted.module(x), slim_model(network, cut)(x))
        assert_equal(emitted.module(x), masked(network, context, x, threshold))
        sizes.append(cut.num_weights)
    assert sizes[0] < 150
    assert sizes[-1] > (0.9 if len(classes) == 10 else 0.7) * network.num_weights


def test_the_slim_network_is_made_of_plain_modules_and_takes_raw_pixels() -> None:
    network = lenet("lenet-300-100", bhc.ScalesOnly())
    slim = slim_model(network, make_cut(network, Context(classes=(3, 4)), 0.0))
    assert [type(step.module).__name__ for step in slim.steps] == [
        "Normalise", "Flatten", "Select", "Linear", "ReLU", "Linear", "ReLU", "Linear",
    ]  # fmt: skip
    assert slim(torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)).shape == (2, 2)
