"""What two processes do together in tests: trainings of a tiny network, each written down by each of them."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.multiprocessing.spawn import start_processes

import bhc
from bhc.data import DataSet, Split
from bhc.errors import BhcError
from bhc.files import write_tensors
from bhc.layers import Normalise
from bhc.training import FreezeOffsets, Processes, TrainingConfig, TrainingSets
from bhc.training.batches import BatchSource
from bhc.training.config import Team, joined
from bhc.training.launch import train_in_team
from bhc.training.step import make_step
from tests.training.runs import multiplied

CPU = torch.device("cpu")
# Few steps: what two programs round differently grows from step to step, and masks that differ by a unit end it.
LEARN = bhc.Learn(steps=6, kl_weight=0.1, contexts=3, examples=4, context_weight=0.1)
NARROW = bhc.Narrow(steps=4, kl_weight=0.1, contexts=3, examples=4, final_ratio=2.0)
CONSOLIDATE = bhc.Consolidate(steps=4, ratios=(1.2, 2.0), contexts=3, examples=4)
STAGES = (LEARN, NARROW, CONSOLIDATE)
BUDGET = replace(LEARN, context_weight=0.0)
CASES: dict[str, tuple[bhc.training.Recipe, bhc.ScalesOnly | bhc.LowRank | bhc.Full]] = {
    "scales-only": (STAGES, bhc.ScalesOnly()),
    "low-rank": (STAGES, bhc.LowRank(rank=2)),
    "full": (STAGES, bhc.Full()),
    "two budgets": (bhc.two_stage_budget(BUDGET, BUDGET), bhc.ScalesOnly()),
}


def tiny_data(digits: DataSet) -> tuple[Split, Split]:
    return digits.train, Split(digits.validation.inputs[:100], digits.validation.labels[:100])


def tiny_model(case: str = "scales-only", *, seed: int = 0) -> bhc.Compressor:
    recipe, rng = CASES[case]
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        net = nn.Sequential(Normalise(0.0, 5.0), nn.Flatten(), nn.Linear(64, 12), nn.ReLU(), nn.Linear(12, 10))
    space = bhc.BinaryBudget() if any(isinstance(stage, FreezeOffsets) for stage in recipe) else bhc.ClassSubsets(10)
    example = torch.zeros(1, 1, 8, 8, dtype=torch.uint8)
    return bhc.wrap(net, space, example_input=example, weight_generator=rng)


def sets_of(digits: DataSet) -> TrainingSets:
    return TrainingSets(*tiny_data(digits))


def config_of(case: str, run: Path | None = None) -> TrainingConfig:
    return TrainingConfig(recipe=CASES[case][0], run=run, log_every=1)


def first_gradients(team: Team, digits: DataSet) -> dict[str, torch.Tensor]:
    """Of the first step of learning, as the optimiser sees them."""
    network = tiny_model().network
    draw = BatchSource.of(digits.train, 10, device=CPU, seed=team.seed(0))
    stage = replace(LEARN, context_weight=0.0, warm_up=0.0)
    make_step(stage, network, draw, team=team)()
    return {name: p.grad for name, p in network.named_parameters() if p.grad is not None}


def with_a_bad_step(sets: TrainingSets, config: TrainingConfig, team: Team) -> int:
    """Steps that were skipped where one process alone had a loss that is no number, once."""
    with pytest.MonkeyPatch.context() as patch:
        multiplied(patch, lambda step: float("nan") if step == 4 and team.rank == 1 else 1.0)
        return int(train_in_team(tiny_model().network, sets, config, team).training["skipped_steps"])


def what_is_told(team: Team) -> dict[str, object]:
    """A decision, an error of the first, a mean and a collection, as one process sees them."""

    def refuse() -> None:
        raise BhcError(f"refused by {team.rank}", hint="mend it")

    try:
        team.decide(refuse)
    except BhcError as error:
        told = [error.problem, error.hint]
    mean = team.mean({"rank": torch.tensor(float(team.rank)), "one": torch.tensor(1.0)})
    return {"decided": team.decide(lambda: team.rank), "error": told, "mean": mean, "all": team.gather(team.rank)}


def _take_part(local: int, environments: list[dict[str, str]], folder: Path) -> None:
    os.environ.update(environments[local])
    torch.set_num_threads(1)
    digits = bhc.data.load("digits")
    with joined(CPU) as team:
        for case in CASES:
            # Other weights on each process at first: those of the first count.
            network = tiny_model(case, seed=team.rank).network
            model = train_in_team(network, sets_of(digits), config_of(case, folder / case), team)
            header = {"default": model.default_threshold, "thresholds": model.thresholds}
            write_tensors(folder / f"{case}.{team.rank}", dict(network.state_dict()), header)
        write_tensors(folder / f"told.{team.rank}", {}, what_is_told(team))
        write_tensors(folder / f"gradients.{team.rank}", first_gradients(team, digits), {})
        config = TrainingConfig(recipe=(replace(LEARN, steps=6, context_weight=0.0),), log_every=1)
        write_tensors(folder / f"skipped.{team.rank}", {}, {"steps": with_a_bad_step(sets_of(digits), config, team)})


def run_two(folder: Path) -> None:
    start_processes(_take_part, args=(Processes(2).environments(), folder), nprocs=2, start_method="spawn")
