"""Decoding of audio files into arrays of floats of one shape.

libsndfile decodes the files. It reads some truncated files to their early end, so lengths are
compared with those that the files declare.
"""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidArgument, missing_extra
from featurestore.readers.columns import NumpyArray
from featurestore.readers.prefetch import BufferPool
from featurestore.transform.images import decode_rows

# First bytes of the allowed formats. Decoders of other formats are not trusted with dataset files.
_WAV, _FLAC, _OGG, _MP3_TAG = b"RIFF", b"fLaC", b"OggS", b"ID3"
_FORMATS = "WAV, FLAC, OGG (Vorbis, Opus) and MP3"
# The size in the header of WAV files that were written to a pipe.
_UNKNOWN_SIZES = (0, 0xFFFFFFFF)
_RIFF_HEADER = 8
_TRUNCATED = "the file is truncated"
_OGG_HEADER, _OGG_LAST_PAGE = 27, 4
# A header of a few bytes may declare a thousand channels, whose samples are decoded together.
MAX_CHANNELS = 32
_BUFFERS = BufferPool()


def decode_audio(
    files: NumpyArray,
    present: npt.NDArray[np.bool_] | None,
    *,
    samples: int,
    sample_rate: int,
    channels: int,
) -> npt.NDArray[np.float32]:
    """Decode audio files into an array of shape (rows, samples, channels); missing ones are zeros.

    The first samples of longer files are used; shorter files are followed by zeros. Values are
    between -1 and 1, integers of 8 to 24 bits exactly.

    Args:
        files: The bytes of WAV, FLAC, OGG or MP3 files; empty bytes are padding.
        present: Mask of rows with a file; None if all rows have one.
        samples: Samples per channel.
        sample_rate: Samples per second, which all files must have.
        channels: Channels of each file; with 1, the mean of several channels is used.

    Raises:
        InvalidArgument: A file cannot be decoded, is truncated, or has another sample rate or
            number of channels; the message names the first such row.
    """
    shape = len(files), samples, channels
    decoded = _BUFFERS.borrow([(shape, np.dtype(np.float32))], purpose="audio")[0]
    decoder = _AudioDecoder(decoded, sample_rate=sample_rate)
    decode_rows(files, present, target=decoded, decode=decoder, threads_name="featurestore-audio")
    return decoded


class _AudioDecoder:
    """A decoder that writes the samples of files into the rows of an array."""

    def __init__(self, decoded: npt.NDArray[np.float32], *, sample_rate: int) -> None:
        try:
            import soundfile
        # The module fails with OSError where the library libsndfile is missing.
        except (ImportError, OSError) as error:
            raise missing_extra("soundfile", "audio") from error
        self._library: Any = soundfile
        self._decoded = decoded
        self._sample_rate = sample_rate

    def __call__(self, row: int, encoded: bytes) -> None:
        problem = _find_problem(encoded)
        if problem is not None:
            raise _undecodable_error(row, encoded, problem)
        try:
            with self._library.SoundFile(io.BytesIO(encoded)) as file:
                values = self._read(row, file)
        except self._library.LibsndfileError as error:
            raise _undecodable_error(row, encoded, str(error)) from error
        if values is None:
            raise _undecodable_error(row, encoded, _TRUNCATED)
        self._decoded[row, : len(values)] = values
        self._decoded[row, len(values) :] = 0

    def _read(self, row: int, file: Any) -> npt.NDArray[np.float32] | None:
        """Return the samples of an opened file, or None if it ends before its declared length."""
        _, samples, channels = self._decoded.shape
        if file.samplerate != self._sample_rate:
            raise InvalidArgument(
                f"Row {row} of the batch has {file.samplerate:,} samples per second, not "
                f"{self._sample_rate:,}.",
                hint=f"resample the files, or use sample_rate={file.samplerate}",
            )
        if file.channels > MAX_CHANNELS:
            raise InvalidArgument(
                f"Row {row} of the batch declares {file.channels} channels, the limit is "
                f"{MAX_CHANNELS}."
            )
        if channels not in (1, file.channels):
            raise InvalidArgument(
                f"Row {row} of the batch has {file.channels} channels, not {channels}.",
                hint="channels=1 uses the mean of the channels",
            )
        expected = min(samples, file.frames)
        values: npt.NDArray[np.float32] = file.read(expected, dtype="float32", always_2d=True)
        if len(values) < expected:
            return None
        if values.shape[1] == channels:
            return values
        # The mean of float32 values may differ by platform in the last bit.
        mean = values.mean(axis=1, dtype=np.float64, keepdims=True)
        return mean.astype(np.float32)


def _undecodable_error(row: int, encoded: bytes, reason: str) -> InvalidArgument:
    return InvalidArgument(
        f"Row {row} of the batch cannot be decoded as audio ({reason}); its first bytes are "
        f"{encoded[:8]!r}.",
        hint=f"audio files are bytes of {_FORMATS} files",
    )


def _find_problem(encoded: bytes) -> str | None:
    """Return why a file is not decoded: its format, or an end that libsndfile does not notice.

    The header of a WAV file has its size. In an OGG file, the flags of a page are its sixth byte,
    and the sizes of its segments follow a header of 27 bytes:
    https://www.rfc-editor.org/rfc/rfc3533#section-6
    """
    if encoded.startswith(_WAV) and encoded[8:12] == b"WAVE":
        size = int.from_bytes(encoded[4:8], "little")
        # Some writers omit the last padding byte.
        is_complete = size in _UNKNOWN_SIZES or len(encoded) >= size + _RIFF_HEADER - 1
        return None if is_complete else _TRUNCATED
    if encoded.startswith(_OGG):
        page = encoded[encoded.rfind(_OGG) :]
        if len(page) < _OGG_HEADER or not page[5] & _OGG_LAST_PAGE:
            return _TRUNCATED
        segments = page[_OGG_HEADER : _OGG_HEADER + page[26]]
        is_complete = len(page) >= _OGG_HEADER + page[26] + sum(segments)
        return None if is_complete else _TRUNCATED
    # A frame of MP3 begins with eleven bits that are set.
    is_mp3_frame = encoded[:1] == b"\xff" and encoded[1:2] >= b"\xe0"
    return None if is_mp3_frame or encoded.startswith((_FLAC, _MP3_TAG)) else "unknown format"
