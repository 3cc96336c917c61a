"""Bounds of bodies that clients send, which are checked before a body is parsed.

A JSON parser takes memory for each value, recurses at each level, and converts long numbers slowly.
A compressed buffer of an Arrow IPC message starts with its uncompressed length, and the message
metadata lists all buffers (https://arrow.apache.org/docs/format/Columnar.html#recordbatch-message).
Arrow allocates the declared lengths, so their sum is the memory that a message requires.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa

from featurestore.arrow.stream_messages import FlatTable
from featurestore.errors import InvalidArgument, LimitExceeded

# Limits in bytes: an uncompressed message, all dictionaries together, and message metadata.
MESSAGE_BYTES = 64 << 20
DICTIONARY_BYTES = 256 << 20
METADATA_BYTES = 4 << 20
# Limit on rows without bytes, such as in null columns.
EMPTY_ROWS = 1 << 20
MESSAGES = 1 << 18
# Limits for streams that remain memory-mapped: each batch needs some memory for objects.
_MAPPED_BATCHES, _MAPPED_METADATA = 4096, 64 << 20
_DICTIONARY, _BATCH = "dictionary", "record batch"
_SPLIT_HINT = "send smaller batches, or disable compression"


@dataclass(frozen=True)
class StreamShape:
    """The declared sizes of a stream.

    If ``is_mapped``, batches can be read from the memory map without copying.
    """

    batches: int
    bytes: int
    is_mapped: bool


def check_messages(data: pa.Buffer, *, max_bytes: int) -> StreamShape:
    """Check all messages in a stream against the limits and return the shape of the stream.

    Args:
        data: The stream, in memory or memory-mapped.
        max_bytes: The maximum uncompressed size of all messages together.

    Raises:
        LimitExceeded: A message, the dictionaries or the rows exceed a limit.
        InvalidArgument: The metadata of a message contradicts its body.
        pyarrow.ArrowException: The data is not an Arrow IPC stream.
    """
    total = dictionaries = batches = metadata = 0
    is_mapped = True
    for message in _messages(data):
        if message.metadata.size > METADATA_BYTES:
            raise LimitExceeded(
                f"The metadata of an Arrow message has {message.metadata.size:,} bytes; the limit "
                f"is {METADATA_BYTES:,}.",
                hint="send fewer columns",
            )
        if message.type not in (_BATCH, _DICTIONARY):
            continue
        rows, unpacked, is_compressed = _declared_sizes(message)
        total += unpacked
        metadata += message.metadata.size
        # Uncompressed batches are read from the memory map and need no memory of their own.
        if is_compressed and unpacked > MESSAGE_BYTES:
            raise LimitExceeded(
                f"A record batch has {unpacked:,} bytes uncompressed; the limit is "
                f"{MESSAGE_BYTES:,}.",
                hint=_SPLIT_HINT,
            )
        if total > max_bytes:
            raise LimitExceeded(f"The rows have more than {max_bytes:,} bytes uncompressed.")
        # A column with values has at least one bit per row.
        if rows > EMPTY_ROWS + 8 * unpacked:
            raise LimitExceeded(
                f"A record batch declares {rows:,} rows in {unpacked:,} bytes.",
                hint="omit columns of type null",
            )
        if message.type == _DICTIONARY:
            dictionaries += unpacked
            is_mapped = False
        else:
            batches += 1
        is_mapped = is_mapped and not is_compressed
        if batches > MESSAGES:
            raise LimitExceeded(
                f"The stream has more than {MESSAGES:,} record batches.", hint="send larger batches"
            )
        if dictionaries > DICTIONARY_BYTES:
            raise LimitExceeded(
                f"The dictionaries have more than {DICTIONARY_BYTES:,} bytes in total.",
                hint="send plain values, without dictionaries",
            )
    is_small = batches <= _MAPPED_BATCHES and metadata <= _MAPPED_METADATA
    return StreamShape(batches, total, is_mapped and is_small)


def _messages(data: pa.Buffer) -> Iterator[pa.Message]:
    reader = pa.ipc.MessageReader.open_stream(pa.BufferReader(data))
    while True:
        try:
            yield reader.read_next_message()
        except StopIteration:
            return


def _declared_sizes(message: pa.Message) -> tuple[int, int, bool]:
    """Return a message's declared rows and uncompressed bytes, and whether it is compressed."""
    try:
        # Field numbers of Message.fbs: the header of a Message is 2, the data of a DictionaryBatch
        # is 1; a RecordBatch has length 0, buffers 2 and compression 3.
        batch = FlatTable.root(message.metadata).table(2)
        if batch is not None and message.type == _DICTIONARY:
            batch = batch.table(1)
        if batch is None:
            raise InvalidArgument("An Arrow message has no record batch.")
        buffers = batch.pairs(2)
        rows = batch.integer(0)
        is_compressed = batch.table(3) is not None
    except struct.error as error:
        raise InvalidArgument(f"The metadata of a record batch is damaged: {error}.") from error
    if rows < 0:
        raise InvalidArgument(f"A record batch declares {rows:,} rows.")
    size = sum(_unpacked_size(message.body, buffer, is_compressed) for buffer in buffers)
    return rows, size, is_compressed


