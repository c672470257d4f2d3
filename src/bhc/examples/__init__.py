"""Examples as training and emission take them: what they are, how they are altered, and texts as numbers of words."""

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
from bhc.examples.transforms import (
    PADDING,
    UNKNOWN,
    AnyVocabulary,
    Augmentation,
    CropAndFlip,
    DropWords,
    Restricted,
    Shift,
    ShiftAndNoise,
    Tokenizer,
    Vocabulary,
    augmentation_for,
    split_words,
    vocabulary_from_dict,
)
