"""Recurrent networks get smaller: what is emitted computes what the masked network computes, in every file."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import bhc
from bhc.contexts import Context, ContextBatch
from bhc.emission import make_cut, slim_model
from bhc.formats import open_deployed
from bhc.graph import capture
from bhc.hypernet import GeneratorSpec
from bhc.layers import Recurrence
from bhc.models import Normalise
from bhc.posterior import FAMILIES
from bhc.training import Silent

from .networks import assert_equal, masked, spread_

STEPS, INPUTS, HIDDEN, CLASSES, FULL = 8, 5, 12, 4, 1000
RELU = {"nonlinearity": "relu"}


class Reads(nn.Module):
    """A recurrent network, and a linear layer that reads all of its steps or the last one."""

    def __init__(self, kind: type[nn.RNNBase], *, every_step: bool = False, **options: Any) -> None:
        super().__init__()
        self.normalise = Normalise(0.0, FULL)
        self.rnn = kind(INPUTS, HIDDEN, batch_first=True, **options)
        self.every_step = every_step
        width = HIDDEN * (2 if self.rnn.bidirectional else 1)
        self.end = nn.Linear(width * (STEPS if every_step else 1), CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        steps, _ = self.rnn(self.normalise(x))
        return self.end(steps.flatten(1) if self.every_step else steps[:, -1])


KINDS: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "lstm": (nn.LSTM, {}),
    "gru": (nn.GRU, {}),
    "tanh": (nn.RNN, {}),
    "relu": (nn.RNN, RELU),
    "lstm in both directions": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "gru in both directions": (nn.GRU, {"num_layers": 2, "bidirectional": True, "bias": False}),
}


def sequences(count: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """A pulse of one of four inputs after that of the fifth tells the class; pulses before it tell nothing."""
    draws = torch.Generator().manual_seed(seed)
    x = 0.2 * torch.randn(count, STEPS, INPUTS, generator=draws)
    labels, others = (torch.randint(CLASSES, (count,), generator=draws) for _ in range(2))
    place, every = torch.randint(1, STEPS - 1, (count,), generator=draws), torch.arange(count)
    x[every, place, INPUTS - 1] += 2
    x[every, place + 1, labels] += 2
    x[every, place - 1, others] += 2
    return (FULL * x).short(), labels


def wrapped(kind: str, generator: GeneratorSpec | None = None, family: str = "io-gnj") -> bhc.Compressor:
    torch.manual_seed(0)
    module, options = KINDS[kind]
    space, example = bhc.ClassSubsets(CLASSES), sequences(1)[0]
    return bhc.wrap(
        Reads(module, **options).eval(), space, example_input=example, weight_generator=generator, family=family
    )


def check_slim_is_masked(model: bhc.Compressor, family: str = "io-gnj") -> set[int]:
    """At many thresholds; returns how many weights stay."""
    network, sizes = spread_(model.network, family), set()
    context, x = network.space.resolve({"classes": [1, 3]}), sequences(20)[0].float()
    for threshold in (-4.0, -1.0, 1.0, 4.0, 9.0):
        cut = make_cut(network, context, threshold)
        slim = slim_model(network, cut)
        assert_equal(slim(x), masked(network, context, x, threshold))
        assert slim_weights(slim) == sum(layer.num_weights for layer in cut.layers)
        sizes.add(cut.num_weights)
    return sizes


def slim_weights(slim: nn.Module) -> int:
    return sum(step.module.weight.numel() for step in slim.steps if hasattr(step.module, "weight"))  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", KINDS)
def test_slim_equals_masked(kind: str) -> None:
    assert len(check_slim_is_masked(wrapped(kind))) > 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=3), bhc.Full()], ids=lambda g: g.kind)
def test_slim_equals_masked_with_every_generator_and_family(generator: GeneratorSpec, family: str) -> None:
    assert len(check_slim_is_masked(wrapped("gru", generator, family), family)) > 2


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=3), bhc.Full()], ids=lambda g: g.kind)
def test_contexts_side_by_side_are_those_of_each_alone(generator: GeneratorSpec, family: str) -> None:
    """K contexts x B examples in one pass; noise reaches every weight that is believed."""
    network = spread_(wrapped("lstm", generator, family).network, family)
    contexts = [Context(classes=classes) for classes in ((0, 1), (1, 2, 3), (2, 3))]
    x = sequences(3 * 4)[0].float()
    with torch.no_grad():
        given = network.masked(x, ContextBatch.of(contexts, CLASSES), threshold=torch.zeros(3, 1))
        for context, own, answers in zip(contexts, x.split(4), given.split(4), strict=True):
            assert_equal(answers[:, list(context.classes or ())], masked(network, context, own, 0.0))
    noise = bhc.posterior.FreshNoise(torch.Generator().manual_seed(0))
    sample, posteriors = network.noisy(x, ContextBatch.of(contexts, CLASSES), noise=noise)
    assert sample.isfinite().all()
    (sample.square().mean() + network.hypernet.kl(posteriors).mean()).backward()
    for head in network.hypernet.weight_heads:
        assert all(each.grad is not None and each.grad.isfinite().all() for each in head.parameters())


RECIPE = (bhc.Learn(steps=160, kl_weight=1.0), bhc.Consolidate(steps=60))


@pytest.fixture(scope="module", params=["lstm", "gru"])
def trained(request: pytest.FixtureRequest) -> bhc.Compressor:
    """Of a network that has learned to tell sequences apart, its units those that contexts need."""
    torch.manual_seed(0)
    (x, labels), validation = sequences(1500), sequences(300, seed=1)
    net = Reads(KINDS[request.param][0], every_step=True)
    optimiser = torch.optim.Adam(net.parameters(), 1e-2)
    for own in torch.randint(len(x), (150, 64)):
        optimiser.zero_grad()
        nn.functional.cross_entropy(net(x[own].float()), labels[own]).backward()
        optimiser.step()
    model = bhc.wrap(net.eval(), bhc.ClassSubsets(CLASSES), example_input=x[:1])
    return bhc.fit(model, (x, labels), validation, recipe=RECIPE, progress=Silent())


def test_it_learns_and_gets_smaller(trained: bhc.Compressor) -> None:
    small = trained.compress(classes=[0, 2])
    before, after = (dict(zip(small.report.layers, widths, strict=True)) for widths in (
        small.report.architecture_before, small.report.architecture
    ))  # fmt: skip
    assert before["rnn_hh_l0"] == HIDDEN
    assert after["rnn_hh_l0"] < HIDDEN
    assert small.report.weights_before > 2 * small.report.weights_after
    assert small.report.error is not None
    assert small.report.error < 10


def test_every_file_gives_the_same_answers(trained: bhc.Compressor, tmp_path: Path) -> None:
    small, x = trained.compress(classes=[1, 3]), sequences(50, seed=2)[0].float()
    expected = small.network.graph(x)
    small.save(tmp_path / "small.bhc")
    assert torch.equal(bhc.read(tmp_path / "small.bhc").network.graph(x), expected)
    small.to_onnx(tmp_path / "floats.onnx").to_torch(tmp_path / "small.pt2")
    small.to_onnx(tmp_path / "integers.onnx", weights=bhc.WeightForm.INTEGERS)
    for name in ("floats.onnx", "integers.onnx", "small.pt2"):
        given = open_deployed(tmp_path / name).logits(x)
        torch.testing.assert_close(given, expected, rtol=0, atol=1e-4 * float(expected.abs().max()))
    with pytest.raises(bhc.BhcError, match=r"rnn_.h_l0"):
        small.to_c(tmp_path / "small.h")


def test_what_is_handed_out_has_torch_s_own_layer(trained: bhc.Compressor) -> None:
    small, x = trained.compress(classes=[1, 3]), sequences(50, seed=2)[0].float()
    torch.testing.assert_close(small.module(x), small.network.graph(x), rtol=0, atol=1e-4)
    (layer,) = (module for module in small.module.modules() if isinstance(module, nn.RNNBase))
    recurrence = small.network.graph.get_submodule("rnn_hh_l0")
    assert isinstance(recurrence, Recurrence)
    assert layer.hidden_size == recurrence.hidden < HIDDEN
    assert not any(isinstance(module, Recurrence) for module in small.module.modules())
    again = capture(small.module, x[:2])  # it can be wrapped like any network
    torch.testing.assert_close(again(x), small.module(x), rtol=0, atol=1e-4)
    assert [type(module) for module in again.children()].count(Recurrence) == 1


def test_a_run_is_saved_and_loaded(trained: bhc.Compressor, tmp_path: Path) -> None:
    trained.save(tmp_path / "run")
    again, x = bhc.load(tmp_path / "run").compress(classes=[1, 3]), sequences(20)[0].float()
    assert torch.equal(again.module(x), trained.compress(classes=[1, 3]).module(x))
