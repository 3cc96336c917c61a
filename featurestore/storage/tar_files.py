"""Regular files in tar archives: read as a stream in bounded memory, and written with equal bytes.

Archives come from other machines. Names are never used as paths, every size is checked before it is
used, and links, devices and sparse files are refused. An archive without the blocks of zeros at its end
is truncated.

https://pubs.opengroup.org/onlinepubs/9699919799/utilities/pax.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

BLOCK = 512
_ZEROS = bytes(BLOCK)
_CHUNK_BYTES = 1 << 20
# Extended headers have names, and attributes that are not read.
_MAX_HEADER_BYTES = 1 << 20
MAX_NAME_BYTES = 100
_REGULAR, _FOLDER = (b"0", b"\0", b"7"), b"5"
_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK = b"x", b"g", b"L", b"K"
_TYPES = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
    b"S": "a sparse file",
}


class ByteStream(Protocol):
    """A file that is read from its beginning to its end."""

    def read(self, size: int, /) -> Any:
        """Return at most ``size`` bytes; fewer only at the end."""
        ...


@dataclass(frozen=True)
class TarMember:
    """A regular file of an archive: its name, its size, and the position of its header."""

    name: str
    size: int
    header: int


class TarReader:
    """The regular files of an archive in order; ``read`` returns the content of the last one.

    With ``size``, the stream has that many bytes of members, without the end of an archive. Errors are
    ``ValueError`` with the position in the archive.
    """

    def __init__(self, stream: ByteStream, *, size: int | None = None) -> None:
        self._stream = stream
        self._size = size
        self._position = 0
        self._unread = 0
        self._padding = 0

    def __iter__(self) -> Iterator[TarMember]:
        extended: dict[str, str] = {}
        while True:
            self._skip(self._unread + self._padding)
            self._unread = self._padding = 0
            start = self._position
            if start == self._size:
                return
            header = self._read_exactly(BLOCK, start)
            if header == _ZEROS:
                self._check_end()
                return
            _check_sum(header, start)
            member_type, size = header[156:157], _parse_size(header[124:136], start)
            if member_type in (_PAX, _PAX_GLOBAL, _LONG_NAME, _LONG_LINK):
                content = self._read_extended(size, start)
                if member_type == _PAX:
                    extended |= _parse_records(content, start)
                elif member_type == _LONG_NAME:
                    extended["path"] = _decode(content.rstrip(b"\0"), start)
                continue
            size = int(extended.get("size", size))
            name = extended.get("path") or _parse_name(header, start)
            extended = {}
            if member_type == _FOLDER:
                continue
            if member_type not in _REGULAR:
                description = _TYPES.get(member_type, f"of the unknown type {member_type!r}")
                raise ValueError(f"{name!r} at byte {start} is {description}")
            self._unread, self._padding = size, -size % BLOCK
            yield TarMember(name, size, start)

    def read(self, size: int | None = None) -> bytes:
        """Return the content of the last member, or its first bytes; the caller checks its size."""
        size = self._unread if size is None else min(size, self._unread)
        self._unread -= size
        return self._read_exactly(size, self._position)

    def _read_extended(self, size: int, start: int) -> bytes:
        if size > _MAX_HEADER_BYTES:
            raise ValueError(f"the extended header at byte {start} has {size:,} bytes")
        return self._read_exactly(size + -size % BLOCK, start)[:size]

    def _read_exactly(self, size: int, start: int) -> bytes:
        data = bytes(self._stream.read(size))
        self._position += len(data)
        if len(data) < size:
            raise ValueError(f"it is truncated in the member at byte {start}")
        return data

    def _skip(self, size: int) -> None:
        while size:
            data = self._read_exactly(min(size, _CHUNK_BYTES), self._position)
            size -= len(data)

    def _check_end(self) -> None:
        """Refuse an archive with other blocks than zeros after its end."""
        blocks = 1
        while data := bytes(self._stream.read(_CHUNK_BYTES)):
            if data.count(0) < len(data):
                raise ValueError(f"bytes follow its end at byte {self._position}")
            blocks += len(data) // BLOCK
        if blocks < 2:
            raise ValueError(f"it is truncated at byte {self._position}")


def write_header(name: str, size: int) -> bytes:
    """Return the header of a regular file, which has no owner and no time.

    ``name`` has at most ``MAX_NAME_BYTES`` bytes.

    >>> len(write_header("0001.json", 12))
    512
    """
    # The extension of GNU for files of 8 GiB and more.
    size_field = b"%011o\0" % size if size < 8**11 else b"\x80" + size.to_bytes(11, "big")
    fields = (
        name.encode().ljust(MAX_NAME_BYTES, b"\0"),
        b"0000644\0" + b"0000000\0" * 2,
        size_field,
        b"00000000000\0",
    )
    before = b"".join(fields)
    after = (b"0" + bytes(100) + b"ustar\x0000").ljust(BLOCK - len(before) - 8, b"\0")
    # The sum is computed with spaces in its own field.
    total = sum(before) + sum(after) + 8 * 32
    return before + b"%06o\0 " % total + after


def _parse_size(field: bytes, start: int) -> int:
    if field[0] & 0x80:
        size = int.from_bytes(field[1:], "big")
        if field[0] != 0x80 or size >= 2**63:
            raise ValueError(f"the header at byte {start} has an invalid size")
        return size
    return _parse_octal(field, start)


def _parse_octal(field: bytes, start: int) -> int:
    digits = field.strip(b" \0")
    try:
        return int(digits, 8) if digits else 0
    except ValueError:
        raise ValueError(f"no header of a tar archive begins at byte {start}") from None


def _check_sum(header: bytes, start: int) -> None:
    total = sum(header) - sum(header[148:156]) + 8 * 32
    if _parse_octal(header[148:156], start) != total:
        raise ValueError(f"no header of a tar archive begins at byte {start}")


def _parse_name(header: bytes, start: int) -> str:
    name = header[:MAX_NAME_BYTES].split(b"\0")[0]
    # The format of GNU has other fields where that of POSIX has a prefix.
    prefix = header[345:500].split(b"\0")[0] if header[257:263] == b"ustar\0" else b""
    return _decode(prefix + b"/" + name if prefix else name, start)


def _decode(name: bytes, start: int) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise ValueError(f"the name of the member at byte {start} is not UTF-8") from None


def _parse_records(content: bytes, start: int) -> dict[str, str]:
    """Return the records of an extended header that change how a member is read."""
    records = {}
    while content.strip(b"\0"):
        length_text, _, _ = content.partition(b" ")
        length = int(length_text) if length_text.isdigit() and len(length_text) < 8 else 0
        record = content[len(length_text) + 1 : length]
        key, equals, value = record.removesuffix(b"\n").partition(b"=")
        if not length or not equals or not record.endswith(b"\n"):
            raise ValueError(f"the extended header at byte {start} is damaged")
        if key.startswith(b"GNU.sparse"):
            raise ValueError(f"the member at byte {start} is a sparse file")
        if key == b"path" or (key == b"size" and value.isdigit() and len(value) < 19):
            records[key.decode()] = _decode(value, start)
        elif key == b"size":
            raise ValueError(f"the extended header at byte {start} has an invalid size")
        content = content[length:]
    return records
