"""Public addresses."""

import http.client
import urllib.error
import urllib.request
from dataclasses import dataclass

from bhc.data.form import OWN_FORM, Form
from bhc.data.packed import PackedFile
from bhc.data.source import Unavailable
from bhc.errors import BhcError

_TIMEOUT = 20.0  # seconds without an answer
_CHUNK = 1 << 16


@dataclass(frozen=True)
class WebSource:
    """An address below which the files stand under the names they have in one form.

    Nothing that arrives is trusted: a file is read up to its known size and its content is checked.
    """

    address: str  # ends in a slash
    form: Form = OWN_FORM

    @property
    def title(self) -> str:
        return self.address

    def fetch(self, files: tuple[PackedFile, ...]) -> dict[str, bytes]:
        stored = {file: self.form.stored_name(file) for file in files}
        return {
            file.name: self.form.content(
                self.read(name, limit=self.form.limit(file)), file, where=self.address_of(name)
            )
            for file, name in stored.items()
        }

    def address_of(self, name: str) -> str:
        return self.address + name

    def read(self, name: str, *, limit: int) -> bytes:
        try:
            return _download(self.address_of(name), limit=limit)
        except urllib.error.HTTPError as error:
            error.close()
            raise Unavailable(f"{name}: the server answers {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise Unavailable(f"{name}: {error.reason}") from error
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"{name}: {str(error) or type(error).__name__}") from error


def _download(address: str, *, limit: int) -> bytes:
    """Read what stands at ``address``, in pieces and to no more than ``limit`` bytes."""
    packed = bytearray()
    with urllib.request.urlopen(address, timeout=_TIMEOUT) as response:
        while chunk := response.read(_CHUNK):
            packed += chunk
            if len(packed) > limit:
                raise BhcError(f"{address} is larger than the {limit:,} bytes such a file may have")
    return bytes(packed)
