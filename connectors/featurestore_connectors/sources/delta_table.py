"""Read any version of an external Delta table with the Delta kernel.

The kernel (``polars-deltalake``) supports deletion vectors, column mapping, v2 checkpoints and
shallow clones. Tables with unsupported features are refused. ``delta_widening`` reads files whose
types the kernel does not widen. The kernel returns nulls for a column that a file lacks, also if the
schema does not allow them; such a file is refused.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.types as pat
from pyarrow import parquet

from featurestore.arrow.types import feature_type
from featurestore.delta import log
from featurestore.delta.datafile import file_path
from featurestore.delta.history import version_at
from featurestore.delta.outside import check_files_inside
from featurestore.delta.snapshot import read_snapshot, replay_log
from featurestore.delta.table_state import Replay
from featurestore.errors import (
    InvalidArgument,
    InvalidSourceFile,
    SourceError,
    SourceTableNotFound,
    UnsupportedTable,
    missing_extra,
)
from featurestore.model.times import parse_moment
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore.storage import storage_for
from featurestore.storage.connections import delta_options, options_of
from featurestore.storage.filesystem import LocalMirror
from featurestore.storage.location import HDFS, remove_owner
from featurestore.storage.settings import AZURE_SAS, GOOGLE_TOKEN
from featurestore.storage.temporary import remove_temporary, temporary_directory
from featurestore_connectors.sources import delta_widening, locations
from featurestore_connectors.sources.drivers import to_single_line
from featurestore_connectors.sources.typed_columns import (
    SingleTable,
    SourceColumn,
    cast_batches,
    invalid_query_error,
)


@dataclass(frozen=True)
class LoggedFiles:
    """A version of a table.

    Attributes:
        source: The name of the source, for errors.
        path: The folder of the table.
        version: The version.
        folder: A further folder whose files the table may have, as a shallow clone does.
    """

    source: str
    path: str
    version: int
    folder: str | None

    @cached_property
    def replay(self) -> Replay:
        """The actions of the log."""
        return replay_log(self.path, self.version)

    @cached_property
    def required_fields(self) -> dict[str, Mapping[str, Any]]:
        """The top-level fields of the schema that have no nulls, by name."""
        fields = json.loads((self.replay.metadata or {})["schemaString"])["fields"]
        return {field["name"]: field for field in fields if not field["nullable"]}


def check_required(
    batches: Iterator[pa.RecordBatch], table: LoggedFiles
) -> Iterator[pa.RecordBatch]:
    """Yield batches, and refuse a null in a required column that a file lacks.

    The log is read, once, only if a column has nulls, and files only for a required one.

    Raises:
        InvalidSourceFile: The message has the file and the column.
    """
    checked: set[str] = set()
    for batch in batches:
        for name, column in zip(batch.schema.names, batch.columns, strict=True):
            if column.null_count and name not in checked:
                checked.add(name)
                _check_column(name, table)
        yield batch


def _check_column(name: str, table: LoggedFiles) -> None:
    """Refuse a required column without values in a file or in the partition values of a file."""
    field = table.required_fields.get(name)
    if field is None:
        return
    metadata = table.replay.metadata or {}
    by_id = delta_widening.is_mapped_by_id(metadata)
    is_partition = name in metadata.get("partitionColumns", ())
    key = delta_widening.column_key(field, by_id=by_id and not is_partition)
    for add in table.replay.adds.values():
        if is_partition:
            lacks_values = not (add.get("partitionValues") or {}).get(key)
        else:
            lacks_values = not _has_column(add, key, table, by_id=by_id)
        if lacks_values:
            raise InvalidSourceFile(
                f"Source {table.source!r}, version {table.version} of {remove_owner(table.path)}: the "
                f"file {add['path']} lacks the required column {name!r}.",
                hint="omit the column with columns=[...], or rewrite the file",
            )


def _has_column(add: Mapping[str, Any], key: str, table: LoggedFiles, *, by_id: bool) -> bool:
    path = file_path(table.path, add["path"], folder=table.folder)
    schema = parquet.read_schema(storage_for(path).open_ranges(path))
    return any(delta_widening.stored_key(field, by_id=by_id) == key for field in schema)


_AZURE_KEYS = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_ACCESS_KEY", "AZURE_STORAGE_MASTER_KEY")


class DeltaSource:
    """One Delta table: ``delta+/path``, ``delta+s3://bucket/path``, ``delta+hdfs://host/path``.

    The files of a local table are in its folder, or below ``options={"folder": ...}``, as those of a
    shallow clone.
    """

    def __init__(self, config: SourceConfig) -> None:
        self._config = config
        self._location = locations.parse_location(
            config, prefix="delta", noun="Delta table", option_names=(locations.FOLDER,)
        )
        locations.chosen_folder(config)

    def snapshot(self, at: int | datetime | None = None) -> DeltaSnapshot:
        """Open the latest version, or the version with number or time ``at``."""
        return open_delta(self._config, self._location.open(self._config), at)


def open_delta(
    config: SourceConfig, path: str, version_or_time: int | datetime | str | None
) -> DeltaSnapshot:
    """Open the latest version of a table, or the version with a number or at a time.

    Raises:
        InvalidArgument: A text is neither a version nor a time.
    """
    if isinstance(version_or_time, str):
        version_or_time = _parse_version(version_or_time)
    with locations.storage_errors(config):
        if not log.is_delta_table(path):
            raise SourceTableNotFound(
                f"Source {config.name!r}: {remove_owner(path)} is not a Delta table.",
                hint="for a folder of Parquet files, pass its path without delta+",
            )
        if isinstance(version_or_time, datetime):
            version = version_at(path, version_or_time)
        elif version_or_time is None:
            version = log.latest_version(path)
        else:
            version = version_or_time
    return DeltaSnapshot(config, path, version)


class DeltaSnapshot(SingleTable):
    """An immutable version of a Delta table.

    The kernel cannot read HDFS, nor some buckets with temporary tokens. The log is then
    copied to a local folder when the snapshot is opened, and the data files of the version are
    copied before rows are read.
    """

    def __init__(self, config: SourceConfig, path: str, version: int) -> None:
        try:
            import polars
            from polars_deltalake import scan_delta
        except ImportError as error:
            raise missing_extra("polars-deltalake", "sources") from error
        self._config = config
        self._path = path
        self._version = version
        # The newest level exports string views, which older releases of pyarrow cannot read.
        self._old_layout = polars.CompatLevel.oldest()
        self._mirror = _mirror_log(path) if _needs_mirror(path) else None
        self._views: str | None = None
        table_path = remove_owner(path) if self._mirror is None else self._mirror.folder
        storage_options = delta_options(path) if self._mirror is None else None
        try:
            if storage_for(table_path).is_local:
                # The kernel would follow paths in the log to any file of this machine.
                check_files_inside(table_path, version, folder=locations.chosen_folder(config))
            self._rows = scan_delta(table_path, version=version, storage_options=storage_options)
            self._types = self._rows.collect_schema()
            self._empty = polars.DataFrame(schema=self._types).to_arrow(
                compat_level=self._old_layout
            )
            log_path = path if self._mirror is None else self._mirror.folder
            self._is_widened = delta_widening.has_widened_columns(
                self._empty.schema, log_path, version
            )
            if not self._is_widened:
                # The scan is lazy. Collecting zero rows raises errors in the log.
                self._rows.head(0).collect()
        except Exception as error:  # the kernel's errors have no class of their own
            # The local copy of an HDFS table would otherwise remain on disk.
            self.close()
            raise self._convert_error(error) from error
        self.identity = f"version {version}"
        self.server = f"Delta table {remove_owner(path)}"

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        schema = self.schema(query)
        if self._mirror is not None:
            self._fetch_files(self._mirror)
        if self._is_widened:
            self._rows, self._is_widened = self._widened_rows(), False
        rows = self._rows
        if query.window is not None:
            rows = rows.filter(self._window_filter(query.window))
        path = self._path if self._mirror is None else self._mirror.folder
        table = LoggedFiles(
            self._config.name, path, self._version, locations.chosen_folder(self._config)
        )
        batches = check_required(self._converted_batches(rows.select(schema.names)), table)
        return pa.RecordBatchReader.from_batches(
            schema, cast_batches(batches, schema, has_sql=False)
        )

    def close(self) -> None:
        """Remove the local copies of the files."""
        if self._mirror is not None:
            self._mirror.close()
        if self._views is not None:
            remove_temporary(self._views)
            self._views = None

    def _fetch_files(self, mirror: LocalMirror) -> None:
        """Copy the data files of the version, so that reading a schema copies only the log."""
        with locations.storage_errors(self._config):
            mirror.fetch(_version_files(mirror, self._path, self._version))

    def _widened_rows(self) -> Any:
        """Return the lazy rows of a table with files of types that the kernel does not cast."""
        import polars
        from polars_deltalake import scan_delta

        path = self._path if self._mirror is None else self._mirror.folder
        folder = locations.chosen_folder(self._config)
        try:
            table = delta_widening.read_types(path, self._version, folder=folder)
            if not table.needs_logs:
                return self._rows
            if self._mirror is None and not storage_for(path).is_local:
                # The kernel reads files with the credentials of the log's location.
                self._mirror = _mirror_log(self._path)
                self._fetch_files(self._mirror)
                table = delta_widening.read_types(self._mirror.folder, self._version, folder=folder)
            self._views = temporary_directory()
            scans = [scan_delta(view, version=0) for view in table.write_logs(self._views)]
            return polars.concat([scan.cast(self._types) for scan in scans])
        except Exception as error:  # the kernel's errors have no class of their own
            raise self._convert_error(error) from error

    def _columns(self, query: SourceQuery) -> list[SourceColumn]:
        if query.table is not None or query.sql is not None or query.path is not None:
            raise invalid_query_error(
                "a Delta source", query, hint="the source is a single table; at=3 reads version 3"
            )
        columns = []
        for field in self._empty.schema:
            dtype, native = feature_type(field.type), str(field.type)
            if dtype is not None and _has_variant(dtype):
                # The two binary columns have no meaning without the variant decoder.
                dtype, native = None, "variant"
            columns.append(SourceColumn(field.name, field.name, dtype, native))
        return columns

    def _window_filter(self, window: TimeRange) -> Any:
        """Return the polars condition that a row is in a window."""
        import polars

        dtype = self._rows.collect_schema()[window.column]
        start, end = window.start, window.end
        if getattr(dtype, "time_zone", None) is None:
            # Times without a zone are in UTC. polars does not compare them with zoned literals.
            start, end = start.replace(tzinfo=None), end.replace(tzinfo=None)
        time = polars.col(window.column)
        if dtype == polars.Date:
            # A date is the instant of its midnight in UTC, as in the other sources.
            time = time.cast(polars.Datetime("us"))
        if window.closed == "right":
            return (time > start) & (time <= end)
        return (time >= start) & (time < end)

    def _converted_batches(self, rows: Any) -> Iterator[pa.RecordBatch]:
        try:
            for frame in rows.collect_batches():
                yield from frame.to_arrow(compat_level=self._old_layout).to_batches()
        except Exception as error:  # the kernel's errors have no class of their own
            raise self._convert_error(error) from error

    def _convert_error(self, error: Exception) -> SourceError | SourceTableNotFound:
        """Return the feature store error for an error of the kernel."""
        reason = to_single_line(str(error), None)
        subject = (
            f"Source {self._config.name!r}, version {self._version} of {remove_owner(self._path)}"
        )
        # The kernel has no error class for missing versions, so the number is compared with the
        # log.
        if not 0 <= self._version <= log.latest_version(self._path):
            return SourceTableNotFound(
                f"{subject} does not exist. Latest version: {log.latest_version(self._path)}."
            )
        if isinstance(error, UnsupportedTable) and "outside its folder" in reason:
            return SourceError(
                f"{subject} cannot be read: {reason}",
                hint="if a shallow clone is yours, add the source with options="
                f"{{{locations.FOLDER!r}: '/data/lake'}}, a folder above both tables",
            )
        return SourceError(
            f"{subject} cannot be read: {reason}",
            hint="the version may have been vacuumed, or use an unsupported Delta feature",
        )


def _parse_version(text: str) -> int | datetime:
    try:
        return parse_moment(text, argument="at")
    except InvalidArgument as error:
        if text.isascii() and text.isdecimal():
            return int(text)
        raise InvalidArgument(
            f"at={text!r} is neither a version nor a time of a Delta table, which has no branches or "
            "tags.",
            hint="at=3, or at='2024-01-31T00:00:00Z'",
        ) from error


def _needs_mirror(path: str) -> bool:
    """Return whether the kernel cannot read a table at its location."""
    options = options_of(path)
    if path.startswith(f"{HDFS}:") or GOOGLE_TOKEN in options:
        return True
    # The kernel prefers an account key of the environment to the token of a table.
    is_own_identity = AZURE_SAS in options or "azure_skip_signature" in options
    return is_own_identity and any(name in os.environ for name in _AZURE_KEYS)


def _mirror_log(path: str) -> LocalMirror:
    """Return a local mirror of a table with a copy of its log."""
    mirror = LocalMirror(path)
    mirror.fetch(name for name in mirror.names if name.startswith(f"{log.LOG_FOLDER}/"))
    return mirror


def _version_files(mirror: LocalMirror, path: str, version: int) -> list[str]:
    """Return the paths of a version's data files, or of all files if the log needs the kernel."""
    try:
        return [file.path[len(path) + 1 :] for file in read_snapshot(path, version).files]
    except UnsupportedTable:
        return mirror.names


def _has_variant(dtype: pa.DataType) -> bool:
    """Return whether a type is the two-binary encoding in which the kernel returns variants.

    The encoding is not decoded (https://github.com/apache/parquet-format, VariantEncoding).
    """
    if pat.is_list(dtype):
        return _has_variant(dtype.value_type)
    if not pat.is_struct(dtype):
        return False
    member_types = {
        dtype.field(index).name: dtype.field(index).type for index in range(dtype.num_fields)
    }
    if set(member_types) == {"metadata", "value"} and set(
        map(pat.is_binary, member_types.values())
    ) == {True}:
        return True
    return any(map(_has_variant, member_types.values()))


if TYPE_CHECKING:
    _contract: type[Source] = DeltaSource
    _snapshot: type[SourceSnapshot] = DeltaSnapshot
