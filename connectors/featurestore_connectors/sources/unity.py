"""Delta tables of Unity Catalog, by its REST interface, each pinned to one version.

The catalog lists tables, and vends temporary credentials for the files of one table
(https://github.com/unitycatalog/unitycatalog, api/all.yaml). Its responses are untrusted: locations
are local paths or in buckets of S3.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pyarrow as pa

from featurestore.errors import (
    FeatureStoreError,
    InvalidArgument,
    SourceError,
    SourceTableNotFound,
    did_you_mean,
    listing,
)
from featurestore.model.source import SourceTable
from featurestore.plugins.catalog import CatalogSource, TableCatalog
from featurestore.plugins.source import Source, SourceConfig, SourceQuery, SourceSnapshot
from featurestore.storage.settings import SECRET, TOKEN, USER
from featurestore_connectors.sources import locations
from featurestore_connectors.sources.catalog_registration import UnityTables
from featurestore_connectors.sources.delta_table import DeltaSnapshot, open_delta
from featurestore_connectors.sources.drivers import check_options, is_loopback
from featurestore_connectors.sources.unity_client import UnityClient

_API = "/api/2.1/unity-catalog"
# The region and the endpoint of the buckets; the catalog does not return them.
_OPTIONS = ("aws_endpoint_url", "aws_region")
_CREDENTIALS = {"access_key_id": USER, "secret_access_key": SECRET, "session_token": TOKEN}


class UnitySource:
    """A catalog of Unity Catalog: ``unity://host/catalog``; ``?tls=false`` for a local server.

    The secret is a token of the user. Tables in other formats than Delta are not read.
    """

    def __init__(self, config: SourceConfig) -> None:
        unknown = [name for name in config.options if name not in _OPTIONS]
        if unknown:
            raise InvalidArgument(
                f"Unknown options {listing(unknown)} of a Unity Catalog source. Available: "
                f"{listing(_OPTIONS)}."
            )
        self._config = config
        url = urlsplit(config.uri)
        query = parse_qsl(url.query, keep_blank_values=True)
        for option in query:
            check_options(config, dict([option]), allowed=("tls",), driver="Unity Catalog")
        catalogs = [unquote(level) for level in url.path.split("/") if level]
        if not url.hostname or "@" in url.netloc or len(catalogs) != 1:
            raise InvalidArgument(
                f"Source {config.name!r}: {config.uri!r} is not a catalog of Unity Catalog.",
                hint="unity://dbc-1234.cloud.databricks.com/main",
            )
        is_encrypted = dict(query).get("tls") != "false"
        if not is_encrypted and config.secret is not None and not is_loopback(url.hostname):
            raise InvalidArgument(
                f"Source {config.name!r}: tls=false would send the secret unencrypted.",
                hint="remove ?tls=false from the URI",
            )
        self._address = f"{'https' if is_encrypted else 'http'}://{url.netloc}{_API}"
        self._catalog = catalogs[0]

    def snapshot(self, at: int | datetime | None = None) -> UnitySnapshot:
        """Open the catalog; its tables are read at version or time ``at``, or the latest."""
        return UnitySnapshot(self._config, self._connect(), self._catalog, version=at)

    def catalog(self) -> TableCatalog:
        """Connect to the catalog, to register tables."""
        return UnityTables(self._connect(), self._catalog)

    def _connect(self) -> UnityClient:
        token = None if self._config.secret is None else self._config.secret()
        return UnityClient(self._config, self._address, token)


class UnitySnapshot:
    """Tables of one catalog, each pinned to its version on first access."""

    def __init__(
        self,
        config: SourceConfig,
        client: UnityClient,
        catalog: str,
        *,
        version: int | datetime | None,
    ) -> None:
        self._config = config
        self._client = client
        self._catalog = catalog
        self._version = version
        self._open_tables: dict[str, DeltaSnapshot] = {}
        self.server = f"Unity Catalog {urlsplit(config.uri).netloc}, catalog {catalog}"

    @property
    def identity(self) -> str:
        """The versions of the tables that have been read."""
        pinned = sorted(self._open_tables.items())
        versions = [f"{name} {snapshot.identity}" for name, snapshot in pinned]
        return ", ".join(versions) or "no table read"

    def tables(self) -> Sequence[SourceTable]:
        names = []
        schemas = self._client.list_all("schemas", catalog_name=self._catalog)
        for schema in sorted(str(each["name"]) for each in schemas):
            selection = {"catalog_name": self._catalog, "schema_name": schema}
            for table in self._client.list_all("tables", **selection):
                if table.get("data_source_format") == "DELTA":
                    names.append(f"{schema}.{table['name']}")
        return [SourceTable(name) for name in sorted(names)]

    def query_of(self, table: SourceTable) -> SourceQuery:
        return SourceQuery(table=table.name)

    def names(self, query: SourceQuery) -> Sequence[str]:
        return self._open_pinned(query).names(_without_table(query))

    def schema(self, query: SourceQuery) -> pa.Schema:
        with _name_table(query):
            return self._open_pinned(query).schema(_without_table(query))

    def read(self, query: SourceQuery) -> pa.RecordBatchReader:
        with _name_table(query):
            return self._open_pinned(query).read(_without_table(query))

    def close(self) -> None:
        for snapshot in self._open_tables.values():
            snapshot.close()

    def _open_pinned(self, query: SourceQuery) -> DeltaSnapshot:
        """Return the table of a query, pinned to its version at the first access."""
        if query.table is None:
            raise InvalidArgument(
                f"Invalid query of a Unity Catalog source: {query}.",
                hint="pass table='sales.orders'",
            )
        if query.table not in self._open_tables:
            self._open_tables[query.table] = self._open_table(query.table)
        return self._open_tables[query.table]

    def _open_table(self, name: str) -> DeltaSnapshot:
        """Open a table of the catalog at the requested version."""
        table = None
        if name.count(".") == 1 and "/" not in name:
            table = self._client.get(f"tables/{quote(f'{self._catalog}.{name}', safe='.')}")
        if table is None:
            available = [each.name for each in self.tables()]
            raise SourceTableNotFound(
                f"Source {self._config.name!r}: unknown table {name!r}. Available: "
                f"{listing(available, limit=50)}.",
                hint=did_you_mean(name, available, write="table={!r}"),
            )
        if table.get("data_source_format") != "DELTA":
            raise SourceError(
                f"Source {self._config.name!r}: the table {name!r} has the format "
                f"{table.get('data_source_format')}, but only Delta tables are read.",
                hint="read it by the Iceberg REST service of the catalog: iceberg+https://...",
            )
        with _name_table(SourceQuery(table=name)):
            path = self._locate(name, table)
            return open_delta(self._config, path, self._version)

    def _locate(self, name: str, table: Mapping[str, Any]) -> str:
        """Return the path of a table for the storages, with the credentials of the catalog."""
        return locations.catalog_path(
            str(table.get("storage_location") or "").rstrip("/"),
            subject=f"Source {self._config.name!r}, table {name!r}",
            settings=lambda: self._vended_settings(name, table),
        )

    def _vended_settings(self, name: str, table: Mapping[str, Any]) -> dict[str, str]:
        """Return the settings of a table's bucket, with temporary credentials of the catalog."""
        settings = dict(self._config.options)
        response = self._client.post(
            "temporary-table-credentials", {"table_id": table.get("table_id"), "operation": "READ"}
        )
        vended = response.get("aws_temp_credentials") or {}
        for key, option in _CREDENTIALS.items():
            if isinstance(vended.get(key), str) and vended[key]:
                settings[option] = vended[key]
        if USER not in settings or SECRET not in settings:
            # The credentials of this machine are not those of the table.
            raise SourceError(
                f"Source {self._config.name!r}: the catalog vends no credentials of S3 for the table "
                f"{name!r}.",
                hint="grant EXTERNAL USE SCHEMA and SELECT to the user of the token",
            )
        return settings


def _without_table(query: SourceQuery) -> SourceQuery:
    """Return a query of a single Delta table."""
    return replace(query, table=None)


@contextmanager
def _name_table(query: SourceQuery) -> Iterator[None]:
    """Add the name of the table to errors."""
    try:
        yield
    except FeatureStoreError as error:
        if query.table is None or f"{query.table!r}" in error.message:
            raise
        message = f"Table {query.table!r}: {error.message}"
        raise type(error)(message, hint=error.hint) from error


if TYPE_CHECKING:
    _contract: type[Source] = UnitySource
    _catalog: type[CatalogSource] = UnitySource
    _snapshot: type[SourceSnapshot] = UnitySnapshot
