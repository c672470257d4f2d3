"""Folders of real images, one folder a class: what is listed, how images are decoded, and what is refused."""

import errno
import hashlib
import os
import pickle
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from bhc.data import ImageFiles, ImageFolder, image_folders, unlabelled_images
from bhc.errors import BhcError

from .pictures import CLASSES, EMPTY, GIF, TEXT, TRUNCATED, fill, pixels, spoil, write


def refused(match, root, **options):
    with pytest.raises(BhcError, match=match) as caught:
        ImageFolder(root, **options)
    return caught.value.hint


def test_images_are_listed_by_class_and_name_whatever_the_order_on_the_disk(tmp_path):
    for name in ("b/2.png", "a/x.JPG", "b/10.PNG", "a/é.jpeg", "c/1.Jpeg"):
        write(tmp_path / name)
    images = ImageFolder(tmp_path)
    assert images.classes == ("a", "b", "c")
    assert images.targets.tolist() == [0, 0, 1, 1, 2]
    assert images.targets.dtype == torch.int64
    assert [images.path(place).name for place in range(5)] == ["x.JPG", "é.jpeg", "10.PNG", "2.png", "1.Jpeg"]
    assert (len(images), images.image_shape) == (5, (3, 8, 8))
    assert "5 images (3, 8, 8), 3 classes" in repr(images)


def test_places_beyond_the_images_end_an_iteration(root):
    images = ImageFolder(root)
    assert len(list(images)) == 12
    for place in (12, -13):
        with pytest.raises(IndexError):
            images[place]
    assert images[np.int64(11)][1] == 2


def test_without_a_size_the_first_image_that_differs_is_named(root):
    write(root / "bee" / "1.png", pixels(0, (8, 9)))
    write(root / "cat" / "1.png", pixels(0, (7, 7)))
    hint = refused(r"bee.1\.png is 8 x 9 .*ant.0\.png 8 x 8", root)
    assert "size=" in hint


def test_a_folder_of_many_sizes_is_looked_at_all_over_the_list(tmp_path):
    for number in range(300):
        write(tmp_path / "a" / f"{number:03}.png", pixels(number, (2, 2), channels=1))
    write(tmp_path / "b" / "1.png", pixels(0, (2, 2)))
    seen = []
    assert ImageFolder(tmp_path, size=2, progress=lambda *counts: seen.append(counts)).image_shape[0] == 3
    assert seen[-1] == (256, 256)
    ImageFolder(tmp_path, size=2, channels=3, progress=lambda *counts: seen.append(counts))
    assert len(seen) == 4  # nothing was left to decide


@pytest.mark.parametrize("how", [EMPTY, TEXT, GIF])
def test_a_file_that_is_no_image_is_named(root, how):
    spoil(root / "bee" / "2.png", how)
    hint = refused(r"bee.2\.png cannot be read: it is neither PNG nor JPEG", root)
    assert "on_error='skip'" in hint
    spoil(root / "cat" / "2.png", how)
    refused("and 1 more", root)


def test_what_cannot_be_read_is_left_out_for_good(root, caplog):
    for number, how in ((0, EMPTY), (1, TRUNCATED), (2, TEXT)):
        spoil(root / "bee" / f"{number}.png", how)
    (root / "bee" / "4.png").symlink_to("nowhere.png")
    seen = []
    images = ImageFolder(root, on_error="skip", progress=lambda *counts: seen.append(counts))
    assert (len(images), images.targets.tolist()) == (9, [0] * 4 + [1] + [2] * 4)
    assert images.path(4) == root / "bee" / "3.png"
    assert [tuple(image.shape) for image, _ in images] == [(3, 8, 8)] * 9
    assert [Path(path).name for path in images.left_out] == ["0.png", "1.png", "2.png", "4.png"]
    assert "truncated" in images.left_out[str(root / "bee" / "1.png")]
    assert "No such file" in images.left_out[str(root / "bee" / "4.png")]
    assert seen == [(13, 13)]
    assert "4 of 13 images are left out" in caplog.text
    spoil(root / "bee" / "3.png", TEXT)
    refused(r"no image of the class bee can be read: .*bee.0\.png", root, on_error="skip")


