"""Data sets: small public collections of images, sounds and texts, always the same bytes, wherever they come from."""

from bhc.data.catalogue import NAMES, load
from bhc.data.dataset import DataSet, DatasetSplits, read_npz, read_npz_inputs
from bhc.data.folders import ImageFiles, ImageFolder, image_folders, unlabelled_images
from bhc.data.sound_and_text import read_recordings, recordings_in, with_voices
from bhc.examples import (
    PADDING,
    UNKNOWN,
    Augmentation,
    CropAndFlip,
    DropWords,
    PadTexts,
    Shift,
    ShiftAndNoise,
    Split,
    Tokenizer,
    Vocabulary,
    augmentation_for,
)
