"""The same training on a GPU; runs only where there is one."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

import bhc
from bhc.contexts import ContextSpace, ListedFeatures
from bhc.data import DataSet
from bhc.hypernet import ConditionalNetwork
from bhc.posterior import FAMILIES
from bhc.training import CaptureWarning, Stage, TrainingConfig, computing, step
from bhc.training.batches import BatchSource
from bhc.training.stages import Loss, StepScalars
from bhc.training.step import CapturedStep, TrainingStep, make_step
from tests.training.runs import Fit, StopAt, assert_same_bits, bits, draw_of, resumed

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

STEPS = 20
LEARN = bhc.Learn(steps=STEPS, kl_weight=0.1, contexts=4, examples=8)
CONSOLIDATE = bhc.Consolidate(steps=STEPS, contexts=8, examples=8)  # enough for a teacher that is asked once
BLENDED = replace(CONSOLIDATE, blended=0.5)
NARROW = bhc.Narrow(steps=STEPS, kl_weight=0.1, contexts=4, examples=8)


@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=2), bhc.Full()], ids=lambda g: g.kind)
def test_training_on_a_gpu_learns_what_a_cpu_learns(digits: DataSet, fit: Fit, generator: bhc.ScalesOnly) -> None:
    recipe = (bhc.Learn(steps=300, kl_weight=0.1, contexts=8, examples=8), bhc.Consolidate(steps=100))
    errors = []
    for device in ("cpu", "cuda"):
        model = fit(design={"weight_generator": generator}, recipe=recipe, device=device)
        assert model.network.device.type == "cpu"
        errors.append(model.model.training["curves"]["after"][-1]["error"])
        assert model.compress(classes=[3, 4]).predict(digits.test.inputs).labels.shape == (len(digits.test),)
    assert abs(errors[0] - errors[1]) < 3


def test_a_deterministic_run_on_a_gpu_resumes_to_the_same_bits(digits: DataSet, wrap: Fit, tmp_path: Path) -> None:
    stop = StopAt(40, "learning")
    assert_same_bits(*resumed(wrap, digits, tmp_path, stop, device="cuda", deterministic=True))


Taken = tuple[TrainingStep, list[dict[str, float]], dict[str, torch.Tensor]]


def take_steps(digits: DataSet, model: bhc.Compressor, stage: Stage, *, capture: bool) -> Taken:
    """All steps of a stage on the GPU: the step, the terms of each loss, and the network after them."""
    network = model.network.to("cuda")
    if stage.context_weight:
        network.add_decoder_(rng=torch.Generator().manual_seed(0))
    stage.prepare_(network)
    take = make_step(stage, network, draw_of(digits, device=torch.device("cuda")), TrainingConfig(capture=capture))
    terms = []
    for number in range(stage.steps):
        if number % 8 == 0:  # before and after a capture
            take.leave_out(number / 40)
        terms.append({name: float(term) for name, term in take().items()})
    return take, terms, {name: tensor.cpu() for name, tensor in network.state_dict().items()}


def assert_same_training(one: Taken, other: Taken) -> None:
    for number, (first, second) in enumerate(zip(one[1], other[1], strict=True)):
        assert first == pytest.approx(second, rel=1e-3, abs=1e-4), number
    for name, tensor in one[2].items():
        torch.testing.assert_close(tensor, other[2][name], rtol=1e-3, atol=1e-3, msg=name)


def captured_as_it_is(digits: DataSet, make: Callable[[], bhc.Compressor], stage: Stage) -> tuple[Taken, Taken]:
    """The steps as they are captured, and as they are not: the same training."""
    captured, eager = (take_steps(digits, make(), stage, capture=capture) for capture in (True, False))
    assert isinstance(captured[0], CapturedStep)
    assert captured[0]._graph is not None
    assert not isinstance(eager[0], CapturedStep)
    assert_same_training(captured, eager)
    return captured, eager


@pytest.mark.parametrize(
    "stage", [LEARN, NARROW, CONSOLIDATE, BLENDED], ids=["learn", "narrow", "consolidate", "blended"]
)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_captured_step_is_the_step(digits: DataSet, wrap: Fit, stage: Stage, family: str) -> None:
    if stage is NARROW and FAMILIES[family].cuts_weights:
        pytest.skip("takes no units away")
    captured, _ = captured_as_it_is(digits, partial(wrap, family=family), stage)
    assert len({tuple(terms.values()) for terms in captured[1]}) == STEPS  # each replay draws anew


@pytest.mark.parametrize("stage", [LEARN, NARROW, CONSOLIDATE], ids=["learn", "narrow", "consolidate"])
def test_side_by_side_is_one_after_the_other_to_the_bits(
    digits: DataSet, wrap: Fit, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for lanes in (1, 8):
        monkeypatch.setattr(step, "LANES", lanes)
        with computing(torch.device("cuda"), repeatable=True):
            take, _, end = take_steps(digits, wrap(weight_generator=bhc.LowRank(rank=2)), stage, capture=True)
        assert isinstance(take, CapturedStep)
        assert take._graph is not None
        ends.append(end)
    assert all(torch.equal(tensor, ends[1][name]) for name, tensor in ends[0].items())


def test_a_captured_step_cuts_what_the_step_cuts(digits: DataSet, wrap: Fit, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a limit so low that every other step is cut."""
    monkeypatch.setattr(step, "LATEST", 3)
    monkeypatch.setattr(step, "LARGEST", 1.0)
    captured, eager = captured_as_it_is(digits, wrap, LEARN)
    assert captured[0].limit.state() == pytest.approx(eager[0].limit.state(), rel=1e-2)


