"""The rows of an external feature group as a source of plans, read on first use.

They are read once for all retrievals that derive from one another, in one snapshot of their source,
into a table outside the store that lives as long as a plan refers to it. Engines, explanations and
checks then see an ordinary table.
"""

from __future__ import annotations

import os
import uuid
import weakref
from threading import Lock
from typing import Any

import pyarrow as pa

from featurestore.errors import SourceNotFound, TableDamaged
from featurestore.external.reading import has_parts, read_batches, stage_parts
from featurestore.model.external import ExternalRows
from featurestore.model.featuregroup import FeatureGroupSpec
from featurestore.model.plan import FeaturePlan, Source
from featurestore.model.renames import RENAME
from featurestore.model.source import SourceRead, SourceSpec
from featurestore.plugins.engine import Relation, TableWrite
from featurestore.plugins.source import SourceQuery
from featurestore.registry import sources
from featurestore.session import Session
from featurestore.storage import files

_TABLE, _PARTS_DIRECTORY = "rows", "parts"
# Sources of frames that were passed to other libraries: their rows stay until the process ends.
_kept_sources: list[LiveSource] = []


class LiveSource(Source):
    """An external feature group, pinned when its rows are first read.

    ``path`` and ``delta_version`` are those of the table with the rows; access to ``path`` reads
    them. ``read`` is the record of the read. ``table_id`` and ``defined_at`` are the id and Delta
    version of the store's table with the definition.
    """

    read: SourceRead
    defined_at: int

    def __init__(
        self, session: Session, spec: FeatureGroupSpec, *, table_id: str, defined_at: int
    ) -> None:
        query = source_query(spec)
        fields: dict[str, Any] = {
            "spec": spec,
            "table_id": table_id,
            "unique": False,
            "rows": None,
            "bytes": None,
            "defined_at": defined_at,
            "read": SourceRead(external_rows(spec).source, "", query.hash, input=spec.name),
            "_session": session,
            "_query": query,
            "_lock": Lock(),
            "_directory": None,
        }
        for name, value in fields.items():
            object.__setattr__(self, name, value)

    _session: Session
    _query: SourceQuery
    _lock: Lock
    _directory: str | None

    @property
    def path(self) -> str:
        """The table with the rows, which are read now if they were not yet."""
        with self._lock:
            if self._directory is None:
                directory = _stage(self._session, self.spec, self._query, self.read)
                object.__setattr__(self, "_directory", directory)
                weakref.finalize(self, files.remove_temporary, directory)
            return os.path.join(str(self._directory), _TABLE)

    @property
    def delta_version(self) -> int:
        """The version of that table."""
        return 1

    def to_json(self) -> dict[str, Any]:
        """Return the identity of the source, marked as live."""
        return {
            "featuregroup": self.spec.name,
            "version": self.spec.version,
            "delta_version": self.defined_at,
            "table_id": self.table_id,
            "live": True,
        }

    def known_unique(self) -> Source:
        """Return the rows as a source that is known to have no repeated keys."""
        return Source(self.spec, self.path, self.delta_version, self.table_id, unique=True)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"LiveSource({self.spec.name}@v{self.spec.version}, {self.spec.external})"


def live_sources(plan: FeaturePlan | None) -> list[LiveSource]:
    """Return the distinct external groups that a plan reads from their sources."""
    if plan is None:
        return []
    sources_of_plan = [source for source in plan.sources if isinstance(source, LiveSource)]
    return list(dict.fromkeys(sources_of_plan))


def keep_rows(plan: FeaturePlan | None) -> None:
    """Keep the rows of external groups until the process ends, for frames of other libraries."""
    _kept_sources.extend(live_sources(plan))


def external_rows(spec: FeatureGroupSpec) -> ExternalRows:
    """Return the location of an external group's rows; TableDamaged if it is not external."""
    if spec.external is None:
        raise TableDamaged(f"Feature group {spec.name!r} is not external.")
    return spec.external


def source_query(spec: FeatureGroupSpec) -> SourceQuery:
    """Return the query of an external group to its source."""
    rows = external_rows(spec)
    columns = tuple(spec.schema.names)
    options = {} if rows.rename is None else {RENAME: rows.rename}
    return SourceQuery(
        table=rows.table, sql=rows.sql, path=rows.path, columns=columns, options=options
    )


def registered_source(session: Session, spec: FeatureGroupSpec) -> SourceSpec:
    """Return the source of an external group.

    Raises:
        SourceNotFound: Its registration was removed.
    """
    name = external_rows(spec).source
    with session.registry.reading() as connection:
        try:
            return sources.get(connection, name)
        except SourceNotFound as error:
            raise SourceNotFound(
                f"The rows of external feature group {spec.name!r} version {spec.version} are in "
                f"source {name!r}, which is not registered. {error.message}",
                hint=f"featurestore.add_source({name!r}, uri) registers it again",
            ) from error


def _stage(session: Session, spec: FeatureGroupSpec, query: SourceQuery, read: SourceRead) -> str:
    """Read the rows into a table in a new directory, and return the directory."""
    registered = registered_source(session, spec)
    directory = new_scratch_directory(session)
    engine, path = session.engine, os.path.join(directory, _TABLE)
    read.kind, read.rows = registered.kind, 0
    try:
        rows = _source_rows(session, spec, registered, query, read, directory)
        try:
            engine.create_table(
                path,
                schema=spec.schema,
                partition_by=(),
                properties={},
                commit_metadata={"operation": "create"},
            )
            engine.write(path, rows, TableWrite("append"))
        finally:
            engine.release(rows)
    except BaseException:
        files.remove_temporary(directory)
        raise
    return directory


def _source_rows(
    session: Session,
    spec: FeatureGroupSpec,
    registered: SourceSpec,
    query: SourceQuery,
    read: SourceRead,
    directory: str,
) -> Relation:
    """Return the rows of the source: staged by the tasks of the engine, or as a stream."""
    time = spec.event_time
    if has_parts(session, registered):
        directory_of_parts = os.path.join(directory, _PARTS_DIRECTORY)
        return stage_parts(
            session, registered, query, spec.schema, read, directory_of_parts, time=time
        )
    batches = read_batches(session, registered, query, spec.schema, read, time=time)
    return session.engine.from_arrow(pa.RecordBatchReader.from_batches(spec.schema, batches))


def new_scratch_directory(session: Session) -> str:
    """Return a new directory that every process of the engine can access."""
    if not session.engine.is_distributed:
        return files.temporary_directory()
    directory = session.paths.stage(uuid.uuid4().hex)
    files.make_directory(directory)
    return directory
