"""Calls on feature groups: write, read, tags, discovery, maintenance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from featurestore.model.featuregroup import normalize_tags
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from featurestore.featuregroups import FeatureGroup
    from featurestore.featuregroups.definition import TypeName
    from featurestore.featuregroups.discovery import Match
    from featurestore.model.featuregroup import Commit
    from featurestore.retrieval.conversions import DataframeType

__all__ = ["FeatureGroupCalls"]


class FeatureGroupCalls(StoreBase):
    """The calls on feature groups."""

    def create_featuregroup(
        self,
        df: object,
        name: str,
        *,
        primary_key: str | Sequence[str] = (),
        event_time: str | None = None,
        created_time: str | None = None,
        partition_by: str | Sequence[str] = (),
        version: int | None = None,
        ttl: timedelta | str | None = None,
        description: str = "",
        descriptions: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        expectations: object = None,
        validation: str = "strict",
        event_time_tolerance: timedelta | str | None = None,
        statistics: bool = True,
        compact: Literal["auto"] | None = None,
        rename: Mapping[str, str] | str | None = None,
        dtypes: Mapping[str, TypeName] | None = None,
        decimal_type: TypeName | None = None,
    ) -> FeatureGroup:
        """Make a new version of a feature group from a dataframe and return its handle.

        Args:
            df: Any dataframe: pandas, polars, Arrow, numpy, rows, Spark, DuckDB, FeatureFrame, or a
                stream of batches.
            name: ``[a-z][a-z0-9_]{0,62}``.
            primary_key: Columns that identify an entity; never a float, never a time of the group.
            event_time: Column with the time at which a row was true.
            created_time: Column with the time at which a row became known; the store never fills
                it.
            partition_by: Columns whose values become folders.
            version: The version to make; None: the next one.
            ttl: How long a value may be used after its event time ("7d"); None: without limit;
                "exact": at exactly its event time.
            description: What people should know.
            descriptions: What they should know of features: ``{"temp": "in Fahrenheit"}``.
            tags: Texts to find the group by.
            expectations: Great Expectations objects, a suite, or plain dicts of type and kwargs.
            validation: "strict", "warn", "quarantine" or "off".
            event_time_tolerance: How far ahead of the clock an event time may be ("5min") without
                a warning.
            statistics: Whether each write is counted.
            compact: "auto" merges small files after writes, for groups that are written often.
            rename: New names of columns (``{"Country Name": "country_name"}``), or
                ``"snake_case"`` for every column.
            dtypes: Types of columns, as Arrow has them or by name: ``{"price": "decimal(20, 4)"}``.
                Values are never parsed or rounded.
            decimal_type: The type of all other decimals, "decimal(20, 4)"; None: that of the batch.

        Raises:
            FeatureGroupExists: The version exists.
            SchemaMismatch: A value does not fit the type that ``dtypes`` declares.
            ValidationFailed: The rows broke the expectations; nothing was made.

        >>> gates = [{"origin": "JFK", "gates": 128}]
        >>> made = store.create_featuregroup(gates, "airports", primary_key="origin")
        >>> (made.name, made.version, made.primary_key)
        ('airports', 1, ('origin',))
        """
        from featurestore.featuregroups import Declaration, FeatureGroup, create
        from featurestore.featuregroups.definition import declared_types
        from featurestore.featuregroups.renaming import renamed_frame

        declared = Declaration(
            primary_key=primary_key,
            event_time=event_time,
            created_time=created_time,
            partition_by=partition_by,
            ttl=ttl,
            expectations=expectations,
            validation=validation,
            statistics=statistics,
            description=description,
            descriptions=descriptions,
            tags=normalize_tags(tags),
            event_time_tolerance=event_time_tolerance,
            compact=compact,
            types=declared_types(dtypes, decimal_type),
        )
        df = renamed_frame(df, rename)
        spec, _ = create(self._session, df, name, declared=declared, version=version)
        return FeatureGroup(self._session, spec.name, spec.version)

    def get_or_create_featuregroup(
        self,
        df: object,
        name: str,
        *,
        primary_key: str | Sequence[str] = (),
        event_time: str | None = None,
        created_time: str | None = None,
        partition_by: str | Sequence[str] = (),
        version: int | None = None,
        ttl: timedelta | str | None = None,
        description: str = "",
        descriptions: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
        expectations: object = None,
        validation: str = "strict",
        event_time_tolerance: timedelta | str | None = None,
        statistics: bool = True,
        compact: Literal["auto"] | None = None,
        rename: Mapping[str, str] | str | None = None,
        dtypes: Mapping[str, TypeName] | None = None,
        decimal_type: TypeName | None = None,
    ) -> FeatureGroup:
        """Return a feature group, created from the dataframe when it does not exist yet.

        The arguments are those of ``create_featuregroup``.

        Where it exists the dataframe is not written and the definitions are compared.

        Raises:
            DefinitionMismatch: It exists with another definition; lists the differences.

        >>> rows = [{"origin": "JFK", "runways": 4}]
        >>> first = store.get_or_create_featuregroup(rows, "runways", primary_key="origin")
        >>> again = store.get_or_create_featuregroup(rows, "runways", primary_key="origin")
        >>> (first.version, again.version, again.read().count())
        (1, 1, 1)
        """
        from featurestore.featuregroups import Declaration, FeatureGroup, get_or_create
        from featurestore.featuregroups.definition import declared_types
        from featurestore.featuregroups.renaming import renamed_frame

        declared = Declaration(
            primary_key=primary_key,
            event_time=event_time,
            created_time=created_time,
            partition_by=partition_by,
            ttl=ttl,
            expectations=expectations,
            validation=validation,
            statistics=statistics,
            description=description,
            descriptions=descriptions,
            tags=normalize_tags(tags),
            event_time_tolerance=event_time_tolerance,
            compact=compact,
            types=declared_types(dtypes, decimal_type),
        )
        df = renamed_frame(df, rename)
        spec = get_or_create(self._session, df, name, declared=declared, version=version)
        return FeatureGroup(self._session, spec.name, spec.version)

    def insert_into_featuregroup(
        self,
        df: object,
        name: str,
        *,
        version: int | None = None,
        mode: Literal["append", "upsert", "overwrite"] = "append",
        schema_change: Literal["add"] | None = None,
        on_duplicates: Literal["error", "last"] = "error",
        transaction: tuple[str, int] | None = None,
        validation: str | None = None,
        rename: Mapping[str, str] | str | None = None,
    ) -> Commit:
        """Write rows into a feature group atomically and return the commit.

        Args:
            df: Any dataframe; its columns match by name.
            name: The group.
            version: The group version; None: the latest.
            mode: "append", "upsert" (by primary key, event time and created time) or "overwrite".
            schema_change: "add" lets new nullable columns in, and gives decimals the digits that
                values need, up to 38.
            on_duplicates: "last" keeps the last row of each key of the batch; "error" refuses
                duplicates.
            transaction: (app, n): does nothing when that app has written n or a later number
                already.
            validation: Policy for this write; None: the group's own.
            rename: New names of columns, as of ``create_featuregroup``.

        Raises:
            SchemaMismatch: Columns do not fit; names both types.
            DuplicateKeys: A key occurs more than once in the batch.
            ValidationFailed: The rows broke the expectations.
            WriteConflict: Concurrent writers kept winning.

        >>> late = [{"origin": "JFK", "measured_at": hour(8), "temp": 39.5, "wind": 7.0}]
        >>> commit = store.insert_into_featuregroup(late, "weather", mode="upsert")
        >>> (commit.operation, commit.rows_in, store.get_featuregroup("weather").count())
        ('upsert', 1, 5)
        """
        from featurestore.featuregroups import Write, insert
        from featurestore.featuregroups.renaming import renamed_frame

        write = Write(
            mode=mode,
            schema_change=schema_change,
            on_duplicates=on_duplicates,
            transaction=transaction,
            validation=validation,
        )
        df = renamed_frame(df, rename)
        return insert(self._session, df, name, version=version, write=write)

    def delete_from_featuregroup(
        self, name: str, where: str, *, version: int | None = None
    ) -> Commit:
        """Delete the rows for which a condition (DuckDB's SQL, on any engine) is true.

        >>> commit = store.delete_from_featuregroup("planes", "seats > 150")
        >>> store.get_featuregroup("planes").count()
        1
        """
        from featurestore.featuregroups import delete_rows

        return delete_rows(self._session, name, where, version=version)

    def featuregroup(self, name: str, *, version: int | None = None) -> FeatureGroup:
        """Return the handle of a feature group; ``version=None``: the latest.

        >>> group = store.featuregroup("weather")
        >>> (group.version, group.primary_key, group.event_time)
        (1, ('origin',), 'measured_at')
        """
        from featurestore.featuregroups import FeatureGroup

        return FeatureGroup.find(self._session, name, version)

    def get_featuregroup(
        self,
        name: str,
        *,
        version: int | None = None,
        as_of: datetime | str | int | None = None,
        dataframe_type: DataframeType | None = None,
    ) -> Any:
        """Return the data of a feature group, lazily or as a dataframe.

        Args:
            name: The group.
            version: The group version; None: the latest.
            as_of: A time or a Delta version; None: now.
            dataframe_type: None (FeatureFrame), "pandas", "polars", "arrow", "numpy", "python" or
                "spark".

        >>> store.get_featuregroup("weather").filter("origin = 'JFK'").show(2)
        +------+-------------------+----+----+
        |origin|        measured_at|temp|wind|
        +------+-------------------+----+----+
        |   JFK|2013-01-01 06:00:00|37.0| 8.0|
        |   JFK|2013-01-01 07:00:00|39.0|12.0|
        +------+-------------------+----+----+
        >>> store.get_featuregroup("weather", dataframe_type="pandas").shape
        (4, 4)
        """
        from featurestore.featuregroups.table import read
        from featurestore.retrieval import check_dataframe_type, convert

        check_dataframe_type(dataframe_type)
        return convert(read(self._session, name, version=version, as_of=as_of), dataframe_type)

    def get_featuregroups(self, *, limit: int | None = None, offset: int = 0) -> list[FeatureGroup]:
        """Return every version of every feature group, by name and version.

        Args:
            limit: At most so many; None: all.
            offset: How many to leave out before them.

        >>> [f"{group.name}@v{group.version}" for group in store.get_featuregroups()]
        ['planes@v1', 'questions@v1', 'weather@v1']
        """
        from featurestore.featuregroups import FeatureGroup
        from featurestore.model.display import Listing
        from featurestore.registry import featuregroups

        with self._session.registry.reading() as connection:
            registered_groups = featuregroups.every(connection, limit=limit, offset=offset)
        groups = [
            FeatureGroup(self._session, group.name, group.version) for group in registered_groups
        ]
        return Listing(groups)

    def get_latest_featuregroup_version(self, name: str) -> int:
        """Return the highest version of a feature group, 0 if none has this name.

        >>> store.get_latest_featuregroup_version("weather")
        1
        """
        from featurestore.registry import featuregroups

        with self._session.registry.reading() as connection:
            return featuregroups.latest_version(connection, name)

    def get_featuregroup_history(
        self, name: str, *, version: int | None = None, limit: int = 100, before: int | None = None
    ) -> list[Commit]:
        """Return commits of a feature group's data, newest first.

        Args:
            name: The group.
            version: Its version; None is the latest.
            limit: At most so many.
            before: Only commits before this Delta version: the last one of a page begins the next
                page.

        >>> history = store.get_featuregroup_history("weather")
        >>> [(commit.delta_version, commit.operation) for commit in history]
        [(1, 'create')]
        """
        from featurestore.featuregroups.table import history

        return history(self._session, name, version=version, limit=limit, before=before)

    def get_featuregroup_partitions(
        self, name: str, *, version: int | None = None
    ) -> list[dict[str, Any]]:
        """Return the values of each partition of a feature group, in their order.

        They come from the table's log; a group without ``partition_by`` has none.

        >>> rows = [{"origin": "JFK", "gates": 128}, {"origin": "LGA", "gates": 72}]
        >>> made = store.create_featuregroup(rows, "gates", partition_by="origin")
        >>> store.get_featuregroup_partitions("gates")
        [{'origin': 'JFK'}, {'origin': 'LGA'}]
        """
        from featurestore.featuregroups.table import partitions_of

        return partitions_of(self._session, name, version=version)

    def get_features_list(self) -> list[str]:
        """Return a reference to every feature of the latest version of every group.

        >>> store.get_features_list()
        ['planes.seats', 'questions.late', 'weather.temp', 'weather.wind']
        """
        from featurestore.featuregroups.discovery import features_list

        return features_list(self._session)

    def search(self, text: str, *, limit: int | None = None) -> list[Match]:
        """Return where names, tags and descriptions of groups and features contain a text.

        ``limit``: at most so many.

        >>> [(match.reference, match.where) for match in store.search("hourly")]
        [('weather', 'description')]
        """
        from featurestore.featuregroups.discovery import search

        return search(self._session, text, limit=limit)

    def add_featuregroup_tag(
        self, name: str, key: str, value: str, *, version: int | None = None
    ) -> None:
        """Set a tag of a feature group.

        >>> store.add_featuregroup_tag("weather", "owner", "ops")
        >>> store.get_featuregroup_tags("weather")["owner"]
        'ops'
        """
        from featurestore.featuregroups.discovery import add_tag

        add_tag(self._session, name, key, value, version=version)

    def get_featuregroup_tags(self, name: str, *, version: int | None = None) -> dict[str, str]:
        """Return the tags of a feature group.

        >>> store.get_featuregroup_tags("weather")
        {'team': 'sky'}
        """
        from featurestore.featuregroups.discovery import tags_of

        return tags_of(self._session, name, version=version)

    def remove_featuregroup_tag(self, name: str, key: str, *, version: int | None = None) -> None:
        """Remove a tag of a feature group.

        >>> store.remove_featuregroup_tag("weather", "team")
        >>> store.get_featuregroup_tags("weather")
        {}
        """
        from featurestore.featuregroups.discovery import remove_tag

        remove_tag(self._session, name, key, version=version)

    def update_featuregroup(
        self,
        name: str,
        *,
        version: int | None = None,
        description: str | None = None,
        descriptions: Mapping[str, str] | None = None,
    ) -> FeatureGroup:
        """Change the description of a feature group, or of some of its features; return the handle.

        Args:
            name: The group.
            version: Its version; None: the latest.
            description: The new one; None leaves it as it is.
            descriptions: ``{feature: text}`` for those to change; an empty text removes one.

        Raises:
            InvalidArgument: Nothing to change, or a description of what the group does not have.

        >>> group = store.update_featuregroup("weather", descriptions={"temp": "in Fahrenheit"})
        >>> group.descriptions
        {'temp': 'in Fahrenheit'}
        """
        from featurestore.featuregroups import FeatureGroup
        from featurestore.featuregroups.discovery import update

        spec = update(
            self._session,
            name,
            version=version,
            description=description,
            descriptions=descriptions,
        )
        return FeatureGroup(self._session, spec.name, spec.version)

    def rename_feature(self, name: str, old: str, new: str) -> FeatureGroup:
        """Make the next version of a feature group, in which a feature has another name.

        Rows, key, times, expectations, tags and descriptions are those of the latest version, which
        stays as it is.

        Raises:
            FeatureNotFound: The group has no such feature.
            InvalidName: The new name is invalid, or exists already.

        >>> renamed = store.rename_feature("weather", "wind", "wind_speed")
        >>> (renamed.version, renamed.schema.names, renamed.tags)
        (2, ['origin', 'measured_at', 'temp', 'wind_speed'], {'team': 'sky'})
        """
        from featurestore.featuregroups import FeatureGroup
        from featurestore.featuregroups.renaming import rename_feature

        spec = rename_feature(self._session, name, old, new)
        return FeatureGroup(self._session, spec.name, spec.version)

    def compact_featuregroup(self, name: str, *, version: int | None = None) -> Commit:
        """Rewrite small files of a feature group into large ones; the rows stay as they are.

        >>> more = store.insert_into_featuregroup([{"tailnum": "N30", "seats": 300}], "planes")
        >>> store.compact_featuregroup("planes").operation
        'compact'
        """
        from featurestore.featuregroups.maintenance import compact

        return compact(self._session, name, version=version)

    def vacuum_featuregroup(
        self, name: str, *, version: int | None = None, retain: timedelta | str = "30d"
    ) -> Sequence[str]:
        """Remove data files that neither a recent version nor a training dataset needs.

        Versions younger than ``retain`` stay readable. Returns the files.

        >>> list(store.vacuum_featuregroup("weather", retain="30d"))  # nothing is that old
        []
        """
        from featurestore.featuregroups.maintenance import vacuum

        return vacuum(self._session, name, version=version, retain=retain)

    def delete_featuregroup(self, name: str, *, version: int, force: bool = False) -> None:
        """Delete a version of a feature group; refused while a training dataset pins it.

        >>> made = store.create_featuregroup([{"x": 1}], "scratch")
        >>> store.delete_featuregroup("scratch", version=1)
        """
        from featurestore.featuregroups import delete_group

        delete_group(self._session, name, version=version, force=force)
