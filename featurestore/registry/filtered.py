"""A registry filtered for one user: temporary views of its tables omit hidden rows.

Both databases resolve temporary names before others, so every query reads the views without
changes; see docs/adr/0019.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.engine import Connection

from featurestore.errors import NotAllowed
from featurestore.model.runtime import ForkSafeLock
from featurestore.registry import tables
from featurestore.registry.database import ChangeWatch, Registry
from featurestore.registry.hidden import HIDDEN, HiddenObjects, find_hidden_objects
from featurestore.registry.origins import RUN

# The hidden names of a connection. In SQLite they are in temporary tables. In Postgres they are in
# views of session settings, because a transaction that writes, even to a temporary table, would
# enlarge the snapshots of all other transactions.
_LISTS = {
    "hidden_groups": {"name": "text"},
    "hidden_outputs": {"kind": "text", "name": "text", "version": "integer"},
    "hidden_sources": {"source": "text", "version": "integer"},
    "hidden_jobs": {"name": "text"},
    "hidden_kinds": {"kind": "text"},
}
# A new connection creates about thirty views, so connections are pooled.
_CONNECTIONS = 15
_VISIBLE = (
    "not exists (select 1 from hidden_outputs h "
    "where h.kind = {kind} and h.name = {name} and h.version = {version})"
)


def _visible_output_condition(
    object_kind: str, name: str = "name", version: str = "version"
) -> str:
    """Return the SQL condition that an output is not hidden."""
    return _VISIBLE.format(kind=object_kind, name=f"t.{name}", version=f"t.{version}")


_GROUP = "t.{} not in (select name from hidden_groups)"
_JOB = "t.{} not in (select name from hidden_jobs)"
_SOURCE = (
    "not exists (select 1 from hidden_sources h where h.source = t.source "
    "and (h.version is null or h.version = t.source_version))"
)
# For tables with a kind column: groups are hidden by name, other kinds by name and version.
_ANYTHING = f"(t.kind <> 'featuregroup' or {_GROUP.format('name')}) and {_visible_output_condition('t.kind')}"
_DATASET = "'training_dataset'"
NOTHING = "1 = 0"
EVERYTHING = "1 = 1"

# The condition for visible rows in each table.
VISIBLE_ROWS = {
    "featuregroups": _GROUP.format("name"),
    "features": "t.featuregroup_id not in (select g.id from {base}featuregroups g "
    "join hidden_groups h on h.name = g.name)",
    "tags": _ANYTHING,
    "lineage": f"{_ANYTHING} and {_SOURCE}",
    "window_features": f"{_ANYTHING} and {_SOURCE}",
    "search_documents": _ANYTHING,
    # A report of a comparison states which values the other group has, also after the expectation
    # was removed from the group.
    "validation_reports": (
        f"{_ANYTHING} and not exists (select 1 from hidden_groups h where "
        + " or ".join(f"t.report like '%\"feature\": \"' || h.name || '{mark}%'" for mark in ".:@")
        + ")"
    ),
    "training_datasets": _visible_output_condition(_DATASET),
    "training_dataset_pins": "t.training_dataset_id in (select id from training_datasets)",
    "feature_views": _visible_output_condition("'feature_view'"),
    "models": _visible_output_condition("'model'"),
    "experiment_runs": (
        f"not exists (select 1 from hidden_kinds where kind = '{RUN}') "
        f"and (t.dataset is null or {_visible_output_condition(_DATASET, 'dataset', 'dataset_version')}) "
        f"and not exists (select 1 from hidden_outputs h where h.kind = '{RUN}' "
        "and h.name in (t.id, t.parent)) "
        "and (t.parent is null or not exists (select 1 from {base}experiment_runs p "
        "join hidden_outputs h on h.name = p.dataset and h.version = p.dataset_version "
        f"where p.id = t.parent and h.kind = {_DATASET}))"
    ),
    "intents": f"{_GROUP.format('name')} and t.name not in (select name from hidden_outputs)",
    "job_definitions": _JOB.format("name"),
    "job_states": _JOB.format("name"),
    "runs": _JOB.format("job"),
    "windows": _JOB.format("job"),
    "monitor_results": _JOB.format("monitor"),
    "monitor_acceptances": _JOB.format("monitor"),
    "incidents": _JOB.format("job"),
    "stream_offsets": _JOB.format("job"),
    "stream_progress": _JOB.format("job"),
    # Rows about sources, online stores and live processes reveal no features.
    "sources": EVERYTHING,
    "online_stores": EVERYTHING,
    "owners": EVERYTHING,
    # The addresses of alert channels may contain tokens. Only admins, who use the unfiltered
    # registry, see users, roles and the audit log.
    "alert_channels": NOTHING,
    "project_definitions": NOTHING,
    "outbox": NOTHING,
    "origins": NOTHING,
    "origin_edges": NOTHING,
    "users": NOTHING,
    "tokens": NOTHING,
    "group_roles": NOTHING,
    "private_groups": NOTHING,
    "sign_ins": NOTHING,
    "failed_sign_ins": NOTHING,
    "audit_log": NOTHING,
}
# Columns whose values differ from the table: lineage omits the names of hidden jobs.
_COLUMNS = {
    ("lineage", "job"): "case when t.job in (select name from hidden_jobs) then null else t.job end"
}


class FilteredRegistry(Registry):
    """A read-only registry that omits hidden rows."""

    def __init__(self, registry: Registry, views: RegistryViews, hidden: HiddenObjects) -> None:
        self._views = views  # keeps the connections open while this registry is in use
        # The constructor of Registry would create another connection pool.
        self._engine = views.engine
        self._fork_guard = views.fork_guard
        self._url, self.url = registry._url, registry.url
        self._location = registry._location
        self._schema = registry._schema
        self._is_copy = True
        self._hidden = hidden

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Yield a connection whose queries do not return hidden rows."""
        with self._connection(immediate=False) as connection:
            _set_hidden_names(connection, self._hidden)
            with connection.begin():
                yield connection

    def has_hidden_name(self, text: str) -> bool:
        """Return whether a string contains a hidden name."""
        return self._hidden.is_mentioned_in(text)

    def check_writable(self) -> NoReturn:
        """Raise NotAllowed: writes use the unfiltered registry after a role check."""
        raise NotAllowed("This registry is read-only.")

    @contextmanager
    def upgrade_transaction(self) -> Iterator[Connection]:
        self.check_writable()
        # check_writable() always raises; the statement makes this function a generator.
        yield from ()

    def close(self) -> None:
        """Do nothing: the connections are shared."""