def test_many_images_are_decoded_in_their_order(tmp_path):
    for number in range(200):
        write(tmp_path / "a" / f"{number:03}.png", pixels(number))
    spoil(tmp_path / "a" / "130.png", TRUNCATED)
    seen = []
    images = ImageFolder(tmp_path, on_error="skip", progress=lambda *counts: seen.append(counts))
    assert seen == [(64, 200), (128, 200), (192, 200), (200, 200)]
    assert [images.path(place).stem for place in (129, 130, 198)] == ["129", "131", "199"]


def test_a_link_within_the_root_is_followed_and_one_that_leads_out_is_refused(root, tmp_path):
    (root / "dog").symlink_to("ant")
    (root / "cat" / "9.png").symlink_to("../bee/0.png")
    images = ImageFolder(root)
    assert len(images) == 17
    assert torch.equal(images[12][0], images[4][0])
    outside = write(tmp_path / "elsewhere" / "1.png")
    (root / "bee" / "8.png").symlink_to(outside)
    hint = refused(rf"bee.8\.png is a link to {outside}, outside of {root}", root)
    assert "within" in hint
    assert len(ImageFolder(root, within=tmp_path)) == 18
    (root / "bee" / "8.png").unlink()
    (root / "emu").symlink_to(outside.parent)
    refused(r"images.emu is a link", root)
    refused("is a link to|outside of", tmp_path / "images", within=root / "ant")


def test_hidden_files_other_kinds_and_inner_folders_are_passed_over(root):
    for name in (".hidden.png", "notes.txt", "deep/1.png", ".cache/1.png"):
        (root / "ant" / name).parent.mkdir(exist_ok=True)
        (root / "ant" / name).write_text("no image")
    os.mkfifo(root / "ant" / "pipe.png")  # reading it would wait for ever
    (root / ".git").mkdir()
    (root / "labels.csv").write_text("")
    images = ImageFolder(root)
    assert (images.classes, len(images)) == (CLASSES, 12)


def test_a_class_without_images_is_named_with_what_it_has(root):
    for name in ("1.gif", "2.gif", "notes", "sub/1.png"):
        (root / "dog" / name).parent.mkdir(exist_ok=True, parents=True)
        (root / "dog" / name).write_text("")
    hint = refused(r"class .*dog has no image; it has \.gif \(2\), no suffix \(1\), folder \(1\)", root)
    assert ".jpeg" in hint
    (root / "cow").mkdir()
    refused("class .*cow has no image; it is empty", root)


def test_a_root_without_classes(tmp_path):
    write(tmp_path / "1.png")
    hint = refused(r"has no folder of a class; it has \.png \(1\)", tmp_path)
    assert "CLASS" in hint
    refused("there is no folder .*nothere", tmp_path / "nothere")
    refused("there is no folder", tmp_path / "1.png")


def test_a_folder_that_may_not_be_read(root, monkeypatch):
    scandir = os.scandir

    def guarded(folder):  # a mode would not stop root, who may run this
        if str(folder).endswith("bee"):
            raise PermissionError(errno.EACCES, "Permission denied")
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", guarded)
    refused("could not read the folder .*bee: Permission denied", root)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        *(({"size": size}, "size=") for size in (0, -1, (4,), (4, 4, 4), (4, 0), (4.0, 4), 4.0, "44", 100_000)),
        *(({"channels": channels}, "channels=") for channels in (0, 2, 4, "RGB")),
        ({"on_error": "ignore"}, "on_error='ignore'"),
        *(({name: values}, f"{name}=") for name in ("mean", "std") for values in ((1, 2), (float("nan"),), [1] * 4)),
        *(({"std": values}, "std=") for values in (0, (0.5, 0.5, -1))),
        *(({"mean": values}, "mean=") for values in ("a", [[1, 2], [3]])),
    ],
)
def test_options_that_are_refused(root, options, match):
    refused(match, root, **options)


def test_without_pillow_the_error_says_what_to_install(root, monkeypatch):
    monkeypatch.setitem(sys.modules, "PIL", None)
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    assert refused("Pillow", root) == "pip install 'bhc[images]'"


