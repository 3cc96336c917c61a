"""Open Iceberg catalogs using only the settings of the source.

By default pyiceberg imports and calls the class named by the table property ``py-io-impl``, and
merges the local configuration of a catalog with the same name, including credentials. Both are
disabled here, since tables and sources may be untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, load_file_io
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable


class _LocationFileIO:
    """Choose the FileIO by the table location, ignoring the table properties."""

    def _load_file_io(
        self, properties: Mapping[str, Any] | None = None, location: str | None = None
    ) -> FileIO:
        return load_file_io(location=location)


class _SqlCatalog(_LocationFileIO, SqlCatalog):
    pass


class _RestCatalog(_LocationFileIO, RestCatalog):
    pass


def open_catalog(
    uri: str, *, name: str, warehouse: str | None = None, token: str | None = None
) -> SqlCatalog | RestCatalog:
    """Return the catalog at a server or database URI. Nothing is written to the catalog."""
    properties = {"uri": uri}
    if warehouse is not None:
        properties["warehouse"] = warehouse
    if not uri.startswith("http"):
        return _SqlCatalog(name, **properties, init_catalog_tables="false")
    if token is not None:
        properties["token"] = token
    return _RestCatalog(name, **properties)


def load_table(metadata: str) -> StaticTable:
    """Return the table of a metadata file."""
    # StaticTable.from_metadata would use the FileIO that the table properties name.
    files = load_file_io(location=metadata)
    metadata_content = FromInputFile.table_metadata(files.new_input(metadata))
    name = ("static-table", metadata)
    return StaticTable(name, metadata_content, metadata, files, NoopCatalog(name[0]))
