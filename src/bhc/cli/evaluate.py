"""``bhc evaluate``: what an emitted or exported network gets wrong on data of its context."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from torch import Tensor

from bhc.cli.console import DataDir, Given, Json, say, show, with_options
from bhc.cli.own_data import (
    DATA_HELP,
    READING,
    Reading,
    Source,
    by_name,
    in_memory,
    known_names,
    parts_of,
    source_of,
)
from bhc.cli.subject import TaskOption, own_task
from bhc.compressor import Compressor, load
from bhc.contexts import parse_classes
from bhc.data import ImageFolder
from bhc.emission import NAME, Alarm, auroc, expected_calibration_error, outside_score
from bhc.errors import BhcError
from bhc.examples import Inputs, each
from bhc.formats import Deployed, median_ms, open_deployed
from bhc.tasks import Classification, Imitation, Task, checked_errors, widened
from bhc.training import default_progress

EVALUATED = ("test", "validation", "train", "calibration")
MOST_CLASSES = 20  # that are named


@dataclass(frozen=True)
class OutsideEvaluation:
    """How well a file tells images of the classes left out from its own."""

    auroc: float
    flagged: float | None  # percent of them; None: the file flags nothing
    images: int

    def words(self, unit: str) -> str:
        flagged = "" if self.flagged is None else f", {self.flagged:.2f} % flagged"
        return f"AUROC {self.auroc:.3f}{flagged}  ({self.images:,} {unit}s of other classes)"


@dataclass(frozen=True)
class Evaluation:
    file: str
    runtime: str
    part: str  # of the data
    error_name: str  # what the task measures
    higher_is_better: bool  # then what is shown is 100 less the error
    classes: tuple[int, ...]  # nothing where the task has none
    class_names: tuple[str, ...] | None  # of these, where they are known
    test_error: float  # percent, to be expected where the file's classes appear unequally often
    test_error_by_class: dict[int, float]
    test_images: int
    file_bytes: int
    latency_ms: float  # one image, one thread, median
    test_ece: float | None  # expected calibration error, percent; None: outputs are no answers
    false_alarms: float | None  # percent of the images that are flagged as outside; None: the file flags nothing
    outside: OutsideEvaluation | None  # None: no class of the data is left out
    appearance: tuple[float, ...] | None  # how often each class appears, where that is unequal
    unit: str = "image"

    def __str__(self) -> str:
        names = dict(zip(self.classes, self.class_names or map(str, self.classes), strict=True))
        weights = self.appearance or ()
        rated = [f"{names[each]} ({own / sum(weights):.3g})" for each, own in zip(self.classes, weights, strict=False)]
        classes = f" of classes {_listed(rated or list(names.values()))}" if names else ""
        counted = f"({self.test_images:,} {self.unit}s{classes})"
        lines = [f"{f'{self.part} {self.error_name}':<13} {self._shown(self.test_error)}  {counted}"]
        if names:
            by_class = list(self.test_error_by_class.items())
            if len(by_class) > MOST_CLASSES:  # then the worst of them are of interest
                by_class.sort(key=lambda each: -each[1])
            lines.append(f"by class      {_listed([f'{names[label]}: {self._shown(own)}' for label, own in by_class])}")
        if self.test_ece is not None:
            lines.append(f"calibration   {self.test_ece:.2f} %  (expected calibration error)")
        if self.false_alarms is not None:
            lines.append(f"false alarms  {self.false_alarms:.2f} %  (of these {self.unit}s, flagged as outside)")
        if self.outside is not None:
            lines.append(f"left out      {self.outside.words(self.unit)}")
        lines += [
            f"file          {self.file_bytes:,} bytes",
            f"latency       {self.latency_ms:.3f} ms  (one {self.unit}, one thread, median; {self.runtime})",
        ]
        return "\n".join(lines)

    def _shown(self, error: float) -> str:
        return f"{100 - error if self.higher_is_better else error:.2f} %"


def _listed(words: Sequence[str]) -> str:
    more = f" and {len(words) - MOST_CLASSES:,} more" if len(words) > MOST_CLASSES else ""
    return ", ".join(words[:MOST_CLASSES]) + more


@with_options("reading", READING, after="part")
def evaluate_command(
    file: Annotated[Path, typer.Argument(help="Emitted or exported network: .bhc, .onnx or .pt2.")],
    data: Annotated[str, typer.Option(help=DATA_HELP)],
    reading: Given,
    classes: Annotated[
        str | None, typer.Option(help="Test on images of these classes only, for a domain, such as 3,4.")
    ] = None,
    run: Annotated[
        Path | None,
        typer.Option(
            help="Run that the network was made from: reads folders of images as in training, answers where there "
            "are no labels, and says what its task is."
        ),
    ] = None,
    task: TaskOption = None,
    part: Annotated[
        str, typer.Option(metavar="NAME", help=f"Part of the data: {', '.join(EVALUATED[:-1])}.")
    ] = EVALUATED[0],
    data_dir: DataDir = None,
    json: Json = False,
) -> None:
    """Test error, size and latency of a file on the test examples of its classes.

    A file does not know how images were read: give --size, --mean, --std and --channels as in training, or --run.
    """
    if part not in EVALUATED:
        raise BhcError(f"--part {part}", hint=f"one of: {', '.join(EVALUATED)}")
    network, source, own = open_deployed(file), source_of(data, reading, data_dir=data_dir), own_task(task)
    model = None if run is None else load(run, task=own)
    read = _reading(reading, model, source)
    measure = Measure.of(network, file, own, model, labelled=read.labelled)
    wanted = measure.classes if classes is None else chosen_classes(network, classes, file)
    examples = source.part(part, read)
    _check_fits(network, file, examples, source)
    parts = parts_of(
        examples,
        network.signature,
        wants_targets=not measure.task.from_network,
        workers=read.workers,
        progress=default_progress(),
    )
    if isinstance(examples, ImageFolder):
        known = known_names(network.class_names, network.labels, examples.classes)
        parts = by_name(parts, examples.classes, known, wanted or (), source) if known else parts
    result = evaluate(measure, answers_to(parts, measure, wanted), file, part=part, weigh=classes is None)
    show(asdict(result) if json else result, as_json=json)


def _reading(given: Given, model: Compressor | None, source: Source) -> Reading:
    """As it is said, or as it was in the run."""
    if model is None:
        if source.has_images and all(given[name] is None for name in ("size", "mean", "std")):
            say("note: pixels are taken as they are, 0 to 1; --run RUN reads images as in training")
        return Reading.of(given)
    images = model.model.training.get("images")
    labelled = not model.network.task.from_network
    return Reading.of(given, remembered=images if isinstance(images, dict) else None, labelled=labelled)


def _check_fits(network: Deployed, file: Path, examples: Any, source: Source) -> None:
    """Say that inputs have another shape, where that can be seen before they are read."""
    held = in_memory(examples)
    shape = getattr(examples, "image_shape", None)
    if held is not None and hasattr(held[0], "shape"):
        shape = tuple(held[0].shape[1:])
    if shape is None:
        return
    if len(network.signature) > 1 or not network.signature.inputs[0].fits(torch.empty(1, *shape, device="meta")):
        raise BhcError(
            f"{file} takes {network.signature}, {source.name} has inputs of shape {shape}",
            hint="read images as in training: --run RUN, or --size, --mean, --std and --channels"
            if source.has_images
            else "evaluate it on data as it was trained on",
        )


def chosen_classes(network: Deployed, typed: str, file: Path) -> tuple[int, ...]:
    """The numbers of some classes, given by number or name."""
    names = {name.casefold(): label for name, label in zip(network.class_names or (), network.labels, strict=False)}
    words = parse_classes(typed)
    numbers = [names.get(word.casefold(), int(word) if word.isdecimal() else -1) for word in words]
    if not numbers or isinstance(words, dict) or not set(numbers) <= set(network.labels):
        known = ", ".join(network.class_names or map(str, network.labels))
        raise BhcError(
            f"{file} was made for the classes {known}, asked for {typed}",
            hint="leave --classes out, or name some of these",
        )
    return tuple(sorted(set(numbers)))


@dataclass(frozen=True)
class Measure:
    """What is counted of a file's outputs."""

    network: Deployed
    task: Task
    num_outputs: int  # of the network that it was cut from
    teacher: Callable[[Inputs], Tensor] | None = None  # the pretrained network, where its answers are the targets

    @classmethod
    def of(
        cls, network: Deployed, file: Path, own: Task | None, model: Compressor | None, *, labelled: bool
    ) -> "Measure":
        """By the task that is given, or that of the run, or what the file says of its own."""
        task = own or (None if model is None else model.network.task)
        if task is None or type(task) in (Classification, Imitation):
            task = _usual_task(network, file, labelled=labelled)
        elif task.error_name != network.error_name:
            raise BhcError(f"{file} was made for a task that measures {network.error_name!r}, given {task.name!r}")
        if model is not None:
            teacher = model.network.base_model if task.from_network else None
            return cls(network, task, model.network.num_outputs, teacher)
        if task.from_network:
            raise BhcError(
                f"without labels answers are compared with those of the pretrained network, which {file} is not",
                hint="name the run that it was made from: --run RUN",
            )
        return cls(network, task, max(network.labels) + 1)

    @property
    def classes(self) -> tuple[int, ...] | None:
        """Those whose examples count; None where there are no classes."""
        by_class = self.task.class_outputs(self.num_outputs)
        if by_class is None:
            return None
        return self.network.classes or (self.network.labels if self._are_outputs else tuple(range(len(by_class))))

    @property
    def has_answers(self) -> bool:
        """Whether the outputs are answers, one a class."""
        return self.task.has_answers and self._are_outputs

    @property
    def _are_outputs(self) -> bool:
        """Whether each class has one output, of the same number."""
        by_class = self.task.class_outputs(self.num_outputs) or ()
        return [list(own) for own in by_class] == [[place] for place in range(self.num_outputs)]

    def labels(self, outputs: Tensor, targets: Tensor) -> Tensor | None:
        with self._named(outputs, targets):
            return None if self.classes is None else self.task.labels(targets)

    def errors(self, outputs: Tensor, targets: Tensor) -> Tensor:  # (n,), from 0 to 1
        with self._named(outputs, targets):
            kept = self.task.of_kept(targets, torch.tensor(self.network.labels))
            if kept is not None:
                return checked_errors(self.task, outputs, kept).double()
            wide = widened(outputs, self.network.labels, self.num_outputs)
            return checked_errors(self.task, wide, targets).double()

    @contextmanager
    def _named(self, outputs: Tensor, targets: Tensor) -> Iterator[None]:
        """What a user's task raises, with its name."""
        try:
            yield
        except BhcError:
            raise
        except Exception as error:
            raise BhcError(
                f"task {self.task.name!r} fails on outputs of shape {tuple(outputs.shape)} and targets of shape"
                f" {tuple(targets.shape)}: {type(error).__name__}: {error}",
                hint="targets are those of the data; --run RUN says how many outputs there were",
            ) from error


