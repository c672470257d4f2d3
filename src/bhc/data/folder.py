"""Folders that hold the public files of a data set; nothing is ever written to them."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from bhc.data.form import OWN_FORM, Form
from bhc.data.packed import PackedFile
from bhc.data.source import Unavailable
from bhc.files import read_bytes


@dataclass(frozen=True)
class FolderSource:
    """A folder with the files under the names they have in one form."""

    folder: Path
    form: Form = OWN_FORM

    @property
    def title(self) -> str:
        return f"folder {self.folder}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        stored = {file: self.form.stored_name(file) for file in files}
        missing = [name for name in stored.values() if not self._has(name)]
        if missing:
            raise Unavailable(f"it lacks {', '.join(missing)}")
        return {
            file.name: self.form.content(
                self.read(name, limit=self.form.limit(file)), file, where=self.address_of(name)
            )
            for file, name in stored.items()
        }

    def address_of(self, name: str) -> str:
        return str(self.folder / name)

    def read(self, name: str, *, limit: int) -> bytes:
        if not self._has(name):
            raise Unavailable(f"it lacks {name}")
        return read_bytes(self.folder / name, limit=limit)

    def _has(self, name: str) -> bool:
        # os.path and not pathlib: a folder that may not be searched has no files, which is no error here.
        return os.path.isfile(self.folder / name)


@dataclass(frozen=True)
class PackageSource:
    """A folder inside an installed Python package, which is found and not imported."""

    package: str
    distribution: str  # the name it is installed by
    subfolder: str

    @property
    def title(self) -> str:
        return f"the installed package {self.distribution}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        spec = importlib.util.find_spec(self.package)
        places = spec.submodule_search_locations if spec else None
        if not places:
            raise Unavailable(f"{self.distribution} is not installed")
        return FolderSource(Path(places[0]) / self.subfolder).fetch(files)
