"""Lazy frames over sources: only the required columns are read, when rows are required.

External feature groups are defined by the same source queries.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.types as pat

from featurestore.arrow.column_names import check_feature_names, suggest_renames
from featurestore.arrow.text_values import is_typed_value
from featurestore.errors import InvalidArgument, InvalidName, listing
from featurestore.external import reading
from featurestore.external.groups import create_scratch_directory
from featurestore.external.renaming import RenamedSnapshot
from featurestore.model.arguments import warn_caller
from featurestore.model.featuregroup import ExternalRows
from featurestore.model.names import RENAME, SNAKE_CASE
from featurestore.model.source import (
    SourceRead,
    SourceSpec,
    options_from_strings,
    options_to_strings,
)
from featurestore.model.times import parse_version_or_moment
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.plugins.source import SourceQuery
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.sources.registration import check_folder_options, get
from featurestore.storage.temporary import remove_temporary

# The types of strings that a header field must have to be a value of a column; other types are read
# only from their own strings.
_TEXT_TYPES = {
    "bool": ("boolean",),
    "int64": ("double",),
    "double": ("double",),
    "date32": ("date",),
    "timestamp": ("timestamp", "timestamp with zone"),
}
_BAD_ROWS = pa.schema(
    [
        ("file", pa.string()),
        ("line", pa.int64()),
        ("column", pa.string()),
        ("reason", pa.string()),
        ("text", pa.string()),
    ]
)


def read_source(
    session: Session,
    name: str,
    *,
    table: str | None = None,
    sql: str | None = None,
    path: str | None = None,
    at: int | datetime | str | None = None,
    columns: Sequence[str] | None = None,
    options: Mapping[str, object] | None = None,
) -> SourceFrame:
    """Create a frame over a table, a query or files of a source; only the schema is read.

    Raises:
        SourceNotFound: No source with this name is registered.
        SourceUnavailable: The source cannot be reached, or rejects the user.
        SourceTableNotFound: The table, file or version does not exist.
        UnsupportedType: Columns cannot be read without loss; the error lists these columns.
    """
    spec = get(session, name)
    strings = options_to_strings(options or {})
    check_folder_options(spec, strings)
    query = build_query(
        table=table,
        sql=sql,
        path=path,
        version_or_time=at,
        columns=columns,
        options=strings,
        has_names=isinstance(at, str) and reading.has_named_versions(session, spec),
    )
    return SourceFrame(session, spec, query, source_schema(session, spec, query))


class SourceFrame(FeatureFrame):
    """A lazy table over a source query; each read uses a new snapshot.

    ``select`` and ``drop`` determine which columns are read from the source.
    """

    def __init__(
        self,
        session: Session,
        spec: SourceSpec,
        query: SourceQuery,
        schema: pa.Schema,
        *,
        time: str | None = None,
    ) -> None:
        super().__init__(session, self._read, schema=schema)
        self._spec = spec
        self._query = replace(query, columns=tuple(schema.names))
        self._time = time
        self._reads = []

    def select(self, *columns: str) -> FeatureFrame:
        """Return a frame with only these columns; other columns are not read from the source."""
        selected = self._column_names(columns)
        # The base class raises the error for an invalid selection.
        if not selected or len(set(selected)) != len(selected):
            return super().select(*columns)
        schema = pa.schema([self.schema.field(name) for name in selected])
        # Without the time column, a read cannot record its latest time.
        time = self._time if self._time in selected else None
        return SourceFrame(self._session, self._spec, self._query, schema, time=time)

    def quarantine(self) -> pa.Table:
        """Return the rows that the last read skipped, at most the first 10,000.

        Columns: ``file``, ``line``, ``column`` (null if the entire line is invalid), ``reason``,
        ``text``. Rows are only skipped with ``on_bad_rows="quarantine"``.
        """
        rows = [vars(row) for read in self._reads or () for row in read.bad_rows]
        return pa.Table.from_pylist(rows, schema=_BAD_ROWS)

    def within(self, window: TimeRange) -> SourceFrame:
        """Return a frame with the rows in a time range; other rows are not read."""
        query = replace(self._query, window=window)
        frame = SourceFrame(self._session, self._spec, query, self.schema, time=window.column)
        return frame

    def _read(self) -> Relation:
        """Start a new read and return its rows as a relation."""
        read = SourceRead(self._spec.name, self._spec.kind, self._query.hash)
        if self._reads is not None:
            # ``quarantine`` returns the rows of the last read only.
            self._reads[:] = [read]
        if reading.has_parts(self._session, self._spec):
            return self._read_partitioned(read)
        batches = reading.read_batches(
            self._session, self._spec, self._query, self.schema, read, time=self._time
        )
        stream = pa.RecordBatchReader.from_batches(self.schema, batches)
        return self._session.engine.from_arrow(stream)

    def _read_partitioned(self, read: SourceRead) -> Relation:
        """Read rows with the engine's tasks; their files remain until the session is closed."""
        directory = create_scratch_directory(self._session)
        weakref.finalize(self._session, remove_temporary, directory)
        return reading.stage_partitions(
            self._session,
            self._spec,
            self._query,
            self.schema,
            read,
            os.path.join(directory, "parts"),
            time=self._time,
        )


