"""Open Iceberg catalogs using only the settings of the source, and read files of their tables.

By default pyiceberg imports and calls the class named by the table property ``py-io-impl``, and
merges the local configuration of a catalog with the same name, including credentials. Both are
disabled here, since tables and sources may be untrusted.

Locations and credentials that a catalog returns are untrusted, too. Files are read through the
storages of this package, at local paths and in buckets of S3. Credentials that a REST catalog vends
for a table are used for the files of this table, and stay in memory.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable

from featurestore.storage import files
from featurestore.storage.settings import SECRET, TOKEN, USER
from featurestore_connectors.sources import locations

# The properties of pyiceberg's own FileIO that catalogs vend, and the options of the storage.
_VENDED = {
    "client.region": "aws_region",
    "s3.region": "aws_region",
    "s3.endpoint": "aws_endpoint_url",
    "s3.access-key-id": USER,
    "s3.secret-access-key": SECRET,
    "s3.session-token": TOKEN,
}


class TableFiles(FileIO):
    """The files of one table, read-only.

    ``subject`` names source and table in errors. ``settings`` are options of the storage.
    """

    def __init__(self, subject: str, settings: Mapping[str, str]) -> None:
        super().__init__({})
        self._subject = subject
        self._settings = dict(settings)

    def locate(self, location: str) -> str:
        """Return the path of a file for the storages of this package.

        Raises:
            SourceError: The scheme of the location is not supported.
        """
        return locations.catalog_path(
            location, subject=self._subject, settings=lambda: self._settings
        )

    def sql_path(self, column: str) -> str:
        """Return SQL that converts locations in a column to the paths of ``locate``."""
        local = f"regexp_replace({column}, '^file:(//)?', '')"
        owner = locations.catalog_owner(self._subject)
        return f"regexp_replace({local}, '^s3[an]?://', 's3://{owner}@')"

    def new_input(self, location: str) -> InputFile:
        return _StoredFile(location, self.locate(location))

    def new_output(self, location: str) -> OutputFile:
        raise NotImplementedError("sources are read-only")

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise NotImplementedError("sources are read-only")


class _StoredFile(InputFile):
    """A metadata file, which is read completely."""

    def __init__(self, location: str, path: str) -> None:
        super().__init__(location)
        self._path = path

    def __len__(self) -> int:
        return files.size(self._path)

    def exists(self) -> bool:
        return files.exists(self._path)

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(files.read_bytes(self._path))


class _OwnFiles:
    """Read files by ``TableFiles``, ignoring the classes that properties name."""

    subject = ""

    def _load_file_io(
        self, properties: Mapping[str, Any] | None = None, location: str | None = None
    ) -> FileIO:
        return TableFiles(self.subject, _storage_settings(properties or {}))


class _SqlCatalog(_OwnFiles, SqlCatalog):
    pass


class _RestCatalog(_OwnFiles, RestCatalog):
    def _load_file_io(
        self, properties: Mapping[str, Any] | None = None, location: str | None = None
    ) -> FileIO:
        # The properties of the catalog are defaults for those of a table.
        return super()._load_file_io({**self.properties, **(properties or {})}, location)


def _storage_settings(properties: Mapping[str, Any]) -> dict[str, str]:
    """Return the options of the storage for the properties that a catalog returned."""
    settings = {}
    for name, option in _VENDED.items():
        if isinstance(properties.get(name), str):
            settings[option] = properties[name]
    if USER not in settings or SECRET not in settings:
        for name in (USER, SECRET, TOKEN):
            settings.pop(name, None)
        if "aws_endpoint_url" in settings:
            # The credentials of the environment must not be sent to an address of a catalog.
            settings["aws_skip_signature"] = "true"
    return settings


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


def open_glue_catalog(
    name: str, *, client: Mapping[str, Any], storage: Mapping[str, str]
) -> Catalog:
    """Return the catalog of AWS Glue.

    ``client`` are the properties of its client, ``storage`` the settings of all buckets. The
    properties of tables, which are untrusted, do not change the storage.

    Raises:
        ImportError: boto3 is not installed.
    """
    from pyiceberg.catalog.glue import GlueCatalog

    class OwnGlueCatalog(_OwnFiles, GlueCatalog):
        def _load_file_io(
            self, properties: Mapping[str, Any] | None = None, location: str | None = None
        ) -> FileIO:
            return TableFiles(self.subject, storage)

    return OwnGlueCatalog(name, **client)


def load_catalog_table(catalog: Catalog, name: str, *, subject: str) -> Any:
    """Return a table of a catalog, whose files are read by ``TableFiles``."""
    if isinstance(catalog, _OwnFiles):
        catalog.subject = subject
    return catalog.load_table(name)


def load_table(metadata: str, *, subject: str) -> StaticTable:
    """Return the table of a metadata file."""
    # StaticTable.from_metadata would use the FileIO that the table properties name.
    table_files = TableFiles(subject, {})
    metadata_content = FromInputFile.table_metadata(table_files.new_input(metadata))
    name = ("static-table", metadata)
    return StaticTable(name, metadata_content, metadata, table_files, NoopCatalog(name[0]))