DOMAINS = bhc.InputDomains((1, 8, 8), full_scale=16.0)
SPACES = {
    "single": bhc.SingleContext(),
    "single-classes": bhc.SingleContext((3, 4)),
    "budgets": bhc.Budgets(),
    "budget": bhc.BinaryBudget(),
    "features": bhc.FeatureSubsets((1, 8, 8)),
    "listed": bhc.FeatureSubsets((1, 8, 8), ListedFeatures((tuple(range(32)), tuple(range(0, 64, 2))))),
    "domain": DOMAINS,
    "random": bhc.ClassSubsets(10, bhc.RandomSubsets((2, 3))),
    "all sizes": bhc.ClassSubsets(10, bhc.RandomSubsets(range(1, 11), never_together=((0, 1),))),
    "joint": bhc.Joint(bhc.ClassSubsets(10), DOMAINS, bhc.FeatureSubsets((1, 8, 8)), bhc.Budgets()),
}


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
def test_steps_of_every_kind_of_context_are_captured(digits: DataSet, wrap: Fit, space: ContextSpace) -> None:
    stage = replace(LEARN, context_weight=0.1) if space.likelihoods() else LEARN
    captured_as_it_is(digits, partial(wrap, space), stage)


@dataclass(frozen=True)
class Waiting(bhc.Learn):
    """Asks the device for a number, which no capture allows."""

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        loss = super().loss(network, draw, scalars)
        assert loss.total.item() > 0
        return loss


def test_a_step_that_cannot_be_captured_runs_kernel_by_kernel(digits: DataSet, wrap: Fit) -> None:
    waiting = Waiting(steps=STEPS, kl_weight=0.1, contexts=4, examples=8)
    with pytest.warns(CaptureWarning, match="kernel by kernel"):
        fallen_back = take_steps(digits, wrap(), waiting, capture=True)
    assert isinstance(fallen_back[0], CapturedStep)
    assert fallen_back[0]._graph is None
    assert_same_training(fallen_back, take_steps(digits, wrap(), LEARN, capture=False))


@dataclass(frozen=True)
class OnceBad(bhc.Learn):
    """No number at one step, told by its warmth."""

    def loss(self, network: ConditionalNetwork, draw: BatchSource, scalars: StepScalars) -> Loss:
        loss = super().loss(network, draw, scalars)
        bad = (scalars.warmth * self.steps).round() == 10
        return Loss(loss.total * torch.where(bad, torch.nan, 1.0), loss.terms)


@pytest.mark.parametrize("capture", [True, False])
def test_a_bad_step_on_a_gpu_changes_nothing_and_is_counted(digits: DataSet, wrap: Fit, capture: bool) -> None:
    stage = OnceBad(steps=STEPS, warm_up=1.0, kl_weight=0.1, contexts=4, examples=8)
    take, _, state = take_steps(digits, wrap(), stage, capture=capture)
    assert take.skipped() == (1, 0)
    assert all(tensor.isfinite().all() for tensor in state.values())
    assert {float(memory["step"]) for memory in take.optimizer.state.values()} == {STEPS - 1}


@pytest.mark.parametrize(("stop", "title"), [(40, "learning"), (20, "consolidating")])
def test_a_captured_run_resumes(digits: DataSet, wrap: Fit, tmp_path: Path, stop: int, title: str) -> None:
    whole, again = resumed(wrap, digits, tmp_path, StopAt(stop, title), device="cuda")
    assert again.model.training["steps"] == whole.model.training["steps"] == 60
    for name, tensor in bits(whole).items():
        torch.testing.assert_close(tensor, bits(again)[name], rtol=1e-2, atol=5e-3, msg=name)


@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(rank=2)], ids=lambda g: g.kind)
@pytest.mark.parametrize("precision", [None, torch.bfloat16], ids=["float32", "bfloat16"])
def test_a_network_for_photographs_runs_with_channels_last_and_answers_as_on_a_cpu(
    generator: bhc.ScalesOnly, precision: torch.dtype | None
) -> None:
    images = torch.randint(0, 256, (40, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    net = bhc.models.build("resnet-20", image_shape=(3, 32, 32), num_classes=10)
    network = bhc.wrap(net, bhc.ClassSubsets(10), example_input=images[:1], weight_generator=generator).network
    batch = network.space.sample(4, 10, rng=torch.Generator().manual_seed(0))
    threshold = torch.zeros(4, 1)
    with torch.no_grad():  # a graph that is kept belongs to the stream it was made on, and spoils a capture
        expected = network.masked(images, batch, threshold=threshold)
    layouts = set()
    for layer in network.layers:
        if layer.has_kernel:
            layer.module.register_forward_hook(lambda _, __, out: layouts.add(out.stride(1) == 1))
    network.to("cuda")
    with torch.no_grad(), network.bayesian.computing_in(precision):
        given = network.masked(images.cuda(), batch.to("cuda"), threshold=threshold.cuda()).cpu()
        network.bayesian.plain(images.cuda())
    assert layouts == {True}
    loose = 0.05 if precision else 1e-3
    torch.testing.assert_close(given, expected, rtol=loose, atol=loose * float(expected.abs().max()))
    for stage in (LEARN, CONSOLIDATE):
        stage.prepare_(network)
        split = bhc.data.Split(images, torch.arange(40) % 10)
        draw = BatchSource.of(split, 10, device=torch.device("cuda"), seed=0)
        take = make_step(stage, network, draw, TrainingConfig(autocast=precision))
        assert all(torch.isfinite(term) for _ in range(6) for term in take().values())
