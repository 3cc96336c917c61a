"""Calls on sources: registered, checked, read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from featurestore.model.featuregroup import normalize_tags
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from featurestore.featuregroups import FeatureGroup
    from featurestore.model.source import SourceReport, SourceSpec
    from featurestore.sources import SourceFrame

__all__ = ["SourceCalls"]


class SourceCalls(StoreBase):
    """The calls on sources."""

    def add_source(
        self,
        name: str,
        uri: str,
        *,
        secret: str | None = None,
        options: Mapping[str, object] | None = None,
        description: str = "",
    ) -> SourceSpec:
        """Register a place where rows come from, under a name.

        No connection is made; ``check_source`` tests it.

        Args:
            name: ``[a-z][a-z0-9_]{0,62}``.
            uri: ``postgresql://user@host/database``, ``sqlite:///file.db``, ``duckdb:///file.duckdb``,
                a folder of Parquet, CSV or JSON-lines files, ``delta+/path`` (a Delta table of
                anybody), or another kind that is installed. It holds no password.
            secret: Where the password is: ``"env:NAME"`` or ``"file:path"``. It is read when the
                source connects, and never stored or shown.
            options: What the kind takes, such as ``{"format": "csv", "delimiter": ";"}`` for a
                folder; ``rename``, a mapping of names or ``"snake_case"``, for every kind.
            description: What it holds.

        Raises:
            SourceExists: There is one of this name.
            InvalidArgument: The URI has a password in it, or is of no installed kind.

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
        """Return every registered source, by name.

        >>> [source.name for source in store.get_sources()]
        ['shop']
        """
        from featurestore import sources

        return sources.every(self._session)

    def check_source(self, name: str) -> SourceReport:
        """Return whether a source can be reached, which tables may be read, and a few rows.

        What is wrong is in the report (``.problems``), not raised.

        >>> report = store.check_source("shop")
        >>> (report.ok, [table.name for table in report.tables], report.sample[0]["total"])
        (True, ['orders'], 12.5)
        """
        from featurestore import sources

        return sources.check(self._session, name)

    def remove_source(self, name: str) -> None:
        """Remove a source; data read from it stays.

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
    ) -> FeatureGroup:
        """Define a feature group over a source, without a copy of its rows; return its handle.

        It is read lazily at its source, once for a retrieval, and joined as of the labels' times
        like every other group. Statistics and validation are computed on request.

        Args:
            name: ``[a-z][a-z0-9_]{0,62}``.
            source: A registered source.
            table: A table or view of the source.
            sql: A query in the source's own SQL.
            path: Files below the source's folder.
            columns: The columns to take; None: all.
            primary_key: Columns that identify an entity; never a float, never a time of the group.
            event_time: Column with the time at which a row was true.
            created_time: Column with the time at which a row became known.
            rename: New names of columns (``{"Country Name": "country_name"}``), or
                ``"snake_case"`` for every column.
            version: The version to make; None: the next one.
            ttl: How long a value may be used after its event time ("7d"); None: without limit.
            description: What people should know.
            descriptions: What they should know of features.
            tags: Texts to find the group by.
            expectations: As of ``create_featuregroup``; ``validate_featuregroup`` checks them.
            snapshots: "training" copies the rows that a training dataset uses into the store, so
                that it can be exported again; "never" keeps no copy, which the dataset records.

        Raises:
            SourceNotFound: No source of this name is registered.
            SourceUnavailable: It cannot be reached, or refuses the user.
            SourceTableNotFound: The table or file does not exist.
            UnsupportedType: Columns cannot be read without loss; all are named, with SQL that can.
            FeatureGroupExists: The version exists.

        >>> group = store.create_external_featuregroup(
        ...     "customers", source="shop", sql="select id, total from orders", primary_key="id"
        ... )
        >>> store.get_features(["customers.total"], labels=[{"id": 2}]).to_arrow().to_pylist()
        [{'id': 2, 'total': 99.0}]
        """
        from featurestore import sources
        from featurestore.featuregroups import Declaration, FeatureGroup, Write, create

        rows, schema = sources.define_external(
            self._session,
            source,
            table=table,
            sql=sql,
            path=path,
            columns=columns,
            rename=rename,
            snapshots=snapshots,
        )
        declared = Declaration(
            primary_key=primary_key,
            event_time=event_time,
            created_time=created_time,
            ttl=ttl,
            expectations=expectations,
            statistics=False,
            description=description,
            descriptions=descriptions,
            tags=normalize_tags(tags),
            external=rows,
        )
        write = Write(validation="off")
        spec, _ = create(
            self._session,
            schema.empty_table(),
            name,
            declared=declared,
            version=version,
            write=write,
        )
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
        format: Literal["parquet", "csv", "jsonl", "json"] | None = None,
        delimiter: str | None = None,
        quote: str | None = None,
        escape: str | None = None,
        header: bool | None = None,
        names: Sequence[str] | None = None,
        encoding: str | None = None,
        decimal: str | None = None,
        thousands: str | None = None,
        null_values: Sequence[str] | None = None,
        date_format: str | Mapping[str, str] | None = None,
        timestamp_format: str | Mapping[str, str] | None = None,
        dtypes: Mapping[str, str] | None = None,
        skip_rows: int | None = None,
        comment: str | None = None,
        on_bad_rows: Literal["error", "quarantine"] | None = None,
        timestamp_precision: Literal["us"] | None = None,
    ) -> SourceFrame:
        """Return a lazy frame over a table, a query or files of a source.

        It serves as data or labels wherever a dataframe does. Each reading sees one consistent
        state, and only the required columns leave the source. The commit of a group made from the
        table records what was read, and so does the lineage.

        Args:
            name: The source.
            table: A table or view: ``"orders"``, ``"sales.orders"``.
            sql: A query in the source's own SQL.
            path: Files below the folder of the source; by default every file.
            at: A version or a time, for Delta tables.
            columns: The columns to look at, by their names at the source or their new ones; those
                of types that cannot be kept are left out so.
            rename: New names of columns (``{"Country Name": "country_name"}``), or
                ``"snake_case"`` for every column.
            format: Which files of a folder are read; the others are options of folders, too.
            delimiter: The sign between fields; a comma, for ``.tsv`` a tab.
            quote: The sign around fields, ``'"'``; ``""`` for none.
            escape: The sign before a sign that means itself; ``""`` for none.
            header: Whether the first line has the names of the columns (True).
            names: The columns of files without a header.
            encoding: The encoding of the files ("utf-8").
            decimal: The decimal sign (".").
            thousands: The sign between groups of three digits; ``""`` for none.
            null_values: Fields that are null, besides empty ones without quotes.
            date_format: How days are written where it is not ISO 8601: a pattern of ``strptime``,
                or one for each of some columns.
            timestamp_format: The same for instants.
            dtypes: Types of columns (``{"zip": "string"}``), which files may lack then.
            skip_rows: How many lines come before the header (0).
            comment: The sign that begins comment lines; ``""`` for none.
            on_bad_rows: "error", or "quarantine" to leave rows out that cannot be read and count
                them.
            timestamp_precision: "us" rounds instants that are finer; they are refused else.

        Raises:
            SourceNotFound: No source of this name is registered.
            SourceUnavailable: It cannot be reached, or refuses the user.
            SourceTableNotFound: The table, file or version does not exist.
            InvalidSourceFile: A file does not fit the others, or the options; names the line.
            UnsupportedType: Columns cannot be read without loss; all are named, with SQL that can.

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
