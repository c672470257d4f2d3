"""Real images, whole and damaged, and folders of them."""

import struct
import zlib

import numpy as np
from PIL import Image

CLASSES = ("ant", "bee", "cat")
TRUNCATED, EMPTY, TEXT, GIF = "truncated", "empty", "text", "gif"


def pixels(seed, size=(8, 8), channels=3):
    values = np.random.default_rng(seed).integers(0, 256, (*size, channels), dtype=np.uint8)
    return values if channels > 1 else values[..., 0]


def write(path, values=None, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(pixels(zlib.crc32(bytes(path.name, "utf-8"))) if values is None else values)
    image.save(path, **options)
    return path


def fill(root, count=4):
    for name in CLASSES:
        for number in range(count):
            write(root / name / f"{number}.png")
    return root


def png_of(width, height):
    """A whole file that says it has so many pixels, and holds none."""

    def chunk(kind, content):
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    header = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


def spoil(path, how):
    content = path.read_bytes()
    if how == GIF:
        Image.fromarray(pixels(0)).save(path, format="GIF")
    else:
        path.write_bytes({TRUNCATED: content[: len(content) * 2 // 3], EMPTY: b"", TEXT: b"no image"}[how])
