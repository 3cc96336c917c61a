"""The interface of catalogs in which tables of a store are registered by name.

Sources of such catalogs implement ``CatalogSource``. Marks in the catalog distinguish the tables
that a store registered from those of others, which are never changed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

# The properties of a mark.
STORE = "featurestore.store"
GROUP = "featurestore.featuregroup"
DEFINITION = "featurestore.definition"


@dataclass(frozen=True)
class TableMark:
    """The origin of a registered table.

    Attributes:
        store: The location of the store.
        group: The reference of the feature group: ``trips`` or ``trips@v1``.
        definition: A hash of what is registered, which differs if the table must be replaced.
    """

    store: str
    group: str
    definition: str

    def to_properties(self) -> dict[str, str]:
        """Return the mark as properties of a table."""
        return {STORE: self.store, GROUP: self.group, DEFINITION: self.definition}

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any] | None) -> TableMark | None:
        """Return the mark in properties, None without a complete mark."""
        texts = [(properties or {}).get(name) for name in (STORE, GROUP, DEFINITION)]
        if not all(isinstance(text, str) for text in texts):
            return None
        return cls(*map(str, texts))


@dataclass(frozen=True)
class CatalogTable:
    """A feature group as an external table of a catalog.

    Attributes:
        schema: The schema (namespace) of the catalog.
        name: The name in the schema.
        location: The URI of the Delta table.
        columns: The fields of the Delta schema.
        partition_by: The partition columns.
        comment: The description of the group.
        comments: The descriptions of columns.
        metadata: The URI of the Iceberg metadata file, None for groups without it.
        mark: The origin of the table.
    """

    schema: str
    name: str
    location: str
    columns: Sequence[Mapping[str, Any]]
    mark: TableMark
    partition_by: Sequence[str] = ()
    comment: str = ""
    comments: Mapping[str, str] = field(default_factory=dict)
    metadata: str | None = None

    @property
    def full_name(self) -> str:
        """The name with its schema."""
        return f"{self.schema}.{self.name}"


class TableCatalog(Protocol):
    """A connection to a catalog, for use by one thread.

    ``table_format`` is the format of the tables that can be registered. All errors are
    ``FeatureStoreError``; those of one table contain its name.
    """

    @property
    def table_format(self) -> Literal["delta", "iceberg"]:
        """The format of the tables that can be registered."""
        ...

    def tables(self, schema: str) -> Mapping[str, TableMark | None]:
        """Return the names of all tables in a schema, with the marks of registered ones.

        A schema that does not exist has no tables.
        """
        ...

    def create(self, table: CatalogTable) -> None:
        """Register a table with its mark, and its schema if it does not exist."""
        ...

    def replace(self, table: CatalogTable) -> None:
        """Replace the registration of a marked table. The table may be absent for a moment."""
        ...

    def remove(self, schema: str, name: str) -> None:
        """Remove the registration of a marked table. Its files remain."""
        ...

    def close(self) -> None:
        """Close the connection; may be called repeatedly."""
        ...


@runtime_checkable
class CatalogSource(Protocol):
    """A source in whose catalog tables can be registered."""

    def catalog(self) -> TableCatalog:
        """Connect to the catalog.

        Raises:
            SourceUnavailable: The catalog cannot be reached, or rejects the user.
            InvalidArgument: The source is a single table.
        """
        ...