def test_it_is_sent_to_workers_that_know_nothing(root):
    images = ImageFolder(root, size=6, mean=0.5, std=0.25)
    loader = DataLoader(images, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    inputs, targets = map(torch.cat, zip(*loader, strict=True))
    assert torch.equal(inputs, torch.stack([image for image, _ in images]))
    assert torch.equal(targets, images.targets)


def test_it_takes_little_memory_to_send(tmp_path):
    write(tmp_path / "a" / "0000.png")
    for number in range(1, 2_000):
        os.link(tmp_path / "a" / "0000.png", tmp_path / "a" / f"{number:04}.png")
    images = ImageFolder(tmp_path)
    again = pickle.loads(pickle.dumps(images))
    assert len(pickle.dumps(images)) < 2_000 * (8 + 2 * 8) + 2_000  # the name, where it ends, and the class
    assert again.path(1_999) == images.path(1_999)
    assert torch.equal(again[7][0], images[7][0])


@pytest.fixture
def parts(tmp_path):
    for name, count in (("train", 20), ("validation", 2), ("test", 1)):
        fill(tmp_path / name, count)
    return tmp_path


def test_the_parts_of_a_folder(parts):
    splits = image_folders(parts, size=4, mean=0.5)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [60, 6, 3]
    assert (splits.classes, splits.set_aside) == (CLASSES, False)
    assert {part.image_shape for part in (splits.train, splits.validation, splits.test)} == {(3, 4, 4)}
    (parts / "validation").rename(parts / "val")
    assert len(image_folders(parts).validation) == 6
    fill(parts / "valid", 1)
    with pytest.raises(BhcError, match="has val and valid"):
        image_folders(parts)


def names_of(images):
    return {str(images.path(place).relative_to(images.path(place).parents[1])) for place in range(len(images))}


def test_a_tenth_of_each_class_is_set_aside_by_name(tmp_path):
    for name, count in (("ant", 40), ("bee", 19), ("cat", 2)):
        for number in range(count):
            write(tmp_path / "one" / "train" / name / f"{number}.png", pixels(number, (2, 2)))
    splits = image_folders(tmp_path / "one")
    assert (splits.set_aside, splits.test) == (True, None)
    assert splits.validation.targets.bincount().tolist() == [4, 1, 1]
    assert len(splits.train) + len(splits.validation) == 61
    assert not names_of(splits.train) & names_of(splits.validation)
    # The first four of: for i in $(seq 0 39); do echo "$(printf $i.png | sha256sum) $i"; done | sort
    assert {name for name in names_of(splits.validation) if "ant" in name} == {
        f"ant/{number}.png" for number in (33, 6, 0, 8)
    }
    (tmp_path / "one").rename(tmp_path / "two")
    assert names_of(image_folders(tmp_path / "two").validation) == names_of(splits.validation)


def test_a_class_with_one_image_leaves_nothing_to_set_aside(tmp_path):
    fill(tmp_path / "train", 3)
    write(tmp_path / "train" / "dog" / "1.png")
    with pytest.raises(BhcError, match="class dog has one training example"):
        image_folders(tmp_path)


def test_classes_that_are_missing_or_new_are_named(parts):
    (parts / "validation" / "bee").rename(parts / "validation" / "dog")
    with pytest.raises(BhcError, match=r"validation: it lacks bee and has dog"):
        image_folders(parts)
    (parts / "validation" / "dog").rename(parts / "validation" / "bee")
    for number in range(8):
        write(parts / "test" / f"new{number}" / "1.png")
    with pytest.raises(BhcError, match=r"test: it has new0, .*new4 and 3 more"):
        image_folders(parts)


def test_parts_of_other_shapes_are_named(parts):
    write(parts / "test" / "ant" / "0.png", pixels(0, channels=1))
    assert image_folders(parts).test.image_shape == (3, 8, 8)
    for name in CLASSES:
        write(parts / "test" / name / "0.png", pixels(0, channels=1))
        write(parts / "validation" / name / "0.png", pixels(0, (4, 4)))
        write(parts / "validation" / name / "1.png", pixels(0, (4, 4)))
    assert image_folders(parts, size=4).test.image_shape == (3, 4, 4)  # grey among colours
    with pytest.raises(BhcError, match=r"validation are \(3, 4, 4\), those to train with \(3, 8, 8\)"):
        image_folders(parts)


def test_colours_to_validate_what_was_trained_in_grey(tmp_path):
    for name in CLASSES:
        write(tmp_path / "train" / name / "0.png", pixels(0, channels=1))
    fill(tmp_path / "validation", 1)
    with pytest.raises(BhcError, match=r"\(3, 8, 8\), those to train with \(1, 8, 8\)"):
        image_folders(tmp_path)
    assert image_folders(tmp_path, channels=1).validation.image_shape == (1, 8, 8)


def test_a_folder_without_a_train_part(root):
    with pytest.raises(BhcError, match=r"there is no folder .*train"):
        image_folders(root)


def test_links_from_one_part_to_another_are_followed(tmp_path):
    for number in range(2):
        write(tmp_path / "every" / f"{number}.png")
        for name in ("train", "test"):
            (tmp_path / name / "a").mkdir(parents=True, exist_ok=True)
            (tmp_path / name / "a" / f"{number}.png").symlink_to(f"../../every/{number}.png")
    assert len(image_folders(tmp_path).test) == 2


def test_images_without_labels_lie_right_in_a_folder_or_in_others(root):
    write(root / "zoo.png")
    write(root / "ant" / "deep" / "1.png")
    (root / "empty").mkdir()
    images = ImageFiles(root, size=6, mean=0.5)
    assert len(images) == 13
    assert images.path(0) == root / "zoo.png"
    assert images.path(1) == root / "ant" / "0.png"
    (root / "empty").rmdir()
    assert torch.equal(images[12], ImageFolder(root, size=6, mean=0.5)[11][0])
    assert not hasattr(images, "targets")
    assert "13 images (3, 6, 6)" in repr(images)
    loader = DataLoader(images, batch_size=5, num_workers=1, multiprocessing_context="spawn")
    assert [tuple(batch.shape) for batch in loader] == [(5, 3, 6, 6), (5, 3, 6, 6), (3, 3, 6, 6)]
    with pytest.raises(IndexError):
        images[13]


def test_unlabelled_images_that_cannot_be_read(root, caplog):
    spoil(root / "bee" / "2.png", TEXT)
    with pytest.raises(BhcError, match=r"bee.2\.png cannot be read"):
        ImageFiles(root)
    for number in range(4):
        spoil(root / "cat" / f"{number}.png", TEXT)
    assert len(ImageFiles(root, on_error="skip")) == 7  # a folder of which nothing is left is no class
    for path in root.glob("*/*.png"):
        spoil(path, TEXT)
    with pytest.raises(BhcError, match=r"no image in .*images can be read"):
        ImageFiles(root, on_error="skip")
    assert "5 of 12 images are left out" in caplog.text


def test_a_folder_without_any_image(tmp_path):
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(BhcError, match=r"has no image; it has \.txt \(1\)"):
        ImageFiles(tmp_path)
    with pytest.raises(BhcError, match="there is no folder"):
        ImageFiles(tmp_path / "none")
    outside = write(tmp_path.parent / "elsewhere.png")
    (tmp_path / "1.png").symlink_to(outside)
    with pytest.raises(BhcError, match=r"1\.png is a link"):
        ImageFiles(tmp_path)


def test_the_parts_of_a_folder_without_labels(parts, tmp_path):
    splits = unlabelled_images(parts, size=4)
    assert [len(part) for part in (splits.train, splits.validation, splits.test)] == [60, 6, 3]
    assert (splits.classes, splits.set_aside) == ((), False)
    for number in range(30):
        write(tmp_path / "flat" / "train" / f"{number}.png", pixels(number, (2, 2)))
    splits = unlabelled_images(tmp_path / "flat")
    assert (len(splits.train), len(splits.validation), splits.test, splits.set_aside) == (27, 3, None, True)
    aside = {splits.validation.path(place).name for place in range(3)}
    assert aside == set(sorted((f"{i}.png" for i in range(30)), key=lambda n: hashlib.sha256(n.encode()).digest())[:3])
    write(tmp_path / "flat" / "test" / "1.png", pixels(0, (3, 3)))
    with pytest.raises(BhcError, match=r"test are \(3, 3, 3\), those to train with \(3, 2, 2\)"):
        unlabelled_images(tmp_path / "flat")


def test_one_image_without_a_label_leaves_nothing_to_set_aside(tmp_path):
    write(tmp_path / "train" / "1.png")
    with pytest.raises(BhcError, match="there is one training example"):
        unlabelled_images(tmp_path)
