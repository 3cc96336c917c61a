"""Registration of tables in catalogs: Delta tables in Unity Catalog, Iceberg metadata in Iceberg.

Unity Catalog stores the mark of a table in its properties. A clone has the properties of its
origin, so a marked table with files elsewhere is not one of the store. The format of requests is
that of its REST interface (https://github.com/unitycatalog/unitycatalog, api/Models/CreateTable.md
and ColumnInfo.md). Deleting an external table leaves its files.

An Iceberg catalog refers to a metadata file of the store. A change of its properties would write
into the folder of the store, so the marks of tables are properties of their namespace. A marked
table that refers to metadata of others is not one of the store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from featurestore.errors import FeatureStoreError, SourceError, SourceUnavailable
from featurestore.plugins.catalog import CatalogTable, TableCatalog, TableMark
from featurestore.plugins.source import SourceConfig
from featurestore_connectors.sources.drivers import to_single_line
from featurestore_connectors.sources.unity_client import UnityClient

_EXTERNAL = "EXTERNAL"
# The names of Delta types in SQL and in Unity Catalog, if they differ.
_SQL_NAMES = {"long": "bigint", "integer": "int", "short": "smallint", "byte": "tinyint"}
_TYPE_NAMES = {"integer": "INT"}
_DECIMAL = re.compile(r"decimal\(\s*(\d+)\s*,\s*(\d+)\s*\)")
# The property of a namespace with the mark of a table.
_MARK = "featurestore.table."
_LOCATION = "location"


class UnityTables:
    """The tables of one catalog."""

    table_format: Literal["delta", "iceberg"] = "delta"

    def __init__(self, client: UnityClient, catalog: str) -> None:
        self._client = client
        self._catalog = catalog

    def tables(self, schema: str) -> Mapping[str, TableMark | None]:
        marks = {}
        listed = self._client.list_all("tables", catalog_name=self._catalog, schema_name=schema)
        for table in listed:
            name = str(table["name"])
            details = table
            if table.get("properties") is None:  # a list may omit them
                details = self._get(schema, name) or {}
            mark = TableMark.from_properties(details.get("properties"))
            if mark is not None and not is_inside(details.get("storage_location"), mark.store):
                mark = None
            marks[name] = mark
        return marks

    def create(self, table: CatalogTable) -> None:
        with self._name_table(table.schema, table.name):
            if self._client.get(f"schemas/{self._quote(table.schema)}") is None:
                self._client.post("schemas", {"name": table.schema, "catalog_name": self._catalog})
            self._client.post("tables", self._describe_table(table))

    def replace(self, table: CatalogTable) -> None:
        # The location and the columns of a table cannot be changed.
        self.remove(table.schema, table.name)
        self.create(table)

    def remove(self, schema: str, name: str) -> None:
        with self._name_table(schema, name):
            table = self._get(schema, name)
            if table is None:
                return
            # The files of a managed table would be deleted, too.
            if table.get("table_type") != _EXTERNAL:
                raise SourceError(
                    f"the table is {table.get('table_type')}, and only external tables are removed.",
                    hint="drop it in the catalog",
                )
            self._client.delete(f"tables/{self._quote(schema, name)}")

    def close(self) -> None:
        """Do nothing: each request has its own connection."""

    def _get(self, schema: str, name: str) -> dict[str, Any] | None:
        return self._client.get(f"tables/{self._quote(schema, name)}")

    def _quote(self, *names: str) -> str:
        return quote(".".join((self._catalog, *names)), safe=".")

    def _describe_table(self, table: CatalogTable) -> dict[str, Any]:
        """Return the body of the request that registers a table."""
        columns = []
        for position, field in enumerate(table.columns):
            column = describe_column(field, position)
            if table.comments.get(field["name"]):
                column["comment"] = table.comments[field["name"]]
            if field["name"] in table.partition_by:
                column["partition_index"] = list(table.partition_by).index(field["name"])
            columns.append(column)
        body = {
            "name": table.name,
            "catalog_name": self._catalog,
            "schema_name": table.schema,
            "table_type": _EXTERNAL,
            "data_source_format": "DELTA",
            "columns": columns,
            "storage_location": table.location,
            "properties": table.mark.to_properties(),
        }
        return body if not table.comment else {**body, "comment": table.comment}

    @contextmanager
    def _name_table(self, schema: str, name: str) -> Iterator[None]:
        """Add the name of the table to errors."""
        try:
            yield
        except FeatureStoreError as error:
            error_class = SourceUnavailable if isinstance(error, SourceUnavailable) else SourceError
            message = f"Table '{self._catalog}.{schema}.{name}': {error.message}"
            raise error_class(message, hint=error.hint) from error


def is_inside(location: object, store: str) -> bool:
    """Return whether the location of a table is below that of a store.

    >>> is_inside("file:/data/store/featuregroups/trips/", "file:///data/store")
    True
    """
    # Catalogs return one to three slashes after the scheme of a local path.
    paths = [re.sub(r"^(\w+):/+", r"\1:/", str(path)) for path in (location, store)]
    return paths[0].startswith(f"{paths[1]}/")


def describe_column(field: Mapping[str, Any], position: int) -> dict[str, Any]:
    """Return a field of a Delta schema as a column of Unity Catalog."""
    delta_type = field["type"]
    type_name = str(delta_type if isinstance(delta_type, str) else delta_type["type"])
    decimal = _DECIMAL.fullmatch(delta_type) if isinstance(delta_type, str) else None
    column = {
        "name": field["name"],
        "type_text": to_sql_type(delta_type),
        "type_json": json.dumps(field),
        "type_name": "DECIMAL" if decimal else _TYPE_NAMES.get(type_name, type_name.upper()),
        "position": position,
        "nullable": bool(field.get("nullable", True)),
    }
    if decimal:
        column |= {"type_precision": int(decimal[1]), "type_scale": int(decimal[2])}
    return column


def to_sql_type(delta_type: Any) -> str:
    """Return a type of a Delta schema in SQL.

    >>> to_sql_type({"type": "array", "elementType": "long", "containsNull": True})
    'array<bigint>'
    """
    if isinstance(delta_type, str):
        return _SQL_NAMES.get(delta_type, delta_type)
    if delta_type["type"] == "array":
        return f"array<{to_sql_type(delta_type['elementType'])}>"
    if delta_type["type"] == "map":
        return f"map<{to_sql_type(delta_type['keyType'])},{to_sql_type(delta_type['valueType'])}>"
    fields = [f"{field['name']}:{to_sql_type(field['type'])}" for field in delta_type["fields"]]
    return f"struct<{','.join(fields)}>"


class IcebergTables:
    """The tables of one catalog."""

    table_format: Literal["delta", "iceberg"] = "iceberg"

    def __init__(self, config: SourceConfig, catalog: Any, secret: str | None) -> None:
        self._config = config
        self._catalog = catalog
        self._secret = secret

    def tables(self, schema: str) -> Mapping[str, TableMark | None]:
        from pyiceberg.exceptions import NoSuchNamespaceError

        with self._translate_errors(f"namespace {schema!r}"):
            try:
                properties = self._catalog.load_namespace_properties(schema)
                names = [identifier[-1] for identifier in self._catalog.list_tables(schema)]
            except NoSuchNamespaceError:
                return {}
        return {name: self._find_mark(schema, name, properties) for name in names}

    def _find_mark(self, schema: str, name: str, properties: Mapping[str, str]) -> TableMark | None:
        """Return the mark of a table, None if its metadata is not in the marked store."""
        from featurestore_connectors.sources.iceberg_catalogs import load_catalog_table

        try:
            marked = json.loads(properties.get(f"{_MARK}{name}", "null")) or {}
            mark, location = TableMark.from_properties(marked), str(marked.get(_LOCATION))
        except (ValueError, AttributeError):
            return None
        if mark is None:
            return None
        try:
            subject = f"Source {self._config.name!r}, table '{schema}.{name}'"
            table = load_catalog_table(self._catalog, f"{schema}.{name}", subject=subject)
        except Exception:  # pyiceberg's errors have no class of their own
            # Its metadata file was removed by the maintenance of the store.
            return TableMark(mark.store, mark.group, "")
        current = str(table.metadata_location)
        if current == location:
            return mark
        is_of_store = current.startswith(f"{mark.store}/")
        return TableMark(mark.store, mark.group, "") if is_of_store else None

    def create(self, table: CatalogTable) -> None:
        from pyiceberg.exceptions import NamespaceAlreadyExistsError

        with self._translate_errors(f"table {table.full_name!r}"):
            with suppress(NamespaceAlreadyExistsError):
                self._catalog.create_namespace(table.schema)
            # A mark without a table has no effect, a table without a mark would never be changed.
            self._put_mark(table)
            self._catalog.register_table(table.full_name, table.metadata)

    def replace(self, table: CatalogTable) -> None:
        with self._translate_errors(f"table {table.full_name!r}"):
            self._put_mark(table)
            try:
                self._catalog.register_table(table.full_name, table.metadata, overwrite=True)
            # Few catalogs replace a table in one step, and some read the replaced metadata for it,
            # which the maintenance of the store may have removed.
            except Exception:
                self._catalog.drop_table(table.full_name)
                self._catalog.register_table(table.full_name, table.metadata)

    def remove(self, schema: str, name: str) -> None:
        from pyiceberg.exceptions import NoSuchTableError

        with self._translate_errors(f"table '{schema}.{name}'"):
            with suppress(NoSuchTableError):
                self._catalog.drop_table(f"{schema}.{name}")
            self._catalog.update_namespace_properties(schema, removals={f"{_MARK}{name}"})

    def close(self) -> None:
        """Close the connections to the catalog."""
        self._catalog.close()

    def _put_mark(self, table: CatalogTable) -> None:
        mark = {**table.mark.to_properties(), _LOCATION: table.metadata}
        self._catalog.update_namespace_properties(
            table.schema, updates={f"{_MARK}{table.name}": json.dumps(mark)}
        )

    @contextmanager
    def _translate_errors(self, subject: str) -> Iterator[None]:
        """Convert pyiceberg exceptions to feature store errors that name the table."""
        from pyiceberg.exceptions import TableAlreadyExistsError

        try:
            yield
        except FeatureStoreError:
            raise
        except TableAlreadyExistsError as error:
            raise SourceError(
                f"Source {self._config.name!r}: {subject} was created by another client meanwhile.",
                hint="repeat the call",
            ) from error
        except Exception as error:  # pyiceberg's errors have no class of their own
            # Not chained: the message of the cause may contain the secret.
            raise SourceUnavailable(
                f"Source {self._config.name!r}: {subject} cannot be registered: "
                f"{to_single_line(str(error), self._secret)}",
                hint="check the URI, the secret, and the rights of its user",
            ) from None


if TYPE_CHECKING:
    _unity: type[TableCatalog] = UnityTables
    _iceberg: type[TableCatalog] = IcebergTables
