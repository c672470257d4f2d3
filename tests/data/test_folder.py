import sys

import pytest

from bhc.data.images import TEST_LABELS, TRAIN_IMAGES
from bhc.data.sources import FolderSource, PackageSource, Unavailable
from bhc.errors import BhcError

from .tiny import CONTENTS, FILES, fill, truncate


def test_reads_the_public_files(tmp_path):
    assert FolderSource(fill(tmp_path / "tiny")).fetch(FILES) == CONTENTS


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(Unavailable, match=f"it lacks {TRAIN_IMAGES}, .*{TEST_LABELS}"):
        FolderSource(tmp_path / "none").fetch(FILES)


def test_a_folder_that_lacks_one_file(tmp_path):
    folder = fill(tmp_path / "tiny")
    (folder / TEST_LABELS).unlink()
    with pytest.raises(Unavailable, match=f"it lacks {TEST_LABELS}$"):
        FolderSource(folder).fetch(FILES)


def test_a_truncated_file(tmp_path):
    folder = fill(tmp_path / "tiny")
    truncate(folder / TRAIN_IMAGES)
    with pytest.raises(BhcError, match=f"{folder / TRAIN_IMAGES} is damaged") as caught:
        FolderSource(folder).fetch(FILES)
    assert not isinstance(caught.value, Unavailable)


def test_a_file_far_too_large_is_not_read(tmp_path):
    folder = fill(tmp_path / "tiny")
    (folder / TRAIN_IMAGES).write_bytes(bytes(100_000))
    with pytest.raises(BhcError, match=f"{folder / TRAIN_IMAGES} is larger than") as caught:
        FolderSource(folder).fetch(FILES)
    assert not isinstance(caught.value, Unavailable)


def test_a_package_is_found_and_not_imported(tmp_path, monkeypatch):
    package = tmp_path / "carrier_of_data"
    fill(package / "inside" / "files")
    (package / "__init__.py").write_text("raise RuntimeError('imported')\n")
    monkeypatch.syspath_prepend(tmp_path)
    source = PackageSource("carrier_of_data", distribution="carrier-of-data", subfolder="inside/files")
    assert source.fetch(FILES) == CONTENTS
    assert "carrier_of_data" not in sys.modules
    assert source.title == "the installed package carrier-of-data"


@pytest.mark.parametrize("package", ["no_such_package_anywhere", "this"])
def test_a_package_that_is_not_installed_or_has_no_folder(package):
    source = PackageSource(package, distribution="some-package", subfolder="data")
    with pytest.raises(Unavailable, match="some-package is not installed"):
        source.fetch(FILES)
