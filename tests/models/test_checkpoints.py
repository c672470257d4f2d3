import pytest
import torch

from bhc import models
from bhc.errors import BhcError


def net(seed=0, *, depth=8, num_classes=10):
    net = models.resnet(depth, num_classes=num_classes).eval()
    values = torch.Generator().manual_seed(seed)
    state = {
        name: torch.rand(tensor.shape, generator=values) if tensor.is_floating_point() else tensor
        for name, tensor in net.state_dict().items()
        if not name.startswith("normalise.")
    }
    net.load_state_dict(state, strict=False)
    return net


def public(seed=1, *, prefix="", counters=True, last="linear"):
    """What others would have written of such a network."""
    return {
        prefix + name.replace("linear", last): tensor
        for name, tensor in net(seed).state_dict().items()
        if not name.startswith("normalise.") and (counters or not name.endswith("num_batches_tracked"))
    }


def equal(first, second):
    other = second.state_dict()
    return all(torch.equal(tensor, other[name]) for name, tensor in first.state_dict().items())


@pytest.mark.parametrize("prefix", ["", "module."])
@pytest.mark.parametrize("counters", [True, False])
@pytest.mark.parametrize("last", ["linear", "fc"])
@pytest.mark.parametrize("nested", [True, False])
def test_the_usual_names(prefix, counters, last, nested):
    state = public(prefix=prefix, counters=counters, last=last)
    given = net(0)
    models.load_public_resnet_(given, {"state_dict": state, "best_prec1": 91.7} if nested else state)
    assert equal(given, net(1))


def test_the_network_keeps_its_own_normalisation():
    given = net(0)
    models.load_public_resnet_(given, public())
    assert torch.equal(given.normalise.mean, models.resnet_20().normalise.mean)


def without(name):
    return {key: tensor for key, tensor in public(prefix="module.").items() if key != f"module.{name}"}


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        pytest.param(without("layer1.0.bn2.bias"), r"missing: layer1\.0\.bn2\.bias", id="missing"),
        pytest.param({}, r"missing: conv1\.weight, bn1\.weight, .* and 32 more", id="nothing"),
        pytest.param(
            public() | {"layer2.0.downsample.0.weight": torch.zeros(32, 16, 1, 1)},
            r"unexpected: layer2\.0\.downsample\.0\.weight",
            id="unexpected",
        ),
        pytest.param(
            public() | {"linear.bias": torch.zeros(100)},
            r"of another shape: linear\.bias is \(100,\) instead of \(10,\)",
            id="shape",
        ),
        pytest.param(
            public() | {"linear.bias": 3}, r"of another shape: linear\.bias is a int instead of \(10,\)", id="no tensor"
        ),
        pytest.param(
            without("linear.weight") | {"module.more": torch.zeros(1), "module.conv1.weight": torch.zeros(1)},
            r"missing: linear\.weight; unexpected: more; of another shape: conv1\.weight is \(1,\) .*",
            id="all",
        ),
        pytest.param(models.resnet_20().state_dict(), r".*unexpected: layer1\.1\.conv1\.weight, .*", id="deeper"),
    ],
)
def test_what_does_not_fit_is_named_and_changes_nothing(state, problem):
    given = net(0)
    with pytest.raises(BhcError, match=f"(?m); {problem}$") as caught:
        models.load_public_resnet_(given, state)
    assert "depth" in caught.value.hint
    assert equal(given, net(0))
