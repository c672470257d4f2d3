import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.training import TrainingConfig
from bhc.training.batches import BatchSource
from bhc.training.stages import StepScalars
from bhc.training.step import TrainingStep
from tests.training.runs import CPU, fit, wrapped


def small_net() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(
        bhc.models.Normalise(0.0, 16.0),
        torch.nn.Conv2d(1, 6, 3, padding=1),
        torch.nn.ReLU(),
        torch.nn.MaxPool2d(2),
        torch.nn.Flatten(),
        torch.nn.Linear(96, 10),
    )


def gradients(
    digits: DataSet, precision: torch.dtype | None, generator: bhc.hypernet.GeneratorSpec, stage: bhc.Learn
) -> torch.Tensor:
    network = wrapped(digits, small_net(), weight_generator=generator).network
    stage.prepare_(network)
    draw = BatchSource.of(digits.train, 10, device=CPU, seed=0)
    TrainingStep(stage, network, draw, TrainingConfig(autocast=precision))()
    return torch.cat([p.grad.flatten() for p in network.hypernet.parameters() if p.grad is not None])


@pytest.mark.parametrize("generator", [bhc.ScalesOnly(), bhc.LowRank(2), bhc.Full()], ids=str)
@pytest.mark.parametrize(
    "stage", [bhc.Learn(steps=5, kl_weight=0.1), bhc.Consolidate(steps=5)], ids=["learn", "consolidate"]
)
def test_gradients_in_bfloat16_are_those_of_floats_within_its_precision(
    digits: DataSet, generator: bhc.hypernet.GeneratorSpec, stage: bhc.Learn
) -> None:
    exact, rough = (gradients(digits, precision, generator, stage) for precision in (None, torch.bfloat16))
    assert rough.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(exact, rough, dim=0) > 0.99
    assert not torch.equal(exact, rough)


def test_parameters_stay_floats_and_what_is_emitted_does_not_depend_on_the_precision_in_use(digits: DataSet) -> None:
    recipe = (bhc.Learn(steps=10, contexts=4, examples=8), bhc.Consolidate(steps=5, contexts=4, examples=8))
    model = fit(digits, small_net(), recipe=recipe, autocast=torch.bfloat16)
    assert {parameter.dtype for parameter in model.network.parameters()} == {torch.float32}
    assert model.network.bayesian.autocast is None
    assert model.compress(classes=[1, 2]).module(digits.test.inputs[:2]).dtype == torch.float32


def test_augmented_images_are_learned_from_and_conditions_are_of_the_images_as_they_are(digits: DataSet) -> None:
    seen: list[torch.Tensor] = []

    def darken(images: torch.Tensor, *, rng: torch.Generator) -> torch.Tensor:
        seen.append(images)
        return torch.zeros_like(images)

    space = bhc.InputDomains(digits.image_shape, full_scale=digits.full_scale)
    network = wrapped(digits, small_net(), space).network
    draw = BatchSource.of(digits.train, 10, device=CPU, seed=0, augment=darken)
    network.bayesian.noisy = lambda x, *rest, **options: seen.append(x) or torch.zeros(len(x), 10)  # type: ignore[method-assign, func-returns-value]
    told: list[torch.Tensor] = []
    encode = space.encode
    object.__setattr__(space, "encode", lambda batch: told.append(batch.domain) or encode(batch))  # type: ignore[func-returns-value]
    bhc.Learn(steps=1, contexts=2, examples=3).loss(network, draw, StepScalars(torch.tensor(1.0), torch.zeros(())))
    original, learned_from = seen
    assert original.any()
    assert not learned_from.any()
    assert told[0].any()
