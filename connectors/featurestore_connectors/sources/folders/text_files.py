"""Text files: their encodings, and the lines and records of CSV by Python's strict parser.

If the bytes of a file do not match the declared encoding, another one is proposed. Byte order marks
and zero bytes identify UTF-16 and UTF-32. Other bytes are text in nearly every encoding of one byte
per character, so the proposal is shown with a line that it decodes.
"""

from __future__ import annotations

import codecs
import csv
import io
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from featurestore.errors import InvalidSourceFile
from featurestore_connectors.sources.folders.listing import FolderFile
from featurestore_connectors.sources.folders.options import TableName
from featurestore_connectors.sources.folders.tables import truncate_text

_CHUNK_BYTES = 1 << 20
_HEAD_BYTES = 4096
# The limit of a line and of a field. Arrow's parser also refuses records of this size.
_LONGEST = 64 << 20
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


@dataclass(frozen=True)
class CsvDialect:
    """A CSV dialect. Lines that begin with ``comment`` are not records."""

    delimiter: str = ","
    quote: str = '"'
    escape: str = ""
    header: bool = True
    encoding: str = "utf-8"
    null_values: tuple[str, ...] = ()
    skip_rows: int = 0
    comment: str = ""


# -- encodings -------------------------------------------------------------------------------------


def encoding_error(file: FolderFile, declared: str, table: TableName) -> InvalidSourceFile:
    """Return the error for bytes that are not text in the declared encoding."""
    encoding = detect_encoding(file, declared)
    line = undecodable_line(file, declared)
    position = "" if line is None else f" line {line[0]}"
    hint = f"{table.call(encoding=encoding)} reads every byte"
    if line is not None and not encoding.startswith("utf"):
        text = truncate_text(line[1].decode(encoding).rstrip("\r"))
        hint = f"{hint}, and this line as {text!r}"
    return table.invalid_file_error(
        f"{file.name}{position}: the bytes are not {declared}.", hint=hint
    )


def conversion_hint(file: FolderFile) -> str:
    """Return a command that converts a file to UTF-8, for formats without another encoding."""
    name = shlex.quote(file.name)
    return f"iconv -f {detect_encoding(file, 'utf-8')} -t utf-8 {name} converts it"


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


def contradicts_mark(file: FolderFile, encoding: str) -> bool:
    """Return whether a file is UTF-8 with a byte order mark, but has another declared encoding.

    Encodings of one byte per character decode such a file, with other characters.
    """
    if encoding.startswith("utf"):
        return False
    with file.open() as stream:
        has_mark = stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8
    return has_mark and _decodes(file, "utf-8")


def has_undecodable_lines(file: FolderFile, encoding: str) -> bool:
    """Return whether single lines of a file are not text in an encoding.

    Return False for encodings of 16 and 32 bits, whose undecodable bytes hide the following lines.
    """
    return not encoding.startswith(_WIDE) and not _decodes(file, encoding)


def replace_undecoded(text: str) -> str:
    r"""Return text of ``Lines`` with a replacement character for each undecoded byte.

    >>> replace_undecoded(b"Z\xfcrich".decode(errors="surrogateescape"))
    'Z\ufffdrich'
    """
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


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
    except UnicodeError:
        return False
    return True


def _is_decodable(line: bytes, encoding: str) -> bool:
    try:
        line.decode(encoding)
    except UnicodeError:
        return False
    return True


# -- lines and records of CSV ----------------------------------------------------------------------


class PlainQuotes:
    """Check incrementally that the quotes of a file clearly follow RFC 4180.

    Quotes alternately open and close a field; a doubled quote closes and reopens it. Quotes are
    plain if each opening quote follows a delimiter, a line end or a quote, and each closing quote
    precedes a delimiter, a line end or a quote.
    """

    def __init__(self, dialect: CsvDialect) -> None:
        self._quote = ord(dialect.quote)
        self._neighbors = np.zeros(256, dtype=bool)
        self._neighbors[[*dialect.delimiter.encode(), *b"\r\n", self._quote]] = True
        self._last = ord("\n")
        self._count = 0
        self.are_plain = not dialect.escape

    @property
    def are_open(self) -> bool:
        """Whether the last quote opens a field."""
        return self._count % 2 == 1

    def update(self, data: npt.NDArray[np.uint8]) -> None:
        """Check the next chunk of bytes."""
        positions = np.flatnonzero(data == self._quote)
        neighbors = self._neighbors
        if self._last == self._quote and self._count and not self.are_open:
            # The last quote of the previous chunk closes a field, or is the first of a doubled
            # quote.
            self.are_plain &= bool(neighbors[data[0]])
        if len(positions):
            # After an even number of quotes, the next quote opens a field.
            opening = positions[self._count % 2 :: 2]
            closing = positions[1 - self._count % 2 :: 2]
            before = np.where(opening > 0, data[opening - 1], self._last)
            after = data[closing[closing < len(data) - 1] + 1]
            self.are_plain &= bool(neighbors[before].all() and neighbors[after].all())
            self._count += len(positions)
        self._last = int(data[-1])


