"""What ``bhc train`` trains, and on what: a network of ours, or of the user's own on any data."""

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from inspect import Parameter, signature
from pathlib import Path
from pickle import UnpicklingError
from typing import Annotated, Any

import safetensors.torch
import torch
import typer
from safetensors import SafetensorError
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from torch.utils.data import DataLoader, Subset

import bhc.models as models
from bhc.cli.console import say
from bhc.cli.own_data import Data, Reading, Source, collation, each_array, in_memory, parts_of
from bhc.data import DataSet
from bhc.errors import BhcError
from bhc.hypernet import ConditionalNetwork
from bhc.plugins import load_function, made_by
from bhc.pretraining import build_for, load_weights
from bhc.tasks import Classification, Imitation, Task, load_task
from bhc.training import Silent
from bhc.training.loading import TARGETS

MOST_NAMED = 3  # tensors, in a message
TRIED = 256  # examples that a network of the user's own is tried on
NEAR_CHANCE = 0.9
INSIDE = ("state_dict", "model_state_dict", "model")  # where checkpoints have the tensors
TaskOption = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="FILE.py:FUNCTION", help="A task of your own: a bhc.Task class, or a function that makes one."
    ),
]


def own_task(where: str | None) -> Task | None:
    """The task that ``--task`` names, known from now on, in processes that are started later too."""
    if where is None:
        return None
    with redirect_stdout(sys.stderr):
        return load_task(where)


def task_for(where: str | None, reading: Reading) -> Task | None:
    """What is learned; None for a classification."""
    if where is not None and not reading.labelled:
        raise BhcError("--task and --labels none exclude each other", hint="a task of your own says what it needs")
    return own_task(where) if reading.labelled else Imitation()


@dataclass(frozen=True)
class OwnData:
    """Data of the user's own with what contexts are made from, as data sets of ours have it."""

    name: str
    train: Any
    validation: Any
    num_classes: int
    class_names: tuple[str, ...]
    shape: tuple[int, ...] | None  # of one example; None where there are several inputs
    full_scale: float = 1.0
    source_names: tuple[str, ...] = ()
    vocabulary: None = None

    @property
    def image_shape(self) -> tuple[int, ...]:
        """What contexts of inputs are made for."""
        if self.shape is None:
            raise BhcError(
                "contexts of domains and features look at one input, and the network takes several",
                hint="--context classes, budget or none",
            )
        return self.shape


@dataclass(frozen=True)
class Subject:
    """A network and its data, ready to be wrapped."""

    net: nn.Module
    data: DataSet | OwnData
    example: Any
    held_out: Any = None
    pretrained: bool = True
    std_limits: tuple[float | None, ...] | None = None
    class_names: tuple[str, ...] | None = None


def ours(model: str, weights: Path | None, dataset: Data, held_out: Any, *, seed: int) -> Subject:
    """A network of ours, on a data set that says what it needs to be built."""
    if not isinstance(dataset, DataSet):
        raise BhcError(
            f"--model {model} is built for data sets by name, or for a function that gives a bhc.data.DataSet",
            hint="name a trained network of your own: --network FILE.py:FUNCTION",
        )
    if weights is None:
        say("no --weights given: training from scratch")
        net = build_for(dataset, model, rng=torch.Generator().manual_seed(seed))
    else:
        held = 0 if held_out is None else len(held_out)
        net = load_weights(weights, model, dataset, held_out=held)
    return Subject(
        net,
        dataset,
        dataset.train.inputs[:1],
        held_out,
        pretrained=weights is not None,
        std_limits=models.std_limits(model),
        class_names=dataset.class_names,
    )


