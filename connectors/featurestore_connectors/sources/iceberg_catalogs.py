"""Open Iceberg catalogs using only the settings of the source, and read files of their tables.

By default pyiceberg imports and calls the class named by the table property ``py-io-impl``, and
merges the local configuration of a catalog with the same name, including credentials. Both are
disabled here, since tables and sources may be untrusted.

Locations and credentials that a catalog returns are untrusted, too. Files are read through the
storages of this package, at local paths and in buckets. Credentials that a REST catalog vends for a
table are used for the files of this table, and stay in memory. Google Cloud Storage and Azure are
read with vended credentials only.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from functools import partial
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.noop import NoopCatalog
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io import FileIO, InputFile, OutputFile
from pyiceberg.serializers import FromInputFile
from pyiceberg.table import StaticTable, Table
from requests import Session

from featurestore.storage import storage_for
from featurestore.storage.settings import AZURE_SAS, GOOGLE_TOKEN, SECRET, TOKEN, USER
from featurestore_connectors.sources import locations
from featurestore_connectors.sources.locations import BucketSettings

# The prefix of vended tokens, which is followed by the host of an account.
_SAS = "adls.sas-token"
# A property that only sources set.
AZURE_ENDPOINT = "featurestore.azure-endpoint"
# The properties of pyiceberg's own FileIO that catalogs vend, and the options of the storage.
_VENDED = {
    "s3": {
        "client.region": "aws_region",
        "s3.region": "aws_region",
        "s3.endpoint": "aws_endpoint_url",
        "s3.access-key-id": USER,
        "s3.secret-access-key": SECRET,
        "s3.session-token": TOKEN,
    },
    "gs": {"gcs.service.host": "google_base_url", "gcs.oauth2.token": GOOGLE_TOKEN},
    "az": {AZURE_ENDPOINT: "azure_endpoint"},
}


# The properties that a REST server may set: the paths of its requests, and the buckets.
_SERVER_PROPERTIES = (
    "prefix",
    "namespace-separator",
    "rest-page-size",
    "view-endpoints-supported",
    "warehouse",
    *(name for names in _VENDED.values() for name in names if name != AZURE_ENDPOINT),
)


class TableFiles(FileIO):
    """The files of one table, read-only.

    ``subject`` names source and table in errors. ``settings`` returns the settings of a bucket.
    Local files must be below ``folder``.
    """

    def __init__(
        self, subject: str, settings: BucketSettings, *, folder: str | None = None
    ) -> None:
        super().__init__({})
        self._subject = subject
        self._settings = settings
        self._folder = folder

    def locate(self, location: str) -> str:
        """Return the path of a file for the storages of this package.

        Raises:
            SourceError: The scheme of the location is not supported, or credentials are missing.
        """
        return locations.catalog_path(
            location, subject=self._subject, settings=self._settings, folder=self._folder
        )

    def sql_path(self, column: str) -> str:
        """Return SQL that converts locations in a column to the paths of ``locate``."""
        return locations.catalog_path_sql(column, subject=self._subject)

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
        return storage_for(self._path).size(self._path)

    def exists(self) -> bool:
        return storage_for(self._path).exists(self._path)

    def open(self, seekable: bool = True) -> Any:
        return io.BytesIO(storage_for(self._path).read_bytes(self._path))


class _OwnFiles:
    """Read files by ``TableFiles``, ignoring the classes that properties name."""

    subject = ""
    uses_environment = False
    folder: str | None = None

    def _load_file_io(
        self, properties: Mapping[str, Any] | None = None, location: str | None = None
    ) -> FileIO:
        settings = partial(
            _bucket_settings, properties or {}, uses_environment=self.uses_environment
        )
        return TableFiles(self.subject, settings, folder=self.folder)


class _SqlCatalog(_OwnFiles, SqlCatalog):
    """A catalog in a database, which is read by anyone who can write to the database."""

    def _convert_orm_to_iceberg(self, orm_table: Any) -> Table:
        # pyiceberg would read any metadata file of this machine, and buckets with its credentials.
        location = str(orm_table.metadata_location)
        table_files = self._load_file_io(self.properties, location)
        metadata = FromInputFile.table_metadata(table_files.new_input(location))
        return Table(
            identifier=(*orm_table.table_namespace.split("."), orm_table.table_name),
            metadata=metadata,
            metadata_location=location,
            io=self._load_file_io(metadata.properties, location),
            catalog=self,
        )


class _RestCatalog(_OwnFiles, RestCatalog):
    """A REST catalog, whose server sets known properties only."""

    def _create_session(self) -> Session:
        session: Session = super()._create_session()
        # A redirected request gets the credentials of the other host from .netrc.
        session.max_redirects = 0
        return session

    def _fetch_config(self) -> None:
        own_properties, uri = dict(self.properties), self.uri
        super()._fetch_config()
        # Other properties of the server load classes, read certificates, sign requests with the
        # credentials of the machine, or send the token to another address.
        known_properties = {
            name: value
            for name, value in self.properties.items()
            if isinstance(value, str) and (name in _SERVER_PROPERTIES or name.startswith(_SAS))
        }
        self.properties = {**own_properties, **known_properties}
        self.uri = uri

    def _load_file_io(
        self, properties: Mapping[str, Any] | None = None, location: str | None = None
    ) -> FileIO:
        # The properties of the catalog are defaults for those of a table.
        return super()._load_file_io({**self.properties, **(properties or {})}, location)


def _bucket_settings(
    properties: Mapping[str, Any], scheme: str, account: str | None, *, uses_environment: bool
) -> dict[str, str] | None:
    """Return the settings of a bucket for the properties that a catalog returned."""
    settings = {
        option: properties[name]
        for name, option in _VENDED[scheme].items()
        if isinstance(properties.get(name), str)
    }
    if scheme == "gs":
        return settings if GOOGLE_TOKEN in settings else None
    if scheme == "az":
        for name in (f"{_SAS}.{account}.dfs.core.windows.net", f"{_SAS}.{account}", _SAS):
            if isinstance(properties.get(name), str):
                return {**settings, AZURE_SAS: properties[name]}
        return None
    if USER not in settings or SECRET not in settings:
        for name in (USER, SECRET, TOKEN):
            settings.pop(name, None)
        # The credentials of the environment must not be sent to an address of a catalog.
        if not uses_environment or "aws_endpoint_url" in settings:
            settings |= locations.anonymous_settings("s3")
    return settings


def open_catalog(
    uri: str,
    *,
    name: str,
    warehouse: str | None = None,
    token: str | None = None,
    defaults: Mapping[str, str] | None = None,
    uses_environment: bool = False,
    folder: str | None = None,
) -> SqlCatalog | RestCatalog:
    """Return the catalog at a server or database URI. Nothing is written to the catalog.

    ``defaults`` are defaults for the properties of tables. With ``uses_environment``, tables in S3 may
    be read with the credentials of the machine. Tables may have local files in ``folder`` only.
    """
    properties = {**(defaults or {}), "uri": uri}
    if warehouse is not None:
        properties["warehouse"] = warehouse
    catalog: _SqlCatalog | _RestCatalog
    if not uri.startswith("http"):
        catalog = _SqlCatalog(name, **properties, init_catalog_tables="false")
    else:
        if token is not None:
            properties["token"] = token
        catalog = _RestCatalog(name, **properties)
    catalog.uses_environment = uses_environment
    catalog.folder = folder
    return catalog


def open_glue_catalog(
    name: str, *, client: Mapping[str, Any], storage: Mapping[str, str], folder: str | None
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
            return TableFiles(
                self.subject, lambda scheme, _: storage if scheme == "s3" else None, folder=folder
            )

    return OwnGlueCatalog(name, **client)


def load_catalog_table(catalog: Catalog, name: str, *, subject: str) -> Any:
    """Return a table of a catalog, whose files are read by ``TableFiles``."""
    if isinstance(catalog, _OwnFiles):
        catalog.subject = subject
    return catalog.load_table(name)


def load_table(metadata: str, *, subject: str, uses_environment: bool, folder: str) -> StaticTable:
    """Return the table of a metadata file."""
    # StaticTable.from_metadata would use the FileIO that the table properties name.
    settings = partial(_bucket_settings, {}, uses_environment=uses_environment)
    table_files = TableFiles(subject, settings, folder=folder)
    metadata_content = FromInputFile.table_metadata(table_files.new_input(metadata))
    name = ("static-table", metadata)
    return StaticTable(name, metadata_content, metadata, table_files, NoopCatalog(name[0]))
