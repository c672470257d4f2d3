"""The forms in which the files of a data set are published: other names and bytes, the same content."""

from dataclasses import dataclass
from typing import Protocol

from bhc.data.packed import PackedFile


class Form(Protocol):
    """One way to publish a file."""

    def stored_name(self, file: PackedFile) -> str:
        """The name the file has in this form."""

    def limit(self, file: PackedFile) -> int:
        """The most bytes it may have."""

    def content(self, stored: bytes, file: PackedFile, *, where: str) -> bytes:
        """The checked content of ``file``, from the bytes stored at ``where``."""


@dataclass(frozen=True)
class OwnForm:
    """The files as the catalogue describes them."""

    def stored_name(self, file: PackedFile) -> str:
        return file.name

    def limit(self, file: PackedFile) -> int:
        return file.packed_limit

    def content(self, stored: bytes, file: PackedFile, *, where: str) -> bytes:
        return file.unpack(stored, where=where)


OWN_FORM = OwnForm()
