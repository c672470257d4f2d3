"""Two processes that train together do what one does with both their draws."""

from pathlib import Path

import pytest
import torch

import bhc
from bhc.data import DataSet
from bhc.files import read_tensors
from bhc.posterior import PooledNoise
from bhc.training import RunFolder, Stage, load_run
from bhc.training.batches import BatchSource
from bhc.training.config import ALONE, Team
from bhc.training.launch import train_in_team
from bhc.training.stages import Loss, StepScalars
from tests.training.ranks import CASES, CPU, config_of, first_gradients, run_two, sets_of, tiny_model

pytest.importorskip("lightning_fabric")

TOLERANCE = 1e-4  # relative; seen: 6e-7 on one machine


def second() -> Team:
    team = Team()
    team.rank = 1
    return team


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What two processes wrote."""
    path = tmp_path_factory.mktemp("two")
    run_two(path)
    return path


@pytest.fixture
def both_draws(digits: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    """One process whose loss is the mean over its own draws and those of a second one."""
    draw = BatchSource.of(digits.train, 10, device=CPU, seed=second().seed(0))
    noise, steps = draw.noise, 0
    assert isinstance(noise, PooledNoise)

    def doubled(stage: type[Stage]) -> None:
        plain = stage.loss

        def both(self: Stage, network: object, own: BatchSource, scalars: StepScalars) -> Loss:
            nonlocal steps
            noise.advance(steps)
            steps += 1
            one, other = (plain(self, network, each, scalars) for each in (own, draw))  # type: ignore[arg-type]
            terms = {name: (term + other.terms[name]) / 2 for name, term in one.terms.items()}
            return Loss((one.total + other.total) / 2, terms)

        monkeypatch.setattr(stage, "loss", both)

    for stage in (bhc.Learn, bhc.Consolidate):
        doubled(stage)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("both_draws")
def test_the_losses_are_those_of_one_process_with_twice_the_contexts(
    digits: DataSet, folder: Path, tmp_path: Path, case: str
) -> None:
    train_in_team(tiny_model(case).network, sets_of(digits), config_of(case, tmp_path), ALONE)
    alone, together = (RunFolder(path).metrics.read() for path in (tmp_path, folder / case))
    assert [record["step"] for record in together] == [record["step"] for record in alone]
    for one, two in zip(alone, together, strict=True):
        for name in {"cross_entropy", "kl", "context_nll", "distillation"} & one.keys():
            assert two[name] == pytest.approx(one[name], rel=TOLERANCE), (name, one["step"])


@pytest.mark.parametrize("case", CASES)
def test_all_processes_end_with_the_same_network_and_the_same_thresholds(folder: Path, case: str) -> None:
    (first, decided), (other, told) = (read_tensors(folder / f"{case}.{rank}") for rank in range(2))
    assert first.keys() == other.keys()
    assert all(torch.equal(first[name], other[name]) for name in first)
    assert decided == told
    saved = load_run(folder / case)
    assert all(torch.equal(first[name], tensor) for name, tensor in saved.network.state_dict().items())
    assert saved.training["processes"] == 2


def test_gradients_are_means_over_the_processes(digits: DataSet, folder: Path) -> None:
    own, others = (first_gradients(team, digits) for team in (ALONE, second()))
    for rank in range(2):
        together, _ = read_tensors(folder / f"gradients.{rank}")
        assert together.keys() == own.keys()
        for name, gradient in together.items():
            torch.testing.assert_close(gradient, (own[name] + others[name]) / 2, rtol=1e-4, atol=1e-6, msg=name)


def test_what_the_first_decides_or_refuses_all_are_told(folder: Path) -> None:
    for rank in range(2):
        _, told = read_tensors(folder / f"told.{rank}")
        assert told["decided"] == 0
        assert told["error"] == ["refused by 0", "mend it"]
        assert told["mean"] == {"rank": 0.5, "one": 1.0}
        assert told["all"] == [0, 1]


def test_a_step_that_is_bad_on_one_process_is_skipped_on_all(folder: Path) -> None:
    assert [read_tensors(folder / f"skipped.{rank}")[1]["steps"] for rank in range(2)] == [1, 1]


def test_the_first_process_draws_what_one_alone_draws_and_others_draw_something_else(digits: DataSet) -> None:
    plain, first, other = (
        BatchSource.of(digits.train, 10, device=CPU, seed=seed) for seed in (5, ALONE.seed(5), second().seed(5))
    )
    numbers = [torch.rand(9, generator=draw.rng) for draw in (plain, first, other)]
    noise = [draw.noise.normal((9,), numbers[0]) for draw in (plain, first, other)]
    for same, equal, different in (numbers, noise):
        assert torch.equal(same, equal)
        assert not torch.isclose(same, different).any()


def test_one_process_decides_by_itself() -> None:
    assert ALONE.first
    assert ALONE.decide(lambda: 3) == 3
    assert ALONE.gather("one") == ["one"]
    assert ALONE.mean({"loss": torch.tensor(2.0)}) == {"loss": 2.0}
