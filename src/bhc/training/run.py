"""The run folder: what a trained model is on disk, with the domains that it has seen.

``run.json``                        version, shapes, recipe, trade-off curves and the names of the next six
``model-<digest>.safetensors``       base network and hypernetwork
``validation-<digest>.safetensors``  a capped sample of the validation set, as it is stored (pixels uint8), and what the
                                    pretrained network answers to it
``calibration-<digest>.safetensors`` all images that guarantees rest on; only where some were given
``vocabulary-<digest>.json``          the words that texts are made of, in the order of their numbers
``domains-<digest>.safetensors``     means of training domains, where a model takes domains
``curvature-<digest>.safetensors``   a sample of what layers read and of the outputs' derivatives by what they write
``metrics.jsonl``                   the diary
``checkpoint.safetensors``          while training: everything needed to go on to the same bits

``run.json`` is written last and names the files it belongs to, so a run that is saved over another one is the
old run until the moment it is the new one.
"""

import hashlib
import json
import re
from dataclasses import dataclass, field
from functools import cached_property
from math import sqrt
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from bhc.contexts import ClassSubsets, Context, ContextSpace, InputDomains
from bhc.curvature import Curvature
from bhc.errors import BhcError
from bhc.examples import AnyVocabulary, Examples, Split, Tokenizer, several, vocabulary_from_dict
from bhc.files import (
    append_json_line,
    make_folder,
    read_json,
    read_json_lines,
    read_tensors,
    remove_leftovers,
    tensors_to_bytes,
    write_bytes,
    write_json,
)
from bhc.hypernet import ConditionalNetwork
from bhc.tasks import Classification, Task, task_named
from bhc.training.batches import answers_of, looked_at

MOST_DOMAINS = 64
FAR = 1.25  # of the usual distance: domains of training stay under 0.9, classes in new company near 1


@dataclass(frozen=True)
class SeenDomains:
    """Means of training domains, and how far apart such means usually are."""

    means: Tensor  # (R, *domain shape)
    gap: float  # the largest distance of one of them from its nearest neighbour
    spread: float  # mean squared distance of an input from the mean of its domain

    @classmethod
    def of(cls, space: ContextSpace, train: Examples, num_classes: int) -> "SeenDomains | None":
        """Those that a space draws from a training set; None where it has no domains.

        Beside classes a domain is that of the drawn classes.
        """
        domains = space.find(InputDomains)
        if domains is None:
            return None
        if domains.num_sources is not None:
            sources = domains.sampler.examples(domains.num_sources, MOST_DOMAINS)
            samples = (train.from_sources(subset) for subset in sources)
        else:
            drawn = space.find(ClassSubsets) or domains
            samples = (train.restricted_to(subset) for subset in drawn.sampler.examples(num_classes, MOST_DOMAINS))
        return cls.among([domains.told.of(looked_at(sample)) for sample in samples])

    @classmethod
    def among(cls, domains: list[Tensor]) -> "SeenDomains":
        """Of what samples of domains tell, each (n, *domain shape)."""
        means = torch.stack([images.float().mean(0) for images in domains])
        spreads = [float(images.float().flatten(1).var(0).sum()) for images in domains]
        apart = torch.cdist(means.flatten(1), means.flatten(1)).fill_diagonal_(torch.inf)
        gap = float(apart.amin(1).max()) if len(means) > 1 else 0.0
        return cls(means, gap, sum(spreads) / len(spreads))

    def distance(self, context: Context, space: ContextSpace) -> float | None:
        """To the nearest of them, where 1 is usual; None if the context says nothing of its domain.

        ``|m - m_r| / sqrt(gap^2 + spread / n)``: neighbours are a gap apart, and the mean of n inputs is off by
        ``spread / n``. Features that are not there count nowhere.
        """
        if context.domain is None or context.domain_size is None:
            return None
        apart = self.means - context.domain
        there = space.presence.mask(context.inputs, tuple(context.domain.shape))
        if there is not None:
            apart = apart * there
        nearest = float(apart.flatten(1).norm(dim=1).min())
        usual = sqrt(self.gap**2 + self.spread / context.domain_size)
        return nearest / usual if usual else 0.0


