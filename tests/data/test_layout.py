import numpy as np
import pytest
import torch

from bhc.data.images import DIGITS_TABLE, TRAIN_LABELS, IdxLayout, TableLayout, format_idx
from bhc.errors import BhcError

from .tiny import CONTENTS, TEST, TRAIN

TABLE = {DIGITS_TABLE: b"1,2,3,4,0\n5,6,7,8,1\n9,10,11,12,2\n13,14,15,16,3\n"}


def test_the_end_of_the_training_file_is_held_back():
    splits = IdxLayout(validation=4).splits(CONTENTS)
    for split, images, labels in (
        (splits.train, TRAIN[0][:8], TRAIN[1][:8]),
        (splits.validation, TRAIN[0][8:], TRAIN[1][8:]),
        (splits.test, *TEST),
    ):
        np.testing.assert_array_equal(split.inputs.squeeze(1), images)
        np.testing.assert_array_equal(split.labels, labels)
        assert split.inputs.shape[1] == 1
        assert (split.inputs.dtype, split.labels.dtype) == (torch.uint8, torch.int64)


def test_too_few_images_to_hold_some_back():
    with pytest.raises(BhcError, match="has 12 images; over 12 are needed"):
        IdxLayout(validation=12).splits(CONTENTS)


def test_images_and_labels_that_do_not_belong_together():
    contents = {**CONTENTS, TRAIN_LABELS: format_idx(np.zeros(11, dtype=np.uint8))}
    with pytest.raises(BhcError, match="12 inputs cannot have 11 labels"):
        IdxLayout(validation=4).splits(contents)


def test_a_table_is_cut_in_its_order():
    splits = TableLayout(image_size=(2, 2), train=2, validation=1).splits(TABLE)
    assert splits.train.inputs.tolist() == [[[[1, 2], [3, 4]]], [[[5, 6], [7, 8]]]]
    assert [split.labels.tolist() for split in (splits.train, splits.validation, splits.test)] == [[0, 1], [2], [3]]


def test_a_table_without_rows_left_to_test():
    with pytest.raises(BhcError, match="has 4 images; over 4 are needed"):
        TableLayout(image_size=(2, 2), train=3, validation=1).splits(TABLE)