class SelectedLines(io.RawIOBase):
    """A UTF-8 stream of a file's lines, without skipped lines and comments.

    ``replaces_bytes`` replaces undecodable bytes, which are an error otherwise.
    """

    def __init__(
        self, file: FolderFile, dialect: CsvDialect, *, replaces_bytes: bool = False
    ) -> None:
        super().__init__()
        self._errors = "replace" if replaces_bytes else "strict"
        self._text = file.open_text(
            dialect.encoding, errors="surrogateescape" if replaces_bytes else "strict"
        )
        self._lines = Lines(self._text, dialect)
        self._remainder = b""

    def close(self) -> None:
        self._text.close()
        super().close()

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        target = memoryview(buffer).cast("B")
        data = self._read_bytes(len(target))
        target[: len(data)] = data
        return len(data)

    def _read_bytes(self, max_bytes: int) -> bytes:
        """Return at most ``max_bytes`` bytes of the selected lines, or b"" at the end."""
        # Arrow requests a number of bytes, which rarely ends at a line end.
        lines = [self._remainder]
        size = len(self._remainder)
        while size < max_bytes:
            line = next(self._lines, None)
            if line is None:
                break
            lines.append(line.encode(errors=self._errors))
            size += len(lines[-1])
        data = b"".join(lines)
        self._remainder = data[max_bytes:]
        return data[:max_bytes]


class Lines:
    """Iterator over the lines that are not skipped; ``number`` is the line number, from 1.

    Raises:
        InvalidCsv: A line is too long. Otherwise a file without line ends would be buffered completely.
    """

    def __init__(self, text: TextIO, dialect: CsvDialect) -> None:
        self._text = iter(partial(text.readline, _LONGEST), "")
        self._dialect = dialect
        self._is_quoted = False
        self.number = 0
        self.first: int | None = None

    def __iter__(self) -> Iterator[str]:
        return self

    def __next__(self) -> str:
        while True:
            line = next(self._text)
            self.number += 1
            if len(line) == _LONGEST:
                raise InvalidCsv(
                    self.number, f"the line has {_LONGEST} characters or more", has_quotes=False
                )
            # Arrow's parser also omits a byte order mark, which the decoder keeps if the name of the
            # encoding has a byte order.
            if self.number == 1:
                line = line.removeprefix("\ufeff")
            if self.number > self._dialect.skip_rows and not self._is_comment(line):
                break
        if self.first is None:
            self.first = self.number
        self._is_quoted ^= self._toggles_quote(line)
        return line

    def _is_comment(self, line: str) -> bool:
        mark = self._dialect.comment
        # A line inside a quoted field is data, even if it begins with the mark.
        return bool(mark) and not self._is_quoted and line.startswith(mark)

    def _toggles_quote(self, line: str) -> bool:
        quote, escape = self._dialect.quote, self._dialect.escape
        if not quote or quote not in line:
            return False
        if escape:
            line = line.replace(escape * 2, "").replace(escape + quote, "")
        return line.count(quote) % 2 == 1


class InvalidCsv(ValueError):
    """A record is not valid CSV. ``line`` is the number of its first line.

    ``has_quotes`` is whether its quotes are the reason.
    """

    def __init__(self, line: int, reason: str, *, has_quotes: bool = True) -> None:
        super().__init__(reason)
        self.line = line
        self.has_quotes = has_quotes


def data_records(
    file: FolderFile, dialect: CsvDialect, *, width: int
) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each data record, of any number of fields.

    An empty line is a null if the table has one column, and is skipped otherwise.
    """
    is_header = dialect.header
    for line, fields in records(file, dialect):
        if not fields and (is_header or width > 1):
            continue
        if is_header:
            is_header = False
            continue
        yield line, fields or [""]


def records(file: FolderFile, dialect: CsvDialect) -> Iterator[tuple[int, list[str]]]:
    """Yield the first line number and the fields of each record; the header is the first record.

    Empty lines are []. Bytes that are not text in the declared encoding are lone surrogates, as of
    Python's error handler ``surrogateescape``.

    Raises:
        InvalidCsv: A record is not valid CSV.
        UnicodeError: The file has such bytes, in an encoding of 16 or 32 bits, or lacks its byte order
            mark.
    """
    # Python refuses fields of more than 128 KiB by default.
    if csv.field_size_limit() < _LONGEST:
        csv.field_size_limit(_LONGEST)
    with file.open_text(dialect.encoding, errors="surrogateescape") as text:
        lines = Lines(text, dialect)
        reader = csv.reader(
            lines,
            delimiter=dialect.delimiter,
            quotechar=dialect.quote or None,
            quoting=csv.QUOTE_MINIMAL if dialect.quote else csv.QUOTE_NONE,
            escapechar=dialect.escape or None,
            strict=True,
        )
        while True:
            # A quoted field may contain line ends, so a record is identified by its first line.
            lines.first = None
            try:
                fields = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                raise InvalidCsv(lines.first or lines.number, _short_message(str(error))) from None
            yield lines.first or lines.number, fields


def _short_message(message: str) -> str:
    # The messages are those of Python's csv module in strict mode.
    if "unexpected end" in message:
        return "a quote is opened and never closed"
    if "expected after" in message:
        return "text follows a closing quote"
    if "field limit" in message:
        return f"a field has more than {_LONGEST} characters, perhaps because of an unclosed quote"
    return message
