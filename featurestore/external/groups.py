"""External feature groups: their rows as a source of plans, and their snapshots in the store.

All retrievals that derive from the same retrieval read the rows only once, in one snapshot of their
source, into a table outside the store that lives as long as a plan refers to it. Engines,
explanations and checks then use it like any other table. A snapshot is a commit to the store's
table with the definition.
"""

from __future__ import annotations

import os
import uuid
import weakref
from dataclasses import replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.types import TIMESTAMP
from featurestore.delta import commits
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import SourceNotFound, TableDamaged, VersionNotFound, listing
from featurestore.external.reading import has_parts, read_batches, stage_partitions
from featurestore.model.featuregroup import ExternalRows, FeatureGroupSpec
from featurestore.model.names import RENAME
from featurestore.model.plan import FeaturePlan, Source
from featurestore.model.runtime import ForkSafeLock
from featurestore.model.source import SourceRead, SourceSpec
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.plugins.source import SourceQuery
from featurestore.recovery import groups
from featurestore.recovery.in_flight import in_flight
from featurestore.registry import featuregroups, sources
from featurestore.session import Session
from featurestore.storage.failures import warn_after_publication
from featurestore.storage.grants import acting_group, authorize, grant
from featurestore.storage.temporary import remove_temporary, temporary_directory

_TABLE, _PARTS_DIRECTORY = "rows", "parts"
# Sources of frames that were passed to other libraries; their rows remain until the process ends.
_kept_sources: list[LiveSource] = []
OPERATION = "snapshot"


class LiveSource(Source):
    """An external feature group, pinned when its rows are first read.

    ``path`` and ``delta_version`` belong to the table with the rows; the first access to ``path``
    reads them. ``read`` is the record of the read. ``table_id`` and ``defined_at`` are the id and
    Delta version of the store's table that contains the definition.
    """

    read: SourceRead
    defined_at: int

    def __init__(
        self, session: Session, spec: FeatureGroupSpec, *, table_id: str, defined_at: int
    ) -> None:
        query = build_source_query(spec)
        fields: dict[str, Any] = {
            "spec": spec,
            "table_id": table_id,
            "unique": False,
            "rows": None,
            "bytes": None,
            "defined_at": defined_at,
            "read": SourceRead(get_external_rows(spec).source, "", query.hash, input=spec.name),
            "_session": session,
            "_query": query,
            "_lock": ForkSafeLock(),
            "_directory": None,
        }
        # The base class is a frozen dataclass.
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    _session: Session
    _query: SourceQuery
    _lock: ForkSafeLock
    _directory: str | None

    @property
    def path(self) -> str:
        """The table with the rows, which are read on first access."""
        # Several threads may run plans of this source, but the rows are read once.
        with self._lock:
            if self._directory is None:
                directory = self._stage()
                object.__setattr__(self, "_directory", directory)
                weakref.finalize(self, remove_temporary, directory)
            return os.path.join(str(self._directory), _TABLE)

    @property
    def delta_version(self) -> int:
        """The Delta version of the table with the rows."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """Return the identity of the source as a JSON object, marked as live."""
        return {
            "featuregroup": self.spec.name,
            "version": self.spec.version,
            "delta_version": self.defined_at,
            "table_id": self.table_id,
            "live": True,
        }

    def assume_unique(self) -> Source:
        """Return a source of the same rows that is known to have unique keys."""
        return Source(self.spec, self.path, self.delta_version, self.table_id, unique=True)

    def __eq__(self, value: object) -> bool:
        # Two sources of one group may have pinned different rows.
        return self is value

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"LiveSource({self.spec.name}@v{self.spec.version}, {self.spec.external})"

    def _stage(self) -> str:
        """Read the rows into a table in a new directory, and return the directory."""
        registered = get_registered_source(self._session, self.spec)
        directory = create_scratch_directory(self._session)
        engine, path = self._session.engine, os.path.join(directory, _TABLE)
        # A failed attempt may have counted rows.
        self.read.kind, self.read.rows = registered.kind, 0
        try:
            rows = self._read_source_rows(registered, directory)
            try:
                engine.create_table(
                    path,
                    schema=self.spec.schema,
                    partition_by=(),
                    properties={},
                    commit_metadata={"operation": "create"},
                )
                engine.write(path, rows, TableWrite("append"))
            finally:
                engine.release(rows)
        except BaseException:
            remove_temporary(directory)
            raise
        return directory

    def _read_source_rows(self, registered: SourceSpec, directory: str) -> Relation:
        """Return the rows of the source, either staged by the engine's tasks or as a stream."""
        session, schema, time = self._session, self.spec.schema, self.spec.event_time
        if has_parts(session, registered):
            part_directory = os.path.join(directory, _PARTS_DIRECTORY)
            return stage_partitions(
                session, registered, self._query, schema, self.read, part_directory, time=time
            )
        batches = read_batches(session, registered, self._query, schema, self.read, time=time)
        return session.engine.from_arrow(pa.RecordBatchReader.from_batches(schema, batches))


