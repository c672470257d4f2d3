"""Runs on the Hugging Face hub: a folder with a model card, pushed to a repository, and fetched from one.

Arguments are named as those of ``huggingface_hub.ModelHubMixin``. That package is imported when the hub is asked, and
not before: a folder with its card needs none. What comes from the hub is data, JSON and safetensors; nothing of it is
unpickled or run.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from torch import Tensor

from bhc.contexts import example_request
from bhc.errors import BhcError
from bhc.files import read_json, write_bytes
from bhc.training import STORED, RunFolder, TrainedModel, save_run

INSTALL = "pip install 'bhc[hub]'"
LIBRARY, TAGS = "bhc", ("bhc", "model-compression", "pruning", "hypernetwork")
CARD, DESCRIPTION = "README.md", "run.json"
MOST_BYTES = 8 << 30  # of a run that is fetched, unless the caller allows more
LARGEST_DESCRIPTION = 16 << 20
PATIENCE = 10.0  # seconds for the hub to say what a repository holds; the client waits as long for each file

ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,63}")
MOST_NAMES = 20  # classes that a card lists
LONGEST_EXAMPLE = 100  # characters of a request that a card writes out

ROLES = {
    "run": "shapes, contexts, recipe and figures",
    "model": "the pretrained network and the hypernetwork",
    "validation": "validation examples with their labels: what `max_error` and the error of a report are measured on",
    "calibration": "examples that guarantees rest on (`compress(max_error=, confidence=)`)",
    "domains": "means of training domains: how far a domain lies from those seen",
    "vocabulary": "the words that texts are made of",
}


def save_pretrained(
    model: TrainedModel, path: Path, *, overwrite: bool = False, license: str | None = None, source: str | None = None
) -> None:
    """Write a run folder with a model card; ``source`` is what the card says to load it by."""
    _check_license(license)
    folder, card = RunFolder(path), path / CARD
    folder.open(overwrite=overwrite)
    if card.exists() and not overwrite:
        raise BhcError(f"{card} is there already", hint="choose another folder; overwrite=True replaces it")
    save_run(folder, model)
    files = {"run": DESCRIPTION, **read_json(folder.description)["files"]}
    write_bytes(card, model_card(model, files, source=source or path.resolve().name, license=license).encode())


def push_to_hub(
    model: TrainedModel,
    repo_id: str,
    *,
    commit_message: str,
    private: bool | None,
    token: str | bool | None,
    branch: str | None,
    create_pr: bool | None,
    license: str | None,
) -> str:
    """Put a run and its card into a repository, which is made where there is none; the address of the commit."""
    _check_license(license)
    api = _client().HfApi(token=token, library_name=LIBRARY)
    with _explained(repo_id):
        repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    with TemporaryDirectory() as folder:
        save_pretrained(model, Path(folder), license=license, source=repo_id)
        with _explained(repo_id):
            there = api.model_info(repo_id, revision=branch)
            return api.create_commit(
                repo_id,
                _operations(Path(folder), [each.rfilename for each in there.siblings or ()]),
                commit_message=commit_message,
                revision=branch,
                create_pr=create_pr,
                parent_commit=there.sha,  # what is deleted is what was seen
            )


def _operations(folder: Path, there: Iterable[str]) -> list[Any]:
    """Add the files of a run and delete those of earlier ones, in one commit: no reader meets half of a run.

    ``upload_folder`` of the hub's client makes several where files are many or the network is slow.
    """
    hub, new = _client(), {path.name: path for path in sorted(folder.iterdir())}
    old = [name for name in there if STORED.fullmatch(name) and name not in new]
    added = [hub.CommitOperationAdd(path_in_repo=name, path_or_fileobj=path) for name, path in new.items()]
    return added + [hub.CommitOperationDelete(path_in_repo=name) for name in old]


def run_folder(folder_or_id: str | Path, **how: Any) -> Path:
    """The folder of a run: the one that is meant, or one fetched as ``Source(id, **how)`` says."""
    if isinstance(folder_or_id, Path) or Path(folder_or_id).is_dir():
        return Path(folder_or_id)
    if not ID.fullmatch(folder_or_id):
        raise BhcError(
            f"{folder_or_id!r} is neither a folder nor an id of the hub",
            hint="give a run folder that is there, or owner/name",
        )
    return Source(folder_or_id, **how).fetch()


@dataclass(frozen=True)
class Source:
    """A run in a repository of the hub, and how it is fetched, as ``huggingface_hub`` names it."""

    repo_id: str
    revision: str | None = None
    token: str | bool | None = None
    cache_dir: str | Path | None = None
    force_download: bool = False
    local_files_only: bool = False
    max_bytes: int = MOST_BYTES

    def fetch(self) -> Path:
        """The folder of the cache that holds the run; only files that the run names are fetched.

        Their names are digests of their content, so that a damaged one is known by its name.
        """
        with _explained(self.repo_id):
            sizes = None if self.local_files_only else self._sizes()
            source = replace(self, local_files_only=sizes is None)
            folder = source._snapshot([DESCRIPTION], sizes, limit=min(self.max_bytes, LARGEST_DESCRIPTION))
            names = _named_in(folder / DESCRIPTION)
            replace(source, revision=folder.name)._snapshot(names, sizes, limit=self.max_bytes)
            for name in names:
                self._check_content(folder / name)
        return folder

    def _sizes(self) -> Mapping[str, int] | None:
        """Of all files in the repository; None where the hub cannot be reached, and the cache has to do."""
        api = _client().HfApi(token=self.token, library_name=LIBRARY)
        try:
            info = api.model_info(self.repo_id, revision=self.revision, files_metadata=True, timeout=PATIENCE)
        except _unreachable() as error:
            if self.force_download or isinstance(error, _errors().HfHubHTTPError):  # the hub has answered
                raise
            return None
        unknown = self.max_bytes + 1
        return {each.rfilename: unknown if each.size is None else each.size for each in info.siblings or ()}

    def _snapshot(self, names: Sequence[str], sizes: Mapping[str, int] | None, *, limit: int) -> Path:
        if sizes is not None:
            self._check_sizes(names, sizes, limit)
        folder = _client().snapshot_download(
            self.repo_id,
            revision=self.revision,
            token=self.token,
            cache_dir=self.cache_dir,
            force_download=self.force_download,
            local_files_only=self.local_files_only,
            allow_patterns=list(names),
            library_name=LIBRARY,
        )
        return Path(folder)

    def _check_sizes(self, names: Sequence[str], sizes: Mapping[str, int], limit: int) -> None:
        missing = [name for name in names if name not in sizes]
        if DESCRIPTION in missing:
            raise BhcError(
                f"{self.repo_id} holds no run: it has no {DESCRIPTION}", hint="a run is pushed by model.push_to_hub"
            )
        if missing:
            raise BhcError(
                f"the run in {self.repo_id} lacks {missing[0]}",
                hint="try again; if it stays so, it has to be pushed anew",
            )
        total = sum(sizes[name] for name in names)
        if total > limit:
            raise BhcError(
                f"{', '.join(names)} of {self.repo_id} have {total:,} bytes, and at most {limit:,} are fetched",
                hint=f"max_bytes= allows more, but never more than {LARGEST_DESCRIPTION:,} for {DESCRIPTION}",
            )

    def _check_content(self, path: Path) -> None:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if not path.stem.endswith(digest[:16]):
            raise BhcError(
                f"{path.name} of {self.repo_id} is damaged: its checksum does not match",
                hint="force_download=True fetches it again; if that does not help, it has to be pushed anew",
            )


def _named_in(description: Path) -> list[str]:
    """The files that ``run.json`` names: names as ours are, which lead nowhere else and match no other file."""
    data = read_json(description, limit=LARGEST_DESCRIPTION)
    files = data.get("files") if isinstance(data, dict) else None
    if not isinstance(files, dict):
        raise BhcError(f"{description} is not the description of a run")
    for name in files.values():
        if not isinstance(name, str) or not STORED.fullmatch(name):
            raise BhcError(f"{description} names {name!r}, which is no file of a run", hint="bhc did not write it")
    return list(files.values())


def _client() -> ModuleType:
    try:
        import huggingface_hub
    except ImportError as error:
        raise BhcError("the Hugging Face hub needs a package that is not installed", hint=INSTALL) from error
    return huggingface_hub


def _errors() -> ModuleType:
    _client()
    return import_module("huggingface_hub.errors")


def _unreachable() -> tuple[type[Exception], ...]:
    """What is raised where the hub does not answer; their base is in the client's HTTP library, which changes."""
    return (_errors().HfHubHTTPError.__mro__[1], ConnectionError, TimeoutError)


