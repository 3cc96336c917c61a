"""Tables of AWS Glue: Iceberg tables at their snapshots, Delta tables at their versions, Parquet.

Descriptions of tables are untrusted: locations are local paths or in buckets of S3, which are read
with the settings of the source.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import pyarrow as pa

from featurestore.errors import InvalidArgument, SourceError, missing_extra
from featurestore.model.source import SourceTable
from featurestore.plugins.catalog import CatalogSource, TableCatalog
from featurestore.plugins.credentials import needs_environment_error
from featurestore.plugins.source import NamedVersionsSource, Source, SourceConfig, SourceSnapshot
from featurestore.storage.settings import SECRET, USER
from featurestore_connectors.sources import locations
from featurestore_connectors.sources.catalog_registration import IcebergTables
from featurestore_connectors.sources.catalog_tables import (
    CatalogSnapshot,
    OpenTable,
    ParquetSnapshot,
    name_table,
)
from featurestore_connectors.sources.delta_table import open_delta
from featurestore_connectors.sources.iceberg import (
    IcebergSnapshot,
    import_catalogs,
    translate_errors,
)

if TYPE_CHECKING:
    from pyiceberg.catalog.glue import GlueCatalog

# A table as Glue describes it.
TableRecord: TypeAlias = Mapping[str, Any]
_ENDPOINT = "aws_endpoint_url"
_RETRIES = 3
_OPTIONS = (USER, _ENDPOINT, "catalog_id", locations.FOLDER)
_PARQUET_INPUT = "org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat"
_FORMAT_PARAMETERS = ("table_type", "classification")
# The types of Hive. The values of partition columns of other types are inferred from their texts.
_TYPES = {
    "string": pa.string(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "date": pa.date32(),
    "double": pa.float64(),
    "boolean": pa.bool_(),
}
# Further types of columns in files, as the files are read.
_COLUMN_TYPES = {
    **_TYPES,
    "float": pa.float32(),
    "binary": pa.binary(),
    "timestamp": pa.timestamp("us", tz="UTC"),
}
_DECIMAL = re.compile(r"decimal\((\d{1,2}),\s*(\d{1,2})\)")


class GlueSource:
    """The tables of AWS Glue: ``glue://eu-central-1``, the URI of a region.

    Options: ``catalog_id`` is the account of another catalog, ``aws_access_key_id`` the access key
    whose secret key is the secret, ``aws_endpoint_url`` another address of Glue and S3, and
    ``folder`` the folder in which tables may have local files. With
    ``secret="environment"``, the credentials of the environment are used.
    """

    def __init__(self, config: SourceConfig) -> None:
        locations.check_option_names(config, _OPTIONS, source="a Glue source")
        self._config = config
        self._folder = locations.chosen_folder(config)
        region = re.fullmatch(r"glue://([a-z0-9-]+)/?", config.uri)
        if region is None:
            raise InvalidArgument(
                f"Source {config.name!r}: {config.uri!r} is not a region of AWS Glue.",
                hint="glue://eu-central-1",
            )
        self._region = region[1]
        has_key = USER in config.options
        if has_key != (config.secret is not None):
            raise InvalidArgument(
                f"Source {config.name!r} has only one of access key and secret.",
                hint=f"options={{{USER!r}: '...'}} and secret='env:NAME', or secret='environment'",
            )
        if not has_key and not config.uses_environment:
            raise needs_environment_error(f"Source {config.name!r}", "the AWS credentials")

    def snapshot(self, at: int | datetime | None = None) -> GlueSnapshot:
        """Open the catalog; ``at`` is a snapshot of Iceberg tables, a version of Delta tables."""
        return self._open(at)

    def named_snapshot(self, name: str) -> GlueSnapshot:
        """Open the catalog at a branch or tag of Iceberg tables, or at a version or time as text."""
        return self._open(name)

    def _open(self, version: int | datetime | str | None) -> GlueSnapshot:
        catalog, secret = self._connect(self._folder)
        return GlueSnapshot(self._config, catalog, self._bucket_settings(secret), version, secret)

    def catalog(self) -> TableCatalog:
        """Connect to the catalog, to register Iceberg tables."""
        catalog, secret = self._connect(locations.ANY_FOLDER)
        return IcebergTables(self._config, catalog, secret)

    def _connect(self, folder: str | None) -> tuple[GlueCatalog, str | None]:
        """Return the catalog and its secret."""
        options = self._config.options
        secret = None if self._config.secret is None else self._config.secret()
        client: dict[str, Any] = {"glue.region": self._region, "glue.max-retries": _RETRIES}
        if "catalog_id" in options:
            client["glue.id"] = options["catalog_id"]
        if secret is not None:
            client |= {"glue.access-key-id": options[USER], "glue.secret-access-key": secret}
        if _ENDPOINT in options:
            client["glue.endpoint"] = options[_ENDPOINT]
        try:
            with translate_errors(self._config, secret):
                catalog = import_catalogs().open_glue_catalog(
                    self._config.name,
                    client=client,
                    storage=self._bucket_settings(secret),
                    folder=folder,
                )
        except ImportError as error:
            raise missing_extra("boto3", "glue") from error
        return catalog, secret

    def _bucket_settings(self, secret: str | None) -> dict[str, str]:
        """Return the settings of all buckets."""
        options = self._config.options
        settings = {"aws_region": self._region}
        if secret is not None:
            settings |= {USER: options[USER], SECRET: secret}
        if _ENDPOINT in options:
            settings[_ENDPOINT] = options[_ENDPOINT]
        return settings


class GlueSnapshot(CatalogSnapshot):
    """The tables of one catalog of Glue, in the formats Iceberg, Delta and Parquet."""

    noun = "Glue"

    def __init__(
        self,
        config: SourceConfig,
        catalog: GlueCatalog,
        settings: Mapping[str, str],
        version: int | datetime | str | None,
        secret: str | None,
    ) -> None:
        super().__init__(config)
        self._catalog = catalog
        self._settings = settings
        self._version = version
        self._secret = secret
        self.server = f"Glue {config.uri}"

    def tables(self) -> Sequence[SourceTable]:
        names = []
        with translate_errors(self._config, self._secret):
            for database in self._list_all("get_databases", "DatabaseList"):
                for table in self._list_all(
                    "get_tables", "TableList", DatabaseName=database["Name"]
                ):
                    if table_format(table) is not None:
                        names.append(f"{database['Name']}.{table['Name']}")
        return [SourceTable(name) for name in sorted(names)]

    def close(self) -> None:
        super().close()
        self._catalog.close()

    def _list_all(
        self, operation: str, response_key: str, **selection: str
    ) -> Iterator[TableRecord]:
        """Yield the objects of all pages of a list."""
        for page in self._catalog.glue.get_paginator(operation).paginate(**selection):
            yield from page[response_key]

    def _open_table(self, name: str) -> OpenTable | None:
        table = self._find_table(name)
        if table is None:
            return None
        format_name = table_format(table)
        if format_name == "iceberg":
            iceberg = IcebergSnapshot(
                self._config, self._catalog, version=self._version, secret=self._secret
            )
            return OpenTable(iceberg, is_catalog=True)
        if format_name is None:
            raise SourceError(
                f"Source {self._config.name!r}: the table {name!r} has the format "
                f"{describe_format(table)}, but only Iceberg, Delta and Parquet tables are read.",
                hint="read the files at its location, if their format is known: add_source('files', "
                "'s3://bucket/path')",
            )
        with name_table(name):
            path = self._locate(name, table_location(table))
            if format_name == "delta":
                return OpenTable(open_delta(self._config, path, self._version))
            return OpenTable(self._open_parquet(name, table, path))

    def _find_table(self, name: str) -> TableRecord | None:
        """Return the description of a table, None if it does not exist."""
        database, _, table = name.partition(".")
        if not database or not table:
            return None
        with translate_errors(self._config, self._secret):
            try:
                response = self._catalog.glue.get_table(DatabaseName=database, Name=table)
            except self._catalog.glue.exceptions.EntityNotFoundException:
                return None
        table_record: TableRecord = response["Table"]
        return table_record

    def _open_parquet(self, name: str, table: TableRecord, path: str) -> ParquetSnapshot:
        if self._version is not None:
            raise InvalidArgument(
                f"at={self._version!r}: Parquet files keep no earlier versions.",
                hint="Iceberg and Delta tables have versions",
            )
        keys = {
            str(key["Name"]): _TYPES.get(str(key.get("Type")).lower())
            for key in table.get("PartitionKeys") or ()
        }
        described = (table.get("StorageDescriptor") or {}).get("Columns") or ()
        columns = {
            str(column["Name"]): column_type(str(column.get("Type"))) for column in described
        }
        partitions: dict[str, Sequence[str]] = {} if keys else {path: ()}
        if keys:
            database, table_name = name.split(".", 1)
            with translate_errors(self._config, self._secret):
                listed = self._list_all(
                    "get_partitions", "Partitions", DatabaseName=database, TableName=table_name
                )
                for partition in listed:
                    location = str(partition["StorageDescriptor"]["Location"]).rstrip("/")
                    folder = self._locate(name, location)
                    if not folder.startswith(f"{path}/"):
                        raise SourceError(
                            f"Source {self._config.name!r}, table {name!r}: the partition "
                            f"{partition['Values']} is at {location!r}, outside of the location of the "
                            "table.",
                            hint="move it below the location of the table, or use Iceberg or Delta",
                        )
                    partitions[folder] = partition["Values"]
        with locations.storage_errors(self._config):
            return ParquetSnapshot(
                self._config, path, keys=keys, columns=columns, partitions=partitions
            )

    def _locate(self, name: str, location: str) -> str:
        """Return the path of a location for the storages."""
        return locations.catalog_path(
            location,
            subject=f"Source {self._config.name!r}, table {name!r}",
            settings=lambda scheme, _: self._settings if scheme == "s3" else None,
            folder=locations.chosen_folder(self._config),
        )


def table_format(table: TableRecord) -> Literal["iceberg", "delta", "parquet"] | None:
    """Return the format of a table as Glue, Athena and Spark describe it; None if it is not read.

    >>> table_format({"Parameters": {"table_type": "ICEBERG"}})
    'iceberg'
    """
    parameters = table.get("Parameters") or {}
    storage = table.get("StorageDescriptor") or {}
    input_format = str(storage.get("InputFormat") or "")
    if str(parameters.get("table_type")).lower() == "iceberg":
        return "iceberg"
    # The files of such a table are lists of paths.
    if table.get("TableType") == "VIRTUAL_VIEW" or "SymlinkTextInputFormat" in input_format:
        return None
    provider = str(parameters.get("spark.sql.sources.provider") or "").lower()
    names = {
        provider,
        *(str(parameters.get(parameter)).lower() for parameter in _FORMAT_PARAMETERS),
    }
    if "delta" in names:
        return "delta"
    # Hudi tables have the same row format, and files with older rows.
    if provider not in ("", "parquet"):
        return None
    is_parquet = input_format == _PARQUET_INPUT or (not input_format and "parquet" in names)
    return "parquet" if is_parquet else None


def column_type(text: str) -> pa.DataType | None:
    """Return the feature type of a Hive type, None for nested and unknown types.

    >>> column_type("decimal(10,2)"), column_type("varchar(20)")
    (Decimal128Type(decimal128(10, 2)), DataType(string))
    """
    text = text.strip().lower()
    decimal = _DECIMAL.fullmatch(text)
    if decimal is not None and max(1, int(decimal[2])) <= int(decimal[1]) <= 38:
        return pa.decimal128(int(decimal[1]), int(decimal[2]))
    if re.fullmatch(r"(var)?char\(\d+\)", text):
        return pa.string()
    return _COLUMN_TYPES.get(text)


def describe_format(table: TableRecord) -> str:
    """Return the format of a table in the words of the catalog."""
    parameters = table.get("Parameters") or {}
    storage = table.get("StorageDescriptor") or {}
    described = [parameters.get("spark.sql.sources.provider"), parameters.get("classification")]
    described += [storage.get("InputFormat"), table.get("TableType")]
    return next((str(description) for description in described if description), "unknown")


def table_location(table: TableRecord) -> str:
    """Return the location of a table."""
    storage = table.get("StorageDescriptor") or {}
    # Spark registers tables of its own formats with a placeholder as their location.
    serialization = (storage.get("SerdeInfo") or {}).get("Parameters") or {}
    location = serialization.get("path") or storage.get("Location") or ""
    return str(location).rstrip("/")


if TYPE_CHECKING:
    _contract: type[Source] = GlueSource
    _catalog: type[CatalogSource] = GlueSource
    _versions: type[NamedVersionsSource] = GlueSource
    _snapshot: type[SourceSnapshot] = GlueSnapshot
