"""Decoding of images into arrays of a fixed shape.

Files are decoded by threads, which run in parallel, since the decoders release the GIL.
"""

from __future__ import annotations

import importlib
import io
import struct
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, missing_extra
from featurestore.model.runtime import ForkSafeLock, usable_cores
from featurestore.model.threads import independent_tasks
from featurestore.readers.columns import NumpyArray
from featurestore.readers.prefetch import BufferPool

Pixels = npt.NDArray[np.uint8] | npt.NDArray[np.uint16]
MODES = {1: "L", 3: "RGB", 4: "RGBA"}
ENCODINGS = ("file", "raw")
DTYPES = ("uint8", "uint16")
ORIENTATIONS = ("exif", "stored")
# Allowed image formats. Pillow's decoders of other formats are not trusted with dataset files.
_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "GIF")
_BUFFERS = BufferPool()
# Maximum number of pixels that a file may declare, independent of Pillow's own limit. Large files
# are decoded one at a time, since a file of a few kilobytes may declare a gigabyte of pixels.
MAX_PIXELS = 178_956_970
_LARGE_PIXELS = 1 << 25
_LARGE_LOCK = ForkSafeLock()
# Number of files per thread task.
_TASK_FILES = 64


def decode_rows(
    files: NumpyArray,
    present: npt.NDArray[np.bool_] | None,
    *,
    target: NumpyArray,
    decode: Callable[[int, bytes], None],
    threads_name: str,
) -> None:
    """Decode files into the rows of an array; rows without a file are zeros.

    Args:
        files: The bytes of each file; empty bytes are padding.
        present: Mask of rows with a file; None if all rows have one.
        target: The array, one row per file.
        decode: Decodes the file of a row into ``target``.
        threads_name: The name of the threads.

    The error of the first row that cannot be decoded is raised.
    """
    rows = []
    for row, cell in enumerate(files.tolist()):
        if cell and (present is None or present[row]):
            rows.append(row)
        else:
            target[row] = 0
    tasks = [rows[start : start + _TASK_FILES] for start in range(0, len(rows), _TASK_FILES)]

    def decode_task(task: list[int]) -> None:
        for row in task:
            decode(row, files[row])

    threads = min(usable_cores(), len(tasks))
    if threads < 2:
        decode_task(rows)
        return
    # Create a thread pool per call, since a pool does not survive the fork of a worker process.
    with independent_tasks(threads, threads_name) as pool:
        # The results are consumed in task order, so the error of the first invalid row is raised.
        list(pool.map(decode_task, tasks))


def decode_images(
    encoded_images: NumpyArray,
    present: npt.NDArray[np.bool_] | None,
    *,
    height: int,
    width: int,
    channels: int,
    dtype: str = "uint8",
    orientation: str = "exif",
) -> Pixels:
    """Decode images into an array of shape (rows, height, width, channels); missing ones are zeros.

    Images of another size are resized by Pillow's antialiased bilinear filter. Animated files yield
    their first frame.

    Args:
        encoded_images: The bytes of PNG, JPEG, WebP, BMP or GIF files; empty bytes are padding.
        present: Mask of rows with an image; None if all rows have one.
        height: Rows of pixels.
        width: Columns of pixels.
        channels: 1 (gray), 3 (RGB) or 4 (RGBA).
        dtype: "uint8" (the high 8 bits of 16-bit samples) or "uint16" (8-bit samples times 257).
        orientation: "exif" rotates and mirrors pixels as the file's metadata requires; "stored"
            ignores that metadata.

    Raises:
        InvalidArgument: A row cannot be decoded to the dtype; the message names the first such row.
    """
    # The buffer is aligned, so that TensorFlow does not copy it, and reused, since allocating pages
    # takes time.
    shape = len(encoded_images), height, width, channels
    images = _BUFFERS.borrow([(shape, np.dtype(dtype))], purpose="images")[0]
    decoder = _ImageDecoder(images, orientation=orientation)
    decode_rows(
        encoded_images, present, target=images, decode=decoder, threads_name="featurestore-images"
    )
    return images


