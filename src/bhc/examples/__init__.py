"""Examples as training and emission take them: what they are, how they are altered, and texts as numbers of words."""

from bhc.examples.augmentations import Augmentation, CropAndFlip, DropWords, Shift, ShiftAndNoise, augmentation_for
from bhc.examples.split import (
    GIVE_LABELS,
    Examples,
    Inputs,
    ItemError,
    PadTexts,
    Split,
    batches,
    each,
    put_together,
    several,
    together,
)
from bhc.examples.vocabulary import (
    PADDING,
    UNKNOWN,
    AnyVocabulary,
    Restricted,
    Tokenizer,
    Vocabulary,
    split_words,
    vocabulary_from_dict,
)
