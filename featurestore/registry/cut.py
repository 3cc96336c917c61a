"""A registry as a user may see it: temporary views over its tables leave out what is hidden.

Both databases look for temporary names before all others, so that every query reads the views
without knowing of them; see docs/adr/0019.
"""

from __future__ import annotations

import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection

from featurestore.errors import NotAllowed
from featurestore.registry import tables
from featurestore.registry.database import Registry
from featurestore.registry.hidden import Hidden

# Filled at the begin of each reading with what is hidden in it.
_LISTS = {
    "hidden_groups": "name text primary key",
    "hidden_outputs": "kind text, name text, version integer, primary key (kind, name, version)",
    "hidden_sources": "source text, version integer",
    "hidden_jobs": "name text primary key",
}
_VISIBLE = (
    "not exists (select 1 from hidden_outputs h "
    "where h.kind = {kind} and h.name = {name} and h.version = {version})"
)


def _made(kind: str, name: str = "name", version: str = "version") -> str:
    """Return the condition that an output is not hidden."""
    return _VISIBLE.format(kind=kind, name=f"t.{name}", version=f"t.{version}")


_GROUP = "t.{} not in (select name from hidden_groups)"
_JOB = "t.{} not in (select name from hidden_jobs)"
_SOURCE = (
    "not exists (select 1 from hidden_sources h where h.source = t.source "
    "and (h.version is null or h.version = t.source_version))"
)
# Of anything with a kind: a group by its name, all else by name and version.
_ANYTHING = f"(t.kind <> 'featuregroup' or {_GROUP.format('name')}) and {_made('t.kind')}"
_DATASET = "'training_dataset'"
NOTHING = "1 = 0"
EVERYTHING = "1 = 1"

# The rows of each table that a user sees.
CUTS = {
    "featuregroups": _GROUP.format("name"),
    "features": "t.featuregroup_id not in (select g.id from {base}featuregroups g "
    "join hidden_groups h on h.name = g.name)",
    "tags": _ANYTHING,
    "lineage": f"{_ANYTHING} and {_SOURCE}",
    "window_features": f"{_ANYTHING} and {_SOURCE}",
    "validation_reports": _ANYTHING,
    "training_datasets": _made(_DATASET),
    "training_dataset_pins": "t.training_dataset_id in (select id from training_datasets)",
    "feature_views": _made("'feature_view'"),
    "models": _made("'model'"),
    "experiment_runs": f"(t.dataset is null or {_made(_DATASET, 'dataset', 'dataset_version')})",
    "intents": f"{_GROUP.format('name')} and t.name not in (select name from hidden_outputs)",
    "job_definitions": _JOB.format("name"),
    "job_states": _JOB.format("name"),
    "runs": _JOB.format("job"),
    "windows": _JOB.format("job"),
    "monitor_results": _JOB.format("monitor"),
    "incidents": _JOB.format("job"),
    "stream_offsets": _JOB.format("job"),
    "stream_progress": _JOB.format("job"),
    # Where rows come from and which processes live is no feature of anybody.
    "sources": EVERYTHING,
    "owners": EVERYTHING,
    "alert_channels": NOTHING,
    "outbox": NOTHING,
    "users": NOTHING,
    "tokens": NOTHING,
    "group_roles": NOTHING,
    "private_groups": NOTHING,
    "sign_ins": NOTHING,
    "failed_sign_ins": NOTHING,
    "audit_log": NOTHING,
}
# Columns that a view shows otherwise than its table: lineage through a hidden job names none.
_COLUMNS = {
    ("lineage", "job"): "case when t.job in (select name from hidden_jobs) then null else t.job end"
}


class CutRegistry(Registry):
    """The registry of a store without what is hidden; it is for reading only."""

    def __init__(self, whole: Registry, views: Views, hidden: Hidden) -> None:
        self._views = views  # its connections are closed when nobody needs them any more
        self._engine = views.engine
        self._url = whole._url
        self._location = whole._location
        self._schema = whole._schema
        self._is_copy = True
        self._hidden = hidden

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection that does not see what is hidden."""
        with super().reading() as connection:
            _fill(connection, self._hidden)
            yield connection

    def check_writable(self) -> NoReturn:
        """Refuse: whoever may change something is given the whole store, after a look at roles."""
        raise NotAllowed("This way leads to reading only.")

    @contextmanager
    def upgrading(self) -> Iterator[Connection]:
        self.check_writable()
        yield from ()

    def close(self) -> None:
        """Leave the connections to those who come after."""


class Views:
    """Connections to a registry that have the views, for all users alike."""

    def __init__(self, whole: Registry) -> None:
        self._whole = whole
        self.engine = whole.engine_beside()
        event.listen(self.engine, "connect", _make_views)
        weakref.finalize(self, self.engine.dispose)

    def registry(self, hidden: Hidden) -> CutRegistry:
        """Return the registry without what is hidden."""
        return CutRegistry(self._whole, self, hidden)


def _make_views(connection: Any, _record: object) -> None:
    """Make the lists and the views of a new connection; they end with it."""
    cursor = connection.cursor()
    is_sqlite = type(connection).__module__.startswith("sqlite3")
    base = "main."
    if not is_sqlite:
        cursor.execute("select quote_ident(current_schema())")
        base = f"{cursor.fetchone()[0]}."
    for name, columns in _LISTS.items():
        cursor.execute(f"create temporary table {name} ({columns})")
    cursor.execute("create index hidden_sources_source on hidden_sources (source)")
    for table in tables.metadata.sorted_tables:
        cursor.execute(_view(table, base))
    cursor.close()
    if not is_sqlite:
        connection.commit()


def _view(table: sa.Table, base: str) -> str:
    """Return the statement that makes the view of a table."""
    columns = []
    for column in table.columns:
        shown = _COLUMNS.get((table.name, column.name), f't."{column.name}"')
        columns.append(f'{shown} as "{column.name}"')
    condition = CUTS[table.name].replace("{base}", base)
    return (
        f'create temporary view "{table.name}" as select {", ".join(columns)} '
        f'from {base}"{table.name}" t where {condition}'
    )


def _fill(connection: Connection, hidden: Hidden) -> None:
    """Write the lists of what is hidden, in place of those of the reading before."""
    for name in _LISTS:
        connection.exec_driver_sql(f"delete from {name}")
    _insert(connection, "hidden_groups", ("name",), [(name,) for name in hidden.groups])
    _insert(connection, "hidden_jobs", ("name",), [(name,) for name in hidden.jobs])
    _insert(connection, "hidden_outputs", ("kind", "name", "version"), hidden.outputs)
    _insert(connection, "hidden_sources", ("source", "version"), hidden.sources)


def _insert(
    connection: Connection, name: str, columns: Sequence[str], rows: Collection[tuple[Any, ...]]
) -> None:
    target = sa.table(name, *map(sa.column, columns))
    values = [dict(zip(columns, row, strict=True)) for row in rows]
    if values:
        connection.execute(target.insert(), values)
