"""How it learns: objective, stages, loop, checkpoints, run folders."""

from importlib import import_module
from typing import Any

from bhc.errors import warn
from bhc.training.config import (
    TrainingConfig,
    TrainingSets,
    computing,
    configure_process,
    describe_device,
    find_device,
    is_rank_zero,
)
from bhc.training.evaluation import (
    Panel,
    Point,
    Probe,
    ThresholdTrial,
    largest_within,
    pooled,
    trade_off,
    try_thresholds,
)
from bhc.training.launch import Processes, carry_out
from bhc.training.loop import ResumeWarning, train
from bhc.training.measuring import CollapseWarning
from bhc.training.progress import Bars, Lines, Progress, Silent, default_progress, tell
from bhc.training.recipes import (
    Consolidate,
    Learn,
    Narrow,
    default_recipe,
    two_stage_budget,
    usual_kl_weight,
)
from bhc.training.run import FAR, STORED, RunFolder, SeenDomains, TrainedModel, load_run, save_run
from bhc.training.stages import FreezeOffsets, MeasureCurvature, Recipe, Stage
from bhc.training.step import CaptureWarning
from bhc.training.taking import Taking

_PRETRAINING = ("BatchNormPretraining", "Pretraining", "error_of", "load_weights", "pretrain", "save_weights")
_MOVED = {name: f"bhc.pretraining.{name}" for name in _PRETRAINING} | {
    "Plan": "bhc.pretraining.PretrainingRecipe",
    "default_plan": "bhc.pretraining.usual_recipe",
    "settle": "bhc.training.configure_process",
    "speaks": "bhc.training.is_rank_zero",
}


def __getattr__(name: str) -> Any:
    """What has moved or is called otherwise is found here for one version more."""
    if name not in _MOVED:
        raise AttributeError(f"module 'bhc.training' has no attribute {name!r}")
    warn(f"bhc.training.{name} is {_MOVED[name]} now", DeprecationWarning)
    package, _, new = _MOVED[name].rpartition(".")
    return getattr(import_module(package), new)
