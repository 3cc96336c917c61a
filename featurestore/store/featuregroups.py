"""Methods for feature groups: write, read, tag, search and maintain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from featurestore.model.names import refuse_name_before_data
from featurestore.store.connected import StoreBase

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime, timedelta

    from featurestore.featuregroups import FeatureGroup
    from featurestore.featuregroups.discovery import Match
    from featurestore.featuregroups.write_request import Inputs
    from featurestore.model.featuregroup import Commit
    from featurestore.model.group_options import GroupOptions, TypeName
    from featurestore.model.verification import GroupVerifyReport
    from featurestore.retrieval.conversions import DataframeType

__all__ = ["FeatureGroupCalls"]


class FeatureGroupCalls(StoreBase):
    """Methods for feature groups."""

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
        iceberg: bool = False,
        rename: Mapping[str, str] | str | None = None,
        dtypes: Mapping[str, TypeName] | None = None,
        decimal_type: TypeName | None = None,
        inputs: Inputs = (),
        if_exists: Literal["version", "error", "return"] = "version",
    ) -> FeatureGroup:
        """Create a feature group from a dataframe and return its handle.

        If the name exists, the next version is created, and a printed line names the differences.
        If the latest version has the same definition and the same rows, it is returned instead, so
        a notebook cell can be run again.

        Args:
            df: A dataframe from pandas, polars, Arrow, numpy, Spark or DuckDB, a list of rows, a
                FeatureFrame, or a stream of batches.
            name: ``[a-z][a-z0-9_]{0,62}``.
            primary_key: Columns that identify an entity; they must not be floats or the group's
                times.
            event_time: Column with the time to which a row applies.
            created_time: Column with the time at which a row became known; the store never fills
                it.
            partition_by: Columns by whose values the files are partitioned into folders.
            version: The version to create; None: the next one.
            ttl: How long a value may be used after its event time ("7d"); "exact": only at its
                event time; None: without limit.
            description: A description for other users.
            descriptions: Descriptions of features: ``{"temp": "in Fahrenheit"}``.
            tags: Tags, which can be searched.
            expectations: Great Expectations objects, a suite, or dicts with type and kwargs.
            validation: "strict", "warn", "quarantine" or "off".
            event_time_tolerance: How far an event time may be in the future ("5min") without a
                warning.
            statistics: Whether to compute statistics on each write.
            compact: "auto" merges small files after writes, for groups with frequent writes.
            iceberg: Whether each commit publishes Iceberg metadata of the same data files, which
                Iceberg clients read in ``<path>/_iceberg``.
            rename: New column names (``{"Country Name": "country_name"}``), or ``"snake_case"`` for
                all columns.
            dtypes: Column types, as Arrow types or by name: ``{"price": "decimal(20, 4)"}``. Values
                are never parsed or rounded.
            decimal_type: The type of all other decimals, such as "decimal(20, 4)"; None: as in the
                dataframe.
            inputs: The groups from which your code computed the rows, for the lineage:
                ``["departures"]``, ``["planes@v2", "source:shop"]``, handles or frames. If ``df`` is a
                frame of the store, or pandas rows selected from one, its groups are added.
            if_exists: "version" creates the next version unless definition and rows are equal;
                "error" refuses an existing name; "return" returns the latest version without
                writing, as ``get_or_create_featuregroup`` does.

        Raises:
            FeatureGroupExists: The version already exists, or the name with ``if_exists="error"``.
            DefinitionMismatch: The group has another definition, with ``if_exists="return"``.
            SchemaMismatch: A value does not fit the type that ``dtypes`` declares.
            ValidationFailed: Rows violate the expectations; nothing was created.

        >>> gates = [{"origin": "JFK", "gates": 128}]
        >>> made = store.create_featuregroup(gates, "airports", primary_key="origin")
        >>> (made.name, made.version, made.primary_key)
        ('airports', 1, ('origin',))
        """
        from featurestore.featuregroups.definition import declare_group
        from featurestore.model.group_options import declared_types

        refuse_name_before_data(df, name, call="create_featuregroup")
        options = declare_group(
            primary_key=primary_key,
            event_time=event_time,
            created_time=created_time,
            partition_by=partition_by,
            ttl=ttl,
            expectations=expectations,
            validation=validation,
            event_time_tolerance=event_time_tolerance,
            statistics=statistics,
            compact=compact,
            iceberg=iceberg,
            description=description,
            descriptions=descriptions,
            tags=tags,
            types=declared_types(dtypes, decimal_type),
        )
        return self._create_group(
            df,
            name,
            options,
            version=version,
            rename=rename,
            inputs=inputs,
            if_exists=if_exists,
        )

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
        iceberg: bool = False,
        rename: Mapping[str, str] | str | None = None,
        dtypes: Mapping[str, TypeName] | None = None,
        decimal_type: TypeName | None = None,
        inputs: Inputs = (),
    ) -> FeatureGroup:
        """Return a feature group, or create it from the dataframe if it does not exist.

        The arguments are those of ``create_featuregroup``. If the group exists, the dataframe is
        not written, but the definitions are compared.

        Raises:
            DefinitionMismatch: The group exists with another definition; the message lists
                differences.

        >>> rows = [{"origin": "JFK", "runways": 4}]
        >>> first = store.get_or_create_featuregroup(rows, "runways", primary_key="origin")
        >>> again = store.get_or_create_featuregroup(rows, "runways", primary_key="origin")
        >>> (first.version, again.version, again.read().count())
        (1, 1, 1)
        """
        from featurestore.featuregroups.definition import declare_group
        from featurestore.model.group_options import declared_types

        refuse_name_before_data(df, name, call="get_or_create_featuregroup")
        options = declare_group(
            primary_key=primary_key,
            event_time=event_time,
            created_time=created_time,
            partition_by=partition_by,
            ttl=ttl,
            expectations=expectations,
            validation=validation,
            event_time_tolerance=event_time_tolerance,
            statistics=statistics,
            compact=compact,
            iceberg=iceberg,
            description=description,
            descriptions=descriptions,
            tags=tags,
            types=declared_types(dtypes, decimal_type),
        )
        return self._create_group(
            df,
            name,
            options,
            version=version,
            rename=rename,
            inputs=inputs,
            if_exists="return",
        )

    def _create_group(
        self,
        df: object,
        name: str,
        options: GroupOptions,
        *,
        version: int | None,
        rename: Mapping[str, str] | str | None,
        inputs: Inputs,
        if_exists: str,
    ) -> FeatureGroup:
        from featurestore.featuregroups import FeatureGroup, WriteRequest, create_named
        from featurestore.featuregroups.renaming import rename_frame_columns
        from featurestore.featuregroups.write_request import find_inputs

        if rename is not None:
            df = rename_frame_columns(df, rename)
        request = WriteRequest(
            name, version=version, options=options, inputs=find_inputs(self._session, inputs, df)
        )
        spec = create_named(self._session, df, request, if_exists=if_exists)
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
            name: Name of the feature group.
            version: The group version; None: the latest.
            mode: "append", "upsert" (by primary key, event time and created time) or "overwrite".
            schema_change: "add" adds new columns, which are nullable, and widens decimals to the
                digits that the values need, up to 38.
            on_duplicates: "error" refuses duplicate keys in the batch; "last" keeps the last row of
                each key.
            transaction: (app, n): skip the write if the app has already written n or a later
                number.
            validation: Validation policy for this write; None: the policy of the group.
            rename: New column names, as in ``create_featuregroup``.

        Raises:
            SchemaMismatch: Columns do not match the schema; the message contains both types.
            DuplicateKeys: A key occurs more than once in the batch.
            ValidationFailed: Rows violate the expectations.
            WriteConflict: The write lost against concurrent writers on every attempt.

        >>> late = [{"origin": "JFK", "measured_at": hour(8), "temp": 39.5, "wind": 7.0}]
        >>> commit = store.insert_into_featuregroup(late, "weather", mode="upsert")
        >>> (commit.operation, commit.rows_in, store.get_featuregroup("weather").count())
        ('upsert', 1, 5)
        """
        from featurestore.featuregroups import WriteRequest, insert
        from featurestore.featuregroups.renaming import rename_frame_columns

        refuse_name_before_data(df, name, call="insert_into_featuregroup")
        request = WriteRequest(
            name,
            version=version,
            mode=mode,
            schema_change=schema_change,
            on_duplicates=on_duplicates,
            transaction=transaction,
            validation=validation,
        )
        return insert(self._session, rename_frame_columns(df, rename), request)

    def delete_from_featuregroup(
        self, name: str, where: str, *, version: int | None = None
    ) -> Commit:
        """Delete the rows for which a condition is true; it is DuckDB SQL on all engines.

        >>> commit = store.delete_from_featuregroup("planes", "seats > 150")
        >>> store.get_featuregroup("planes").count()
        1
        """
        from featurestore.featuregroups import delete_rows

        return delete_rows(self._session, name, where, version=version)

    def featuregroup(self, name: str, *, version: int | None = None) -> FeatureGroup:
        """Return the handle of a feature group, by default of its latest version.

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
        verify: Literal["sample", "all"] | None = None,
    ) -> Any:
        """Return the data of a feature group, lazily or as a dataframe.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            as_of: A time or a Delta version; None: the current data.
            dataframe_type: None (FeatureFrame), "pandas", "polars", "arrow", "numpy", "python" or
                "spark".
            verify: "sample" compares random data files (at most 4, 32 MiB) with their checksums at
                the call, "all" compares all data files.

        Raises:
            TableDamaged: A file is missing, or differs from its checksum.

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
        from featurestore.featuregroups.frames import read
        from featurestore.retrieval import check_dataframe_type, convert
        from featurestore.retrieval.catalog import check_sources, check_verify

        check_dataframe_type(dataframe_type)
        check_verify(verify)
        frame = read(self._session, name, version=version, as_of=as_of)
        check_sources(frame.plan, verify=verify)
        return convert(frame, dataframe_type)

    def get_featuregroups(self, *, limit: int | None = None, offset: int = 0) -> list[FeatureGroup]:
        """List all versions of all feature groups, ordered by name and version.

        Args:
            limit: The maximum number of results; None: all.
            offset: The number of results to skip.

        >>> [f"{group.name}@v{group.version}" for group in store.get_featuregroups()]
        ['planes@v1', 'questions@v1', 'weather@v1']
        """
        from featurestore.featuregroups import FeatureGroup
        from featurestore.model.display import Listing
        from featurestore.registry import featuregroups

        with self._session.registry.reading() as connection:
            # Definitions are parsed when a group is used, so a long list is fast.
            keys = featuregroups.list_keys(connection, limit=limit, offset=offset)
        self._session.record_reads(featuregroups.KIND, keys)
        return Listing([FeatureGroup(self._session, name, version) for name, version in keys])

    def get_latest_featuregroup_version(self, name: str) -> int:
        """Return the latest version of a feature group, 0 if the group does not exist.

        >>> store.get_latest_featuregroup_version("weather")
        1
        """
        from featurestore.registry import featuregroups

        with self._session.registry.reading() as connection:
            return featuregroups.latest_version(connection, name)

    def get_featuregroup_history(
        self, name: str, *, version: int | None = None, limit: int = 100, before: int | None = None
    ) -> list[Commit]:
        """List the commits to a feature group, newest first.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            limit: The maximum number of commits.
            before: Only commits before this Delta version; pass the last version of a page to get
                the next page.

        >>> history = store.get_featuregroup_history("weather")
        >>> [(commit.delta_version, commit.operation) for commit in history]
        [(1, 'create')]
        """
        from featurestore.featuregroups.table import history

        return history(self._session, name, version=version, limit=limit, before=before)

    def get_featuregroup_partitions(
        self, name: str, *, version: int | None = None
    ) -> list[dict[str, Any]]:
        """List the values of each partition of a feature group, in order.

        They are read from the table log; a group without ``partition_by`` has no partitions.

        >>> rows = [{"origin": "JFK", "gates": 128}, {"origin": "LGA", "gates": 72}]
        >>> made = store.create_featuregroup(rows, "gates", partition_by="origin")
        >>> store.get_featuregroup_partitions("gates")
        [{'origin': 'JFK'}, {'origin': 'LGA'}]
        """
        from featurestore.featuregroups.table import list_partitions

        return list_partitions(self._session, name, version=version)

    def get_features_list(self) -> list[str]:
        """List the references of all features in the latest version of every group.

        >>> store.get_features_list()
        ['planes.seats', 'questions.late', 'weather.temp', 'weather.wind']
        """
        from featurestore.featuregroups.discovery import list_feature_references

        return list_feature_references(self._session)

    def search(self, text: str, *, limit: int | None = None) -> list[Match]:
        """Search names, tags and descriptions of groups and features for a string.

        ``limit`` is the maximum number of matches.

        >>> [(match.reference, match.where) for match in store.search("hourly")]
        [('weather', 'description')]
        """
        from featurestore.featuregroups.discovery import search
        from featurestore.model.display import Listing

        return Listing(search(self._session, text, limit=limit))

    def add_featuregroup_tag(
        self, name: str, key: str, value: str, *, version: int | None = None
    ) -> None:
        """Set a tag on a feature group.

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
        """Remove a tag from a feature group.

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
        expectations: object = None,
        validation: str | None = None,
        ttl: timedelta | str | None = None,
        event_time_tolerance: timedelta | str | None = None,
        statistics: bool | None = None,
        compact: Literal["auto", ""] | None = None,
    ) -> FeatureGroup:
        """Change a feature group without changing its rows or its version; return the handle.

        All changes are one commit, which the history lists. A write that has already started is
        validated with the definition that it read; its validation report names the expectations.
        Retrievals that pin an earlier Delta version, such as those of existing training datasets,
        use the ``ttl`` of that version.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            description: The new description; None: unchanged, as for all other arguments.
            descriptions: New feature descriptions, ``{feature: description}``; "" removes one.
            expectations: All expectations of later writes; [] removes them.
            validation: "strict", "warn", "quarantine" or "off".
            ttl: How long a value may be used after its event time; "" removes the limit.
            event_time_tolerance: How far an event time may be in the future without a warning.
            statistics: Whether to compute statistics on each write.
            compact: "auto" merges small files after writes; "" ends this.

        Raises:
            InvalidArgument: There is nothing to change, a value is invalid, or the group does not
                have a feature.
            InvalidExpectation: An expectation is invalid, or names an unknown column.

        >>> group = store.update_featuregroup("weather", descriptions={"temp": "in Fahrenheit"})
        >>> group.descriptions
        {'temp': 'in Fahrenheit'}
        >>> group = store.update_featuregroup("weather", ttl="30d", validation="warn")
        >>> store.get_featuregroup_history("weather")[0].changes
        ("ttl: None becomes '30d'", "validation: 'strict' becomes 'warn'")
        """
        from featurestore.featuregroups import FeatureGroup
        from featurestore.featuregroups.redefinition import Update, update

        changes = Update(
            description=description,
            descriptions=descriptions,
            expectations=expectations,
            validation=validation,
            ttl=ttl,
            event_time_tolerance=event_time_tolerance,
            statistics=statistics,
            compact=compact,
        )
        spec = update(self._session, name, changes, version=version)
        return FeatureGroup(self._session, spec.name, spec.version)

    def rename_feature(self, name: str, old: str, new: str) -> FeatureGroup:
        """Create the next version of a feature group with a feature renamed.

        Rows, key, times, expectations, tags and descriptions are copied from the latest version,
        which is not changed.

        Raises:
            FeatureNotFound: The group does not have the feature.
            InvalidName: The new name is invalid or already exists.

        >>> renamed = store.rename_feature("weather", "wind", "wind_speed")
        >>> (renamed.version, renamed.schema.names, renamed.tags)
        (2, ['origin', 'measured_at', 'temp', 'wind_speed'], {'team': 'sky'})
        """
        from featurestore.featuregroups import FeatureGroup
        from featurestore.featuregroups.renaming import rename_feature

        spec = rename_feature(self._session, name, old, new)
        return FeatureGroup(self._session, spec.name, spec.version)

    def compact_featuregroup(self, name: str, *, version: int | None = None) -> Commit:
        """Merge small files of a feature group into large ones; the rows do not change.

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

        Delta versions newer than ``retain`` remain readable. Return the removed files.

        >>> list(store.vacuum_featuregroup("weather", retain="30d"))  # nothing is that old
        []
        """
        from featurestore.featuregroups.maintenance import vacuum

        return vacuum(self._session, name, version=version, retain=retain)

    def verify_featuregroup(
        self, name: str, *, version: int | None = None, sample: int | None = None
    ) -> GroupVerifyReport:
        """Read the files of a feature group again, and compare them with their checksums.

        Commits contain checksums of their data files, of themselves and of the commit before. The
        report lists missing and changed files, and commits and files without checksums. Files that
        only older versions need are checked if they exist.

        Args:
            name: Name of the feature group.
            version: The group version; None: the latest.
            sample: The number of data files to check, selected at random; None: all. Commits and
                checkpoints are always checked.

        Raises:
            TableDamaged: The Delta log of the group is missing.

        >>> report = store.verify_featuregroup("weather")
        >>> report.ok, report.rows, report.files, report.problems
        (True, 4, 1, ())
        """
        from featurestore.featuregroups.maintenance import verify

        return verify(self._session, name, version=version, sample=sample)

    def delete_featuregroup(self, name: str, *, version: int, force: bool = False) -> None:
        """Delete a version of a feature group; refused if a training dataset pins it.

        >>> made = store.create_featuregroup([{"x": 1}], "scratch")
        >>> store.delete_featuregroup("scratch", version=1)
        """
        from featurestore.featuregroups import delete_group

        delete_group(self._session, name, version=version, force=force)