def reshape_raw_images(
    encoded_images: NumpyArray,
    present: npt.NDArray[np.bool_] | None,
    *,
    shape: tuple[int, ...],
    dtype: str = "uint8",
) -> Pixels:
    """Reshape raw image bytes, which are the pixels row by row; missing images are zeros.

    Args:
        encoded_images: The bytes of each image, or a uint8 array of shape (rows, bytes), which is
            not copied.
        present: Mask of rows with an image; None if all rows have one.
        shape: Shape of an image.
        dtype: "uint8", or "uint16" (little-endian).

    Raises:
        InvalidArgument: The bytes of an image do not match the shape; the message names the first.

    >>> reshape_raw_images(np.array([b"abcd", b""], object), None, shape=(2, 2, 1))[:, 0, 1, 0].tolist()
    [98, 0]
    """
    samples = np.dtype(dtype).newbyteorder("<")
    size = int(np.prod(shape)) * samples.itemsize
    if encoded_images.dtype == np.uint8:
        if encoded_images.shape[1] != size:
            raise _wrong_size_error(0, encoded_images.shape[1], shape, size=size)
        if samples.itemsize > 1:
            # Copy the array, because its rows may start at an odd address.
            encoded_images = np.frombuffer(encoded_images.tobytes(), dtype=samples)
        return encoded_images.reshape(-1, *shape)
    zeros = b"\0" * size
    images = encoded_images.tolist()
    for row, cell in enumerate(images):
        if not cell or (present is not None and not present[row]):
            images[row] = zeros
        elif len(cell) != size:
            raise _wrong_size_error(row, len(cell), shape, size=size)
    return np.frombuffer(bytearray().join(images), dtype=samples).reshape(-1, *shape)


def _wrong_size_error(
    row: int, byte_count: int, shape: tuple[int, ...], *, size: int
) -> InvalidArgument:
    return InvalidArgument(
        f"Row {row} of the batch has {byte_count} bytes; pixels of shape {shape} have {size}."
    )


def _imagecodecs() -> Any | None:
    """Import and return imagecodecs, or return None if it is not installed."""
    try:
        return importlib.import_module("imagecodecs")
    except ImportError:
        return None


def _png_header(shape: tuple[int, ...]) -> bytes:
    """Return the first bytes of a PNG file that contains uint8 pixels of this shape.

    These are the signature, the length and name of the IHDR chunk, width, height, bit depth and
    color type: https://www.w3.org/TR/png-3/#11IHDR
    """
    height, width, channels = shape
    colors = {1: 0, 3: 2, 4: 6}
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    return b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + size + bytes([8, colors[channels]])


# Keys of Pillow's ``info`` dict under which an orientation may be stored.
_ORIENTED_BY = frozenset({"exif", "Raw profile type exif", "XML:com.adobe.xmp", "xmp"})

_PNG_TEXT_CHUNKS = frozenset({b"tEXt", b"zTXt", b"iTXt"})

_PNG_ORIENTED_BY = (b"Raw profile type exif\0", b"XML:com.adobe.xmp\0")

# The orientation tag of Exif 2.32, and the Pillow transpose method that undoes each of its values.
_ORIENTATION_TAG = 0x0112

_TRANSPOSE = {
    2: "FLIP_LEFT_RIGHT",
    3: "ROTATE_180",
    4: "FLIP_TOP_BOTTOM",
    5: "TRANSPOSE",
    6: "ROTATE_270",
    7: "TRANSVERSE",
    8: "ROTATE_90",
}

_MALFORMED_EXIF = (SyntaxError, ValueError, TypeError, LookupError, OSError, struct.error)


