"""What ``bhc.fit`` was told, packed once: all of training reads it as it is."""

from dataclasses import dataclass, field
from pathlib import Path

import torch

from bhc.errors import BhcError
from bhc.examples import Augmentation, Split, Vocabulary
from bhc.hypernet import ConditionalNetwork
from bhc.layers import check_words
from bhc.training.progress import Progress, Silent
from bhc.training.run import words_read
from bhc.training.stages import Recipe


@dataclass(frozen=True)
class TrainingSets:
    train: Split
    validation: Split
    calibration: Split | None = None  # put into the model and not looked at: that is what guarantees rest on


@dataclass(frozen=True)
class TrainingConfig:
    """How a run is carried out; beside the recipe, nothing here changes what is learned but seed and augmentation."""

    recipe: Recipe = ()
    seed: int = 0
    run: Path | None = None
    resume: bool = False
    overwrite: bool = False
    checkpoint_every: int = 500
    log_every: int = 50
    class_names: tuple[str, ...] | None = None
    vocabulary: Vocabulary | None = None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    deterministic: bool = False
    capture: bool = True  # on a GPU: the step as one CUDA graph
    augment: Augmentation | None = None  # what is done to images before they are learned from
    autocast: torch.dtype | None = None  # of the products; None: that of the weights
    progress: Progress = field(default_factory=Silent)

    def check(self, network: ConditionalNetwork, sets: TrainingSets) -> None:
        """Raise if a run of this network on these examples makes no sense."""
        if not any(stage.steps for stage in self.recipe):
            raise BhcError("the recipe has no steps", hint="give at least one stage with steps, for example Learn()")
        for stage in self.recipe:
            stage.check(network)
        words = words_read(network)
        if self.vocabulary is not None and words != [len(self.vocabulary)]:
            raise BhcError(
                f"a vocabulary of {len(self.vocabulary):,} words for a network that does not read just those"
            )
        for count in words:
            for split in (sets.train, sets.validation):
                check_words(split.inputs, count)
        if self.run is None and self.resume:
            raise BhcError("there is no run to resume: no folder was given", hint="give run=... or --out")