def _usual_task(network: Deployed, file: Path, *, labelled: bool) -> Task:
    if network.error_name not in (Classification.error_name, Imitation.error_name) or not network.has_answers:
        raise BhcError(
            f"{file} was made for a task of somebody's own, which measures {network.error_name!r}",
            hint="give the task: --task FILE.py:FUNCTION",
        )
    return Classification() if labelled else Imitation()


@dataclass(frozen=True)
class Answers:
    """What a file says to examples, and how wrong that is."""

    errors: Tensor  # (n,) of examples of its context, from 0 to 1
    labels: Tensor | None  # (n,), where there are classes
    logits: Tensor | None  # (n, C), where they are answers among classes
    outside: Tensor  # (m, C), to examples of other classes
    first: Inputs  # one example


def answers_to(
    parts: Iterable[tuple[Inputs, Tensor | None]], measure: Measure, wanted: Sequence[int] | None
) -> Answers:
    """To all examples; those of other classes than are ``wanted`` do not count."""
    network, first = measure.network, None
    errors, labels, logits, outside = [], list[Tensor](), list[Tensor](), list[Tensor]()
    for x, given in parts:
        outputs = network.logits(x)
        targets = measure.teacher(x) if measure.teacher is not None else given
        assert targets is not None
        own_labels = measure.labels(outputs, targets)
        own = torch.ones(len(outputs), dtype=torch.bool)
        if own_labels is not None and wanted is not None:
            own = torch.isin(own_labels, torch.tensor(wanted))
            labels.append(own_labels[own])
        if measure.has_answers and own_labels is not None:
            logits.append(outputs[own])
            outside.append(outputs[~torch.isin(own_labels, torch.tensor(network.labels))])
        errors.append(measure.errors(outputs[own], targets[own]))
        first = each(x, lambda tensor: tensor[:1]) if first is None else first
    if first is None or not sum(map(len, errors)):
        raise BhcError("there is no example of the classes that the file was made for", hint="evaluate on other data")
    return Answers(torch.cat(errors), _joined(labels), _joined(logits), torch.cat(outside or [torch.empty(0)]), first)


