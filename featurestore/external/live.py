"""The rows of an external feature group as a source of plans: read when they are first needed.

They are read once for all retrievals that go on from one another, in one snapshot of their source,
into a table beside the store that lives as long as a plan names it. Engines, explanations and
checks then see a table like any other.
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

_TABLE, _PARTS = "rows", "parts"
# What has been handed out beyond the frames of the store: its rows stay until the process ends.
_kept: list[LiveSource] = []


class LiveSource(Source):
    """An external feature group, pinned to the moment when its rows are first needed.

    ``path`` and ``delta_version`` are those of the table that holds the rows, which are read by
    asking for them. ``read`` tells what was read. ``table_id`` and ``defined_at`` are id and Delta
    version of the table of the store that holds the definition.
    """

    read: SourceRead
    defined_at: int

    def __init__(
        self, session: Session, spec: FeatureGroupSpec, *, table_id: str, defined_at: int
    ) -> None:
        query = query_of(spec)
        told: dict[str, Any] = {
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
        for name, value in told.items():
            object.__setattr__(self, name, value)

    _session: Session
    _query: SourceQuery
    _lock: Lock
    _directory: str | None

    @property
    def path(self) -> str:
        """The table that holds the rows, which are read now if they are not there yet."""
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
        """Return what tells the source from any other; that it is live, too."""
        return {
            "featuregroup": self.spec.name,
            "version": self.spec.version,
            "delta_version": self.defined_at,
            "table_id": self.table_id,
            "live": True,
        }

    def known_unique(self) -> Source:
        """Return the rows as a source of which it is taken for granted that nothing repeats."""
        return Source(self.spec, self.path, self.delta_version, self.table_id, unique=True)

    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        return f"LiveSource({self.spec.name}@v{self.spec.version}, {self.spec.external})"


def live_sources(plan: FeaturePlan | None) -> list[LiveSource]:
    """Return the external groups that a plan reads at their sources, each once."""
    if plan is None:
        return []
    found = [source for source in plan.sources if isinstance(source, LiveSource)]
    return list(dict.fromkeys(found))


def keep_rows(plan: FeaturePlan | None) -> None:
    """Keep the rows of external groups until the process ends, for frames of other libraries."""
    _kept.extend(live_sources(plan))


def external_rows(spec: FeatureGroupSpec) -> ExternalRows:
    """Return where the rows of an external group are."""
    if spec.external is None:
        raise TableDamaged(f"Feature group {spec.name!r} is not external.")
    return spec.external


def query_of(spec: FeatureGroupSpec) -> SourceQuery:
    """Return what an external group asks of its source."""
    given = external_rows(spec)
    columns = tuple(spec.schema.names)
    options = {} if given.rename is None else {RENAME: given.rename}
    return SourceQuery(
        table=given.table, sql=given.sql, path=given.path, columns=columns, options=options
    )


def registered_source(session: Session, spec: FeatureGroupSpec) -> SourceSpec:
    """Return the source of an external group.

    Raises:
        SourceNotFound: It is registered no more.
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
    """Read the rows into a table of a directory of its own, and return the directory."""
    registered = registered_source(session, spec)
    directory = scratch(session)
    engine, path = session.engine, os.path.join(directory, _TABLE)
    read.kind, read.rows = registered.kind, 0
    try:
        rows = _rows(session, spec, registered, query, read, directory)
        try:
            engine.create_table(
                path,
                schema=spec.schema,
                partition_by=(),
                properties={},
                note={"operation": "create"},
            )
            engine.write(path, rows, TableWrite("append"))
        finally:
            engine.release(rows)
    except BaseException:
        files.remove_temporary(directory)
        raise
    return directory


def _rows(
    session: Session,
    spec: FeatureGroupSpec,
    registered: SourceSpec,
    query: SourceQuery,
    read: SourceRead,
    directory: str,
) -> Relation:
    """Return the rows at the source: staged by the tasks of the engine, or as a stream."""
    time = spec.event_time
    if has_parts(session, registered):
        place = os.path.join(directory, _PARTS)
        return stage_parts(session, registered, query, spec.schema, read, place, time=time)
    batches = read_batches(session, registered, query, spec.schema, read, time=time)
    return session.engine.from_arrow(pa.RecordBatchReader.from_batches(spec.schema, batches))


def scratch(session: Session) -> str:
    """Return a new directory that every process of the engine sees."""
    if not session.engine.is_distributed:
        return files.temporary_directory()
    directory = session.paths.stage(uuid.uuid4().hex)
    files.make_directory(directory)
    return directory
