"""Domains without their samples: the mean, which is all that the hypernetwork is told, as a word to be handed around.

A token is its own state: every process, today or after a restart, reads the same domain from it.
"""

import base64
import binascii
import struct
import zlib

import numpy as np
import torch

from bhc.contexts import SampleMean
from bhc.errors import BhcError

PREFIX = "domain-1-"
HEAD = struct.Struct("<II")  # samples, checksum of what follows
HINT = "make one with POST /v1/domains, and hand it on as it is"


def to_token(domain: SampleMean) -> str:
    """The word for a domain."""
    values = domain.mean.numpy().astype("<f4").tobytes()
    content = HEAD.pack(domain.size, zlib.crc32(values)) + values
    return PREFIX + base64.urlsafe_b64encode(content).decode()


def from_token(token: str, shape: tuple[int, ...]) -> SampleMean:
    """The domain behind a word; ``shape`` is that of the model's inputs."""
    if not token.startswith(PREFIX):
        raise BhcError(f"{token[:40]!r} is not the token of a domain", hint=HINT)
    try:
        content = base64.b64decode(token[len(PREFIX) :].encode("ascii"), altchars=b"-_", validate=True)
        size, checksum = HEAD.unpack_from(content)
    except (binascii.Error, UnicodeEncodeError, struct.error, ValueError) as error:
        raise BhcError(f"the token of the domain is damaged: {error}", hint=HINT) from None
    values = content[HEAD.size :]
    if zlib.crc32(values) != checksum:
        raise BhcError("the token of the domain is damaged: its checksum is another", hint=HINT)
    mean = np.frombuffer(values, "<f4") if len(values) % 4 == 0 else np.zeros(0)
    if mean.size != int(np.prod(shape)) or not np.isfinite(mean).all():
        raise BhcError("the token is that of a domain of another model", hint=HINT)
    return SampleMean(torch.from_numpy(mean.astype(np.float32).reshape(shape)), size)
