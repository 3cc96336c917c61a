"""Verification of online stores: served vectors against the retrieval at the same instant."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cache
from typing import Any

import pyarrow as pa

from featurestore.arrow.values import to_array
from featurestore.delta import log
from featurestore.errors import InvalidArgument
from featurestore.hashing import canonical_bytes
from featurestore.model.feature_view import FeatureViewSpec
from featurestore.model.names import format_group_reference
from featurestore.model.requests import RowsRequest
from featurestore.model.times import from_micros, parse_moment, to_micros, to_python_rows
from featurestore.retrieval.catalog import RegisteredSpecs, group_source
from featurestore.retrieval.label_samples import sample_by_priority, sampled_labels
from featurestore.retrieval.resolve import equal_key
from featurestore.retrieval.view_rows import retrieve_rows
from featurestore.serving.ownership import read_state
from featurestore.serving.server import VectorServer, open_server
from featurestore.serving.value_reads import ServedBatch
from featurestore.serving.vector_plan import plan_vector
from featurestore.session import Session

_SEED = 0
_SHOWN = 10


@dataclass(frozen=True)
class OnlineDifference:
    """A feature of an entity whose served value differs from the retrieval.

    ``reason`` is "not yet published" (with the Delta versions), "late row" (not yet published, and
    its event time is before the publication), "deleted" (in a commit that is not yet published),
    "ttl passed" (according to the clock of the online store only) or "unknown".
    """

    entity: Mapping[str, Any]
    feature: str
    served: Any
    offline: Any
    reason: str


@dataclass(frozen=True, repr=False)
class OnlineReport:
    """The result of verifying a published view.

    Attributes:
        view: The name of the view.
        version: The version of the view.
        online: The name of the online store.
        at: The instant of the comparison.
        vectors: The number of compared vectors.
        differences: The features that differ.
    """

    view: str
    version: int
    online: str
    at: datetime
    vectors: int
    differences: tuple[OnlineDifference, ...]

    @property
    def ok(self) -> bool:
        """Whether all served values equal those of the retrieval."""
        return not self.differences

    def __repr__(self) -> str:
        outcome = "ok" if self.ok else f"{len(self.differences):,} differences"
        lines = [
            f"online store {self.online!r}, feature view {self.view!r} version {self.version}: "
            f"{self.vectors:,} vectors compared, {outcome}"
        ]
        for reason, count in Counter(
            [difference.reason for difference in self.differences]
        ).most_common():
            lines.append(f"  {count:,} {reason}")
        for row in self.differences[:_SHOWN]:
            lines.append(
                f"  {dict(row.entity)}: {row.feature} is {row.served!r}, not {row.offline!r}"
            )
        return "\n".join(lines)


def verify(
    session: Session,
    spec: FeatureViewSpec,
    *,
    online: str | None = None,
    sample: int = 1000,
    at: datetime | str | None = None,
) -> OnlineReport:
    """Compare served vectors with the retrieval; see ``FeatureView.verify_online``."""
    if isinstance(sample, bool) or not isinstance(sample, int) or sample < 1:
        raise InvalidArgument(
            f"sample={sample!r} is not a positive number of entities.", hint="sample=1000"
        )
    # An inner join would drop entities without values, which a server returns as missing.
    spec = _change_steps(spec, join="left")
    with closing(open_server(session, spec, online=online)) as server:
        if None in server.entity_types.values():
            # The type of a request value is unknown without a request.
            spec = _change_steps(spec, on_demand=())
            return verify(session, spec, online=online, sample=sample, at=at)
        instant = server.clock.now_micros()
        if at is not None:
            instant = to_micros(parse_moment(at, argument="at"))
        entities = _sample_entities(session, spec, server, sample=sample, instant=instant)
        rows = entities.to_pylist()
        served = server.read_batch(rows, at=instant)
        features = served.batch.schema.names
        when = from_micros(instant)
        # External groups have no versions; both retrievals read their sources now.
        registered = RegisteredSpecs(session)
        latest_versions = {
            format_group_reference(*group): log.latest_version(session.featuregroup_path(*group))
            for group in dict.fromkeys(
                (feature.group, feature.version) for feature in spec.features
            )
            if registered[group[0]][group[1]].external is None
        }
        published_versions = {
            group: version
            for group, version in served.delta_versions.items()
            if group in latest_versions
        }

        def retrieve(versions: Mapping[str, int], instant: datetime = when) -> pa.Table:
            request = RowsRequest(labels=entities, label_time=instant, as_of=versions or None)
            frame = retrieve_rows(session, spec, request)
            return frame.select(*features).to_arrow()

        offline = retrieve(latest_versions)
        published = retrieve(published_versions)
        groups = read_state(session, spec, online).groups

        @cache
        def rows_at_publication(group: tuple[str, int]) -> pa.Table | None:
            name, version = group
            # Rows without event time are never late.
            if registered[name][version].event_time is None or group not in groups:
                return None
            return retrieve(latest_versions, groups[group].published_at)

        comparison = _VectorComparison(spec, served, latest_versions, rows_at_publication)
        differences = comparison.differences(entities, offline, published)
    return OnlineReport(
        view=spec.name,
        version=spec.version,
        online=server.online,
        at=when,
        vectors=len(rows),
        differences=tuple(differences),
    )


def _change_steps(spec: FeatureViewSpec, **changes: Any) -> FeatureViewSpec:
    return replace(spec, steps=tuple([replace(step, **changes) for step in spec.steps]))


@dataclass(frozen=True)
class _VectorComparison:
    """Served vectors, and the Delta versions that the store and the online store have.

    ``rows_at_publication`` returns the rows of the latest versions for the time at which a group
    was published, or None if it has no event time.
    """

    spec: FeatureViewSpec
    served: ServedBatch
    latest_versions: Mapping[str, int]
    rows_at_publication: Callable[[tuple[str, int]], pa.Table | None]

    def differences(
        self, entities: pa.Table, offline: pa.Table, published: pa.Table
    ) -> list[OnlineDifference]:
        """Return the served values that differ from the rows of the latest versions.

        ``published`` are the rows of the published versions.
        """
        differences = []
        for name in self.served.batch.schema.names:
            expected, earlier = _to_cells(offline, name), _to_cells(published, name)
            values = offline.column(name)
            for row, cell in enumerate(_to_cells(self.served.batch, name)):
                if cell == expected[row]:
                    continue
                value = values[row].as_py()
                difference = OnlineDifference(
                    entity=to_python_rows(entities.slice(row, 1))[0],
                    feature=name,
                    served=self.served.batch.column(name)[row].as_py(),
                    offline=value,
                    reason=self._reason(
                        name,
                        row,
                        expected[row],
                        is_published=cell == earlier[row],
                        is_null=value is None,
                    ),
                )
                differences.append(difference)
        return differences

    def _reason(
        self, name: str, row: int, expected: bytes, *, is_published: bool, is_null: bool
    ) -> str:
        groups = {feature.name: (feature.group, feature.version) for feature in self.spec.features}
        group = groups.get(name)
        reference = None if group is None else format_group_reference(*group)
        if reference is not None and reference not in self.latest_versions:
            return f"not yet published: the source of the external group {reference}"
        if not is_published:
            return "ttl passed" if self.served.statuses[row] == "stale" else "unknown"
        if is_null:
            return "deleted"
        if group is None or reference is None:
            return "not yet published"
        rows = self.rows_at_publication(group)
        is_late = rows is not None and _to_cells(rows, name)[row] == expected
        return (
            f"{'late row' if is_late else 'not yet published'}: {reference} up to Delta version "
            f"{self.latest_versions[reference]}, published {self.served.delta_versions[reference]}"
        )


def _to_cells(rows: pa.Table | pa.RecordBatch, name: str) -> Sequence[bytes]:
    """Return the bytes of each value, which differ for floats with different bits."""
    cells: list[bytes] = canonical_bytes(rows, columns=[name]).to_pylist()
    return cells


def _sample_entities(
    session: Session, spec: FeatureViewSpec, server: VectorServer, *, sample: int, instant: int
) -> pa.Table:
    """Return entities to verify: labels of the view, or else keys of its groups."""
    types = server.entity_types
    if spec.labels is not None:
        frame = retrieve_rows(session, spec, RowsRequest())
        assert frame.plan is not None
        labels = sampled_labels(session, frame.plan, frame.labels, sample=sample, seed=_SEED)
        return labels.select(list(types))
    schema = pa.schema(list(types.items()))
    columns: dict[str, list[Any]] = {}
    for read in plan_vector(session, spec, schema).reads:
        missing = [
            (column, key)
            for column, key in zip(read.key_columns, read.spec.primary_key, strict=True)
            if column in types and not columns.get(column)
        ]
        if missing:
            # The rows of an external group are those of its source.
            source = group_source(session, session.featuregroup_path(*read.group))
            relation = session.engine.read_table(
                source.path, version=source.delta_version, schema=read.spec.schema
            )
            keys = sample_by_priority(session, relation, sample=sample, seed=_SEED)
            for column, key in missing:
                # The column may have the type of another key.
                values = [equal_key(value, types[column]) for value in keys.column(key).to_pylist()]
                columns[column] = [value for value in values if value is not None]
    # Groups with fewer keys repeat them; a view's only other column is its label time.
    count = max(map(len, columns.values()))
    rows = [
        {name: values[row % len(values)] for name, values in columns.items() if values}
        for row in range(count)
    ]
    # A group may have many rows of a key.
    rows = list({tuple(row.items()): row for row in rows}.values())
    for row in rows:
        for name in types:
            row.setdefault(name, from_micros(instant))
    arrays = [to_array([row[field.name] for row in rows], field.type) for field in schema]
    return pa.Table.from_arrays(arrays, schema=schema)
