"""Rows of an upload as plain batches on disk: unpacked and decoded in steps of bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import IO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, LimitExceeded
from featurestore.model.time_limits import check_time
from featurestore.server.streams.arrow_bounds import MESSAGE_BYTES

_WRITE_BYTES = 8 << 20
_WRITE_BATCHES = 256
_SLICE_ROWS = 65_536
# Types of newer releases of Arrow, by what they are called: each value points to its bytes.
_VIEWS = {"string_view": pa.large_string(), "binary_view": pa.large_binary()}
_LIST_VIEW = "list_view<"
# Uploads that are unpacked at the same time; others wait for their turn.
_TURNS = threading.BoundedSemaphore(4)


def write_plain(reader: pa.RecordBatchReader, file: IO[bytes], *, most: int) -> None:
    """Write the rows of a stream into a file: without compression, dictionaries and small batches.

    Args:
        reader: A stream whose messages ``check_messages`` has accepted.
        file: Receives an Arrow stream.
        most: The bytes that the rows may have.

    Raises:
        LimitExceeded: The rows, or one row, have more bytes.
    """
    schema = pa.schema([_plain_field(field) for field in reader.schema])
    with _TURNS, pa.ipc.new_stream(file, schema.with_metadata(reader.schema.metadata)) as writer:
        pending: list[pa.RecordBatch] = []
        pending_bytes = total = 0
        for batch in _plain_batches(reader, schema, most):
            pending.append(batch)
            pending_bytes += batch.nbytes
            total += batch.nbytes
            if total > most:
                raise LimitExceeded(f"The rows have more than {most:,} bytes, unpacked.")
            if pending_bytes >= _WRITE_BYTES or len(pending) >= _WRITE_BATCHES:
                writer.write_table(pa.Table.from_batches(pending).combine_chunks())
                pending, pending_bytes = [], 0
        if pending:
            writer.write_table(pa.Table.from_batches(pending).combine_chunks())


def has_repeats(schema: pa.Schema) -> bool:
    """Return whether values of a column may share bytes: through dictionaries, or views."""
    kinds = [(field.type, _plain_field(field).type) for field in schema]
    return any(kind != plain or _LIST_VIEW in str(kind) for kind, plain in kinds)


def _plain(kind: pa.DataType) -> pa.DataType:
    """Return a type with values in place of dictionaries and of views of texts."""
    if str(kind) in _VIEWS:
        return _VIEWS[str(kind)]
    if isinstance(kind, pa.BaseExtensionType):
        return _plain(kind.storage_type) if _plain(kind.storage_type) != kind.storage_type else kind
    if pat.is_dictionary(kind):
        return _plain(kind.value_type)
    if pat.is_struct(kind):
        return pa.struct([_plain_field(kind.field(number)) for number in range(kind.num_fields)])
    if pat.is_fixed_size_list(kind):
        return pa.list_(_plain_field(kind.value_field), kind.list_size)
    if pat.is_list(kind):
        return pa.list_(_plain_field(kind.value_field))
    if pat.is_large_list(kind):
        return pa.large_list(_plain_field(kind.value_field))
    return kind


def _plain_field(field: pa.Field) -> pa.Field:
    # A name that is not UTF-8 is found here.
    return pa.field(field.name, _plain(field.type), field.nullable, field.metadata)


def _plain_batches(
    reader: pa.RecordBatchReader, schema: pa.Schema, most: int
) -> Iterator[pa.RecordBatch]:
    for batch in reader:
        # Offsets and lengths come from elsewhere: nothing may follow them out of the buffers.
        batch.validate()
        for column in batch.columns:
            _check_views(column, most)
        batch.validate(full=True)
        for start in range(0, batch.num_rows, _SLICE_ROWS):
            check_time()
            yield from _decoded(batch.slice(start, _SLICE_ROWS), schema)


def _decoded(batch: pa.RecordBatch, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield the rows without dictionaries, in parts none of which exceeds the bound of a message."""
    size = sum(_most_bytes(column) for column in batch.columns)
    if size > MESSAGE_BYTES and batch.num_rows == 1:
        raise LimitExceeded(
            f"A row has up to {size:,} bytes; the bound is {MESSAGE_BYTES:,}.",
            hint="keep such values in files, and their paths in the rows",
        )
    if size > MESSAGE_BYTES:
        half = batch.num_rows // 2
        yield from _decoded(batch.slice(0, half), schema)
        yield from _decoded(batch.slice(half), schema)
        return
    columns = []
    for column, field in zip(batch.columns, schema, strict=True):
        try:
            columns.append(column if column.type == field.type else column.cast(field.type))
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise InvalidArgument(
                f"Column {field.name!r} of type {column.type} cannot be decoded: {error}.",
                hint="send plain values, without dictionaries",
            ) from error
    yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _check_views(array: pa.Array, most: int) -> None:
    """Refuse texts and lists that share so much that they have more than ``most`` bytes.

    Buffers have their declared sizes; offsets into them are not looked at: to validate a million
    views of one text takes as long as to validate a million texts.
    """
    if isinstance(array, pa.ExtensionArray):
        _check_views(array.storage, most)
    elif pat.is_struct(array.type):
        for number in range(array.type.num_fields):
            _check_views(array.field(number), most)
    elif _is_list(array.type):
        _check_views(array.values, most)
    elif str(array.type) in _VIEWS and _most_bytes(array) > most:
        raise LimitExceeded(f"The rows have more than {most:,} bytes, unpacked.")
    elif _LIST_VIEW in str(array.type):
        held = pc.sum(pc.list_value_length(array)).as_py() or 0
        if held > len(array.values):
            raise LimitExceeded(
                f"Lists of {held:,} values share {len(array.values):,}.",
                hint="send lists, no views",
            )


def _is_list(kind: pa.DataType) -> bool:
    return bool(pat.is_list(kind) or pat.is_large_list(kind) or pat.is_fixed_size_list(kind))


def _most_bytes(array: pa.Array) -> int:
    """Return the bytes that an array has at most, once its dictionaries and views are decoded."""
    if len(array) == 0:
        return 0
    if str(array.type) in _VIEWS:
        views = np.frombuffer(array.buffers()[1], np.int32).reshape(-1, 4)
        lengths = views[array.offset : array.offset + len(array), 0]
        return 8 * len(array) + int(lengths.sum(dtype=np.int64))
    if isinstance(array, pa.ExtensionArray):
        return _most_bytes(array.storage)
    if pat.is_dictionary(array.type):
        return len(array) * _longest(array.dictionary)
    if pat.is_struct(array.type):
        return int(sum(_most_bytes(child) for child in array.flatten()))
    if _is_list(array.type):
        return 8 * len(array) + _most_bytes(array.flatten())
    return int(array.nbytes)


def _longest(values: pa.Array) -> int:
    """Return the bytes of the longest value of a dictionary."""
    if len(values) == 0:
        return 0
    kind = values.type
    if (
        pat.is_binary(kind)
        or pat.is_string(kind)
        or pat.is_large_binary(kind)
        or pat.is_large_string(kind)
    ):
        longest = pc.max(pc.binary_length(values)).as_py()
        return 8 + int(longest or 0)
    if pat.is_primitive(kind) or pat.is_fixed_size_binary(kind):
        return max(1, int(kind.bit_width) // 8)
    return _most_bytes(values)