def _unpacked_size(body: pa.Buffer, buffer: tuple[int, int], is_compressed: bool) -> int:
    """Return the uncompressed size of a buffer in bytes."""
    offset, length = buffer
    if offset < 0 or length < 0 or offset + length > body.size:
        raise InvalidArgument("A buffer exceeds the body of its Arrow message.")
    if not is_compressed or length == 0:
        return length
    if length < 8:
        raise InvalidArgument("A compressed buffer is shorter than its length field.")
    (declared,) = struct.unpack_from("<q", body, offset)
    if declared < -1:
        raise InvalidArgument("A compressed buffer declares a negative length.")
    # A length of -1 marks an uncompressed buffer.
    return length - 8 if declared == -1 else int(declared)


MAX_DEPTH = 100
MAX_VALUES = 250_000
MAX_DIGITS = 1_000
# All bytes except the brackets of lists and objects.
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_DIGITS = re.compile(rb"[0-9]+")


def check_json(text: bytes) -> None:
    """Check depth, number of values and lengths of numbers in a JSON text, in linear time.

    The text may be invalid JSON: the bounds hold for each prefix that a parser accepts.

    >>> check_json(b'{"a": [1, 2, "[[["]}')

    Raises:
        LimitExceeded: The text exceeds a limit.
        InvalidArgument: The text is not UTF-8.
    """
    # Python's parser detects UTF-16 and UTF-32, whose structure this function does not see.
    try:
        text.decode()
    except UnicodeDecodeError:
        raise InvalidArgument("The JSON text is not UTF-8.") from None
    if b"\0" in text:
        raise InvalidArgument("The JSON text contains a zero byte.")
    # Without escaped backslashes and quotes, each quote begins or ends a string.
    unescaped = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    structure = b'"'.join(unescaped.split(b'"')[::2])
    values = structure.count(b",") + structure.count(b"[") + structure.count(b"{")
    if values > MAX_VALUES:
        raise LimitExceeded(f"The JSON text has {values:,} values; the limit is {MAX_VALUES:,}.")
    depth = 0
    for bracket in structure.translate(None, _NO_BRACKETS):
        depth += 1 if bracket in b"[{" else -1
        if depth > MAX_DEPTH:
            raise LimitExceeded(f"The JSON text has more than {MAX_DEPTH} levels.")
    for digits in _DIGITS.finditer(structure):
        if digits.end() - digits.start() > MAX_DIGITS:
            raise LimitExceeded(
                f"A number in the JSON text has more than {MAX_DIGITS:,} digits.",
                hint="send long numbers as strings",
            )
