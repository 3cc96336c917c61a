"""Job runs, and the states of the windows that they computed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Row

from featurestore.model import display, times
from featurestore.model.paths import is_relative_path
from featurestore.model.times import Window, from_micros, to_micros
from featurestore.registry import rows as registry_rows
from featurestore.registry import stored_errors
from featurestore.registry.tables import runs, windows

RUNNING, DONE, FAILED, STALE = "running", "done", "failed", "stale"
# The state of windows whose rows the windows of a changed definition will replace.
REPLACED = "replaced"


@dataclass(frozen=True)
class Run:
    """A job run that computed ``windows`` windows, which cover ``[window.start, window.end)``.

    ``state`` is "running", "done" or "failed"; ``inputs`` contains the pinned input versions;
    ``memory`` is the peak memory of the process in bytes; ``transaction`` prevents the run from
    committing twice.
    """

    run_id: str
    job: str
    job_version: int
    window: Window
    windows: int
    state: str
    owner: str
    inputs: Mapping[str, Any] = field(default_factory=dict)
    transaction: tuple[str, int] | None = None
    started: datetime | None = None
    ended: datetime | None = None
    rows: int | None = None
    delta_version: int | None = None
    memory: int | None = None
    error: str | None = None
    hint: str | None = None
    log: str | None = None

    __repr__ = display.record_repr

    @property
    def seconds(self) -> float | None:
        """The duration of the run in seconds."""
        if self.ended is None or self.started is None:
            return None
        return (self.ended - self.started).total_seconds()

    def _summary(self) -> dict[str, object]:
        return {
            "run": self.run_id,
            "job": self.job,
            "state": self.state,
            "start": self.window.start,
            "end": self.window.end,
            "windows": self.windows,
            "rows": self.rows,
            "delta_version": self.delta_version,
            "seconds": self.seconds,
            "error": self.error,
        }

    def _repr_html_(self) -> str:
        details = {"hint": self.hint, "inputs": self.inputs, "log": self.log}
        return display.properties_table({**self._summary(), **details}, caption="Run")


@dataclass(frozen=True)
class WindowState:
    """The state of a window; ``tries`` is the number of failures since it was last computed.

    ``target_version`` is the version of the target that contains the rows of the window. A failed
    window has one if it was computed before.
    """

    state: str
    run_id: str
    target_version: int | None
    tries: int
    updated: datetime
    _inputs: str = field(default="{}", repr=False)

    @property
    def inputs(self) -> Mapping[str, Any]:
        """The inputs that were read."""
        with registry_rows.translate_parse_errors(f"the inputs of a window of run {self.run_id!r}"):
            inputs: dict[str, Any] = json.loads(self._inputs)
        return inputs


def begin(connection: Connection, run: Run) -> None:
    """Record a run and its transaction before the run computes anything."""
    app, number = run.transaction or (None, None)
    connection.execute(
        runs.insert().values(
            run_id=run.run_id,
            job=run.job,
            job_version=run.job_version,
            window_start=to_micros(run.window.start),
            window_end=to_micros(run.window.end),
            windows=run.windows,
            state=RUNNING,
            owner=run.owner,
            transaction_app=app,
            transaction_number=number,
            inputs=json.dumps(run.inputs),
            started=to_micros(times.utc_now()),
            # The path is relative, so that a store can be moved.
            log=None
            if run.log is None
            else os.path.relpath(run.log, registry_rows.location_of(connection)).replace(
                os.sep, "/"
            ),
        )
    )


def end(connection: Connection, run_id: str, state: str, **outcome: Any) -> None:
    """Record the end of a run; ``outcome`` contains rows, delta_version, memory, error and hint."""
    ended = to_micros(times.utc_now())
    connection.execute(
        runs.update().where(runs.c.run_id == run_id).values(state=state, ended=ended, **outcome)
    )


def runs_of_job(
    connection: Connection, job: str, *, state: str | None = None, last: int | None = None
) -> list[Run]:
    """Return the runs of a job, oldest first, optionally only the ``last`` newest ones."""
    # The limit selects the newest runs, so the order is reversed afterwards.
    newest_first = (runs.c.started.desc(), runs.c.window_start.desc())
    query = sa.select(runs).where(runs.c.job == job).order_by(*newest_first).limit(last)
    if state is not None:
        query = query.where(runs.c.state == state)
    return [_to_run(connection, row) for row in connection.execute(query)][::-1]


def last(connection: Connection, job: str) -> Run | None:
    """Return the newest run of a job, None if there is none."""
    query = (
        sa.select(runs)
        .where(runs.c.job == job)
        .order_by(runs.c.started.desc(), runs.c.window_start.desc())
    )
    row = connection.execute(query.limit(1)).first()
    return None if row is None else _to_run(connection, row)


def count_consecutive_failures(connection: Connection, job: str) -> int:
    """Return the number of consecutive failures in the newest runs of a job."""
    query = sa.select(runs.c.state).where(runs.c.job == job).order_by(runs.c.started.desc())
    count = 0
    for state in connection.execute(query).scalars():
        if state != FAILED:
            break
        count += 1
    return count


def delete_run(connection: Connection, run_id: str) -> None:
    """Delete the record of a run."""
    connection.execute(runs.delete().where(runs.c.run_id == run_id))


def get(connection: Connection, run_id: str) -> Run:
    """Return a run by id."""
    return _to_run(
        connection, connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one()
    )


def find(connection: Connection, run_id: str) -> Run | None:
    """Return a run by id, None if it does not exist."""
    row = connection.execute(sa.select(runs).where(runs.c.run_id == run_id)).one_or_none()
    return None if row is None else _to_run(connection, row)


def restore(connection: Connection, run: Run) -> None:
    """Record a run reconstructed from its commit, unless it is already recorded."""
    if (
        connection.execute(sa.select(runs.c.run_id).where(runs.c.run_id == run.run_id)).first()
        is None
    ):
        begin(connection, run)
        ended = registry_rows.to_column(run.ended)
        values = {
            "state": run.state,
            "ended": ended,
            "rows": run.rows,
            "delta_version": run.delta_version,
        }
        # begin() records the current time, and a commit contains only the time of its end.
        started = {} if ended is None else {"started": ended}
        connection.execute(
            runs.update().where(runs.c.run_id == run.run_id).values(**values, **started)
        )


def record_computed_windows(
    connection: Connection,
    job: str,
    computed_windows: Sequence[Window],
    *,
    run_id: str,
    target_version: int | None,
    inputs: Mapping[str, Any],
) -> None:
    """Record that windows were computed, with the inputs that were read."""
    text = json.dumps(inputs)
    _replace_states(
        connection,
        job,
        computed_windows,
        state=DONE,
        run_id=run_id,
        target_version=target_version,
        tries=0,
        inputs=text,
    )


def record_failed_windows(
    connection: Connection, job: str, failed_windows: Sequence[Window], *, run_id: str
) -> None:
    """Record that windows failed; they remain due, and the rows of earlier runs remain."""
    registry_rows.lock(connection, f"windows/{job}")
    for window in failed_windows:
        earlier = find_state(connection, job, window)
        failures = earlier.tries if earlier is not None and earlier.state == FAILED else 0
        _replace_states(
            connection,
            job,
            [window],
            state=FAILED,
            run_id=run_id,
            target_version=None if earlier is None else earlier.target_version,
            tries=failures + 1,
            inputs="{}" if earlier is None else earlier._inputs,
        )


def mark_stale(connection: Connection, job: str, stale_windows: Sequence[Window]) -> None:
    """Mark computed windows as stale because their inputs changed."""
    if stale_windows:
        is_computed = sa.and_(_matches_bound_window(), windows.c.state == DONE)
        connection.execute(
            windows.update().where(is_computed).values(state=STALE),
            _bind_windows(job, stale_windows),
        )


def change_states(
    connection: Connection, job: str, changed_windows: Sequence[Window], state: str | None
) -> None:
    """Set the state of recorded windows; None deletes them."""
    if not changed_windows:
        return
    statement: sa.Update | sa.Delete = windows.delete()
    if state is not None:
        statement = windows.update().values(state=state)
    connection.execute(
        statement.where(_matches_bound_window()), _bind_windows(job, changed_windows)
    )


def forget_windows(connection: Connection, job: str, *, target_version: int | None = None) -> None:
    """Delete the recorded windows of a job, whose target has changed.

    ``target_version`` selects the windows whose rows were in a version of the target.
    """
    is_forgotten = windows.c.job == job
    if target_version is not None:
        is_forgotten = sa.and_(is_forgotten, windows.c.target_version == target_version)
    connection.execute(windows.delete().where(is_forgotten))


def window_states(
    connection: Connection, job: str, *, states: Iterable[str] | None = None
) -> dict[Window, WindowState]:
    """Return the windows of a job, oldest first, with their states.

    ``states`` selects windows by state.
    """
    query = sa.select(windows).where(windows.c.job == job)
    if states is not None:
        query = query.where(windows.c.state.in_(list(states)))
    return {
        Window(from_micros(row.window_start), from_micros(row.window_end)): _to_window_state(row)
        for row in connection.execute(query.order_by(windows.c.window_start))
    }


def count_windows(connection: Connection, job: str, *, states: Iterable[str]) -> int:
    """Return the number of windows of a job in some states."""
    query = sa.select(sa.func.count()).where(
        windows.c.job == job, windows.c.state.in_(list(states))
    )
    return int(connection.execute(query).scalar_one())


def find_state(connection: Connection, job: str, window: Window) -> WindowState | None:
    """Return the state of a window; None if it was not computed."""
    query = sa.select(windows).where(
        windows.c.job == job,
        windows.c.window_start == to_micros(window.start),
        windows.c.window_end == to_micros(window.end),
    )
    row = connection.execute(query).one_or_none()
    return None if row is None else _to_window_state(row)


def _to_window_state(row: Row[Any]) -> WindowState:
    return WindowState(
        row.state, row.run_id, row.target_version, row.tries, from_micros(row.updated), row.inputs
    )


def find_windows(
    connection: Connection,
    job: str,
    *,
    start: datetime | None = None,
    end: datetime | None = None,
    until: datetime | None = None,
    states: Iterable[str] | None = None,
    target_version: int | None = None,
    stored_in: int | None = None,
    excluded_run: str | None = None,
) -> set[Window]:
    """Return the windows of a job whose end is after ``start`` and at most ``end``.

    Args:
        connection: The connection.
        job: The job.
        start: The time after which the windows end.
        end: The time at or before which the windows end.
        until: The time before which the windows begin.
        states: The states of the windows.
        target_version: Excludes windows whose rows are in other versions of the target.
        stored_in: Selects windows whose rows are in this version of the target.
        excluded_run: Excludes the windows of one run.
    """
    columns = windows.c
    conditions = [columns.job == job]
    if start is not None:
        conditions.append(columns.window_end > to_micros(start))
    if end is not None:
        conditions.append(columns.window_end <= to_micros(end))
    if until is not None:
        conditions.append(columns.window_start < to_micros(until))
    if states is not None:
        conditions.append(columns.state.in_(list(states)))
    if stored_in is not None:
        conditions.append(columns.target_version == stored_in)
    if target_version is not None:
        is_missing = columns.target_version.is_(None)
        conditions.append(sa.or_(is_missing, columns.target_version == target_version))
    if excluded_run is not None:
        conditions.append(columns.run_id != excluded_run)
    query = sa.select(columns.window_start, columns.window_end).where(*conditions)
    return {Window(from_micros(low), from_micros(high)) for low, high in connection.execute(query)}


def _replace_states(
    connection: Connection, job: str, new_windows: Sequence[Window], **values: Any
) -> None:
    """Replace the states of windows, which are sorted by time."""
    if not new_windows:
        return
    registry_rows.lock(connection, f"windows/{job}")
    existing = find_windows(connection, job, start=new_windows[0].start, end=new_windows[-1].end)
    # One commit of a backfill may have 1,000 windows, so they are replaced by two statements with
    # many parameter sets.
    replaced = [window for window in new_windows if window in existing]
    if replaced:
        connection.execute(
            windows.delete().where(_matches_bound_window()), _bind_windows(job, replaced)
        )
    updated = to_micros(times.utc_now())
    rows = [
        {
            "job": job,
            "window_start": to_micros(window_bounds.start),
            "window_end": to_micros(window_bounds.end),
            "updated": updated,
        }
        for window_bounds in new_windows
    ]
    connection.execute(windows.insert(), [row | values for row in rows])


def _matches_bound_window() -> sa.ColumnElement[bool]:
    names = ("job", "window_start", "window_end")
    # SQLAlchemy reserves the names of columns for the values of an update, hence the prefix.
    return sa.and_(*(windows.c[name] == sa.bindparam(f"b_{name}") for name in names))


def _bind_windows(job: str, bound_windows: Iterable[Window]) -> list[dict[str, Any]]:
    """Return the parameters of ``_matches_bound_window`` for windows."""
    return [
        {
            "b_job": job,
            "b_window_start": to_micros(window.start),
            "b_window_end": to_micros(window.end),
        }
        for window in bound_windows
    ]


def _to_run(connection: Connection, row: Row[tuple[object, ...]]) -> Run:
    transaction = None
    if row.transaction_app is not None:
        transaction = (row.transaction_app, row.transaction_number)
    with registry_rows.translate_parse_errors(f"run {row.run_id!r}"):
        return Run(
            run_id=row.run_id,
            job=row.job,
            job_version=row.job_version,
            window=Window(from_micros(row.window_start), from_micros(row.window_end)),
            windows=row.windows,
            state=row.state,
            owner=row.owner,
            inputs=json.loads(row.inputs),
            transaction=transaction,
            started=from_micros(row.started),
            ended=registry_rows.to_time(row.ended),
            rows=row.rows,
            delta_version=row.delta_version,
            memory=row.memory,
            error=_to_visible_error(connection, row.error),
            hint=_to_visible_error(connection, row.hint),
            log=_to_absolute_path(connection, row.log),
        )


def _to_visible_error(connection: Connection, text: str | None) -> str | None:
    return None if text is None else stored_errors.restore_names(connection, text)


def _to_absolute_path(connection: Connection, log: str | None) -> str | None:
    if log is None or not is_relative_path(log):
        return None  # this store never writes a path outside its location
    return os.path.join(registry_rows.location_of(connection), log)