def define_external(
    session: Session, source: str, query: SourceQuery, *, snapshots: str
) -> tuple[ExternalRows, pa.Schema]:
    """Return the definition of an external group's rows, and their current columns.

    Raises:
        SourceNotFound: No source with this name is registered.
        SourceTableNotFound: The table, file or column does not exist.
    """
    rows = external_rows(source, query, snapshots=snapshots)
    return rows, source_schema(session, get(session, source), query)


def external_rows(source: str, query: SourceQuery, *, snapshots: str) -> ExternalRows:
    """Return the definition of the rows that a query selects."""
    rename = query.options.get(RENAME)
    return ExternalRows(source, query.table, query.sql, query.path, snapshots, rename)


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return column names as a tuple; raise an error for an empty list."""
    names = tuple(columns)
    if isinstance(columns, str) or not names:
        raise InvalidArgument(f"columns={columns!r} is not a list of names.", hint="columns=['id']")
    return names


def build_query(
    *,
    table: str | None = None,
    sql: str | None = None,
    path: str | None = None,
    version_or_time: int | datetime | str | None = None,
    columns: Sequence[str] | None = None,
    rename: Mapping[str, str] | str | None = None,
    options: Mapping[str, str] | None = None,
    has_names: bool = False,
) -> SourceQuery:
    """Build a source query from a caller's arguments.

    With ``has_names``, a version or time as text may also be a name, and remains text. ``options``
    include ``rename``.

    Raises:
        InvalidArgument: More than one of ``table``, ``sql`` and ``path`` is set, or ``at`` is not a
            version.
    """
    values = {"table": table, "sql": sql, "path": path}
    selections = {word: value for word, value in values.items() if value is not None}
    if len(selections) > 1:
        raise InvalidArgument(
            f"{listing(selections)} are mutually exclusive.",
            hint="pass one of table=, sql= and path=",
        )
    for word, value in selections.items():
        if not isinstance(value, str) or not value.strip():
            raise InvalidArgument(f"{word}={value!r} is not a name.", hint=f"{word}='orders'")
    version: int | datetime | str | None = None
    if has_names and isinstance(version_or_time, str) and version_or_time.strip():
        version = version_or_time
    elif version_or_time is not None:
        version = parse_version_or_moment(version_or_time, argument="at")
    names = None if columns is None else check_columns(columns)
    strings = options_to_strings({RENAME: rename}) if options is None else options
    return SourceQuery(table, sql, path, version, names, options=strings)


def source_schema(
    session: Session, spec: SourceSpec, query: SourceQuery, *, time: str | None = None
) -> pa.Schema:
    """Return the schema of a query; ``time`` must be a column with a time type.

    Raises:
        InvalidName: Columns have names that are not valid feature names.
    """
    snapshot = reading.open_snapshot(session, spec, query.at)
    try:
        schema, description = read_schema(spec, snapshot, query)
    finally:
        snapshot.close()
    unread = description.get("unread")
    if unread:
        warn_caller(
            f"Source {spec.name!r} ignores {len(unread)} files of other formats or with hidden names, "
            f"which begin with '.' or '_': {listing(unread)}."
        )
    if time is not None:
        check_time(spec, query, schema, time)
    return schema


def read_schema(
    spec: SourceSpec, snapshot: RenamedSnapshot, query: SourceQuery
) -> tuple[pa.Schema, Mapping[str, Any]]:
    """Return the schema of a query, and what the source inferred.

    Raises:
        InvalidName: Columns have names that are not valid feature names.
    """
    schema = snapshot.schema(query)
    description = snapshot.description(query) or {}
    header_types = {}
    if description.get("dialect", {}).get("header"):
        # Partition columns are in the names of folders.
        partitions = description["partitions"]
        header_types = {
            name: dtype for name, dtype in description["columns"].items() if name not in partitions
        }
    check_names(spec, query, schema.names, header_types=header_types)
    return schema, description


def check_names(
    spec: SourceSpec,
    query: SourceQuery,
    names: Sequence[str],
    *,
    header_types: Mapping[str, str] | None = None,
) -> None:
    """Raise an error for invalid feature names; the hint shows a call that names the columns.

    ``header_types`` are the types of the columns below a header line, by the names in this line.
    """
    try:
        check_feature_names(names)
    except InvalidName as error:
        arguments = [repr(spec.name)]
        selections = {word: getattr(query, word) for word in ("table", "sql", "path")}
        arguments += [
            f"{word}={value!r}" for word, value in selections.items() if value is not None
        ]
        options = options_from_strings(query.options)
        arguments += [f"{word}={value!r}" for word, value in options.items() if word != RENAME]
        rename_text = query.options.get(RENAME, spec.options.get(RENAME, "{}"))
        renames = {} if rename_text == SNAKE_CASE else dict(json.loads(rename_text))
        # The call in the hint needs the names at the source, also of columns that are renamed
        # already.
        originals = {new: old for old, new in renames.items()}
        for name, new in suggest_renames(names).items():
            renames[originals.get(name, name)] = new
        rename_argument = f"rename={renames!r}"
        renaming_call = f"read_source({', '.join([*arguments, rename_argument])})"
        hint = f"{renaming_call} renames them; rename='snake_case' renames all"
        # With a header, the values of this line would be lost.
        if header_types and _is_data_line(header_types):
            new_names = [f"column_{number}" for number in range(1, len(header_types) + 1)]
            arguments += ["header=False", f"names={new_names!r}"]
            hint = (
                f"read_source({', '.join(arguments)}) reads line 1 as data; if it is the header: "
                f"{rename_argument}"
            )
        raise InvalidName(error.message, hint=hint) from error


def _is_data_line(types: Mapping[str, str]) -> bool:
    """Return whether each field of a header line has the type of the values below it."""
    typed_columns = {name: type_name for name, type_name in types.items() if type_name != "string"}
    if not typed_columns:
        return any(is_typed_value(name) for name in types)
    for name, type_name in typed_columns.items():
        word = type_name.partition("[")[0]
        if not is_typed_value(name, *_TEXT_TYPES.get(word, ())):
            return False
    names = list(typed_columns)
    are_years = all(name.isdecimal() and 1900 <= int(name) <= 2100 for name in names)
    if len(names) == 1 or not are_years:
        return True
    # A table with one column per year has a header of consecutive years.
    years = list(map(int, names))
    return years != list(range(years[0], years[0] + len(years)))


def check_time(spec: SourceSpec, query: SourceQuery, schema: pa.Schema, time: str) -> None:
    """Raise an error if the time column does not exist or does not have a time type."""
    times = [
        field.name for field in schema if pat.is_timestamp(field.type) or pat.is_date(field.type)
    ]
    if time not in times:
        raise InvalidArgument(
            f"time={time!r} is not a time column of {query} of source {spec.name!r}. Available: "
            f"{listing(times)}.",
            hint="cast strings and numbers to times in sql=",
        )