@dataclass(frozen=True)
class OwnNetwork:
    """A trained network that a user's function gives."""

    where: str
    net: nn.Module

    @classmethod
    def named(cls, where: str, weights: Path | None) -> "OwnNetwork":
        with redirect_stdout(sys.stderr):
            found = load_function(where)
            net = found if isinstance(found, nn.Module) else made_by(where)
        if not isinstance(net, nn.Module):
            raise BhcError(
                f"{where} gives a value of type {type(net).__name__}, and no network",
                hint="return a trained torch.nn.Module",
            )
        if weights is None:
            say(f"no --weights given: the network is taken for trained, as {where} gives it")
        else:
            load_state_(net, weights, where)
        return cls(where, net.cpu().float().eval())

    def on(self, source: Source, data: Data, task: Task | None, held_out: Any) -> Subject:
        """With data, of which it must take an example, and have an output for each class."""
        example = first_inputs(data.train, self.net, source.name)
        outputs = self._count_outputs(example, source)
        classes = (task or Classification()).class_outputs(outputs)
        count = outputs if classes is None else len(classes)
        names = data.class_names if isinstance(data, DataSet) else data.classes
        if classes is not None:
            _check_names(names, count, source.name)
        if isinstance(data, DataSet):
            return Subject(self.net, data, example, held_out, class_names=names)
        own = OwnData(
            source.name,
            data.train,
            data.validation,
            count,
            names or tuple(map(str, range(count))),
            tuple(example.shape[1:]) if isinstance(example, Tensor) else None,
            full_scale(data.train, example),
        )
        return Subject(self.net, own, example, data.calibration, class_names=names or None)

    @torch.no_grad()
    def _count_outputs(self, example: Any, source: Source) -> int:
        try:
            answer = self.net(**example) if isinstance(example, Mapping) else self.net(*_tuple(example))
        except Exception as error:
            hint = "data must be as the network was trained on"
            if source.has_images:
                hint += ": --size, --mean, --std and --channels say how images are read"
            elif not all(tensor.is_floating_point() for tensor in pytree.tree_leaves(example)):
                hint += "; most take floats, so let a function or the network itself scale them"
            raise BhcError(
                f"the network of {self.where} does not run on an example of {source.name}, {described(example)}:"
                f" {str(error).splitlines()[0][:200]}",
                hint=hint,
            ) from error
        found = [leaf for leaf in pytree.tree_leaves(answer) if isinstance(leaf, Tensor)]
        if len(found) != 1 or found[0].dim() < 2:
            told = ", ".join(str(tuple(tensor.shape)) for tensor in found) or f"a {type(answer).__name__}"
            raise BhcError(
                f"the network of {self.where} gives {told} for one example",
                hint="return a module that gives one tensor, (batch, outputs, ...)",
            )
        return int(found[0].shape[1])


def _check_names(names: tuple[str, ...], count: int, data: str) -> None:
    if names and len(names) != count:
        raise BhcError(
            f"{data} has {len(names)} classes ({_some(list(names))}), and the network tells {count} apart",
            hint="each class needs an output, in the order of the names",
        )


def full_scale(train: Any, example: Any) -> float:
    """The largest of whole numbers; floats are shown as they are."""
    first = pytree.tree_leaves(example)[0]
    if first.is_floating_point() or first.dtype == torch.bool:
        return 1.0
    held = in_memory(train)
    inputs = first if held is None else pytree.tree_leaves(each_array(held[0], lambda tensor: tensor))[0]
    return 255.0 if first.dtype == torch.uint8 else max(float(inputs.max()), 1.0)


def described(example: Any) -> str:
    """Shapes and types of a batch, in words."""
    leaves = pytree.tree_leaves(example)
    return ", ".join(f"{tuple(tensor.shape[1:])} {str(tensor.dtype).removeprefix('torch.')}" for tensor in leaves)


def _tuple(example: Any) -> tuple[Tensor, ...]:
    return example if isinstance(example, tuple) else (example,)


def first_inputs(data: Any, net: nn.Module, name: str) -> Any:
    """What the network takes of the first example, as a batch of one."""
    held = in_memory(data)
    try:
        if held is not None:
            return each_array(held[0], lambda tensor: tensor[:1])
        items, collate = collation(data)
        return each_array(_inputs_of(collate([items[0]]), net), lambda tensor: tensor)
    except BhcError:
        raise
    except Exception as error:
        raise BhcError(
            f"the first example of {name} cannot be read: {type(error).__name__}: {error}",
            hint="a part is a pair of arrays (inputs, targets), a map-style torch Dataset, or a DataLoader of one",
        ) from error


def _inputs_of(batch: Any, net: nn.Module) -> Any:
    """Without targets; of named ones those that the forward pass takes, where it says so."""
    if not isinstance(batch, Mapping):
        return batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch
    parameters = signature(net.forward).parameters.values()
    taken = {each.name for each in parameters if each.kind is not Parameter.VAR_KEYWORD}
    arrays = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
    others: dict[str, Any] = {name: value for name, value in arrays.items() if name not in TARGETS}
    own = {name: value for name, value in others.items() if name in taken}
    return own or (next(iter(others.values())) if len(others) == 1 else others)