# What the hub's client raises, the first that fits: by name, the problem, what to do.
REASONS = (
    ("HFValidationError", "{id!r} is no id of the hub", "an id is owner/name, without '--' and '..', and not *.git"),
    ("GatedRepoError", "{id} is open only to those whom its owner lets in", "ask for access on its page; {login}"),
    (
        "RepositoryNotFoundError",
        "the hub has no repository {id}, or it is private",
        "check the id, or the path where a folder is meant; if it is private, {login}",
    ),
    ("RevisionNotFoundError", "{id} has no such branch, tag or commit", "leave it out for the main branch"),
    ("HfHubHTTPError", "{id}: the hub refuses: {text}", "{by_status}"),
    (
        "LocalEntryNotFoundError",
        "{id} is not in the cache, and the hub cannot be reached",
        "check the network; local_files_only and HF_HUB_OFFLINE keep it from being asked",
    ),
)
UNREACHABLE = ("the hub cannot be reached for {id}: {text}", "check the network")
BROKEN = ("{id} did not pass whole: {text}", "try again; from_pretrained(..., force_download=True) starts anew")
LOGIN = "log in with: hf auth login, or give token="
BY_STATUS = {
    401: f"there is no token, or none that is valid: {LOGIN}",
    403: "the token must be one that may write to it",
    409: "try again",
    412: "somebody else has pushed to it meanwhile: push again",
}
LATER = "try again later"


