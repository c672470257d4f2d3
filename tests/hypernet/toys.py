"""Conditional networks on small images, every random number from a seed."""

import json
from dataclasses import fields

import torch
from torch import nn

from bhc.contexts import (
    BinaryBudget,
    Budgets,
    ClassSubsets,
    ConsecutivePairs,
    ContextBatch,
    FeatureSubsets,
    InputDomains,
    Joint,
)
from bhc.hypernet import ConditionalNetwork, Design, Full, Initial, LowRank, ScalesOnly
from bhc.models import lenet_5_caffe, lenet_300_100
from bhc.posterior import FreshNoise

from ..formats.graphs import chain_of

GENERATORS = {"full": Full(), "low-rank": LowRank(3), "scales-only": ScalesOnly()}
PAIRS = ClassSubsets(10, ConsecutivePairs())


def tiny(*, image_shape, num_classes=10):
    """A convolution and two linear layers, one without a bias."""
    channels, height, width = image_shape
    first = nn.Linear(3 * (height - 2) * (width - 2), 6, bias=False)
    return nn.Sequential(
        nn.Conv2d(channels, 3, 3), nn.ReLU(), nn.Flatten(), first, nn.ReLU(), nn.Linear(6, num_classes)
    )


NETWORKS = {
    "lenet-300-100": (lenet_300_100, (1, 8, 8)),
    "lenet-5-caffe": (lenet_5_caffe, (1, 16, 16)),
    "tiny": (tiny, (1, 4, 4)),
}


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def pretrained(network="tiny", *, seed=0):
    """A network with weights of its own, as training would leave them."""
    build, image_shape = NETWORKS[network]
    net, rng = build(image_shape=image_shape), seeded(seed)
    with torch.no_grad():
        for parameter in net.parameters():
            fan_in = parameter[0].numel() if parameter.dim() > 1 else 100
            parameter.copy_(torch.randn(parameter.shape, generator=rng) / fan_in**0.5)
    return net


def conditional(spec, network="tiny", *, space=PAIRS, initial=None, seed=1, **design):
    """A network under a hypernetwork; exact at its start unless told otherwise."""
    _, image_shape = NETWORKS[network]
    return ConditionalNetwork(
        chain_of(pretrained(network)),
        space,
        Design(spec, initial or Initial.exact(), **design),
        input_shape=image_shape,
        rng=seeded(seed),
    )


def images(network, count, *, seed=2):
    _, image_shape = NETWORKS[network]
    return 255 * torch.rand(count, *image_shape, generator=seeded(seed))


def contexts(space, *requests, num_classes=10):
    return ContextBatch.of([space.resolve(request) for request in requests], num_classes)


def pairs(count=3):
    """The first pairs of classes."""
    return contexts(PAIRS, *({"classes": [first, first + 1]} for first in range(count)))


@torch.no_grad()
def perturb_(module, *, std=0.1, seed=3):
    """Move every trainable parameter, as an optimiser would."""
    rng = seeded(seed)
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.add_(std * torch.randn(parameter.shape, generator=rng))


def tensors_of(posteriors):
    """A copy of every tensor of the beliefs, weights multiplied out, in a fixed order."""
    return [
        tensor.detach().clone()
        for layer in posteriors
        for tensor in (
            layer.mean.weight.dense(),
            layer.mean.bias,
            layer.mean.in_scale,
            layer.mean.out_scale,
            layer.weight_logvar,
            *numbers_of(layer.in_scale),
            *numbers_of(layer.out_scale),
        )
        if tensor is not None
    ]


def numbers_of(scales):
    """What a belief about scales is made of; nothing where there are none."""
    return [] if scales is None else [getattr(scales, field.name) for field in fields(scales)]


def all_equal(first, second):
    return len(first) == len(second) and all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def assert_gradients_reach_all(model, x, batch):
    """Every parameter with numbers in it learns something finite from logits and divergence."""
    logits, beliefs = model.noisy(x, batch, noise=FreshNoise(seeded()))
    assert logits.shape == (len(x), 10)
    (logits.square().sum() + model.hypernet.kl(beliefs).sum()).backward()
    for name, parameter in model.hypernet.named_parameters():
        if parameter.numel():
            assert parameter.grad is not None, name
            assert parameter.grad.isfinite().all(), name
            assert (parameter.grad != 0).any(), name


DOMAIN, SAMPLE = InputDomains((1, 4, 4)), images("tiny", 16)
# Every kind of context, and two requests of each.
SPACES = {
    "classes": (PAIRS, {"classes": [3, 4]}, {"classes": [5, 6]}),
    "domain": (DOMAIN, {"domain": SAMPLE}, {"domain": SAMPLE.flip(2)}),
    "features": (FeatureSubsets((5,)), {"features": [0, 4]}, {"features": [0]}),
    "budget": (BinaryBudget(), {"budget": 0}, {"budget": 1}),
    "budgets": (Budgets(), {"budget": 0.3}, {"budget": 0.4}),
    "joint": (
        Joint(ClassSubsets(10), DOMAIN, Budgets()),
        {"classes": [3], "domain": SAMPLE, "budget": 0},
        {"classes": [3], "domain": SAMPLE, "budget": 1},
    ),
}


def restored(model):
    """The model from what a run folder keeps of it."""
    again = ConditionalNetwork.from_dict(json.loads(json.dumps(model.to_dict())))
    again.load_state_dict(model.state_dict())
    assert again.to_dict() == model.to_dict()
    return again


def at(threshold, count):
    """One threshold for every context."""
    return torch.full((count, 1), float(threshold))
