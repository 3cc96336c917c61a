"""Decompression of files: gzip, bz2 and zstd by Arrow, xz and zip archives of one file by Python."""

from __future__ import annotations

import lzma
import struct
import zipfile
import zlib
from io import BufferedReader, RawIOBase
from typing import IO, Any

import pyarrow as pa

from featurestore.errors import listing
from featurestore_connectors.sources.locations import is_visible

# The extensions of compressed files.
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd", ".xz": "xz", ".zip": "zip"}
_CHUNK_BYTES = 1 << 20
# A header may request more than the 65 MiB of ``xz -9``; without a limit, up to 4 GiB.
_XZ_MEMORY = 512 << 20
_XZ_PADDING = b"\0"
# The errors of Python's readers for damaged files, and of Arrow for invalid positions (ValueError).
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    NotImplementedError,
    OverflowError,
    ValueError,
)


class ArchiveError(OSError):
    """A zip archive does not have exactly one file, or the file is encrypted."""


def decompress(file: pa.NativeFile, compression: str) -> pa.NativeFile:
    """Return the decompressed stream of a file; closing it closes the file.

    Raises:
        OSError: The file is not a zip archive, although its name has this extension. Other damages
            are errors of the stream.
        ArchiveError: A zip archive cannot be read as one file.
    """
    if compression in ("xz", "zip"):
        stream = _XzStream(file) if compression == "xz" else _ZipStream(file)
        # The streams return fewer bytes than requested, which Arrow takes for the end of a block.
        return pa.PythonFile(BufferedReader(stream, _CHUNK_BYTES), mode="r")
    return pa.CompressedInputStream(file, compression)


class _Stream(RawIOBase):
    """A readable stream whose errors are of type OSError, for Arrow."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__()
        self._file = file

    def close(self) -> None:
        self._file.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        try:
            data = self._read_bytes(len(target))
        except _DAMAGED as error:
            raise OSError(str(error)) from error
        target[: len(data)] = data
        return len(data)

    def _read_bytes(self, max_bytes: int) -> bytes:
        """Return the next bytes, at most ``max_bytes``, or b"" at the end."""
        raise NotImplementedError


class _XzStream(_Stream):
    """The streams of an xz file, one after another.

    Python's reader takes invalid bytes after the first stream for the end of the file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        self._stream: lzma.LZMADecompressor | None = None

    def _read_bytes(self, max_bytes: int) -> bytes:
        compressed = b""
        while True:
            if self._stream is None or self._stream.eof:
                compressed = b"" if self._stream is None else self._stream.unused_data
                # Streams may be followed by zeros.
                while not (compressed := compressed.lstrip(_XZ_PADDING)):
                    compressed = self._file.read(_CHUNK_BYTES)
                    if not compressed:
                        return b""
                self._stream = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY)
            elif self._stream.needs_input:
                compressed = self._file.read(_CHUNK_BYTES)
                if not compressed:
                    raise EOFError("Truncated compressed stream")
            data = self._stream.decompress(compressed, max_bytes)
            compressed = b""
            if data:
                return data


class _ZipStream(_Stream):
    """The only file of a zip archive; the checksum is verified at its end."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file)
        try:
            self._archive = zipfile.ZipFile(file)
            members = [member for member in self._archive.infolist() if _is_data(member)]
            if len(members) != 1:
                names = [member.filename for member in members]
                raise ArchiveError(f"the archive has {len(names)} files: {listing(names)}")
            if members[0].flag_bits & 1:
                raise ArchiveError("the archive is encrypted")
            self._member = self._archive.open(members[0])
        except _DAMAGED as error:
            raise OSError(f"invalid zip archive: {error}") from error

    def close(self) -> None:
        self._member.close()
        self._archive.close()
        super().close()

    def _read_bytes(self, max_bytes: int) -> bytes:
        return self._member.read(max_bytes)


def _is_data(member: zipfile.ZipInfo) -> bool:
    """Return whether an entry is a file that is not hidden, unlike those that macOS adds."""
    return not member.filename.endswith("/") and all(map(is_visible, member.filename.split("/")))