@contextmanager
def _explained(repo_id: str) -> Iterator[None]:
    """Errors of the hub's client as ours."""
    unreachable = _unreachable()
    try:
        yield
    except (*unreachable, OSError, ValueError, RuntimeError) as error:  # type: ignore[misc]
        known = [(getattr(_errors(), name), problem, hint) for name, problem, hint in REASONS]
        reasons = [*known, (unreachable, *UNREACHABLE), (Exception, *BROKEN)]
        problem, hint = next(reason[1:] for reason in reasons if isinstance(error, reason[0]))
        status = getattr(getattr(error, "response", None), "status_code", None)
        text = (str(error).strip() or type(error).__name__).splitlines()[0]
        values = {"id": repo_id, "text": text, "login": LOGIN, "by_status": BY_STATUS.get(status or 0, LATER)}
        raise BhcError(problem.format(**values), hint=hint.format(**values)) from error


def _check_license(license: str | None) -> None:
    if license is not None and not LICENSE.fullmatch(license):
        raise BhcError(f"{license!r} is no name of a licence", hint="the hub's are short: apache-2.0, mit, cc-by-4.0")


def model_card(model: TrainedModel, files: Mapping[str, str], *, source: str, license: str | None = None) -> str:
    """The page of a repository: Markdown with what the hub reads in front. Figures are those that the run holds."""
    example = _example(model)
    sections = (
        _front_matter(license),
        f"# {_cell(source.rpartition('/')[2])}",
        "A trained network and, beside it, a hypernetwork that makes a smaller network of it for the context that is"
        f" asked for{f', such as `{example}`' if example and not example.startswith('**') else ''}.",
        _usage(source, example),
        _contexts(model),
        _figures(model),
        _trade_off(model.training),
        _table("Files", ("file", "holds"), [(f"`{name}`", ROLES[kind]) for kind, name in files.items()]),
    )
    return "\n\n".join(section for section in sections if section) + "\n"