@torch.no_grad()
def say_error_before(network: ConditionalNetwork, data: Any) -> None:
    """Say how often a classifier errs on some of the data, and what may be wrong where that is as often as guessing."""
    try:
        few = some_of(data, TRIED)
        parts = parts_of(few, network.signature, wants_targets=True, workers=0, progress=Silent())
        given = [(network.base_model(x).argmax(1), targets) for x, targets in parts]
    except Exception:  # whatever is wrong with data, training says it, and of which set
        return
    wrong = seen = 0
    for answers, targets in given:
        labels = None if targets is None else network.task.labels(targets)
        assert labels is not None
        wrong += int((answers != labels).sum())
        seen += len(labels)
    error, chance = wrong / seen, 1 - 1 / network.num_classes
    say(f"the network errs on {100 * error:.1f} % of {seen} validation examples")
    if error > NEAR_CHANCE * chance:
        say(
            "note: that is as often as guessing would. Are classes in the order of its outputs, and inputs scaled as it"
            " was trained on? Of a folder, classes are in the order of their names, and pixels lie between 0 and 1"
            " (--mean, --std)"
        )


def some_of(data: Any, count: int) -> Any:
    """At most so many examples, spread over all."""
    held = in_memory(data)
    items, collate = collation(data)
    total = len(items) if held is None else len(pytree.tree_leaves(each_array(held[0], lambda tensor: tensor))[0])
    places = torch.linspace(0, total - 1, min(count, total)).long()
    if held is not None:
        return each_array(held[0], lambda tensor: tensor[places]), each_array(held[1], lambda tensor: tensor[places])
    return DataLoader(Subset(items, places.tolist()), collate_fn=collate)


def load_state_(net: nn.Module, path: Path, where: str) -> None:
    """Put the tensors of a file into a network; BhcError says which do not fit."""
    tensors, expected = state_in(path), net.state_dict()
    # Counts of batches, which older files lack, decide nothing.
    missing = [name for name in expected if name not in tensors and not name.endswith("num_batches_tracked")]
    unknown = [name for name in tensors if name not in expected]
    odd = [name for name in tensors if name in expected and tensors[name].shape != expected[name].shape]
    said = [f"it lacks {_some(missing)}"] if missing else []
    said += [f"it has {_some(unknown)}, which the network has not"] if unknown else []
    if odd:
        shapes = f"{tuple(tensors[odd[0]].shape)} in it and {tuple(expected[odd[0]].shape)} in the network"
        said += [f"{_some(odd[:1])} is {shapes}"]
    if said:
        raise BhcError(
            f"{path} does not fit the network of {where}: {'; '.join(said)}",
            hint="give the weights of this network, or have the function load them itself, without --weights",
        )
    net.load_state_dict(tensors, strict=False)


def _some(names: list[str]) -> str:
    more = f" and {len(names) - MOST_NAMED:,} more" if len(names) > MOST_NAMED else ""
    return ", ".join(names[:MOST_NAMED]) + more


def state_in(path: Path) -> dict[str, Tensor]:
    """The named tensors of a ``.safetensors`` file, or of what ``torch.save`` wrote; nothing else is read."""
    if not path.is_file():
        raise BhcError(f"there is no file {path}", hint="--weights names the network's state dict")
    if path.suffix == ".safetensors":
        try:
            return safetensors.torch.load_file(path)
        except (SafetensorError, OSError) as error:
            raise BhcError(f"{path} cannot be read as .safetensors: {error}") from error
    held = torch_file(path)
    for name in INSIDE:
        if isinstance(held, Mapping) and isinstance(held.get(name), Mapping):
            held = held[name]
    if not isinstance(held, Mapping) or not all(isinstance(value, Tensor) for value in held.values()):
        raise BhcError(f"{path} holds a {type(held).__name__}, not named tensors", hint=SAVE)
    return dict(held)


SAVE = "write it with safetensors.torch.save_file(net.state_dict(), path), or torch.save(net.state_dict(), path)"


def torch_file(path: Path) -> Any:
    """What ``torch.save`` wrote, of which nothing but tensors and plain data is read."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True)
    except UnpicklingError as error:
        raise BhcError(f"{path} holds more than tensors, which only pickle could read", hint=SAVE) from error
    except Exception as error:  # of a damaged file, whatever the part of torch raises that meets it
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise BhcError(f"{path} cannot be read as a checkpoint: {reason}", hint=SAVE) from error