class _ImageDecoder:
    """A decoder that writes images into the rows of an array.

    The libspng decoder of imagecodecs takes three fifths of Pillow's time. It decodes only PNG
    files whose samples are already the output pixels, so that both libraries yield the same pixels.
    Pillow decodes all other files.
    """

    def __init__(self, images: Pixels, *, orientation: str) -> None:
        try:
            from PIL import Image
        except ImportError as error:
            raise missing_extra("pillow", "images") from error
        self._library: Any = Image
        self._images = images
        self._mode = MODES[images.shape[-1]]
        self._size = images.shape[2], images.shape[1]
        self._is_deep = images.dtype == np.uint16
        self._uses_exif = orientation == "exif"
        self._png_start = _png_header(images.shape[1:])
        self._codecs: Any = _imagecodecs()

    def __call__(self, row: int, encoded: bytes) -> None:
        target = self._images[row]
        if self._is_plain_png(encoded):
            try:
                self._codecs.spng_decode(encoded, out=target)
            except (RuntimeError, ValueError):
                pass  # let Pillow decide if the bytes are an image
            else:
                return
        if self._is_deep and _is_deep_color_png(encoded):
            raise InvalidArgument(
                f"Row {row} of the batch is a PNG file with 16-bit colors; 16 bits are supported "
                "only for gray images.",
                hint='t.decode_image(64, dtype="uint8") uses the high 8 bits of each color',
            )
        try:
            with self._library.open(io.BytesIO(encoded), formats=_FORMATS) as file:
                pixels = self._load_pixels(file)
        # Pillow raises SyntaxError for malformed PNG files.
        except (OSError, SyntaxError, ValueError, self._library.DecompressionBombError) as error:
            raise InvalidArgument(
                f"Row {row} of the batch cannot be decoded as an image ({error}); its first bytes "
                f"are {encoded[:8]!r}.",
                hint=f"encoded images are bytes of {', '.join(_FORMATS)} files",
            ) from error
        # Gray pixels have no channel dimension.
        target[:] = pixels.reshape(target.shape)

    def _load_pixels(self, file: Any) -> NumpyArray:
        """Check the declared size of an opened file and return its pixels.

        Raises:
            ValueError: The file declares more than ``MAX_PIXELS``.
        """
        width, height = file.size
        if width * height > MAX_PIXELS:
            raise ValueError(
                f"it declares {width:,} x {height:,} pixels, the limit is {MAX_PIXELS:,}"
            )
        with _LARGE_LOCK if width * height > _LARGE_PIXELS else nullcontext():
            file.load()
            return self._convert_pixels(file)

    def _is_plain_png(self, encoded: bytes) -> bool:
        """Return whether the samples of a PNG file are already the output pixels."""
        if self._codecs is None or self._is_deep or not encoded.startswith(self._png_start):
            return False
        return not (self._uses_exif and _has_png_orientation(encoded))

    def _convert_pixels(self, file: Any) -> NumpyArray:
        """Convert a loaded image to the output size, channels and dtype."""
        transpose = self._find_transpose(file)
        # The mode of 16-bit gray images is "I;16", or "I" before Pillow 11. Do not let Pillow
        # convert them to "L", since it would clip the values.
        if file.mode.startswith("I"):
            return self._convert_deep_gray(file, transpose)
        image = file
        # Pillow warns if a palette with an alpha value for each entry is not converted to RGBA
        # first.
        if file.mode == "P" and isinstance(file.info.get("transparency"), bytes):
            image = file.convert("RGBA")
        if image.mode != self._mode:
            image = image.convert(self._mode)
        pixels = np.asarray(self._orient_and_resize(image, transpose))
        if self._is_deep:
            # 257 maps the range 0 to 255 to the range 0 to 65535.
            return pixels.astype(np.uint16) * np.uint16(257)
        return pixels

    def _convert_deep_gray(self, file: Any, transpose: str | None) -> NumpyArray:
        """Convert a 16-bit gray image, which is resized before it is rounded to 8 bits."""
        samples = np.asarray(file)
        # Resize floats, since Pillow resizes 16-bit integers correctly only since version 10.3.
        planes = [samples.astype(np.float32)] * min(len(self._mode), 3)
        if self._mode == "RGBA":
            is_opaque = samples != file.info.get("transparency", -1)
            planes.append(is_opaque * np.float32(65535))
        fitted = [
            self._orient_and_resize(self._library.fromarray(plane), transpose) for plane in planes
        ]
        pixels = np.rint(np.stack(fitted, axis=-1)).astype(np.uint16)
        if self._is_deep:
            return pixels
        return pixels >> 8

    def _orient_and_resize(self, image: Any, transpose: str | None) -> Any:
        """Transpose an image if necessary, and resize it to the output size."""
        if transpose is not None:
            image = image.transpose(self._library.Transpose[transpose])
        if image.size != self._size:
            image = image.resize(self._size, self._library.Resampling.BILINEAR)
        return image

    def _find_transpose(self, file: Any) -> str | None:
        """Return the transpose method that corrects the EXIF orientation, or None."""
        if not self._uses_exif or _ORIENTED_BY.isdisjoint(file.info):
            return None
        try:
            return _TRANSPOSE.get(file.getexif().get(_ORIENTATION_TAG))
        except _MALFORMED_EXIF:
            return None


def _is_deep_color_png(encoded: bytes) -> bool:
    """Return whether a file is a color PNG with 16 bits per channel."""
    is_png = encoded.startswith(b"\x89PNG\r\n\x1a\n")
    return is_png and encoded[24:26] in (b"\x10\x02", b"\x10\x04", b"\x10\x06")


def _has_png_orientation(encoded: bytes) -> bool:
    """Return whether a PNG file has a chunk that may contain an orientation.

    Only chunk headers are read, because searching all bytes takes as long as decoding with libspng.
    """
    start = 8
    while start < len(encoded):
        name = encoded[start + 4 : start + 8]
        if name == b"eXIf":
            return True
        if name in _PNG_TEXT_CHUNKS and encoded.startswith(_PNG_ORIENTED_BY, start + 8):
            return True
        if name == b"IEND":
            break
        # A chunk has 12 bytes in addition to its data: length, name and checksum.
        start += 12 + int.from_bytes(encoded[start : start + 4], "big")
    return False