def find_live_sources(plan: FeaturePlan | None) -> list[LiveSource]:
    """Return the distinct external groups that a plan reads live from their sources."""
    if plan is None:
        return []
    sources_of_plan = [source for source in plan.sources if isinstance(source, LiveSource)]
    return list(dict.fromkeys(sources_of_plan))


def keep_rows(plan: FeaturePlan | None) -> None:
    """Keep the rows of external groups until the process ends, for use by other libraries."""
    _kept_sources.extend(find_live_sources(plan))


def take_snapshot(session: Session, live: LiveSource) -> int:
    """Copy the rows of an external group into the store in one commit; return its Delta version.

    If plans of ``live`` have already read the rows, the same rows are copied.
    """
    spec, engine = live.spec, session.engine
    path = session.featuregroup_path(spec.name, spec.version)
    rows = engine.read_table(live.path, version=live.delta_version, schema=spec.schema)
    with in_flight(session, operation="write", name=spec.name, version=spec.version) as run:
        commit_metadata = {
            "operation": OPERATION,
            "run": run.run_id,
            "unique": False,
            "inputs": [live.read.to_json()],
            **commits.base_metadata(path, read_snapshot(path).version),
        }
        version = engine.write(path, rows, TableWrite("overwrite", commit_metadata=commit_metadata))
        assert version is not None  # None is only returned for repeated transactions
        run.committed_version = version
        description = f"A snapshot of external feature group {spec.name!r} version {spec.version}"
        # The snapshot is committed, so a failure to register it must not look like a failed write.
        with warn_after_publication(description):
            with session.registry.transaction() as connection:
                featuregroups.advance(connection, spec.name, spec.version, delta_version=version)
                groups.add_lineage(connection, spec, commits.commit_of(path, version))
            run.registered = True
    return version


def check_snapshot(path: str, spec: FeatureGroupSpec, delta_version: int) -> None:
    """Check that a Delta version of an external group is a snapshot of its rows.

    Raises:
        VersionNotFound: The version is not a snapshot; the error lists the snapshots.
    """
    snapshots = [
        commit.delta_version for commit in commits.history(path) if commit.operation == OPERATION
    ]
    if any(snapshot <= delta_version for snapshot in snapshots):
        return
    raise VersionNotFound(
        f"External feature group {spec.name!r} version {spec.version} has no snapshot at Delta "
        f"version {delta_version}. Available: {listing(sorted(snapshots))}.",
        hint="omit as_of to read its source; training datasets create snapshots",
    )


def read_newest_event_time(session: Session, spec: FeatureGroupSpec) -> datetime | None:
    """Read the event times of an external group from its source, and return the newest.

    Return None if the source has no rows, or the group no event time.
    """
    if spec.event_time is None:
        return None
    registered = get_registered_source(session, spec)
    schema = pa.schema([spec.schema.field(spec.event_time)])
    # Only this column leaves the source.
    query = replace(build_source_query(spec), columns=(spec.event_time,))
    read = SourceRead(registered.name, registered.kind, query.hash, input=spec.name)
    newest = None
    for batch in read_batches(session, registered, query, schema, read, time=None):
        latest = pc.max(pc.cast(batch.column(0), TIMESTAMP)).as_py()
        if latest is not None and (newest is None or latest > newest):
            newest = latest
    return newest


def get_external_rows(spec: FeatureGroupSpec) -> ExternalRows:
    """Return the definition of an external group's rows; TableDamaged if it is not external."""
    if spec.external is None:
        raise TableDamaged(f"Feature group {spec.name!r} is not external.")
    return spec.external


def build_source_query(spec: FeatureGroupSpec) -> SourceQuery:
    """Build the source query of an external group."""
    rows = get_external_rows(spec)
    columns = tuple(spec.schema.names)
    options = {} if rows.rename is None else {RENAME: rows.rename}
    return SourceQuery(
        table=rows.table, sql=rows.sql, path=rows.path, columns=columns, options=options
    )


def grant_rows(session: Session, spec: FeatureGroupSpec) -> None:
    """Allow an external group to run its query at its source from this machine."""
    grant(acting_group(session.location, spec))


def get_registered_source(session: Session, spec: FeatureGroupSpec) -> SourceSpec:
    """Return the registered source of an external group, whose query is granted.

    Raises:
        ConfigurationError: The group was not created on this machine with this query.
        SourceNotFound: The source is no longer registered.
    """
    authorize(acting_group(session.location, spec))
    name = get_external_rows(spec).source
    with session.registry.reading() as connection:
        try:
            return sources.get(connection, name)
        except SourceNotFound as error:
            raise SourceNotFound(
                f"The rows of external feature group {spec.name!r} version {spec.version} are in "
                f"source {name!r}, which is not registered. {error.message}",
                hint=f"featurestore.add_source({name!r}, uri) registers it again",
            ) from error


def create_scratch_directory(session: Session) -> str:
    """Create a directory that every process of the engine can access."""
    if not session.engine.is_distributed:
        return temporary_directory()
    directory = session.paths.stage(uuid.uuid4().hex)
    session.storage.make_directory(directory)
    return directory
