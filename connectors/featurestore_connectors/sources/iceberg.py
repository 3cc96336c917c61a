"""Iceberg tables from a catalog or a metadata file, each pinned to one snapshot.

pyiceberg reads the catalogs, metadata and manifests. DuckDB reads the data files. A version is a
snapshot id, a time, a branch or a tag.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import datetime
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow as pa

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    SourceError,
    SourceTableNotFound,
    SourceUnavailable,
    did_you_mean,
    listing,
    missing_extra,
)
from featurestore.model.source import SourceTable
from featurestore.model.times import from_micros, parse_moment, to_micros
from featurestore.plugins.catalog import CatalogSource, TableCatalog
from featurestore.plugins.source import (
    NamedVersionsSource,
    Source,
    SourceConfig,
    SourceQuery,
    SourceSnapshot,
    hive_error,
)
from featurestore_connectors.sources import duckdb_rows, iceberg_files, locations
from featurestore_connectors.sources.catalog_registration import IcebergTables
from featurestore_connectors.sources.drivers import secure_url, to_single_line
from featurestore_connectors.sources.duckdb_rows import DuckDBRows
from featurestore_connectors.sources.typed_columns import unknown_table_error

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog
    from pyiceberg.schema import Schema
    from pyiceberg.table import Table
    from pyiceberg.table.refs import SnapshotRef
    from pyiceberg.table.snapshots import Snapshot

_MAIN, _BRANCH = "main", "branch"
_MAX_LISTED = 5


@dataclass(frozen=True)
class TableVersion:
    """A snapshot of a table, None for a table without snapshots, and its schema."""

    snapshot: Snapshot | None
    schema: Schema


def find_version(table: Table, version: int | datetime | str, *, subject: str) -> TableVersion:
    """Return the snapshot of a table with an id, at a time, or of a branch or tag.

    A text is the name of a branch or tag, else a snapshot id, else a time. A number that is not a
    snapshot id is such a name, too.

    Args:
        table: The table of pyiceberg.
        version: The snapshot id, the time, or the text.
        subject: Source and table, for errors.

    Raises:
        SourceTableNotFound: No snapshot, branch or tag has this name; the message lists them.
    """
    references = table.refs()
    if isinstance(version, str):
        if version in references or version == _MAIN:
            return _referenced_version(table, references.get(version))
        version = _parse_version(table, version, subject=subject)
    if isinstance(version, datetime):
        # Iceberg times are in milliseconds.
        snapshot = table.snapshot_as_of_timestamp(to_micros(version) // 1000)
    else:
        snapshot = table.snapshot_by_id(version)
        if snapshot is None and str(version) in references:
            return _referenced_version(table, references[str(version)])
    if snapshot is None:
        last_snapshots = []
        for listed_snapshot in table.metadata.snapshots[-_MAX_LISTED:]:
            timestamp = from_micros(listed_snapshot.timestamp_ms * 1000).isoformat()
            last_snapshots.append(f"{listed_snapshot.snapshot_id} of {timestamp}")
        raise SourceTableNotFound(
            f"{subject} has no snapshot at {version}; it may have expired. Latest snapshots: "
            f"{listing(last_snapshots)}.",
            hint="omit at= to read the latest snapshot",
        )
    return TableVersion(snapshot, _schema_of(table, snapshot))


def _referenced_version(table: Table, reference: SnapshotRef | None) -> TableVersion:
    """Return the version of a branch or tag; None for the main branch without snapshots."""
    if reference is None:
        return TableVersion(table.current_snapshot(), table.schema())
    snapshot = table.snapshot_by_id(reference.snapshot_id)
    # A branch has the current schema of the table, as in Iceberg's own readers.
    is_branch = str(reference.snapshot_ref_type.value) == _BRANCH
    return TableVersion(snapshot, table.schema() if is_branch else _schema_of(table, snapshot))


def _schema_of(table: Table, snapshot: Snapshot | None) -> Schema:
    """Return the schema with which a snapshot was written, which is optional in the metadata."""
    if snapshot is None or snapshot.schema_id is None:
        return table.schema()
    return table.schemas().get(snapshot.schema_id, table.schema())


def _parse_version(table: Table, text: str, *, subject: str) -> int | datetime:
    """Return a text as a snapshot id or a time."""
    number = int(text) if text.isascii() and text.isdecimal() else None
    # A text of digits may also be a date.
    if number is not None and table.snapshot_by_id(number) is not None:
        return number
    try:
        return parse_moment(text, argument="at")
    except InvalidArgument as error:
        if number is not None:
            return number
        names = list(table.refs())
        raise SourceTableNotFound(
            f"{subject} has no branch or tag {text!r}, which is neither a snapshot id nor a time. "
            f"Available: {listing(names)}.",
            hint=did_you_mean(text, names, write="at={!r}")
            or "at='main', or at='2024-01-31T00:00:00Z'",
        ) from error


_OPTIONS = ("catalog", "warehouse", locations.FOLDER)
_SINGLE_TABLE = "."
_SHOWN = 200
# Exceptions that pyiceberg raises for JSON documents that are not table metadata, and for damaged
# manifests.
_METADATA_ERRORS = (
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    SystemError,
    TypeError,
    ValueError,
)
_PYDANTIC_TEXT = re.compile(
    r"\d+ validation errors? for \w+|\[type=.*?\](?= |$)|For further information visit \S+"
)


class IcebergSource:
    """A catalog or table: ``iceberg+sqlite:///catalog.db``, ``iceberg+/table/...metadata.json``.

    Options: ``catalog`` is the name of the catalog, ``warehouse`` the warehouse of a REST catalog,
    and ``folder`` the folder in which tables may have local files. The secret is the token of a REST catalog.
    """

    def __init__(self, config: SourceConfig) -> None:
        locations.check_option_names(config, _OPTIONS, source="an Iceberg source")
        self._config = config
        self._folder = locations.chosen_folder(config)
        self._uri = config.uri.removeprefix("iceberg+").removeprefix("iceberg:")
        if self._uri.startswith(("hive:", "thrift:")):
            raise hive_error()
        self._is_table = self._uri.startswith(("/", "file:"))
        if not self._is_table and not self._uri.startswith("http"):
            self._uri = _database_url(config, self._uri)

    def snapshot(self, at: int | datetime | None = None) -> IcebergSnapshot:
        """Open the catalog at snapshot id or time ``at``, or with the latest snapshots."""
        return self._open(at)

    def named_snapshot(self, name: str) -> IcebergSnapshot:
        """Open the catalog at a branch, a tag, or a snapshot id or time as text."""
        return self._open(name)

    def _open(self, version: int | datetime | str | None) -> IcebergSnapshot:
        iceberg_catalogs = import_catalogs()
        if self._is_table:
            path = locations.require_existing(
                self._config, locations.local_path(self._config, prefix="iceberg")
            )
            with translate_errors(self._config, None):
                table = iceberg_catalogs.load_table(
                    path,
                    subject=f"Source {self._config.name!r}",
                    uses_environment=self._config.uses_environment,
                    # The metadata of a table is in a subfolder.
                    folder=self._folder or os.path.dirname(os.path.dirname(path)),
                )
            return IcebergSnapshot(self._config, _SingleTable(table), version=version)
        catalog, secret = self._connect(self._folder)
        return IcebergSnapshot(self._config, catalog, version=version, secret=secret)

    def catalog(self) -> TableCatalog:
        """Connect to the catalog, to register tables."""
        if self._is_table:
            raise InvalidArgument(
                f"Source {self._config.name!r} is a single table, in which no tables are registered.",
                hint="add_source('lake', 'iceberg+https://host')",
            )
        catalog, secret = self._connect(locations.ANY_FOLDER)
        return IcebergTables(self._config, catalog, secret)

    def _connect(self, folder: str | None) -> tuple[Catalog, str | None]:
        """Return the catalog and its secret."""
        iceberg_catalogs = import_catalogs()
        secret = None
        if self._uri.startswith("http") and self._config.secret is not None:
            secret = self._config.secret()
        if self._uri.startswith("sqlite:"):
            # SQLite would create a missing file.
            file = self._uri.removeprefix("sqlite:").removeprefix("//")
            locations.require_existing(self._config, file.replace("//", "/", 1))
        with translate_errors(self._config, secret):
            catalog = iceberg_catalogs.open_catalog(
                self._uri,
                name=self._config.options.get("catalog", "default"),
                warehouse=self._config.options.get("warehouse"),
                token=secret,
                uses_environment=self._config.uses_environment,
                folder=folder,
            )
        return catalog, secret


def import_catalogs() -> ModuleType:
    """Return the module that requires pyiceberg."""
    try:
        from featurestore_connectors.sources import iceberg_catalogs
    except ImportError as error:
        raise missing_extra("pyiceberg", "iceberg") from error
    return iceberg_catalogs


@dataclass(frozen=True)
class _SingleTable:
    """A catalog with a single table."""

    table: Table


@dataclass(frozen=True)
class _OpenTable:
    """A table at a snapshot (None for a table without snapshots), with its readable columns."""

    table: Table
    snapshot: Snapshot | None
    schema: Schema


class IcebergSnapshot:
    """Tables of one catalog, each pinned to its snapshot on first access."""

    def __init__(
        self,
        config: SourceConfig,
        catalog: Catalog | _SingleTable,
        *,
        version: int | datetime | str | None,
        secret: str | None = None,
    ) -> None:
        self._config = config
        self._catalog = catalog
        self._version = version
        self._secret = secret
        self._open_tables: dict[str, _OpenTable] = {}
        self._connection = duckdb_rows.connect(config)
        self.server = f"Iceberg catalog {config.uri}"

    @property
    def identity(self) -> str:
        """The snapshot ids of the tables that have been read."""
        table_snapshots = []
        for name, open_table in sorted(self._open_tables.items()):
            number = "none" if open_table.snapshot is None else open_table.snapshot.snapshot_id
            table_snapshots.append(f"{name} snapshot {number}")
        return ", ".join(table_snapshots) or "no table read"

    def tables(self) -> Sequence[SourceTable]:
        if isinstance(self._catalog, _SingleTable):
            return [SourceTable(_SINGLE_TABLE)]
        with translate_errors(self._config, self._secret):
            return [SourceTable(name) for name in sorted(_nested_tables(self._catalog, ()))]

    def query_of(self, table: SourceTable) -> SourceQuery:
        if isinstance(self._catalog, _SingleTable):
            return SourceQuery()
        return SourceQuery(table=table.name)

    def names(self, query: SourceQuery) -> Sequence[str]:
        open_table = self._open_pinned(query)
        return [str(field.name) for field in open_table.schema.fields]

    def schema(self, query: SourceQuery) -> pa.Schema:
        return self._rows(query).schema(query)

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        return self._rows(query).read(query)

    def close(self) -> None:
        self._connection.close()

    def _rows(self, query: SourceQuery) -> DuckDBRows:
        """Return the rows of a table at its snapshot."""
        open_table = self._open_pinned(query)
        with translate_errors(self._config, self._secret):
            source = iceberg_files.rows(
                self._config,
                self._connection,
                open_table.table,
                open_table.snapshot,
                open_table.schema,
                query,
            )
        return DuckDBRows(self._config, self._connection, source)

    def _open_pinned(self, query: SourceQuery) -> _OpenTable:
        """Return the table of a query, pinned to its snapshot at the first access."""
        is_single_table = isinstance(self._catalog, _SingleTable)
        if (
            query.sql is not None
            or query.path is not None
            or is_single_table == (query.table is not None)
        ):
            raise InvalidArgument(
                f"Invalid query of this Iceberg source: {query}.",
                hint="pass table='sales.orders' for a catalog, and no table= for a metadata file",
            )
        name = query.table or _SINGLE_TABLE
        if name not in self._open_tables:
            self._open_tables[name] = self._open_table(name)
        return self._open_tables[name]

    def _open_table(self, name: str) -> _OpenTable:
        """Open a table at the requested snapshot."""
        table = self._load_table(name)
        if self._version is None:
            return _OpenTable(table, table.current_snapshot(), table.schema())
        subject = f"Source {self._config.name!r}, table {name!r}"
        version = find_version(table, self._version, subject=subject)
        return _OpenTable(table, version.snapshot, version.schema)

    def _load_table(self, name: str) -> Table:
        """Load a table from the catalog."""
        if isinstance(self._catalog, _SingleTable):
            return self._catalog.table
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        from featurestore_connectors.sources.iceberg_catalogs import load_catalog_table

        subject = f"Source {self._config.name!r}, table {name!r}"
        with translate_errors(self._config, self._secret):
            try:
                return load_catalog_table(self._catalog, name, subject=subject)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                table_names = [table.name for table in self.tables()]
                raise unknown_table_error(self._config.name, name, table_names) from error


def _database_url(config: SourceConfig, uri: str) -> str:
    """Return the database URL of a SQL catalog after checking its driver options."""
    import sqlalchemy as sa

    try:
        url = sa.make_url(uri)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise InvalidArgument(
            f"Source {config.name!r}: {config.uri!r} is not the URI of an Iceberg catalog or table.",
            hint="iceberg+sqlite:///catalog.db, iceberg+https://catalog, iceberg+/table/metadata.json",
        ) from error
    # The secret is the token of a REST catalog, not the password of a database.
    checked = secure_url(replace(config, secret=None), url)
    return uri if checked == url else checked.render_as_string(hide_password=False)


def _nested_tables(catalog: Catalog, namespace: tuple[str, ...]) -> Iterator[str]:
    """Yield the tables in a namespace and its nested namespaces."""
    for child in catalog.list_namespaces(namespace):
        # A catalog that lists the namespace itself would cause an endless recursion.
        if len(child) > len(namespace):
            for identifier in catalog.list_tables(child):
                yield ".".join(identifier)
            yield from _nested_tables(catalog, child)


@contextmanager
def translate_errors(config: SourceConfig, secret: str | None) -> Iterator[None]:
    """Convert pyiceberg exceptions to feature store errors."""
    try:
        with locations.storage_errors(config):
            yield
    except (FeatureStoreError, ImportError):
        raise
    except FileNotFoundError as error:
        raise duckdb_rows.missing_file_error(config, to_single_line(str(error), secret)) from None
    except Exception as error:  # pyiceberg's errors have no class of their own
        if isinstance(error, _METADATA_ERRORS) or "validation error" in str(error):
            # pydantic adds boilerplate to its messages.
            words = _PYDANTIC_TEXT.sub(" ", to_single_line(str(error), secret)).split()
            raise SourceError(
                f"Source {config.name!r}: the metadata is not that of an Iceberg table, or is "
                f"damaged: {type(error).__name__}: {' '.join(words)[:_SHOWN]}.",
                hint="pass the metadata file of a table: "
                "iceberg+/path/to/table/metadata/....metadata.json",
            ) from None
        reason = to_single_line(_describe_failure(error), secret)
        # Not chained: the message of the cause may contain the secret.
        raise SourceUnavailable(
            f"Source {config.name!r} cannot be read: {reason}",
            hint="check the URI, the name of the catalog (options={'catalog': ...}) and the secret",
        ) from None


def _describe_failure(error: Exception) -> str:
    """Return the text of an error without the statement of SQLAlchemy and the request of urllib3."""
    cause = getattr(error, "orig", None)
    if cause is None and error.args:
        cause = getattr(error.args[0], "reason", None)
    return str(cause or error)


if TYPE_CHECKING:
    _contract: type[Source] = IcebergSource
    _catalog: type[CatalogSource] = IcebergSource
    _versions: type[NamedVersionsSource] = IcebergSource
    _snapshot: type[SourceSnapshot] = IcebergSnapshot
