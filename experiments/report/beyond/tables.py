"""Which pages and pictures there are."""

from collections.abc import Callable

from matplotlib.figure import Figure

from .ablations import ablations
from .answers import Answers
from .appearance import appearance
from .budgets import budgets
from .class_pairs import class_pairs
from .features import features
from .features_picture import features_figure
from .guarantee import guarantee
from .joint import joint
from .pictures import ablations_figure, budgets_figure, joint_figure
from .short import short
from .speakers import speakers
from .subsets import subsets
from .subsets_picture import subsets_figure
from .vocabulary import vocabulary

TABLES: dict[str, Callable[[Answers], str]] = {
    "subsets.md": subsets,
    "joint.md": joint,
    "budgets.md": budgets,
    "features.md": features,
    "guarantee.md": guarantee,
    "appearance.md": appearance,
    "ablations.md": ablations,
    "pairs.md": class_pairs,
    "speakers.md": speakers,
    "vocabulary.md": vocabulary,
    "short.md": short,
}
FIGURES: dict[str, Callable[[Answers], Figure]] = {
    "subsets.png": subsets_figure,
    "joint.png": joint_figure,
    "budgets.png": budgets_figure,
    "features.png": features_figure,
    "ablations.png": ablations_figure,
}
