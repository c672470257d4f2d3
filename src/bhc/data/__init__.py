"""Data sets: small public image collections, always the same bytes, wherever they come from."""

from bhc.data.augment import Augmentation, CropAndFlip, Shift
from bhc.data.catalogue import NAMES
from bhc.data.dataset import DataSet, Split
from bhc.data.loading import load

__all__ = ["NAMES", "Augmentation", "CropAndFlip", "DataSet", "Shift", "Split", "load"]
