"""Encoded images as arrays of one shape, decoded in threads.

Pillow releases the interpreter's lock while it decodes, so the threads decode side by side.
"""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, missing_extra
from featurestore.model.cores import usable_cores

Pixels = npt.NDArray[np.uint8]

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ENCODINGS = ("file", "raw")
# What is tried on bytes of a dataset; other decoders of the library are not.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
# Images that a thread takes at once.
_AT_ONCE = 64


def decode_images(
    cells: npt.NDArray[Any],
    present: npt.NDArray[np.bool_] | None,
    *,
    height: int,
    width: int,
    channels: int,
) -> Pixels:
    """Return encoded images as (rows, height, width, channels); missing ones are zeros.

    Images of another size are resized (bilinear, with the library's antialiasing).

    Args:
        cells: The bytes of PNG, JPEG, WebP, BMP or GIF files; empty bytes are padding.
        present: Which rows have an image; None: all of them.
        height: Rows of pixels.
        width: Columns of pixels.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).

    Raises:
        InvalidArgument: Bytes are no image; the first such row is named.
    """
    images = np.zeros((len(cells), height, width, channels), dtype=np.uint8)
    decoder = _Decoder(images, MODES[channels])
    rows = [row for row, cell in enumerate(cells.tolist()) if cell]
    if present is not None:
        rows = [row for row in rows if present[row]]
    parts = [rows[start : start + _AT_ONCE] for start in range(0, len(rows), _AT_ONCE)]

    def decode(part: list[int]) -> None:
        for row in part:
            decoder(row, cells[row])

    threads = min(usable_cores(), len(parts))
    if threads < 2:
        decode(rows)
        return images
    # Of this call alone: a pool does not survive the fork of a worker.
    with ThreadPoolExecutor(threads, thread_name_prefix="featurestore-images") as pool:
        list(pool.map(decode, parts))
    return images


def raw_images(
    cells: npt.NDArray[Any], present: npt.NDArray[np.bool_] | None, *, shape: tuple[int, ...]
) -> Pixels:
    """Return images whose bytes are their pixels, row by row; missing ones are zeros.

    Raises:
        InvalidArgument: An image has more or fewer bytes than the shape; the first one is named.

    >>> raw_images(np.array([b"abcd", b""], object), None, shape=(2, 2, 1))[:, 0, 1, 0].tolist()
    [98, 0]
    """
    size = int(np.prod(shape))
    missing = b"\0" * size
    found = cells.tolist()
    for row, cell in enumerate(found):
        if not cell or (present is not None and not present[row]):
            found[row] = missing
        elif len(cell) != size:
            raise InvalidArgument(
                f"Row {row} of the batch has {len(cell)} bytes; pixels of shape {shape} are {size}."
            )
    return np.frombuffer(bytearray().join(found), dtype=np.uint8).reshape(-1, *shape)


class _Decoder:
    """Decodes images into the rows of an array."""

    def __init__(self, images: Pixels, mode: str) -> None:
        try:
            from PIL import Image
        except ImportError as error:
            raise missing_extra("pillow", "images") from error
        self._library: Any = Image
        self._images, self._mode = images, mode

    def __call__(self, row: int, encoded: bytes) -> None:
        target = self._images[row]
        size = target.shape[1], target.shape[0]
        try:
            with self._library.open(io.BytesIO(encoded), formats=_FORMATS) as file:
                image = file.convert(self._mode)
        except (OSError, SyntaxError, ValueError, self._library.DecompressionBombError) as error:
            raise InvalidArgument(
                f"Row {row} of the batch is no image that can be decoded ({error}); it begins with "
                f"{encoded[:8]!r}.",
                hint=f"encoded images are bytes of {', '.join(_FORMATS)} files",
            ) from error
        if image.size != size:
            image = image.resize(size, self._library.Resampling.BILINEAR)
        target[:] = np.asarray(image).reshape(target.shape)
