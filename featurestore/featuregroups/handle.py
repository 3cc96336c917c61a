"""The ``FeatureGroup`` handle of one group version, and group summaries for listings.

Methods import the modules that they call, so that a list of groups imports neither the write path
nor the retrieval.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from featurestore.arrow.types import describe
from featurestore.delta import commits
from featurestore.featuregroups.table import OpenGroup, history, open_group, resolve
from featurestore.model import display
from featurestore.model.arguments import suggest_arguments
from featurestore.model.suggestions import missing_member_error
from featurestore.model.times import format_ttl
from featurestore.progress import show_progress
from featurestore.registry import featuregroups

if TYPE_CHECKING:
    from featurestore.featuregroups.discovery import Provenance
    from featurestore.featuregroups.table import TableVersion
    from featurestore.model.featuregroup import Commit, ExternalRows, FeatureGroupSpec
    from featurestore.model.statistics import Statistics
    from featurestore.model.window_features import WindowFeature
    from featurestore.registry.lineage import LineageEdge
    from featurestore.retrieval import Explanation, FeatureFrame, WindowExplanation
    from featurestore.session import Session


@show_progress
@suggest_arguments
class FeatureGroup:
    """One version of a feature group.

    Properties are read from the store at each access, so they are never stale. Threads and
    processes may share a handle: it consists of name, version and the connection.

    >>> group = store.featuregroup("weather")
    >>> (group.name, group.version, group.primary_key, group.event_time, group.tags)
    ('weather', 1, ('origin',), 'measured_at', {'team': 'sky'})
    """

    def __init__(self, session: Session, name: str, version: int) -> None:
        self._session = session
        self._name = name
        self._version = version

    if not TYPE_CHECKING:  # a type checker would accept every name

        def __getattr__(self, name: str) -> Any:
            raise missing_member_error(self, name, "group.read()")

    @classmethod
    def find(cls, session: Session, name: str, version: int | None = None) -> FeatureGroup:
        """Return the handle of an existing version; None selects the latest version."""
        return cls(session, *resolve(session, name, version))

    @property
    def name(self) -> str:
        """The name."""
        return self._name

    @property
    def version(self) -> int:
        """The version of the group's definition."""
        return self._version

    @property
    def spec(self) -> FeatureGroupSpec:
        """The definition."""
        return open_group(self._session, self._name, self._version).spec

    @property
    def schema(self) -> pa.Schema:
        """The columns and their feature types."""
        return self.spec.schema

    @property
    def primary_key(self) -> tuple[str, ...]:
        """The columns that identify an entity."""
        return self.spec.primary_key

    @property
    def event_time(self) -> str | None:
        """The column with the time from which the values of a row are valid."""
        return self.spec.event_time

    @property
    def created_time(self) -> str | None:
        """The column with the time at which a row became known."""
        return self.spec.created_time

    @property
    def delta_version(self) -> int:
        """The latest Delta version of the data."""
        return open_group(self._session, self._name, self._version).delta_version

    @property
    def path(self) -> str:
        """The directory of the Delta table."""
        return self._session.featuregroup_path(self._name, self._version)

    @property
    def external(self) -> ExternalRows | None:
        """The source of the rows of an external group; None for a group in the store.

        >>> group = store.create_external_featuregroup(
        ...     "customers", source="shop", table="orders", primary_key="id"
        ... )
        >>> group.external.source, group.external.table
        ('shop', 'orders')
        """
        return self.spec.external

    @property
    def description(self) -> str:
        """The description."""
        self._session.record_read(featuregroups.KIND, self._name, self._version)
        with self._session.registry.reading() as connection:
            return featuregroups.get(connection, self._name, self._version).description

    @property
    def descriptions(self) -> dict[str, str]:
        """The feature descriptions by name; features without a description are omitted."""
        return dict(
            commits.meta_of(open_group(self._session, self._name, self._version).state).features
        )

    @property
    def tags(self) -> dict[str, str]:
        """The tags."""
        from featurestore.featuregroups import discovery

        return discovery.tags_of(self._session, self._name, version=self._version)

    def insert(
        self,
        df: object,
        *,
        mode: str = "append",
        schema_change: str | None = None,
        on_duplicates: str = "error",
        transaction: tuple[str, int] | None = None,
        validation: str | None = None,
    ) -> Commit:
        """Write rows and return the commit; see ``insert_into_featuregroup``.

        >>> commit = store.featuregroup("planes").insert([{"tailnum": "N30", "seats": 50}])
        >>> (commit.delta_version, commit.rows)
        (2, 3)
        """
        from featurestore.featuregroups import WriteRequest, insert

        request = WriteRequest(
            self._name,
            version=self._version,
            mode=mode,
            schema_change=schema_change,
            on_duplicates=on_duplicates,
            transaction=transaction,
            validation=validation,
        )
        return insert(self._session, df, request)

    def read(self, *, as_of: TableVersion | None = None) -> FeatureFrame:
        """Return the data lazily; ``as_of`` selects an instant or Delta version.

        >>> store.featuregroup("planes").read(as_of=1).to_arrow().to_pylist()
        [{'tailnum': 'N10', 'seats': 100}, {'tailnum': 'N20', 'seats': 200}]
        """
        from featurestore.featuregroups.frames import read

        return read(self._session, self._name, version=self._version, as_of=as_of)

    def quarantine(self) -> FeatureFrame:
        """Return the quarantined rows, each with its ``reasons``.

        See ``get_featuregroup_quarantine``.

        >>> store.featuregroup("weather").quarantine().count()
        0
        """
        from featurestore.featuregroups.frames import read_quarantine

        return read_quarantine(self._session, self._name, version=self._version)

    def history(self, *, limit: int = 100, before: int | None = None) -> list[Commit]:
        """Return at most ``limit`` commits before a Delta version, newest first.

        See ``get_featuregroup_history``.

        >>> [commit.operation for commit in store.featuregroup("weather").history()]
        ['create']
        """
        return history(self._session, self._name, version=self._version, limit=limit, before=before)

    def statistics(self, *, delta_version: TableVersion | None = None) -> Statistics:
        """Return the statistics of the data.

        >>> store.featuregroup("weather").statistics().column("wind").maximum
        12.0
        """
        from featurestore.featuregroups.quality import load_statistics

        return load_statistics(
            self._session, self._name, version=self._version, delta_version=delta_version
        )

    def explain(
        self, *, key: Mapping[str, Any] | Any, at: datetime | str | None = None
    ) -> Explanation:
        """Explain which row provides the values of a key at an instant, and why other rows do not.

        >>> found = store.featuregroup("weather").explain(key="JFK", at=hour(6, 30))
        >>> found.row.values["temp"]
        37.0
        """
        from featurestore.retrieval import explain_value

        return explain_value(self._session, self._name, version=self._version, key=key, at=at)

    def explain_window(
        self,
        window: WindowFeature | str,
        *,
        key: Mapping[str, Any] | Any,
        at: datetime | str | None = None,
    ) -> WindowExplanation:
        """Explain which rows a window aggregate includes, and why it excludes other rows.

        ``key`` has the values of the columns on which labels are matched.

        >>> found = store.featuregroup("weather").explain_window(
        ...     "weather.temp|max|2h", key={"origin": "JFK"}, at=hour(6, 30)
        ... )
        >>> found.value, len(found.rows)
        (37.0, 1)
        """
        from featurestore.retrieval import explain_window

        return explain_window(
            self._session, self._name, version=self._version, key=key, at=at, window=window
        )

    def provenance(self, column: str) -> Provenance:
        """Return the origin of a column: the job, and run and input versions of the last commit.

        >>> store.featuregroup("weather").provenance("temp").reference
        'weather.temp'
        """
        from featurestore.featuregroups import discovery

        return discovery.provenance(self._session, f"{self._name}@v{self._version}.{column}")

    def derived(self) -> list[LineageEdge]:
        """Return groups, training datasets and feature views that were derived from the group.

        >>> [(edge.kind, edge.name) for edge in store.featuregroup("weather").derived()]
        [('training_dataset', 'late_flights'), ('feature_view', 'late_flights')]
        """
        from featurestore.featuregroups import discovery

        return discovery.derived_from(self._session, self._name, version=self._version)

    def _summary(self) -> dict[str, object]:
        return group_summary(self)

    def _details(self) -> dict[str, Any]:
        return group_details(self)

    def _repr_html_(self) -> str:
        properties = self._details()
        columns = properties.pop("columns")
        return display.properties_table(
            properties, caption=f"Feature group {self}"
        ) + display.records_table(columns)

    def __str__(self) -> str:
        return f"{self._name} v{self._version}"

    def __repr__(self) -> str:
        return f"FeatureGroup({self._name!r}, version={self._version})"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, FeatureGroup):
            return NotImplemented
        return self._identity() == other._identity()

    def __hash__(self) -> int:
        return hash(self._identity())

    def _identity(self) -> tuple[str, str, int]:
        return self._session.location, self._name, self._version


