"""``fit``: from a wrapped network and a user's data to a model that hands out networks of every size."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from bhc.compressor import Compressor
from bhc.emission import measure_size_curve
from bhc.errors import renamed
from bhc.examples import Augmentation, Tokenizer, Vocabulary
from bhc.tasks import Task
from bhc.training import (
    Processes,
    Progress,
    Recipe,
    RunFolder,
    Taking,
    TrainedModel,
    TrainingConfig,
    carry_out,
    default_progress,
    default_recipe,
    find_device,
    is_rank_zero,
    tell,
)

LOG_EVERY, LOG_EVERY_ON_GPU = 50, 500  # steps; a GPU takes many a second, and each look makes it wait


@renamed(precision="autocast")
def fit(
    model: Compressor,
    train_set: Any,
    validation_set: Any,
    *,
    task: Task | None = None,
    labels: Any = None,
    target: str | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
    workers: int = 0,
    calibration_set: Any = None,
    recipe: Recipe | None = None,
    run: str | Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    seed: int = 0,
    class_names: tuple[str, ...] | None = None,
    vocabulary: Any = None,
    checkpoint_every: int = 500,
    progress: Progress | None = None,
    device: str | torch.device = "cpu",
    deterministic: bool = False,
    capture: bool = True,
    augment: Augmentation | None = None,
    autocast: torch.dtype | None = None,
    processes: Processes | None = None,
) -> Compressor:
    """Train the hypernetwork in place and return the model.

    A set is a pair of tensors or arrays (inputs, targets), of any type and shape that the network takes, or a map-style
    ``torch.utils.data.Dataset`` with your transforms in it: of pairs, or of dicts with a label (``target`` names its
    key), their inputs a tensor, a tuple or a dict. Of a ``DataLoader`` the data set, collation and processes are taken.
    A data set is read while the run goes on, by ``workers`` processes. ``collate`` puts items into a batch, such as
    ``bhc.data.PadTexts()`` texts of different lengths.

    Contexts of classes draw examples by ``labels``, the class of each: targets of a classification are that; a data
    set's are found in its ``targets`` or ``labels``, or in one pass. Or give them: of the training set, or of all.

    ``task`` says what is learned and what an error is: ``bhc.Classification()``; ``bhc.Imitation()``, which needs no
    targets, for the pretrained network teaches; or your own ``bhc.Task``.

    Without a ``recipe`` it is ``bhc.training.default_recipe``: learn, narrow where layers are many, consolidate.
    With ``run`` the folder gets checkpoints, a diary and at the end the model. ``resume=True`` goes on from the
    last checkpoint, to the same bits on a CPU with the same number of threads; on CUDA with
    ``deterministic=True``, which is slower, and else within noise. ``overwrite=True`` starts anew in a folder
    that holds a run. On CUDA the step is captured once as a graph and replayed; ``capture=False`` launches every
    kernel, as ``deterministic=True`` does.

    ``calibration_set`` is kept for guarantees, ``compress(max_error=, confidence=)``, and looked at for nothing else.
    It must be new to ``model`` too: images that its pretrained network has learned from say nothing of new ones.
    ``vocabulary`` is kept with the run of a network that reads words: a ``Vocabulary`` or a ``tokenizers.Tokenizer``.
    ``augment`` alters images before they are learned from, for example ``bhc.data.CropAndFlip()``. With
    ``autocast=torch.bfloat16`` products are done in it, which on a GPU is faster; parameters stay as they are.

    ``processes=Processes(devices=2)`` starts that many on this machine, which train together: each draws contexts and
    examples of its own, and gradients are means over all. In a process that torchrun has started ``fit`` takes part
    as one of them. Both need ``pip install 'bhc[parallel]'``; the first a script that does nothing when it is imported.
    """
    on = find_device(device)
    config = TrainingConfig(
        recipe=default_recipe(model.network) if recipe is None else recipe,
        seed=seed,
        run=None if run is None else Path(run),
        resume=resume,
        overwrite=overwrite,
        checkpoint_every=checkpoint_every,
        log_every=LOG_EVERY_ON_GPU if on.type == "cuda" else LOG_EVERY,
        class_names=class_names,
        vocabulary=vocabulary if isinstance(vocabulary, Vocabulary | None) else Tokenizer.of(vocabulary),
        device=on,
        deterministic=deterministic,
        capture=capture and not deterministic,
        augment=augment,
        autocast=autocast,
        progress=progress or default_progress(),
    )
    if task is not None:
        model.network.set_task_(task)
    given = {"train_set": train_set, "validation_set": validation_set, "calibration_set": calibration_set}
    sets = Taking(model.network, config.progress, target, collate, workers).sets(given, labels)
    model.model = carry_out(model.network, sets, config, processes or Processes())
    _measure_sizes(model.model, config, shown=progress is None)
    return model


def _measure_sizes(model: TrainedModel, config: TrainingConfig, *, shown: bool) -> None:
    """Measure what the model offers, and note it in the run; who has no progress of their own is shown it."""

    def on_look(done: int, count: int) -> None:
        if not done:
            config.progress.begin("trying sizes", count)
        config.progress.update(done, {})

    try:
        curve = measure_size_curve(model, on_look=on_look)
    finally:
        config.progress.end()
    if curve is None:
        return
    model.training["size_curve"] = curve.to_dict()
    if is_rank_zero():
        if shown:
            tell(config.progress, str(curve))
        if config.run is not None:
            RunFolder(config.run).note("size_curve", model.training["size_curve"])