VERSION = 1
SAMPLES = ("validation", "calibration")  # labelled images that a run keeps
KINDS = ("model", "domains", "vocabulary", "curvature", *SAMPLES)
STORED = re.compile(rf"(?:{'|'.join(KINDS)})-([0-9a-f]{{16}})\.(?:safetensors|json)")  # files named by their content
OTHER_RELEASE = "use the release of bhc that wrote it, or train again"


class MetricsFile:
    """Appends to ``metrics.jsonl``; a line is written whole or, after a crash, dropped."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, record: dict[str, Any]) -> None:
        append_json_line(self.path, record, hint="free some space and go on from the last checkpoint with --resume")

    def cut_back_(self, step: int) -> None:
        """Forget what came after ``step``: a resumed run will write it again."""
        kept = [record for record in self.read() if record["step"] <= step]
        write_bytes(self.path, "".join(json.dumps(record) + "\n" for record in kept).encode())

    def read(self) -> list[dict[str, Any]]:
        return [record for record in read_json_lines(self.path) if isinstance(record.get("step"), int)]


@dataclass(frozen=True)
class RunFolder:
    path: Path

    @property
    def description(self) -> Path:
        return self.path / "run.json"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def metrics(self) -> MetricsFile:
        return MetricsFile(self.path / "metrics.jsonl")

    def open(self, *, resume: bool = False, overwrite: bool = False) -> None:
        """Make the folder ready to be written to, or say why not."""
        finished, begun = self.description.exists(), self.checkpoint.exists()
        if resume and not begun:
            if finished:
                raise BhcError(f"the run in {self.path} is finished", hint="use it as it is; --force starts anew")
            raise BhcError(f"there is no run to resume in {self.path}", hint="leave out --resume to start one")
        if not resume and not overwrite and (finished or begun):
            going_on = "--resume goes on with it, " if begun else ""
            raise BhcError(f"{self.path} holds a run already", hint=f"{going_on}--force (overwrite=True) starts anew")
        make_folder(self.path)
        remove_leftovers(self.checkpoint)

    def clear(self) -> None:
        """Forget the run that was here, for a new one."""
        for left_over in (self.description, self.checkpoint, self.metrics.path):
            left_over.unlink(missing_ok=True)

    def note(self, name: str, value: Any) -> None:
        """Add to what a finished run says of its training."""
        description = read_json(self.description)
        description["training"][name] = value
        write_json(self.description, description)

    def store(self, kind: str, content: bytes, *, suffix: str = "safetensors") -> str:
        """Write a file that is named by its content; returns the name."""
        name = f"{kind}-{hashlib.sha256(content).hexdigest()[:16]}.{suffix}"
        write_bytes(self.path / name, content)
        return name

    def forget_others(self, names: list[str]) -> None:
        """Delete stored files that ``run.json`` no longer names."""
        for kind in KINDS:
            for path in self.path.glob(f"{kind}-*.*"):
                if path.name not in names:
                    path.unlink(missing_ok=True)


@dataclass
class TrainedModel:
    """A network with what was learned about using it."""

    network: ConditionalNetwork
    validation: Split | None = None
    calibration: Split | None = None  # nothing but guarantees may look at it
    class_names: tuple[str, ...] | None = None
    thresholds: tuple[float, float] | None = None  # the range that training covered
    default_threshold: float = 0.0
    training: dict[str, Any] = field(default_factory=dict)  # recipe, seed, curves: for people and plots
    domains: SeenDomains | None = None
    vocabulary: AnyVocabulary | None = None  # of a network that reads words
    curvature: Curvature | None = None  # of the pretrained network

    @cached_property
    @torch.no_grad()
    def base_logits(self) -> Tensor | None:
        """What the pretrained network says to the validation sample; None without one or the other."""
        if self.validation is None or not self.network.pretrained:
            return None
        return answers_of(self.network, self.validation.inputs)


def save_run(folder: RunFolder, model: TrainedModel) -> None:
    gates = {"gates": model.network.hypernet.gates is not None}
    files = {"model": folder.store("model", tensors_to_bytes(dict(model.network.state_dict()), gates))}
    for kind in SAMPLES:
        sample: Split | None = getattr(model, kind)
        if sample is not None:
            parts = _tensors_of(sample, network=model.network)
            if kind == "validation" and model.base_logits is not None:
                parts["answers"] = model.base_logits  # a deep network takes most of a minute to give them again
            files[kind] = folder.store(kind, tensors_to_bytes(parts, {}))
    if model.domains is not None:
        known = {"gap": model.domains.gap, "spread": model.domains.spread}
        files["domains"] = folder.store("domains", tensors_to_bytes({"means": model.domains.means}, known))
    if model.curvature is not None:
        files["curvature"] = folder.store("curvature", tensors_to_bytes(model.curvature.tensors(), {}))
    if model.vocabulary is not None:
        words = json.dumps(model.vocabulary.to_dict(), ensure_ascii=False, indent=0).encode()
        files["vocabulary"] = folder.store("vocabulary", words, suffix="json")
    description = {
        "format": "bhc-run",
        "version": VERSION,
        "files": files,
        **model.network.to_dict(),
        **_told_task(model.network.task),
        "class_names": None if model.class_names is None else list(model.class_names),
        "thresholds": None if model.thresholds is None else list(model.thresholds),
        "default_threshold": model.default_threshold,
        "training": model.training,
    }
    write_json(folder.description, description)
    folder.forget_others(list(files.values()))


def load_run(path: Path, task: Task | None = None) -> TrainedModel:
    folder = RunFolder(path)
    if not folder.description.exists():
        if folder.checkpoint.exists():
            raise BhcError(f"{path} holds an unfinished run", hint="finish it: bhc train ... --resume")
        if not path.exists():
            raise BhcError(f"{path} does not exist", hint="give a run folder, made with: bhc train ... --out RUN/")
        inside = RunFolder(path / "run").description.exists()
        hint = f"did you mean {path / 'run'}?" if inside else "make one with: bhc train ... --out RUN/"
        raise BhcError(f"{path} is not a run folder: it has no run.json", hint=hint)
    data = read_json(folder.description)
    if not isinstance(data, dict) or data.get("format") != "bhc-run":
        raise BhcError(f"{folder.description} is not the description of a run")
    if data.get("version") != VERSION:
        raise BhcError(
            f"{path} is a run of version {data.get('version')}, this program reads version {VERSION}",
            hint=OTHER_RELEASE,
        )
    try:
        return _parse(folder, data, _task_of(data, task))
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, RuntimeError) as error:
        raise BhcError(f"{folder.description} is damaged: {error!r}") from error


def _told_task(task: Task) -> dict[str, Any]:
    """What a run says of its task; nothing of a classification, which runs of before were all for."""
    return {} if type(task) is Classification else {"task": task.describe()}


def _task_of(data: dict[str, Any], given: Task | None) -> Task:
    name = str(data.get("task", {"name": Classification.name})["name"])
    if given is None:
        return task_named(name)
    if given.name != name:
        raise BhcError(f"the run was trained for the task {name!r}, given {given.name!r}")
    return given


def _parse(folder: RunFolder, data: dict[str, Any], task: Task) -> TrainedModel:
    network = ConditionalNetwork.from_dict(data, task)
    names, limits = data["class_names"], data["thresholds"]
    files = {kind: folder.path / Path(name).name for kind, name in data["files"].items()}
    tensors, header = read_tensors(files["model"])
    samples = {kind: read_tensors(files[kind])[0] for kind in SAMPLES if kind in files}
    load_network_(network, tensors, gates=bool(header.get("gates")), source=files["model"], hint=OTHER_RELEASE)
    model = TrainedModel(
        network,
        validation=_sample_in(samples, "validation", network),
        calibration=_sample_in(samples, "calibration", network),
        class_names=None if names is None else tuple(names),
        thresholds=None if limits is None else (float(limits[0]), float(limits[1])),
        default_threshold=float(data["default_threshold"]),
        training=dict(data["training"]),
        domains=_read_domains(files, network),
        vocabulary=_read_vocabulary(files, network),
        curvature=_read_curvature(files, network),
    )
    answers = _answers_in(samples, network)
    if answers is not None:
        vars(model)["base_logits"] = answers  # known already; a copy with another sample or network asks again
    return model


def _sample_in(samples: dict[str, dict[str, Tensor]], kind: str, network: ConditionalNetwork) -> Split | None:
    if kind not in samples:
        return None
    tensors = samples[kind]
    names = ["images"] if "images" in tensors else [f"images.{place}" for place in range(len(network.signature))]
    stored = tuple(tensors[name] for name in names)
    whole = tuple(tensor.float() if tensor.dtype == torch.float16 else tensor for tensor in stored)
    pairs = zip(network.signature, whole, strict=True)
    if not all(given.fits(tensor) for given, tensor in pairs):
        raise ValueError(f"the {kind} sample does not fit the network")
    inputs = whole[0] if len(whole) == 1 else whole
    return Split(inputs, tensors.get("labels"), tensors.get("sources"), tensors.get("targets"))


def _tensors_of(sample: Split, *, network: ConditionalNetwork) -> dict[str, Tensor]:
    """What is stored of a sample; floats in 16 bits where they were rounded to that (``sample_for``)."""
    inputs = {f"images.{place}": tensor for place, tensor in enumerate(several(sample.inputs))}
    if len(inputs) == 1:
        inputs = {"images": sample.tensor}
    inputs = {name: tensor.half() if _is_half(tensor) else tensor for name, tensor in inputs.items()}
    others = {"labels": sample.labels, "sources": sample.sources, "targets": sample.targets}
    return inputs | {name: tensor for name, tensor in others.items() if tensor is not None}


def _is_half(tensor: Tensor) -> bool:
    """Whether 16 bits hold every number of a tensor of floats."""
    return tensor.dtype == torch.float32 and torch.equal(tensor.half().float(), tensor)


def _answers_in(samples: dict[str, dict[str, Tensor]], network: ConditionalNetwork) -> Tensor | None:
    tensors = samples.get("validation", {})
    if "answers" not in tensors:
        return None
    answers = tensors["answers"]
    examples = tensors["images"] if "images" in tensors else tensors["images.0"]
    if answers.shape[:2] != (len(examples), network.num_outputs):
        raise ValueError("the pretrained network's answers do not fit the validation sample")
    return answers


def _read_domains(files: dict[str, Path], network: ConditionalNetwork) -> SeenDomains | None:
    if "domains" not in files:
        return None
    tensors, header = read_tensors(files["domains"])
    known = network.space.find(InputDomains)
    if known is None or tuple(tensors["means"].shape[1:]) != known.domain_shape:
        raise ValueError("the domains do not fit the network")
    return SeenDomains(tensors["means"], float(header["gap"]), float(header["spread"]))


def _read_curvature(files: dict[str, Path], network: ConditionalNetwork) -> Curvature | None:
    if "curvature" not in files:
        return None
    return Curvature.from_tensors(read_tensors(files["curvature"])[0], network.layers)


def _read_vocabulary(files: dict[str, Path], network: ConditionalNetwork) -> AnyVocabulary | None:
    if "vocabulary" not in files:
        return None
    vocabulary = vocabulary_from_dict(read_json(files["vocabulary"]))
    if not isinstance(vocabulary, Tokenizer) and (
        (vocabulary.length,) != network.input_shape or not fits_words(vocabulary, words_read(network))
    ):
        raise ValueError("the vocabulary does not fit the network")
    return vocabulary


def fits_words(vocabulary: AnyVocabulary, words: list[int]) -> bool:
    """Whether a network's embeddings, which pick among so many words, have a row for each; for tokens one of them."""
    if isinstance(vocabulary, Tokenizer):
        return len(vocabulary) <= max(words, default=0)
    return words == [len(vocabulary)]


def words_read(network: ConditionalNetwork) -> list[int]:
    """Out of how many words each embedding of a network picks rows."""
    words = [layer.kind.words(layer.module) for layer in network.layers]
    return [each[0] for each in words if each is not None]


def load_network_(
    network: ConditionalNetwork, tensors: dict[str, Tensor], *, gates: bool, source: Path, hint: str
) -> None:
    """Fill ``network`` in place, or say how the file differs from it."""
    network.hypernet.gates = None
    if gates:
        network.hypernet.freeze_gates_()
    expected = network.state_dict()
    for name, tensor in expected.items():
        if name not in tensors or tensors[name].shape != tensor.shape:
            given = tuple(tensors[name].shape) if name in tensors else "nothing"
            raise BhcError(
                f"{source} belongs to another model: {name} is {given} there, {tuple(tensor.shape)} here",
                hint=hint,
            )
    network.load_state_dict({name: tensors[name] for name in expected})
