"""Encoded images as arrays of one shape, decoded in threads.

Pillow releases the interpreter's lock while it decodes, so the threads decode side by side.
"""

from __future__ import annotations

import importlib
import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, missing_extra
from featurestore.model.cores import usable_cores
from featurestore.readers.memory import Memory

Pixels = npt.NDArray[np.uint8]

MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ENCODINGS = ("file", "raw")
# What is tried on bytes of a dataset; other decoders of the library are not.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_MEMORY = Memory()
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
    # Aligned, so that TensorFlow takes the memory as it is, and used again: new pages cost time.
    shape = len(cells), height, width, channels
    images = _MEMORY.borrow([(shape, np.dtype(np.uint8))], purpose="images")[0]
    decoder = _Decoder(images, MODES[channels])
    rows = []
    for row, cell in enumerate(cells.tolist()):
        if cell and (present is None or present[row]):
            rows.append(row)
        else:
            images[row] = 0
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

    Args:
        cells: The bytes of each image, or uint8 of (rows, bytes), which are not copied.
        present: Which rows have an image; None: all of them.
        shape: Of an image.

    Raises:
        InvalidArgument: An image has more or fewer bytes than the shape; the first one is named.

    >>> raw_images(np.array([b"abcd", b""], object), None, shape=(2, 2, 1))[:, 0, 1, 0].tolist()
    [98, 0]
    """
    size = int(np.prod(shape))
    if cells.dtype == np.uint8:
        if cells.shape[1] != size:
            raise _wrong_size(0, cells.shape[1], shape)
        return cells.reshape(-1, *shape)
    missing = b"\0" * size
    found = cells.tolist()
    for row, cell in enumerate(found):
        if not cell or (present is not None and not present[row]):
            found[row] = missing
        elif len(cell) != size:
            raise _wrong_size(row, len(cell), shape)
    return np.frombuffer(bytearray().join(found), dtype=np.uint8).reshape(-1, *shape)


def _wrong_size(row: int, found: int, shape: tuple[int, ...]) -> InvalidArgument:
    wanted = int(np.prod(shape))
    return InvalidArgument(
        f"Row {row} of the batch has {found} bytes; pixels of shape {shape} are {wanted}."
    )


def _imagecodecs() -> Any | None:
    """Return the library, where it is installed."""
    try:
        return importlib.import_module("imagecodecs")
    except ImportError:
        return None


def _png_header(shape: tuple[int, ...]) -> bytes:
    """Return how a PNG file begins whose pixels, as they are, have a shape of uint8.

    Signature, length and name of the chunk IHDR, width, height, bits of a channel, and the type of
    color: https://www.w3.org/TR/png-3/#11IHDR
    """
    height, width, channels = shape
    colors = {1: 0, 3: 2, 4: 6}
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + bytes([8, colors[channels]])


class _Decoder:
    """Decodes images into the rows of an array.

    With imagecodecs, whose libspng takes three fifths of Pillow's time, PNG files that hold the
    wanted pixels as they are; all others with Pillow.
    """

    def __init__(self, images: Pixels, mode: str) -> None:
        try:
            from PIL import Image
        except ImportError as error:
            raise missing_extra("pillow", "images") from error
        self._library: Any = Image
        self._images, self._mode = images, mode
        self._begin = _png_header(images.shape[1:])
        self._codecs: Any = _imagecodecs()

    def __call__(self, row: int, encoded: bytes) -> None:
        target = self._images[row]
        if self._codecs is not None and encoded.startswith(self._begin):
            try:
                self._codecs.spng_decode(encoded, out=target)
            except (RuntimeError, ValueError):
                pass  # Pillow says whether it is an image
            else:
                return
        size = target.shape[1], target.shape[0]
        try:
            with self._library.open(io.BytesIO(encoded), formats=_FORMATS) as file:
                file.load()
                image = file if file.mode == self._mode else file.convert(self._mode)
        except (OSError, SyntaxError, ValueError, self._library.DecompressionBombError) as error:
            raise InvalidArgument(
                f"Row {row} of the batch is no image that can be decoded ({error}); it begins with "
                f"{encoded[:8]!r}.",
                hint=f"encoded images are bytes of {', '.join(_FORMATS)} files",
            ) from error
        if image.size != size:
            image = image.resize(size, self._library.Resampling.BILINEAR)
        target[:] = np.asarray(image).reshape(target.shape)