def _front_matter(license: str | None) -> str:
    given = [f"license: {license}"] if license else []
    return "\n".join(("---", f"library_name: {LIBRARY}", *given, "tags:", *map("- {}".format, TAGS), "---"))


def _usage(source: str, example: str) -> str:
    return f"""\
```bash
{INSTALL}
```

```python
import bhc

model = bhc.from_pretrained({json.dumps(source)})
small = model.compress({example})
print(small.report)
small.save("small.bhc")
```"""


def _example(model: TrainedModel) -> str:
    """Arguments of ``compress`` that this run takes; long ones as what makes them."""
    seen = None if model.validation is None else model.validation.inputs
    seen = seen if isinstance(seen, Tensor) else None
    asked = example_request(model.network.space, seen)
    text = ", ".join(f"{name}={value!r}" for name, value in asked.items())
    if len(text) <= LONGEST_EXAMPLE:
        return text
    inputs = "None" if seen is None else "model.model.validation.inputs"
    return f"**bhc.contexts.example_request(model.space, {inputs})"


def _contexts(model: TrainedModel) -> str:
    space = model.network.space
    conditions = list(space.describe().items())
    if not conditions:
        return "## Contexts\n\nIt was made for one context: `compress` takes no condition."
    text = _table("Contexts", ("condition", "takes"), [(f"`{name}`", words) for name, words in conditions])
    if space.optional:
        text += "\n\nEach of these may be left out."
    names = [_cell(name) for name in model.class_names or ()]
    if names:
        more = f" and {len(names) - MOST_NAMES:,} more" if len(names) > MOST_NAMES else ""
        text += f"\n\nClasses, in their order from 0: {', '.join(names[:MOST_NAMES])}{more}."
    return text


def _figures(model: TrainedModel) -> str:
    network, training = model.network, model.training
    rows = [
        ("network", f"{network.num_weights:,} weights in {len(network.layers):,} layers"),
        ("inputs", str(network.signature)),
        ("outputs", f"{network.num_classes:,}"),
        ("threshold", f"{model.default_threshold:g} by default"),
    ]
    if model.thresholds is not None:
        rows.append(("thresholds covered", f"{model.thresholds[0]:g} to {model.thresholds[1]:g}"))
    if training.get("original_error") is not None:
        rows.append(("error of the pretrained network", f"{training['original_error']:.2f} % on the contexts below"))
    for kind, sample in (("validation", model.validation), ("calibration", model.calibration)):
        if sample is not None:
            rows.append((f"{kind} examples", f"{len(sample):,}"))
    if {"steps", "seed", "device"} <= training.keys():
        rows.append(("training", f"{training['steps']:,} steps, seed {training['seed']}, on {training['device']}"))
    return _table("Figures", ("figure", "value"), rows)


def _trade_off(training: Mapping[str, Any]) -> str:
    """How small and how good networks are by threshold; nothing of a model that was never trained."""
    curves = training.get("curves")
    if not curves:
        return ""
    before = {point["threshold"]: point["error"] for point in curves.get("before", ())}
    header = [
        "threshold",
        "times smaller",
        "error %",
        "worst context %",
        *(["before consolidation %"] if before else []),
    ]
    rows = []
    for point in curves["after"]:
        row = [f"{point[name]:.2f}" for name in ("threshold", "ratio_mean", "error", "error_max")]
        at = before.get(point["threshold"])
        rows.append([*row, *(["-" if at is None else f"{at:.2f}"] if before else [])])
    count = len(training["curve_contexts"])
    over = "one context" if count == 1 else f"{count:,} contexts"
    text = (
        f"Over {over} of the validation data: ratios of weights as a mean, errors pooled, before weights are rounded."
    )
    return f"{_table('Trade-off', header, rows)}\n\n{text}"


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *(map(_cell, row) for row in rows)]
    return f"## {title}\n\n" + "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    """Text that ends neither its cell nor its line, and opens no tag."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")
