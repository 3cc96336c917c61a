"""Tables of Unity Catalog, by its REST interface, each pinned on first access.

The catalog lists tables, and vends temporary credentials for the files of one table
(https://github.com/unitycatalog/unitycatalog, api/all.yaml). Iceberg tables are read by the Iceberg
REST service of the catalog, with the credentials that it vends. All responses are untrusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from featurestore.errors import InvalidArgument, SourceError
from featurestore.model.source import SourceTable
from featurestore.plugins.catalog import CatalogSource, TableCatalog
from featurestore.plugins.source import NamedVersionsSource, Source, SourceConfig, SourceSnapshot
from featurestore.storage.settings import AZURE_SAS, GOOGLE_TOKEN, SECRET, TOKEN, USER
from featurestore_connectors.sources import locations
from featurestore_connectors.sources.catalog_registration import UnityTables
from featurestore_connectors.sources.catalog_tables import CatalogSnapshot, OpenTable, name_table
from featurestore_connectors.sources.delta_table import open_delta
from featurestore_connectors.sources.drivers import check_options, is_loopback
from featurestore_connectors.sources.iceberg import (
    IcebergSnapshot,
    import_catalogs,
    translate_errors,
)
from featurestore_connectors.sources.unity_client import UnityClient

_API = "/api/2.1/unity-catalog"
_FORMATS = ("DELTA", "ICEBERG")
# The paths of the Iceberg REST service: that of Databricks, and that of the open-source server.
_ICEBERG_PATHS = ("iceberg-rest", "iceberg")
# The region and the endpoints of buckets, which the catalog does not return, as settings.
_BUCKET_OPTIONS = {
    "s3": {"aws_endpoint_url": "aws_endpoint_url", "aws_region": "aws_region"},
    "gs": {"google_base_url": "google_base_url"},
    "az": {"azure_endpoint": "azure_endpoint"},
}
_OPTIONS = sorted(
    [locations.FOLDER, *(name for names in _BUCKET_OPTIONS.values() for name in names)]
)
# The same options as properties of an Iceberg catalog.
_ICEBERG_NAMES = {
    "aws_endpoint_url": "s3.endpoint",
    "aws_region": "client.region",
    "google_base_url": "gcs.service.host",
    "azure_endpoint": "featurestore.azure-endpoint",
}
# The credentials in a response (api/Models/TemporaryCredentials.md), and their settings.
_CREDENTIALS = {
    "s3": (
        "aws_temp_credentials",
        {"access_key_id": USER, "secret_access_key": SECRET, "session_token": TOKEN},
    ),
    "gs": ("gcp_oauth_token", {"oauth_token": GOOGLE_TOKEN}),
    "az": ("azure_user_delegation_sas", {"sas_token": AZURE_SAS}),
}


class UnitySource:
    """A catalog of Unity Catalog: ``unity://host/catalog``; ``?tls=false`` for a local server.

    The secret is a token of the user. Options: the endpoints and the region of the
    buckets, and ``folder``, the folder in which tables may have local files.
    """

    def __init__(self, config: SourceConfig) -> None:
        locations.check_option_names(config, _OPTIONS, source="a Unity Catalog source")
        self._config = config
        locations.chosen_folder(config)
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

    def named_snapshot(self, name: str) -> UnitySnapshot:
        """Open the catalog at a branch or tag of Iceberg tables, or at a version or time as text."""
        return UnitySnapshot(self._config, self._connect(), self._catalog, version=name)

    def catalog(self) -> TableCatalog:
        """Connect to the catalog, to register tables."""
        return UnityTables(self._connect(), self._catalog)

    def _connect(self) -> UnityClient:
        token = None if self._config.secret is None else self._config.secret()
        return UnityClient(self._config, self._address, token)


class UnitySnapshot(CatalogSnapshot):
    """The Delta and Iceberg tables of one catalog."""

    noun = "Unity Catalog"

    def __init__(
        self,
        config: SourceConfig,
        client: UnityClient,
        catalog: str,
        *,
        version: int | datetime | str | None,
    ) -> None:
        super().__init__(config)
        self._client = client
        self._catalog = catalog
        self._version = version
        self._iceberg: Any = None
        self.server = f"Unity Catalog {urlsplit(config.uri).netloc}, catalog {catalog}"

    def tables(self) -> Sequence[SourceTable]:
        names = []
        schemas = self._client.list_all("schemas", catalog_name=self._catalog)
        for schema in sorted(str(schema["name"]) for schema in schemas):
            selection = {"catalog_name": self._catalog, "schema_name": schema}
            for table in self._client.list_all("tables", **selection):
                if table.get("data_source_format") in _FORMATS:
                    names.append(f"{schema}.{table['name']}")
        return [SourceTable(name) for name in sorted(names)]

    def close(self) -> None:
        super().close()
        if self._iceberg is not None:
            self._iceberg.close()

    def _open_table(self, name: str) -> OpenTable | None:
        table = None
        if name.count(".") == 1 and "/" not in name:
            table = self._client.get(f"tables/{quote(f'{self._catalog}.{name}', safe='.')}")
        if table is None:
            return None
        if table.get("data_source_format") not in _FORMATS:
            raise SourceError(
                f"Source {self._config.name!r}: the table {name!r} has the format "
                f"{table.get('data_source_format')}, but only Delta and Iceberg tables are read.",
                hint="write it as a Delta table",
            )
        with name_table(name):
            if table["data_source_format"] == "DELTA":
                path = self._locate(name, table)
                return OpenTable(open_delta(self._config, path, self._version))
            snapshot = IcebergSnapshot(
                self._config,
                self._connect_iceberg(),
                version=self._version,
                secret=self._client.token,
            )
            return OpenTable(snapshot, is_catalog=True)

    def _connect_iceberg(self) -> Any:
        """Return the Iceberg REST service of the catalog."""
        if self._iceberg is not None:
            return self._iceberg
        for path in _ICEBERG_PATHS:
            if self._client.get(f"{path}/v1/config", warehouse=self._catalog) is not None:
                with translate_errors(self._config, self._client.token):
                    self._iceberg = import_catalogs().open_catalog(
                        f"{self._client.address}/{path}",
                        name=self._config.name,
                        warehouse=self._catalog,
                        token=self._client.token,
                        defaults=self._select_options(_ICEBERG_NAMES),
                        folder=locations.chosen_folder(self._config),
                    )
                return self._iceberg
        raise SourceError(
            "The catalog has no Iceberg REST service, by which Iceberg tables are read.",
            hint="enable external data access to the catalog, or write Delta tables",
        )

    def _locate(self, name: str, table: Mapping[str, Any]) -> str:
        """Return the path of a table for the storages, with the credentials of the catalog."""
        return locations.catalog_path(
            str(table.get("storage_location") or "").rstrip("/"),
            subject=f"Source {self._config.name!r}, table {name!r}",
            settings=lambda scheme, _: self._vended_settings(scheme, table),
            folder=locations.chosen_folder(self._config),
        )

    def _vended_settings(self, scheme: str, table: Mapping[str, Any]) -> dict[str, str] | None:
        """Return the settings of a table's bucket, with temporary credentials of the catalog.

        The credentials of this machine are not those of the table.
        """
        response = self._client.post(
            "temporary-table-credentials", {"table_id": table.get("table_id"), "operation": "READ"}
        )
        secret_type, names = _CREDENTIALS[scheme]
        vended = response.get(secret_type) or {}
        credentials = {
            option: vended[key]
            for key, option in names.items()
            if isinstance(vended.get(key), str) and vended[key]
        }
        # A session token is optional.
        if set(names.values()) - {TOKEN} - set(credentials):
            return None
        return {**self._select_options(_BUCKET_OPTIONS[scheme]), **credentials}

    def _select_options(self, names: Mapping[str, str]) -> dict[str, str]:
        """Return options of the source under other names."""
        options = self._config.options
        return {names[name]: value for name, value in options.items() if name in names}


if TYPE_CHECKING:
    _contract: type[Source] = UnitySource
    _catalog: type[CatalogSource] = UnitySource
    _versions: type[NamedVersionsSource] = UnitySource
    _snapshot: type[SourceSnapshot] = UnitySnapshot
