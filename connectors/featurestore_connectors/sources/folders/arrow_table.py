"""Tables of Arrow IPC streams, the files of Hugging Face ``datasets``.

Batches are read one at a time and validated, since Arrow trusts the offsets in a file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pat

from featurestore.arrow.huggingface_types import column_type, to_column
from featurestore.arrow.json_text import JsonError, parse_json
from featurestore.arrow.stream_messages import ReadBytes, stream_batches
from featurestore.arrow.types import is_nested
from featurestore.errors import FeatureStoreError, InvalidSourceFile, UnsupportedType
from featurestore_connectors.sources.folders.listing import DatasetFiles, FolderFile
from featurestore_connectors.sources.folders.tables import Column, FolderTable, TableRead, to_batch
from featurestore_connectors.sources.typed_columns import check_times

# A batch is decoded at once. `datasets` writes batches of 1,000 rows.
_MAX_BATCH_BYTES = 1 << 30
_SMALLER_HINT = "datasets.load_from_disk(path).save_to_disk(new_path) writes batches of 1,000 rows"


class ArrowTable(FolderTable):
    """A table of Arrow streams with equal schemas."""

    def columns(self) -> list[Column]:
        first = self.folder_files.files[0]
        schema = self._read_schema(first)
        for file in self.folder_files.files[1:]:
            file_schema = self._read_schema(file)
            self._compare_names(file, file_schema, schema.names)
            for field in schema:
                if (
                    field.name in file_schema.names
                    and file_schema.field(field.name).type != field.type
                ):
                    raise self.table.invalid_file_error(
                        f"{file.name}: column {field.name!r} is {file_schema.field(field.name).type}, but "
                        f"{field.type} in {first.name}."
                    )
        features = self._features(schema)
        columns = []
        for field in schema:
            column = self.declared_column(field.name)
            if column is None:
                dtype = column_type(field.type, features.get(field.name))
                # A column of type null cannot be read, and ``meaning`` is its own type.
                unreadable = Column(field.name, pa.null(), str(field.type))
                column = unreadable if dtype is None else Column(field.name, dtype)
            columns.append(column)
        self.check_declared(schema.names)
        return columns

    def rows(self, file: FolderFile, read: TableRead) -> Iterator[pa.RecordBatch]:
        file_schema = self._read_schema(file)
        self._compare_names(file, file_schema, [column.name for column in read.schema.in_files])
        names = [column.name for column in read.columns if column.name in file_schema.names]
        indices = sorted(map(file_schema.get_field_index, names))
        for batch in self._batches(file, indices):
            yield self._convert(batch, read.columns, file)

    def _batches(self, file: FolderFile, indices: Sequence[int]) -> Iterator[pa.RecordBatch]:
        """Yield the columns of a file at these indices, one stored batch at a time."""
        try:
            with file.open() as stream:
                options = pa.ipc.IpcReadOptions(included_fields=indices) if indices else None
                reader = pa.ipc.open_stream(stream, options=options)
                unread = stream.tell()
                for position in stream_batches(_range_reader(stream), size=file.status.size):
                    if position.is_compressed or position.end - unread > _MAX_BATCH_BYTES:
                        raise self._large_batch_error(file, position.is_compressed)
                    # The reader continues with the dictionaries before the batch.
                    stream.seek(unread)
                    batch = reader.read_next_batch()
                    batch.validate(full=True)
                    yield batch
                    unread = position.end
        except FeatureStoreError:
            raise
        except (pa.ArrowException, OSError, ValueError, StopIteration) as error:
            raise self._unreadable_error(file, error) from error

    def _convert(
        self, batch: pa.RecordBatch, columns: Sequence[Column], file: FolderFile
    ) -> pa.RecordBatch:
        """Return the columns in the types of the table; columns missing from the file are null."""
        arrays = []
        for column in columns:
            index = batch.schema.get_field_index(column.name)
            if index < 0:
                arrays.append(pa.nulls(batch.num_rows, column.dtype))
                continue
            array = batch.column(index)
            if pat.is_timestamp(array.type) and self.options.timestamp_precision is not None:
                array = pc.round_temporal(array, 1, "microsecond")
            storage = array.storage if isinstance(array, pa.ExtensionArray) else array
            check_times(storage, column.name, has_sql=False)
            try:
                arrays.append(to_column(array, column.dtype))
            except (UnsupportedType, pa.ArrowInvalid) as error:
                raise self._value_error(file, column, error) from error
        return to_batch(arrays, columns, batch.num_rows)

    def _read_schema(self, file: FolderFile) -> pa.Schema:
        try:
            with file.open() as stream:
                # The message of the schema is checked before Arrow allocates memory for it.
                next(stream_batches(_range_reader(stream), size=file.status.size), None)
                stream.seek(0)
                schema = pa.ipc.open_stream(stream).schema
                _check_names(schema)
                return schema
        except (pa.ArrowException, OSError, ValueError) as error:
            raise self._unreadable_error(file, error) from error

    def _features(self, schema: pa.Schema) -> Mapping[str, Any]:
        """Return the Hugging Face type of each column."""
        if isinstance(self.folder_files, DatasetFiles) and self.folder_files.features:
            return self.folder_files.features
        try:
            metadata = parse_json((schema.metadata or {}).get(b"huggingface", b"{}").decode())
            features = metadata["info"]["features"]
        except (JsonError, UnicodeDecodeError, LookupError, TypeError):
            return {}
        return features if isinstance(features, dict) else {}

    def _compare_names(self, file: FolderFile, schema: pa.Schema, expected: Sequence[str]) -> None:
        if len(set(schema.names)) < len(schema.names):
            raise self.table.invalid_file_error(f"{file.name} has two columns of one name.")
        first = self.folder_files.files[0].name
        self.compare_names(file, schema.names, expected, first=first)

    def _unreadable_error(self, file: FolderFile, error: Exception) -> InvalidSourceFile:
        reason = str(error).strip().split("\n")[0]
        return self.table.invalid_file_error(
            f"{file.name} is damaged, or not an Arrow stream: {reason}."
        )

    def _large_batch_error(self, file: FolderFile, is_compressed: bool) -> InvalidSourceFile:
        reason = "compressed record batches"
        if not is_compressed:
            reason = f"a record batch of more than {_MAX_BATCH_BYTES:,} bytes"
        return self.table.invalid_file_error(f"{file.name} has {reason}.", hint=_SMALLER_HINT)

    def _value_error(
        self, file: FolderFile, column: Column, error: UnsupportedType | pa.ArrowInvalid
    ) -> InvalidSourceFile:
        reason, hint = str(error), None
        if isinstance(error, UnsupportedType):
            reason, hint = error.message, error.hint
        elif "timestamp[ns" in reason:
            hint = f"{self.table.call(timestamp_precision='us')} rounds them"
        return self.table.invalid_file_error(
            f"{file.name}: column {column.name!r}: {reason}", hint=hint
        )


def _range_reader(stream: Any) -> ReadBytes:
    def read(start: int, size: int) -> bytes:
        stream.seek(start)
        return bytes(stream.read(size))

    return read


def _check_names(fields: Iterable[pa.Field]) -> None:
    """Raise UnicodeDecodeError for a name that is not UTF-8; Arrow decodes names when they are used."""
    for field in fields:
        field.name  # noqa: B018
        if is_nested(field.type):
            _check_names(map(field.type.field, range(field.type.num_fields)))
