"""Detection of the encoding of a text file whose bytes do not match the declared encoding.

Byte order marks and zero bytes identify UTF-16 and UTF-32. Other bytes are text in nearly every encoding of
one byte per character, so the proposal is shown with a line that it decodes.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator

from featurestore_connectors.sources.folders.listing import FolderFile

_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 4096
# UTF-32 comes first, since its little-endian mark begins with the mark of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
# Windows-1252 assigns these bytes to no character; ISO 8859-1 assigns every byte.
_UNASSIGNED = bytes([0x81, 0x8D, 0x8F, 0x90, 0x9D])
_WIDE = ("utf-16", "utf-32")


def detect_encoding(file: FolderFile, declared: str) -> str:
    """Return the name of an encoding that decodes every byte of a file.

    Args:
        file: The file.
        declared: The encoding that does not decode the file.
    """
    with file.open() as stream:
        head = stream.read(_HEAD_BYTES)
    for mark, encoding in _MARKS:
        if head.startswith(mark):
            return encoding
    # Text of UTF-16 in Latin letters has a zero in every second byte.
    zeros = (head[::2].count(0), head[1::2].count(0))
    if max(zeros) * 4 > len(head):
        return "utf-16-be" if zeros[0] > zeros[1] else "utf-16-le"
    if declared != "utf-8" and _decodes(file, "utf-8"):
        return "utf-8"
    if any(byte in chunk for chunk in _chunks(file) for byte in _UNASSIGNED):
        return "latin-1"
    return "cp1252"


def undecodable_line(file: FolderFile, encoding: str) -> tuple[int, bytes] | None:
    """Return number and bytes of the first line that an encoding does not decode.

    Return None for encodings of 16 and 32 bits, where the byte of a line feed occurs in other
    characters.
    """
    if encoding.startswith(_WIDE):
        return None
    number, remainder = 0, b""
    for chunk in _chunks(file):
        *lines, remainder = (remainder + chunk).split(b"\n")
        for line in lines:
            number += 1
            if not _is_decodable(line, encoding):
                return number, line
    return None if _is_decodable(remainder, encoding) else (number + 1, remainder)


def _chunks(file: FolderFile) -> Iterator[bytes]:
    with file.open() as stream:
        while chunk := stream.read(_CHUNK_BYTES):
            yield chunk


def _decodes(file: FolderFile, encoding: str) -> bool:
    decoder = codecs.getincrementaldecoder(encoding)()
    try:
        for chunk in _chunks(file):
            decoder.decode(chunk)
        decoder.decode(b"", final=True)
    except UnicodeDecodeError:
        return False
    return True


def _is_decodable(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True
