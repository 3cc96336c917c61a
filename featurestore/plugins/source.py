"""The interface of sources: tables, queries and files elsewhere, read as Arrow in one snapshot.

A source is looked up by its kind, the scheme of its URI, among the entry points
``featurestore.sources``; ours come that way too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from featurestore.errors import InvalidArgument, did_you_mean, listing
from featurestore.model.source import SourceTable
from featurestore.plugins.engine import Engine, Relation, TimeRange
from featurestore.plugins.lookup import find_plugin, load_plugin, plugin_names

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class SourceConfig:
    """What a source is opened with.

    ``secret`` gives the secret when it is called, which is when the source connects; None where none
    was registered. What it gives is in no text, repr or error.
    """

    name: str
    uri: str
    options: Mapping[str, str] = field(default_factory=dict)
    secret: Callable[[], str] | None = field(default=None, repr=False)
    decisions: Decisions | None = field(default=None, repr=False)


class Decisions(Protocol):
    """What a source decided once about the meaning of its tables, by a key of its own choice.

    A decision is a JSON object. It stays until the source is removed from the store.
    """

    def get(self, key: str) -> Mapping[str, Any] | None:
        """Return the decision of a key, or None where nothing is decided yet."""
        ...

    def decide(self, key: str, decision: Mapping[str, Any]) -> Mapping[str, Any]:
        """Store a decision and return it, or the one that another process stored before."""
        ...


@dataclass(frozen=True)
class BadRow:
    """A row of a file that cannot be read: where it is, and why.

    ``column`` is None where the whole line is bad. ``text`` is the line.
    """

    file: str
    line: int
    column: str | None
    reason: str
    text: str


@dataclass(frozen=True)
class SourceQuery:
    """What is asked of a source: one of ``table``, ``sql`` and ``path``, as its kind allows.

    ``at`` is a version or a moment, where the source has such. ``columns`` are those that are
    needed, in that order; None takes all. ``window`` cuts the rows by their time. ``options`` are
    options of the source for this query alone.
    """

    table: str | None = None
    sql: str | None = None
    path: str | None = None
    at: int | datetime | None = None
    columns: tuple[str, ...] | None = None
    window: TimeRange | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def hash(self) -> str:
        """SHA-256 of what is asked."""
        window: dict[str, Any] | None = None
        if self.window is not None:
            window = {**vars(self.window)}
        told = {**vars(self), "window": window, "options": dict(self.options)}
        if not self.options:
            del told["options"]
        text = json.dumps(told, sort_keys=True, default=str, ensure_ascii=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def __str__(self) -> str:
        asked = {"table": self.table, "sql": self.sql, "path": self.path, "at": self.at}
        given = []
        for name, value in asked.items():
            if value is not None:
                given.append(f"{name}={value!r}")
        return ", ".join(given) or "all of the source"


class SourceSnapshot(Protocol):
    """One consistent state of a source, until it is closed.

    All that is read of one snapshot belongs together: rows that others write meanwhile are in none
    of its reads. Where the source cannot promise that by itself (files), a change that is seen
    raises ``SourceChanged`` before the last batch. A snapshot is used by one thread; its reads may
    be open at the same time.
    """

    @property
    def identity(self) -> str:
        """What tells this state from others: a transaction, a version, a fingerprint."""
        ...

    @property
    def server(self) -> str:
        """What answered, with its version, for people."""
        ...

    def tables(self) -> Sequence[SourceTable]:
        """Return the tables (files, folders) that there are, and whether they may be read."""
        ...

    def query_of(self, table: SourceTable) -> SourceQuery:
        """Return the query for all rows of one of ``tables``."""
        ...

    def names(self, query: SourceQuery) -> Sequence[str]:
        """Return the columns that a query gives, those included that cannot be read."""
        ...

    def schema(self, query: SourceQuery) -> pa.Schema:
        """Return the feature types of what a query gives; at most a look at the data is taken.

        Raises:
            SourceTableNotFound: There is no such table or path; lists those there are.
            UnsupportedType: A column has a type that cannot be kept without loss; each is named,
                with the SQL that gives it another one.
            InvalidSql: The source refuses the query.
        """
        ...

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        """Return the rows as a stream of the types that ``schema`` gives, in bounded memory.

        Only the columns and the window that the query names leave the source. Values that do not
        fit (infinite times, numbers without an end) raise ``UnsupportedType`` naming the column.
        """
        ...

    def close(self) -> None:
        """End the snapshot and its connections; closing twice is no error."""
        ...


class Source(Protocol):
    """A place where rows come from: a database, a folder of files, a lake table.

    Every implementation passes ``featurestore.testing.SourceConformance``.

    It is made by its class with a ``SourceConfig``; making it connects to nothing. Options and URIs
    that it does not know are refused there (``InvalidArgument``). Nothing is ever written to it.

    **SQL** that comes in a query is the user's own text for the user's own database; it goes there
    as it is, inside a subquery. Names of tables and columns are quoted, values are written as
    literals by one function.

    **Errors.** ``SourceUnavailable`` when it cannot be reached or refuses the user,
    ``SourceTableNotFound``, ``InvalidSql``, ``UnsupportedType`` as above, ``SourceError`` for what
    else it says. No text holds the secret; errors of the libraries below do not leave it.
    """

    def snapshot(self, at: int | datetime | None = None) -> SourceSnapshot:
        """Connect and return a snapshot of now, or of a version or moment where there are such."""
        ...


@runtime_checkable
class PartitionedSource(Protocol):
    """A source whose rows the tasks of an engine can read, each of them a part.

    Its snapshots are ``PartitionedSnapshot`` where it has parts.
    """

    def has_parts(self, engine: Engine) -> bool:
        """Tell whether an engine reads this source so; else it takes the stream of ``read``."""
        ...


@runtime_checkable
class PartitionedSnapshot(Protocol):
    """A snapshot that many tasks can join while it is open."""

    def stage(self, query: SourceQuery, engine: Engine, directory: str) -> Relation:
        """Have an engine's tasks write the rows as files of a directory; return them from there.

        The rows, their types and the errors are those of ``read``. All tasks see this snapshot.

        Raises:
            ConfigurationError: The engine lacks what its tasks need; the hint is how to get it.
        """
        ...


@runtime_checkable
class QuarantiningSnapshot(Protocol):
    """A snapshot that can leave rows out which cannot be read, and counts them."""

    @property
    def bad_row_count(self) -> int:
        """How many rows its reads left out so far."""
        ...

    @property
    def bad_rows(self) -> Sequence[BadRow]:
        """The first of these rows."""
        ...


@runtime_checkable
class DescribedSnapshot(Protocol):
    """A snapshot that decides what the columns of its files mean, and can show it."""

    @property
    def unread(self) -> Sequence[str]:
        """Files that no table has, because they are of no known format."""
        ...

    def description(self, query: SourceQuery) -> Mapping[str, Any]:
        """Return dialect, types and number of files of a table, and the files that are not read."""
        ...


def find_source(kind: str) -> Callable[[SourceConfig], Source]:
    """Return what makes a source of a kind, by the name of its entry point.

    Raises:
        InvalidArgument: No such kind is installed; lists those that are.
    """
    found = find_plugin("sources", kind)
    if found is None:
        known = plugin_names("sources")
        raise InvalidArgument(
            f"There is no source of kind {kind!r}; there are {listing(known)}.",
            hint=did_you_mean(kind, known, write="uri='{}://...'")
            or "uri='postgresql://user@host/database', 'sqlite:///file.db', or a folder of files; "
            f"'sqlalchemy+{kind}://...' where SQLAlchemy has a dialect of it",
        )
    made: Callable[[SourceConfig], Source] = load_plugin(found)
    return made
