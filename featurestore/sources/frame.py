"""Frames over sources: nothing is read until rows are asked for, and then the needed columns."""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime

import pyarrow as pa
import pyarrow.types as pat

from featurestore.errors import InvalidArgument, InvalidName, listing
from featurestore.external.live import scratch
from featurestore.external.opening import open_snapshot
from featurestore.external.reading import has_parts, read_batches, stage_parts
from featurestore.model.callers import warn_caller
from featurestore.model.names import check_feature_names, renames_to_features
from featurestore.model.renames import RENAME, SNAKE_CASE
from featurestore.model.source import SourceRead, SourceSpec
from featurestore.model.times import parse_moment
from featurestore.plugins.engine import Relation, TimeRange
from featurestore.plugins.source import SourceQuery
from featurestore.retrieval import FeatureFrame
from featurestore.session import Session
from featurestore.sources.options import check_kind, text_options
from featurestore.sources.registration import get
from featurestore.storage import files

_BAD_ROWS = pa.schema(
    [
        ("file", pa.string()),
        ("line", pa.int64()),
        ("column", pa.string()),
        ("reason", pa.string()),
        ("text", pa.string()),
    ]
)


class SourceFrame(FeatureFrame):
    """A lazy table over what a source gives, in a new snapshot at each reading.

    ``select`` and ``drop`` decide which columns leave the source.
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
        super().__init__(session, self._opened, schema=schema)
        self._spec = spec
        self._query = replace(query, columns=tuple(schema.names))
        self._time = time
        self._reads = []

    def select(self, *columns: str) -> FeatureFrame:
        """Return a frame of some of the columns; the others do not leave the source."""
        chosen = self._names(columns)
        if not chosen or len(set(chosen)) != len(chosen):
            return super().select(*columns)
        schema = pa.schema([self.schema.field(name) for name in chosen])
        time = self._time if self._time in chosen else None
        return SourceFrame(self._session, self._spec, self._query, schema, time=time)

    def quarantine(self) -> pa.Table:
        """Return the rows of files that the last reading left out, at most the first 10,000.

        Columns: ``file``, ``line``, ``column`` (null where the whole line is bad), ``reason``,
        ``text``. There are some where ``on_bad_rows="quarantine"``.
        """
        rows = [vars(row) for read in self._reads or () for row in read.bad_rows]
        return pa.Table.from_pylist(rows, schema=_BAD_ROWS)

    def within(self, window: TimeRange) -> SourceFrame:
        """Return a frame of the rows whose time lies in a range; the others stay where they are."""
        query = replace(self._query, window=window)
        frame = SourceFrame(self._session, self._spec, query, self.schema, time=window.column)
        return frame

    def _opened(self) -> Relation:
        """Return a relation over a new reading, which begins with its first row."""
        read = SourceRead(self._spec.name, self._spec.kind, self._query.hash)
        if self._reads is not None:
            self._reads[:] = [read]
        if has_parts(self._session, self._spec):
            return self._parted(read)
        batches = read_batches(
            self._session, self._spec, self._query, self.schema, read, time=self._time
        )
        stream = pa.RecordBatchReader.from_batches(self.schema, batches)
        return self._session.engine.from_arrow(stream)

    def _parted(self, read: SourceRead) -> Relation:
        """Return rows that the engine's tasks read; their files stay as long as the session."""
        directory = scratch(self._session)
        weakref.finalize(self._session, files.remove_temporary, directory)
        return stage_parts(
            self._session,
            self._spec,
            self._query,
            self.schema,
            read,
            os.path.join(directory, "parts"),
            time=self._time,
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
    """Return a frame over a table, a query or files of a source; only its columns are looked at.

    Raises:
        SourceNotFound: No source of this name is registered.
        SourceUnavailable: It cannot be reached, or refuses the user.
        SourceTableNotFound: There is no such table, file or version.
        UnsupportedType: A column cannot be read without loss; each is named.
    """
    spec = get(session, name)
    texts = text_options(options or {})
    check_kind(spec, texts)
    query = replace(asked(table=table, sql=sql, path=path, at=at), options=texts)
    if columns is not None:
        query = replace(query, columns=check_columns(columns))
    return SourceFrame(session, spec, query, described(session, spec, query))


def check_columns(columns: Sequence[str]) -> tuple[str, ...]:
    """Return names of columns, of which there is one at least."""
    names = tuple(columns)
    if isinstance(columns, str) or not names:
        raise InvalidArgument(f"columns={columns!r} is not a list of names.", hint="columns=['id']")
    return names


def asked(
    *,
    table: str | None = None,
    sql: str | None = None,
    path: str | None = None,
    at: int | datetime | str | None = None,
    rename: Mapping[str, str] | str | None = None,
) -> SourceQuery:
    """Return a query of arguments as people give them.

    Raises:
        InvalidArgument: More than one of ``table``, ``sql`` and ``path``, or ``at`` is no version.
    """
    given = {"table": table, "sql": sql, "path": path}
    named = {word: value for word, value in given.items() if value is not None}
    if len(named) > 1:
        raise InvalidArgument(
            f"{listing(named)} were given together.", hint="one of table=, sql= and path="
        )
    for word, value in named.items():
        if not isinstance(value, str) or not value.strip():
            raise InvalidArgument(f"{word}={value!r} names nothing.", hint=f"{word}='orders'")
    if isinstance(at, bool) or not isinstance(at, int | datetime | str | None):
        raise InvalidArgument(f"at={at!r} is no version.", hint="at=3, or a time")
    moment = at
    if isinstance(at, str | datetime):
        moment = parse_moment(at, argument="at")
    options = text_options({RENAME: rename})
    return SourceQuery(table, sql, path, moment, options=options)  # type: ignore[arg-type]


def described(
    session: Session, spec: SourceSpec, query: SourceQuery, *, time: str | None = None
) -> pa.Schema:
    """Return the columns that a query gives; ``time`` has to be one of them, and a time.

    Raises:
        InvalidName: Names of columns are no names of features.
    """
    snapshot = open_snapshot(session, spec, query.at)
    try:
        schema = snapshot.schema(query)
        described = snapshot.description(query)
    finally:
        snapshot.close()
    _check_names(spec, query, schema.names)
    if described is not None and described["unread"]:
        unread = described["unread"]
        warn_caller(
            f"Source {spec.name!r} does not read {len(unread)} files, which are of other formats: "
            f"{listing(unread)}."
        )
    if time is not None:
        check_time(spec, query, schema, time)
    return schema


def _check_names(spec: SourceSpec, query: SourceQuery, names: Sequence[str]) -> None:
    """Refuse columns whose names are not those of features, with the call that renames them."""
    try:
        check_feature_names(names)
    except InvalidName as error:
        arguments = [repr(spec.name)]
        for word in ("table", "sql", "path"):
            if getattr(query, word) is not None:
                arguments.append(f"{word}={getattr(query, word)!r}")
        for word, text in query.options.items():
            if word != RENAME:
                arguments.append(f"{word}={text!r}")
        given = query.options.get(RENAME, spec.options.get(RENAME, "{}"))
        renames = {} if given == SNAKE_CASE else dict(json.loads(given))
        originals = {new: old for old, new in renames.items()}
        for name, new in renames_to_features(names).items():
            renames[originals.get(name, name)] = new
        arguments.append(f"rename={renames!r}")
        raise InvalidName(
            error.message,
            hint=f"read_source({', '.join(arguments)}) renames them, and rename='snake_case' all",
        ) from error


def check_time(spec: SourceSpec, query: SourceQuery, schema: pa.Schema, time: str) -> None:
    """Refuse a column as time that is not there or holds no times."""
    times = _times_of(schema)
    if time not in times:
        raise InvalidArgument(
            f"time={time!r} is no time of {query} of source {spec.name!r}; it has the times "
            f"{listing(times)}.",
            hint="texts and numbers become times in sql=",
        )


def _times_of(schema: pa.Schema) -> Sequence[str]:
    found = []
    for field in schema:
        if pat.is_timestamp(field.type) or pat.is_date(field.type):
            found.append(field.name)
    return found