def _joined(parts: list[Tensor]) -> Tensor | None:
    return torch.cat(parts) if parts else None


def evaluate(measure: Measure, answers: Answers, file: Path, *, part: str, weigh: bool) -> Evaluation:
    """Errors over the given answers, how examples of other classes are told from them, and the time for one."""
    network, errors, labels = measure.network, answers.errors, answers.labels
    present = () if labels is None else tuple(labels.unique().tolist())
    places = None if labels is None or not measure.has_answers else _places(labels, network.labels)
    # Of some classes alone, the file does not say how often they appear.
    whole = weigh and places is not None and present == tuple(sorted(network.labels))
    appearance = network.appearance if whole else None
    counts = torch.ones(len(errors), dtype=torch.float64)  # what each example counts
    if appearance is not None and places is not None:
        counts = (torch.tensor(appearance).double() / places.bincount())[places]
    known = None if network.class_names is None else dict(zip(network.labels, network.class_names, strict=True))
    one = network.signature.inputs[0]
    return Evaluation(
        file=str(file),
        runtime=network.runtime,
        part=part,
        error_name=measure.task.error_name,
        higher_is_better=measure.task.higher_is_better,
        classes=present,
        class_names=None if known is None or not set(present) <= set(known) else tuple(known[each] for each in present),
        test_error=100 * float((errors * counts).sum() / counts.sum()),
        test_error_by_class={label: 100 * float(errors[labels == label].mean()) for label in present},
        test_images=len(errors),
        file_bytes=network.size,
        latency_ms=_latency_ms(network, answers.first),
        appearance=appearance,
        unit="image" if len(network.signature) == 1 and len(one.shape) == 3 else "example",
        **_of_answers(network, answers, places, counts, file),
    )


