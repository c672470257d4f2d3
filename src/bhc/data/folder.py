"""Folders that hold the public files of a data set; nothing is ever written to them."""

import importlib.util
import os
from dataclasses import dataclass
from pathlib import Path

from bhc.data.packed import PackedFile
from bhc.data.source import Unavailable
from bhc.files import read_bytes


@dataclass(frozen=True)
class FolderSource:
    """A folder with the files under their public names."""

    folder: Path

    @property
    def title(self) -> str:
        return f"folder {self.folder}"

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        # os.path and not pathlib: a folder that may not be searched has no files, which is no error here.
        missing = [file.name for file in files if not os.path.isfile(self.folder / file.name)]
        if missing:
            raise Unavailable(f"it lacks {', '.join(missing)}")
        return {file.name: self._content(file) for file in files}

    def _content(self, file: PackedFile) -> bytes:
        path = self.folder / file.name
        return file.unpack(read_bytes(path, limit=file.packed_limit), where=str(path))


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
