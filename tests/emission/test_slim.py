"""The slim network computes what the masked one computes, for both LeNets, at many thresholds."""

import pytest
import torch

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import make_plan, slim_model
from bhc.hypernet import ConditionalNetwork, GeneratorSpec

SHAPES = {"lenet-300-100": (1, 8, 8), "lenet-5-caffe": (1, 16, 16)}


def perturbed_network(name: str, generator: GeneratorSpec, *, family: str = "io-gnj") -> ConditionalNetwork:
    """A network whose maps differ from zero and whose dropout rates spread over a wide range."""
    torch.manual_seed(0)
    shape = SHAPES[name]
    net = bhc.models.build(name, image_shape=shape, num_classes=10)
    example = torch.zeros(1, *shape)
    model = bhc.wrap(net, bhc.ClassSubsets(10), example_input=example, generator=generator, family=family)
    rng = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for key, parameter in model.network.hypernet.named_parameters():
            spread = 3.0 if key == "vectors.logvar_map.offset" else 0.03
            parameter += spread * torch.randn(parameter.shape, generator=rng)
        model.network.hypernet.vectors.logvar_map.offset += 8.0
    return model.network


def masked_logits(network: ConditionalNetwork, context: Context, threshold: float, x: torch.Tensor) -> torch.Tensor:
    batch = ContextBatch.of([context], network.num_classes)
    logits = network.masked(x, batch, threshold=torch.full((1, 1), threshold))
    return logits[:, list(context.classes or range(network.num_classes))]


def assert_equal(given: torch.Tensor, expected: torch.Tensor) -> None:
    """To 1e-5 of the largest logit: single precision sums in another order."""
    torch.testing.assert_close(given, expected, rtol=0, atol=1e-5 * max(1.0, expected.abs().max().item()))


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=3), bhc.Full()], ids=lambda g: g.kind)
def test_slim_equals_masked_at_many_thresholds(name: str, generator: GeneratorSpec) -> None:
    network = perturbed_network(name, generator)
    x = torch.randint(0, 256, (16, *SHAPES[name])).to(torch.uint8)
    sizes = []
    for threshold in torch.linspace(-12, 12, 9).tolist():
        for classes in ((3, 4), (0, 5, 9), tuple(range(10))):
            context = Context(classes=classes)
            plan = make_plan(network, context, threshold)
            slim = slim_model(network, plan)
            expected = masked_logits(network, context, threshold, x)
            assert_equal(slim(x), expected)
            assert sum(p.numel() for n, p in slim.named_parameters() if n.endswith("weight")) == plan.num_weights
            sizes.append(plan.num_weights)
    assert min(sizes) < 100
    assert max(sizes) > 0.9 * network.num_weights


def test_slim_equals_masked_with_input_groups_alone() -> None:
    network = perturbed_network("lenet-5-caffe", bhc.ScalesOnly(), family="gnj")
    x = torch.randint(0, 256, (8, 1, 16, 16)).to(torch.uint8)
    for threshold in (-4.0, -1.0, 2.0):
        context = Context(classes=(1, 7))
        slim = slim_model(network, make_plan(network, context, threshold))
        assert_equal(slim(x), masked_logits(network, context, threshold, x))


def test_one_unit_a_layer_survives_any_threshold() -> None:
    network = perturbed_network("lenet-5-caffe", bhc.ScalesOnly())
    plan = make_plan(network, Context(classes=(3, 4)), -1e6)
    assert [len(layer.kept_inputs) for layer in plan.layers] == [1, 1, 1, 1]
    assert [len(layer.kept_outputs) for layer in plan.layers] == [1, 1, 1, 2]
    assert plan.layers[1].rescued


def test_the_slim_network_is_made_of_plain_modules_and_takes_raw_pixels() -> None:
    network = perturbed_network("lenet-300-100", bhc.ScalesOnly())
    slim = slim_model(network, make_plan(network, Context(classes=(3, 4)), 0.0))
    assert [type(module).__name__ for module in slim] == [
        "Normalise", "Flatten", "Select", "Linear", "ReLU", "Linear", "ReLU", "Linear",
    ]  # fmt: skip
    assert slim(torch.randint(0, 256, (2, 1, 8, 8), dtype=torch.uint8)).shape == (2, 2)


def test_a_lower_threshold_never_keeps_more() -> None:
    network = perturbed_network("lenet-300-100", bhc.ScalesOnly())
    sizes = [
        make_plan(network, Context(classes=(3, 4)), threshold).num_weights
        for threshold in torch.linspace(10, -10, 41).tolist()
    ]
    assert sizes == sorted(sizes, reverse=True)