class RegistryViews:
    """A pool of registry connections with filtering views, shared by all users."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._reader = registry.reader(connections=_CONNECTIONS)
        self.engine = self._reader._engine
        self.fork_guard = self._reader._fork_guard
        event.listen(self.engine, "connect", _create_views)
        self._watch = ChangeWatch(registry)
        self._lock = ForkSafeLock()
        self._state: object = None
        self._hidden_by_rights: dict[tuple[frozenset[str], bool], HiddenObjects] = {}

    def registry(self, hidden: HiddenObjects) -> FilteredRegistry:
        """Return the registry without hidden rows."""
        return FilteredRegistry(self._registry, self, hidden)

    def registry_for(self, *, granted: Collection[str], reads_store: bool) -> FilteredRegistry:
        """Return the registry filtered for a user, based on ``find_hidden_objects``.

        The hidden objects are cached until the next commit to the registry.
        """
        permissions = (frozenset(granted), reads_store)
        with self._lock:
            state = self._watch.state()  # the result belongs to this state or a later one
            if state != self._state:
                self._hidden_by_rights.clear()
                self._state = state
            hidden = self._hidden_by_rights.get(permissions)
            if hidden is None:
                with self._registry.reading() as connection:
                    hidden = find_hidden_objects(
                        connection, granted=granted, reads_store=reads_store
                    )
                self._hidden_by_rights[permissions] = hidden
        return self.registry(hidden)


def _create_views(connection: Any, _record: object) -> None:
    """Create the views in a new connection; the database drops them with the connection."""
    cursor = connection.cursor()
    # The event passes the connection of the driver, which does not name its dialect.
    is_sqlite = type(connection).__module__.startswith("sqlite3")
    base_schema = "main."
    if not is_sqlite:
        cursor.execute("select quote_ident(current_schema())")
        # Without the schema, the definition of a view would refer to the view.
        base_schema = f"{cursor.fetchone()[0]}."
    for name, types in _LISTS.items():
        columns = ", ".join(f"{column} {column_type}" for column, column_type in types.items())
        if is_sqlite:
            cursor.execute(f"create temporary table {name} ({columns})")
            cursor.execute(f"create index {name}_columns on {name} ({', '.join(types)})")
        else:
            # Before the setting exists, queries fail, so that no rows are visible.
            cursor.execute(
                f"create temporary view {name} as select * from jsonb_to_recordset("
                f"current_setting('featurestore.{name}')::jsonb) as h({columns})"
            )
    for table in tables.metadata.sorted_tables:
        cursor.execute(_view_statement(table, base_schema))
    cursor.close()
    if not is_sqlite:
        # Postgres drops the views if the transaction of this setup is rolled back.
        connection.commit()


def _view_statement(table: sa.Table, base_schema: str) -> str:
    """Return the statement that creates the filtering view of a table."""
    columns = []
    for column in table.columns:
        expression = _COLUMNS.get((table.name, column.name), f't."{column.name}"')
        columns.append(f'{expression} as "{column.name}"')
    condition = VISIBLE_ROWS[table.name].replace("{base}", base_schema)
    return (
        f'create temporary view "{table.name}" as select {", ".join(columns)} '
        f'from {base_schema}"{table.name}" t where {condition}'
    )


def _set_hidden_names(connection: Connection, hidden: HiddenObjects) -> None:
    """Set the hidden names of a connection, unless they are already set."""
    connection_info = connection.info
    # The hidden objects of a user are cached, so comparing the identity is enough.
    if connection_info.get(HIDDEN) is hidden:
        return
    # If the update fails, the next use of the connection must not trust its lists.
    connection_info.pop(HIDDEN, None)
    lists: dict[str, list[tuple[Any, ...]]] = {
        "hidden_groups": list(zip(hidden.groups)),
        "hidden_outputs": list(hidden.outputs),
        "hidden_sources": list(hidden.sources),
        "hidden_jobs": list(zip(hidden.jobs)),
        "hidden_kinds": [(RUN,)] if hidden.runs else [],
    }
    with connection.begin():
        for name, rows in lists.items():
            if connection.dialect.name == "sqlite":
                connection.exec_driver_sql(f"delete from {name}")
                if rows:
                    placeholders = ", ".join("?" * len(_LISTS[name]))
                    connection.exec_driver_sql(f"insert into {name} values ({placeholders})", rows)
            else:
                records = [dict(zip(_LISTS[name], row, strict=True)) for row in rows]
                setting = sa.select(
                    # The last argument keeps the setting for the session instead of the
                    # transaction.
                    sa.func.set_config(f"featurestore.{name}", json.dumps(records), False)
                )
                connection.execute(setting)
    connection_info[HIDDEN] = hidden
