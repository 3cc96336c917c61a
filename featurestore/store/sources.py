"""Methods for sources, catalogs, dbt projects and online stores."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from featurestore.model.display import Listing
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from featurestore.dbt import DbtImport
    from featurestore.featuregroups import FeatureGroup
    from featurestore.model.online_store import OnlineStoreSpec
    from featurestore.model.source import SourceReport, SourceSpec
    from featurestore.serving.purge import PurgeReport
    from featurestore.sources import SourceFrame
    from featurestore.sources.catalogs import CatalogRegistration

__all__ = ["CatalogCalls", "DbtCalls", "OnlineStoreCalls", "SourceCalls"]


class SourceCalls(StoreBase):
    """Methods for sources."""

    def add_source(
        self,
        name: str,
        uri: str,
        *,
        secret: str | None = None,
        options: Mapping[str, object] | None = None,
        description: str = "",
    ) -> SourceSpec:
        """Register a source of rows under a name.

        This does not connect to the source; ``check_source`` tests the connection.

        Args:
            name: ``[a-z][a-z0-9_]{0,62}``.
            uri: ``postgresql://user@host/database``, ``sqlite:///file.db``,
                ``duckdb:///file.duckdb``, a folder with Parquet, CSV or JSON-lines files,
                ``delta+/path`` (any Delta table), or the URI of another installed kind. It must not
                contain a password.
            secret: Reference to the password: ``"env:NAME"`` or ``"file:path"``. The password is
                read when the source connects, and never stored or displayed. With
                ``"environment"`` the driver may use credentials of the machine: environment
                variables, password files, cloud roles, tickets.
            options: Options of the source kind, such as ``{"format": "csv", "delimiter": ";"}`` for
                a folder; all kinds support ``rename``, a mapping of column names or
                ``"snake_case"``.
            description: The content of the source.

        Raises:
            SourceExists: A source with this name already exists.
            InvalidArgument: The URI contains a password, or its kind is not installed.

        >>> store.add_source("deliveries", "sqlite:///shop.db", description="orders").kind
        'sqlite'
        """
        from featurestore import sources

        return sources.add(
            self._session,
            name,
            uri,
            secret=secret,
            options=dict(options or {}),
            description=description,
        )

    def get_sources(self) -> list[SourceSpec]:
        """List all registered sources, ordered by name.

        >>> [source.name for source in store.get_sources()]
        ['shop']
        """
        from featurestore import sources

        return Listing(sources.every(self._session))

    def check_source(self, name: str) -> SourceReport:
        """Check a source: whether it is reachable, which tables are readable, and some sample rows.

        Errors are not raised but listed in the report (``.problems``), also those that
        ``read_source`` would raise for one of the first 20 tables.

        >>> report = store.check_source("shop")
        >>> (report.ok, [table.name for table in report.tables], report.sample[0]["total"])
        (True, ['orders'], 12.5)
        """
        from featurestore import sources

        return sources.check(self._session, name)

    def remove_source(self, name: str) -> None:
        """Remove a source; data that was read from it is not removed.

        >>> store.remove_source("shop")
        >>> store.get_sources()
        []
        """
        from featurestore import sources

        sources.remove(self._session, name)

    def create_external_featuregroup(
        self,
        name: str,
        *,
        source: str,
        table: str | None = None,
        sql: str | None = None,
        path: str | None = None,
        columns: Sequence[str] | None = None,
        primary_key: str | Sequence[str] = (),
        event_time: str | None = None,
        created_time: str | None = None,
        rename: Mapping[str, str] | str | None = None,
        version: int | None = None,
        ttl: timedelta | str | None = None,
        description: str = "",
        descriptions: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        expectations: object = None,
        snapshots: Literal["training", "never"] = "training",
        if_exists: Literal["version", "error", "return"] = "version",
    ) -> FeatureGroup:
        """Define a feature group over a source, without copying its rows; return its handle.

        The source is read lazily, once per retrieval, and joined as of the label times like any
        other group. Statistics and validation are computed on request.

        Args:
            name: ``[a-z][a-z0-9_]{0,62}``.
            source: Name of a registered source.
            table: A table or view in the source.
            sql: A query in the SQL dialect of the source.
            path: Files below the folder of the source.
            columns: The columns to read; None: all.
            primary_key: Columns that identify an entity; they must not be floats or the group's
                times.
            event_time: Column with the time to which a row applies.
            created_time: Column with the time at which a row became known.
            rename: New column names (``{"Country Name": "country_name"}``), or ``"snake_case"`` for
                all columns.
            version: The version to create; None: the next one.
            ttl: How long a value may be used after its event time ("7d"); None: without limit.
            description: A description for other users.
            descriptions: Descriptions of features.
            tags: Tags, which can be searched.
            expectations: As in ``create_featuregroup``; ``validate_featuregroup`` checks them.
            snapshots: "training" copies the rows that a training dataset uses to the store, so that
                it can be exported again; "never" stores no copy, which the dataset records.
            if_exists: As in ``create_featuregroup``; an equal definition is returned.

        Raises:
            SourceNotFound: The source is not registered.
            SourceUnavailable: The source is unreachable or refuses access.
            SourceTableNotFound: The table or file does not exist.
            UnsupportedType: Columns cannot be read without loss; the message lists them with
                suitable SQL.
            FeatureGroupExists: The version already exists.

        >>> group = store.create_external_featuregroup(
        ...     "customers", source="shop", sql="select id, total from orders", primary_key="id"
        ... )
        >>> store.get_features(["customers.total"], labels=[{"id": 2}]).to_arrow().to_pylist()
        [{'id': 2, 'total': 99.0}]
        """
        from featurestore import sources
        from featurestore.external import grant_rows
        from featurestore.featuregroups import FeatureGroup, WriteRequest, create_named
        from featurestore.featuregroups.definition import build_spec, declare_group
        from featurestore.featuregroups.redefinition import check_expectations

        rows, schema = sources.define_external(
            self._session,
            source,
            sources.build_query(table=table, sql=sql, path=path, columns=columns, rename=rename),
            snapshots=snapshots,
        )
        declared = declare_group(
            primary_key=primary_key,
            event_time=event_time,
            created_time=created_time,
            ttl=ttl,
            expectations=expectations,
            statistics=False,
            description=description,
            descriptions=descriptions,
            tags=tags,
            external=rows,
        )
        spec = build_spec(declared, name=name, version=version or 1, schema=schema)
        check_expectations(self._session, spec)
        # Only the definition is stored. The table has no rows to validate.
        request = WriteRequest(name, version=version, options=declared, validation="off")
        spec = create_named(self._session, schema.empty_table(), request, if_exists=if_exists)
        # An equal definition may have been created on another machine.
        grant_rows(self._session, spec)
        return FeatureGroup(self._session, spec.name, spec.version)

    def read_source(
        self,
        name: str,
        *,
        table: str | None = None,
        sql: str | None = None,
        path: str | None = None,
        at: int | datetime | str | None = None,
        columns: Sequence[str] | None = None,
        rename: Mapping[str, str] | str | None = None,
        format: Literal["parquet", "csv", "jsonl", "json", "arrow", "webdataset"] | None = None,
        delimiter: str | None = None,
        quote: str | None = None,
        escape: str | None = None,
        header: bool | None = None,
        names: str | Sequence[str] | None = None,
        encoding: str | None = None,
        decimal: str | None = None,
        thousands: str | None = None,
        null_values: str | Sequence[str] | None = None,
        date_format: str | Mapping[str, str] | None = None,
        timestamp_format: str | Mapping[str, str] | None = None,
        dtypes: Mapping[str, str] | None = None,
        skip_rows: int | None = None,
        comment: str | None = None,
        on_bad_rows: Literal["error", "quarantine"] | None = None,
        timestamp_precision: Literal["us"] | None = None,
    ) -> SourceFrame:
        """Return a lazy frame over a table, a query or files in a source.

        It can be used as data or labels like a dataframe. Each read sees one consistent snapshot,
        and only the required columns are transferred. If a group is created from it, the commit and
        the lineage record the source data.

        Args:
            name: Name of the source.
            table: A table or view, such as ``"orders"`` or ``"sales.orders"``.
            sql: A query in the SQL dialect of the source.
            path: Files below the folder of the source; None: all files.
            at: A version or time of a Delta table; a snapshot id, time, branch or tag of an Iceberg
                table.
            columns: The columns to read, by their original or new names; use it to omit columns
                with unsupported types.
            rename: New column names (``{"Country Name": "country_name"}``), or ``"snake_case"`` for
                all columns.
            format: The format of the files to read in a folder; the options below also apply to
                folders.
            delimiter: The field separator; by default a comma, for ``.tsv`` a tab.
            quote: The quote character, by default ``'"'``; ``""`` for none.
            escape: The escape character; ``""`` for none.
            header: Whether the first line contains the column names (default True).
            names: The column names for files without a header.
            encoding: The encoding of the files (default "utf-8").
            decimal: The decimal separator (default ".").
            thousands: The thousands separator; ``""`` for none.
            null_values: Strings that represent null, in addition to unquoted empty fields.
            date_format: The format of dates other than ISO 8601: a ``strptime`` pattern, or a
                mapping of columns to patterns.
            timestamp_format: The format of timestamps, likewise.
            dtypes: Column types (``{"zip": "string"}``); these columns may be missing in files.
            skip_rows: The number of lines before the header (default 0).
            comment: The character that starts comment lines; ``""`` for none.
            on_bad_rows: "error", or "quarantine" to skip and count rows that cannot be read.
            timestamp_precision: "us" rounds more precise timestamps; otherwise they are refused.

        Raises:
            SourceNotFound: The source is not registered.
            SourceUnavailable: The source is unreachable or refuses access.
            SourceTableNotFound: The table, file or version does not exist.
            InvalidSourceFile: A file does not match the others or the options; the message has the
                line.
            UnsupportedType: Columns cannot be read without loss; the message lists them with
                suitable SQL.

        >>> store.read_source("shop", table="orders").select("id", "total").to_arrow().to_pylist()
        [{'id': 1, 'total': 12.5}, {'id': 2, 'total': 99.0}]
        """
        from featurestore import sources

        options = {
            "rename": rename,
            "format": format,
            "delimiter": delimiter,
            "quote": quote,
            "escape": escape,
            "header": header,
            "names": names,
            "encoding": encoding,
            "decimal": decimal,
            "thousands": thousands,
            "null_values": null_values,
            "date_format": date_format,
            "timestamp_format": timestamp_format,
            "dtypes": dtypes,
            "skip_rows": skip_rows,
            "comment": comment,
            "on_bad_rows": on_bad_rows,
            "timestamp_precision": timestamp_precision,
        }
        return sources.read_source(
            self._session,
            name,
            table=table,
            sql=sql,
            path=path,
            at=at,
            columns=columns,
            options=options,
        )


class CatalogCalls(StoreBase):
    """Methods for catalogs."""

    def register_in(
        self,
        source: str,
        *,
        featuregroups: str | Sequence[str] | None = None,
        schema: str = "featurestore",
    ) -> CatalogRegistration:
        """Register feature groups as external tables of a catalog, by which others find them.

        Unity Catalog gets the Delta tables, Iceberg catalogs the tables of groups that were created
        with ``iceberg=True``. A table has the name of its group and the rows of its latest version;
        ``"trips@v1"`` is the table ``trips_v1``. A later call replaces the tables of changed groups,
        and removes those of groups that were deleted or became private. An Iceberg table has the
        rows of the commit that it was registered with, so call it after writes, or define a
        ``catalog_job``. Tables that this store did not register are never changed.

        Args:
            source: The registered source of the catalog.
            featuregroups: Names of groups, such as ``"trips"`` or ``"trips@v1"``; None: all groups
                that can be registered, except private and external ones. Tables that were
                registered earlier are synchronized in either case.
            schema: The schema (namespace) in the catalog, which is created if necessary.

        Raises:
            SourceNotFound: The source is not registered.
            InvalidArgument: The source is not a catalog, or a group cannot be registered.
            FeatureGroupNotFound: A group does not exist.
            SourceError: A table exists that this store did not register, or the catalog refuses the
                request; the message names the table.
            SourceUnavailable: The catalog is unreachable or refuses access.

        >>> import os
        >>> group = store.create_featuregroup([{"id": 1}], "lakes", iceberg=True)
        >>> path = os.path.abspath("catalog.db")
        >>> store.add_source("lake", f"iceberg+sqlite:///{path}").kind
        'iceberg'
        >>> print(store.register_in("lake", featuregroups="lakes"))
        catalog lake: 1 created, 0 updated, 0 removed, 0 unchanged
        created   featurestore.lakes
        """
        from featurestore.sources import register_groups

        return register_groups(self._session, source, featuregroups=featuregroups, schema=schema)


class DbtCalls(StoreBase):
    """Methods for dbt projects."""

    def add_dbt_project(
        self,
        manifest: str | os.PathLike[str],
        *,
        source: str,
        select: str | Sequence[str] | None = None,
        remove: bool = False,
    ) -> DbtImport:
        """Define external feature groups over the tables of a dbt project.

        Keys come from ``meta.featurestore``, ``primary_key`` constraints or the tests ``unique`` and
        ``not_null``, event times from ``meta.featurestore`` or ``event_time``. Descriptions, tags,
        owners, tests and freshness are imported, too. A second import writes only what changed. All
        tables are checked before the first group is written.

        Args:
            manifest: The file ``target/manifest.json`` that dbt 1.8 or later wrote.
            source: The registered source of the database in which dbt builds the tables.
            select: Selectors of dbt, such as ``"tag:features"`` or ``"orders+ path:models/marts"``.
                None: the models and snapshots with a table and a key; ``skipped`` of the result
                lists the others with their reasons.
            remove: Whether to delete the groups of nodes that the dbt project no longer has, with
                their freshness monitors. The plan shows what this breaks.

        Raises:
            DefinitionsRefused: A view or a training dataset reads a group that is to be deleted.
            InvalidDbtProject: The manifest is invalid, or tables cannot be imported that are
                selected, have ``meta.featurestore`` or were imported before; the message names
                each node.
            SourceNotFound: The source is not registered.
            SourceUnavailable: The source is unreachable or refuses access.

        >>> print(store.add_dbt_project("target/manifest.json", source="shop"))
        dbt project shop in source shop: 1 created, 0 changed, 0 unchanged, 0 removed
        created   orders@v1 (model.shop.orders)
        """
        from featurestore.dbt import import_project

        return import_project(self._session, manifest, source=source, select=select, remove=remove)

    def plan_dbt_project(
        self,
        manifest: str | os.PathLike[str],
        *,
        source: str,
        select: str | Sequence[str] | None = None,
    ) -> DbtImport:
        """Return what ``add_dbt_project`` would change, without writing.

        Args:
            manifest: As in ``add_dbt_project``.
            source: As in ``add_dbt_project``.
            select: As in ``add_dbt_project``.

        >>> store.plan_dbt_project("target/manifest.json", source="shop").created
        ('orders',)
        """
        from featurestore.dbt import plan_import

        return plan_import(self._session, manifest, source=source, select=select)

    def write_dbt_exposures(
        self, path: str | os.PathLike[str], *, owner: str = "featurestore"
    ) -> list[str]:
        """Write the uses of imported dbt tables as exposures of dbt, and return their names.

        Each training dataset, feature view and model that depends on an imported table is an
        exposure, so the lineage of dbt ends at the model. The file is replaced by the next call.

        Args:
            path: A YAML file in the dbt project, such as ``models/featurestore_exposures.yml``.
            owner: The owner of objects without a tag ``owner``; dbt requires one.

        Raises:
            InvalidDbtProject: The path is not in a dbt project, or contains another file.

        >>> store.write_dbt_exposures("models/featurestore_exposures.yml")
        []
        """
        from featurestore.dbt.exposures import write_exposures

        return write_exposures(self._session, path, owner=owner)


class OnlineStoreCalls(StoreBase):
    """Methods for online stores."""

    def add_online_store(
        self, name: str, uri: str, *, secret: str | None = None
    ) -> OnlineStoreSpec:
        """Register an online store, to which feature views are published.

        This does not connect to the store; ``featurestore online check`` tests the connection. A
        local store also has the online store "embedded", a SQLite file in its location. Each
        feature store needs a database of its own.

        Args:
            name: ``[a-z][a-z0-9_]{0,62}``.
            uri: ``redis://user@host:6379/0``, ``rediss://`` with TLS,
                ``postgresql://user@host/database``, ``sqlite:///file.db``, or the URI of another
                installed kind. ``?timeout=0.5`` limits the wait for a response in seconds (default
                5). It must not contain a password.
            secret: Reference to the password: ``"env:NAME"`` or ``"file:path"``. The password is
                read when the store connects, and never stored or displayed. With
                ``"environment"`` the driver may use password files and variables of the machine.

        Raises:
            OnlineStoreExists: An online store with this name already exists.
            InvalidArgument: The URI contains a password, or its kind is not installed.

        >>> store.add_online_store("cache", "redis://localhost:6379/0").kind
        'redis'
        """
        from featurestore.serving import stores

        return stores.add_online_store(self._session, name, uri, secret=secret)

    def get_online_stores(self) -> list[OnlineStoreSpec]:
        """List the online stores: the embedded one of a local store, and the registered ones.

        >>> [online.name for online in store.get_online_stores()]
        ['embedded']
        """
        from featurestore.serving import stores

        return stores.get_online_stores(self._session)

    def remove_online_store(self, name: str) -> None:
        """Remove the registration of an online store; published values remain in the store.

        Raises:
            OnlineStoreNotFound: No online store with this name is registered.

        >>> store.add_online_store("cache", "redis://localhost:6379/0").name
        'cache'
        >>> store.remove_online_store("cache")
        """
        from featurestore.serving import stores

        stores.remove_online_store(self._session, name)

    def purge_online_store(self, name: str | None = None, *, dry_run: bool = False) -> PurgeReport:
        """Remove the published keys of an online store that belong to no feature view.

        These are the values of deleted views and of old generations, and values whose state record
        was damaged or replaced. Keys of other feature stores and of applications in the same
        database remain. Readers and publications may run at the same time.

        Args:
            name: The name of the online store; None means the embedded store.
            dry_run: Only count the keys.

        Raises:
            OnlineStoreNotFound: No online store with this name is registered.
            FormatTooNew: A newer release has published views to the online store.

        >>> publication = store.publish("late_flights")
        >>> store.delete_feature_view("late_flights", version=1)
        >>> store.purge_online_store(dry_run=True)
        online store 'embedded': 4 keys would be removed
          4 of late_flights@v1
        >>> store.purge_online_store().removed_views
        ('late_flights@v1',)
        """
        from featurestore.serving.purge import purge

        return purge(self._session, name, dry_run=dry_run)
