"""Images of a few bytes that declare 100,000 x 100,000 pixels."""

from __future__ import annotations

import resource
import struct
import zlib
from itertools import product

import numpy as np
import pytest

from featurestore.errors import InvalidArgument
from featurestore.transform import images

pytest.importorskip("PIL")
SIDE = 100_000


def png(width: int, height: int) -> bytes:
    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    content = zlib.compress(b"\0" * 1000)
    chunks = [(b"IHDR", header), (b"IDAT", content), (b"IEND", b"")]
    buffers = [b"\x89PNG\r\n\x1a\n"]
    for name, data in chunks:
        checksum = zlib.crc32(name + data)
        buffers.append(struct.pack(">I", len(data)) + name + data + struct.pack(">I", checksum))
    return b"".join(buffers)


def jpeg() -> bytes:
    frame = struct.pack(">BHHB", 8, 65_535, 65_535, 1) + b"\x01\x11\x00"
    scan = b"\x01\x01\x00\x00\x3f\x00"
    segments = [(0xC0, frame), (0xDA, scan)]
    buffers = [b"\xff\xd8"]
    for marker, data in segments:
        buffers.append(bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data)
    return b"".join(buffers) + b"\0" * 100


def webp() -> bytes:
    extended = struct.pack("<I", 0) + (16_383).to_bytes(3, "little") * 2
    body = b"WEBPVP8X" + struct.pack("<I", len(extended)) + extended
    return b"RIFF" + struct.pack("<I", len(body)) + body


BOMBS = {
    "png": png(SIDE, SIDE),
    "wide png": png(2**31 - 1, 1),
    "bmp": b"BM" + struct.pack("<IHHIIiiHHIIiiII", 54, 0, 0, 54, 40, SIDE, SIDE, 1, 24, 0, 0, 0, 0, 0, 0),
    "gif": b"GIF89a" + struct.pack("<HHBBB", 65_535, 65_535, 0x80, 0, 0) + b"\0" * 6
    + b"," + struct.pack("<HHHHB", 0, 0, 65_535, 65_535, 0) + b"\x02\x02\x4c\x01\x00;",
    "jpeg": jpeg(),
    "webp": webp(),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_images_with_too_many_pixels_are_refused(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    from PIL import Image

    # A program of the user may have removed Pillow's limit.
    for name, limit in product(BOMBS, (None, Image.MAX_IMAGE_PIXELS)):
        with subtests.test(name, limit=limit), monkeypatch.context() as patched:
            patched.setattr(Image, "MAX_IMAGE_PIXELS", limit)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            cells = np.array([b"", BOMBS[name]], object)
            with pytest.raises(InvalidArgument, match="Row 1 of the batch"):
                images.decode_images(cells, None, height=8, width=8, channels=3)
            assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 64 << 10


@pytest.mark.filterwarnings("ignore::PIL.Image.DecompressionBombWarning")
def test_an_image_within_the_bound_is_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from PIL import Image

    monkeypatch.setattr(images, "_LARGE_PIXELS", 1000)
    buffer = io.BytesIO()
    Image.new("RGB", (300, 200), (1, 2, 3)).save(buffer, "PNG")
    cells = np.array([buffer.getvalue()] * 3, object)
    decoded = images.decode_images(cells, None, height=8, width=8, channels=3)
    assert np.unique(decoded.reshape(-1, 3), axis=0).tolist() == [[1, 2, 3]]
    monkeypatch.setattr(images, "MAX_PIXELS", 59_999)
    with pytest.raises(InvalidArgument, match="declares 300 x 200 pixels, the limit is 59,999"):
        images.decode_images(cells, None, height=8, width=8, channels=3)