def group_summary(group: FeatureGroup) -> dict[str, Any]:
    """Return the summary of a group for listings."""
    table = open_group(group._session, group.name, group.version)
    spec = table.spec
    return {
        "name": spec.name,
        "version": spec.version,
        "delta_version": table.delta_version,
        "rows": _row_count(table),
        "features": len(spec.features),
        "primary_key": list(spec.primary_key),
        "event_time": spec.event_time,
        "description": group.description,
    }


def group_details(group: FeatureGroup) -> dict[str, Any]:
    """Return the complete metadata of a group."""
    table = open_group(group._session, group.name, group.version)
    spec = table.spec
    return {
        "name": spec.name,
        "version": spec.version,
        "description": group.description,
        "tags": group.tags,
        "delta_version": table.delta_version,
        "rows": _row_count(table),
        "files": len(table.state.files),
        "bytes": table.state.bytes,
        "path": table.path,
        "external": None if spec.external is None else spec.external.to_json(),
        "primary_key": list(spec.primary_key),
        "event_time": spec.event_time,
        "created_time": spec.created_time,
        "partition_by": list(spec.partition_by),
        "ttl": format_ttl(spec.ttl),
        "validation": spec.validation,
        "expectations": list(map(dict, spec.expectations)),
        "statistics": spec.statistics,
        "job": spec.job,
        **_stream_status(group, spec),
        "columns": _describe_columns(spec, commits.meta_of(table.state).features),
    }


def _stream_status(group: FeatureGroup, spec: FeatureGroupSpec) -> dict[str, Any]:
    """Return the status of the stream that writes to a group, empty without a stream."""
    if spec.job is None:
        return {}
    from featurestore.registry import jobs

    with group._session.registry.reading() as connection:
        status = jobs.stream_status(connection, spec.job)
    return {} if status is None else {"stream": status.summary()}


def _row_count(table: OpenGroup) -> int | None:
    """Return the number of rows of a group, or None for an external group."""
    if table.spec.external is not None:
        return None
    return table.state.rows


def _describe_columns(
    spec: FeatureGroupSpec, descriptions: Mapping[str, str]
) -> list[dict[str, str]]:
    """Return name, type, role and description of each column."""
    columns = []
    for field in spec.schema:
        role = "feature"
        if field.name in spec.primary_key:
            role = "key"
        elif field.name in (spec.event_time, spec.created_time):
            role = "time"
        record = {"name": field.name, "type": describe(field.type), "role": role}
        columns.append({**record, "description": descriptions.get(field.name, "")})
    return columns