def _places(labels: Tensor, numbering: Sequence[int]) -> Tensor:  # (n,) among the outputs of a file
    return (labels[:, None] == torch.tensor(numbering)).int().argmax(1)


def _of_answers(
    network: Deployed, answers: Answers, places: Tensor | None, counts: Tensor, file: Path
) -> dict[str, Any]:
    """How probabilities and alarms do, where outputs are answers."""
    logits = answers.logits
    if logits is None or places is None:
        return {"test_ece": None, "false_alarms": None, "outside": None}
    try:
        alarm = Alarm.of({NAME: network.alarm})
    except ValueError as damage:
        raise BhcError(f"{file} is damaged: {damage}", hint="copy or make it again") from damage
    by_class = torch.zeros(len(network.labels), dtype=torch.float64).scatter(0, places, counts)
    probabilities = torch.softmax(logits / network.temperature, dim=1)
    return {
        "test_ece": expected_calibration_error(probabilities, places, by_class),
        "false_alarms": _percent_flagged(alarm, logits, counts),
        "outside": _outside(alarm, logits, answers.outside) if len(answers.outside) else None,
    }


def _outside(alarm: Alarm | None, inside: Tensor, outside: Tensor) -> OutsideEvaluation:
    score = outside_score if alarm is None else alarm.score
    flagged = _percent_flagged(alarm, outside, torch.ones(len(outside)))
    return OutsideEvaluation(auroc(score(inside), score(outside)), flagged, len(outside))


def _percent_flagged(alarm: Alarm | None, logits: Tensor, counts: Tensor) -> float | None:
    return None if alarm is None else 100 * float((alarm.flags(logits) * counts).sum() / counts.sum())


def _latency_ms(network: Deployed, first: Inputs) -> float:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return median_ms(lambda: network.logits(first))
    finally:
        torch.set_num_threads(threads)
