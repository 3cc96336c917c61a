"""The effect of a changed job definition on the windows of the job.

Registration compares the windows of the new definition with the windows whose rows the target
contains. Windows that the computed windows cover stay as they are: after a change from hours to
days at midnight, the job continues with the next day. Time ranges that were not computed are due in
the new windows. If a new window contains computed and missing ranges, its rows would be counted
twice: the job has to recompute the windows from a ``start=`` on, which replaces the earlier rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from itertools import takewhile

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, InvalidJob
from featurestore.jobs import schedule as jobs_schedule
from featurestore.jobs.recovery import restore
from featurestore.jobs.target import find_target
from featurestore.jobs.windows import (
    COMPUTED,
    Coverage,
    JobProgress,
    StoredRows,
    event_time_range,
    is_scheduled,
    list_stored_rows,
    overlaps_itself,
    touching,
)
from featurestore.model import times
from featurestore.model.job import (
    GroupWork,
    JobSpec,
    MonitorWork,
    RunOnceWork,
    StreamWork,
    WindowedWork,
)
from featurestore.model.runtime import iterate_within_limit
from featurestore.model.times import Window
from featurestore.registry import jobs, runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.session import Session

_MICROSECOND = timedelta(microseconds=1)


def find_target_version(session: Session, spec: JobSpec) -> int | None:
    """Return the version of the group that the next run of a job writes; None if it creates one."""
    if isinstance(spec.work, WindowedWork):
        # A group that cannot be read or is external fails the run, which reports the cause.
        with suppress(FeatureStoreError, OSError):
            group = find_target(session, spec.work)
            return None if group is None else group.spec.version
    return None


def put_job(
    connection: Connection,
    session: Session,
    spec: JobSpec,
    *,
    origin: str,
    version: int | None,
    former: Collection[str] = (),
) -> RegisteredJob:
    """Put a definition into the registry, and compare it with the computed windows of its target.

    Args:
        connection: The transaction.
        session: The connection to the store.
        spec: The definition.
        origin: The file or module of the job.
        version: The version of the target that the next run writes; None if it creates one.
        former: Jobs that wrote the target before, whose windows are now those of this job.
    """
    earlier_job = jobs.find(connection, spec.name)
    earlier = None if earlier_job is None else earlier_job.spec
    watermark = None
    is_stream = isinstance(spec.work, StreamWork)
    if not is_stream and spec.schedule.start is None:
        # No catchup: the job begins with the window that is open now.
        now = times.shift_time(times.utc_now(), -spec.schedule.allowed_lateness)
        watermark = jobs_schedule.last_schedule_time(
            jobs_schedule.check_schedule(spec.schedule), now
        )
    jobs.register(connection, spec, origin=origin, watermark=watermark)
    if earlier is not None and not (
        jobs_schedule.is_computable(earlier) and has_same_target(spec, earlier)
    ):
        runs.forget_windows(connection, spec.name)
        jobs.set_watermark(connection, spec.name, watermark)
        earlier = None
    # After the loss of the registry, the windows in the table must not be computed again.
    if earlier is None:
        restore(connection, session, spec, former=former)
    progress = JobProgress(
        runs.window_states(connection, spec.name),
        jobs.watermark(connection, spec.name),
        version,
    )
    is_new = earlier is None and not progress.states
    if is_new or is_stream:
        return jobs.get(connection, spec.name)
    if earlier is not None and not can_change_windows(spec, earlier):
        return jobs.get(connection, spec.name)
    change = compare_windows(spec, earlier, progress, now=times.utc_now())
    change.apply(connection, spec.name)
    return replace(jobs.get(connection, spec.name), changes=change.lines)


@dataclass(frozen=True)
class WindowChange:
    """The windows whose state changes with a definition, and the new watermark.

    ``replaced`` are computed windows whose rows new windows replace, ``outdated`` failed windows
    whose rows stay, and ``dropped`` failed windows that stop being due. ``lines`` describe the
    change.
    """

    watermark: datetime | None
    replaced: tuple[Window, ...] = ()
    outdated: tuple[Window, ...] = ()
    dropped: tuple[Window, ...] = ()
    lines: tuple[str, ...] = ()

    def apply(self, connection: Connection, job: str) -> None:
        """Record the change."""
        runs.change_states(connection, job, self.replaced, runs.REPLACED)
        runs.change_states(connection, job, self.outdated, runs.STALE)
        runs.change_states(connection, job, self.dropped, None)
        jobs.set_watermark(connection, job, self.watermark)


def has_same_target(spec: JobSpec, earlier: JobSpec) -> bool:
    """Return whether the recorded windows of an earlier definition are those of its successor."""
    stages = [
        (
            definition.target,
            isinstance(definition.work, GroupWork),
            isinstance(definition.work, StreamWork),
        )
        for definition in (spec, earlier)
    ]
    return stages[0] == stages[1]


def _grid(spec: JobSpec) -> tuple[object, ...]:
    """Return the fields that decide which windows exist, and which rows are in them."""
    schedule = spec.schedule
    return schedule.cron, schedule.width, schedule.timezone, _closed(spec)


def _closed(spec: JobSpec) -> str:
    return spec.work.closed if isinstance(spec.work, WindowedWork | MonitorWork) else "right"


def can_change_windows(spec: JobSpec, earlier: JobSpec) -> bool:
    """Return whether a new definition may change which windows of a job are due."""
    if not has_same_target(spec, earlier):
        return True
    modes = [
        definition.work.mode if isinstance(definition.work, WindowedWork) else ""
        for definition in (spec, earlier)
    ]
    return not isinstance(spec.work, StreamWork) and (
        _grid(spec) != _grid(earlier)
        or spec.schedule.start != earlier.schedule.start
        or modes[0] != modes[1]
    )


def compare_windows(
    spec: JobSpec, earlier: JobSpec | None, progress: JobProgress, *, now: datetime
) -> WindowChange:
    """Compare a new definition with the computed and failed windows of a job.

    Args:
        spec: The new definition.
        earlier: The registered definition; None if the computed windows come from the table.
        progress: The recorded windows.
        now: The current time.

    Raises:
        InvalidJob: The new windows would count rows twice; the hint has the line that avoids it.
    """
    if isinstance(spec.work, RunOnceWork):  # one run is enough for all windows
        schedule = jobs_schedule.check_schedule(spec.schedule)
        failed = [
            window for window in progress.windows(runs.FAILED) if not is_scheduled(schedule, window)
        ]
        return WindowChange(progress.watermark, dropped=tuple(failed))
    comparison = _Comparison(spec, earlier, progress, now)
    if overlaps_itself(comparison.schedule):
        return comparison.continue_overlapping()
    conflicts = comparison.find_conflicts()
    if not conflicts and not comparison.leaves_partly_replaced_rows():
        return comparison.continue_windows()
    return comparison.recompute(conflicts)


class _Comparison:
    """The windows of a new definition, and the recorded windows of the job."""

    def __init__(
        self, spec: JobSpec, earlier: JobSpec | None, progress: JobProgress, now: datetime
    ) -> None:
        self.spec, self.earlier, self.progress, self.now = spec, earlier, progress, now
        self.schedule, self.closed = jobs_schedule.check_schedule(spec.schedule), _closed(spec)
        self.until = times.shift_time(now, -self.schedule.allowed_lateness)
        self.stored_rows = list_stored_rows(progress)
        self.is_same_grid = earlier is not None and _grid(spec) == _grid(earlier)
        # A window that failed after it was computed has rows in the target. Other windows cannot
        # compute it again, and an appending job would append its rows twice.
        self.outdated = [
            window
            for window in progress.windows(runs.FAILED)
            if progress.states[window].target_version is not None
            and (spec.appends or not self.is_same_grid)
        ]
        self.settled = [*progress.windows(*COMPUTED), *self.outdated]
        self.partly_replaced = self._find_partly_replaced_windows()
        self.first = self._find_first_instant()
        self.horizon = max([rows.window.end for rows in self.stored_rows], default=self.first)
        self.windows = list(self._iter_windows())

    def _find_partly_replaced_windows(self) -> list[Window]:
        """Return windows whose rows were replaced only in part, because further windows failed."""
        computed = sorted(self.progress.windows(*COMPUTED))
        return [
            window
            for window in self.progress.windows(runs.REPLACED)
            if any(map(window.overlaps, touching(computed, window)))
        ]

    def _continues_replacement(self) -> bool:
        """Return whether the definition replaces the same rows as the earlier definition."""
        if self.earlier is None or not self.is_same_grid or self.spec.appends:
            return False
        start, earlier_start = self.schedule.start, self.earlier.schedule.start
        has_later_start = start != earlier_start and (
            start is None or earlier_start is None or start > earlier_start
        )
        return not has_later_start and not self.leaves_partly_replaced_rows()

    def leaves_partly_replaced_rows(self) -> bool:
        """Return whether rows that were replaced in part would stay."""
        if not self.partly_replaced:
            return False
        is_later = not self.windows or self.windows[0].start > min(self.partly_replaced).start
        return is_later or self.spec.appends

    def _find_first_instant(self) -> datetime:
        """Return the time from which windows may be due."""
        if self.schedule.start is not None:
            return self.schedule.start
        if not self.progress.states:
            return jobs_schedule.last_schedule_time(self.schedule, self.until)
        starts = [window.start for window in self.progress.windows(runs.FAILED, runs.REPLACED)]
        if self.progress.watermark is not None:
            return min([self.progress.watermark, *starts])
        return min(window.start for window in self.progress.states)

    def _iter_windows(self) -> Iterator[Window]:
        """Yield the windows that are complete, or begin at or before the end of stored rows."""
        upcoming = takewhile(
            lambda window: window.end <= self.until or window.start <= self.horizon,
            iterate_within_limit(jobs_schedule.windows_after(self.schedule, self.first)),
        )
        for window in upcoming:
            if self.schedule.start is None or window.start >= self.schedule.start:
                yield window

    def find_conflicts(self) -> list[tuple[Window, StoredRows]]:
        """Return pairs of a window to compute and stored rows that it contains only in part."""
        covered = Coverage(self.settled, self.schedule)
        pending = [window for window in self.windows if window not in covered]
        stored_rows = self.stored_rows
        if self._continues_replacement():
            # An earlier registration has chosen to replace these rows.
            replaced = set(self.progress.windows(runs.REPLACED))
            stored_rows = [rows for rows in stored_rows if rows.window not in replaced]
        return [
            (window, rows)
            for rows in stored_rows
            for window in touching(pending, rows.window)
            if self._is_conflict(window, rows)
        ]

    def _is_conflict(self, window: Window, rows: StoredRows) -> bool:
        """Return whether computing a window would repeat or delete rows of another window."""
        if self.spec.appends:
            return window.overlaps(rows.window)
        if window == rows.window and rows.closed == self.closed:
            return False
        event_times = event_time_range(window, self.closed)
        return window.overlaps(rows.window) or event_times.overlaps(rows.event_times)

    def continue_windows(self) -> WindowChange:
        """Keep all computed windows; time ranges that were not computed are due."""
        covered = Coverage(self.settled, self.schedule)
        pending = [window for window in self.windows if window not in covered]
        watermark = self.first if self.schedule.start is None else None
        for window in self.windows:
            if window not in covered:
                break
            watermark = window.end
        return self._change(pending, watermark)

    def continue_overlapping(self) -> WindowChange:
        """Continue with windows that overlap each other, each of which has rows of its own."""
        if self.is_same_grid or not self.settled:
            return self.continue_windows()
        if self.partly_replaced:
            raise self._refuse_new_group("windows were replaced only in part")
        boundary = max(window.end for window in self.settled)
        lost = [window for window in self._find_dropped_windows() if window.end <= boundary]
        if lost or not any(window.end == boundary for window in self.windows):
            raise self._refuse_new_group(
                f"windows of the new definition do not begin where those of the earlier one end, "
                f"at {boundary.isoformat()}"
            )
        pending = [window for window in self.windows if window.end > boundary]
        return self._change(pending, boundary)

    def recompute(self, conflicts: Sequence[tuple[Window, StoredRows]]) -> WindowChange:
        """Recompute the windows from ``start=`` on, or refuse the definition."""
        grid = self._grid_of_stored_rows()
        covered = Coverage(grid, self.schedule)
        in_conflict = [*[window for window, _ in conflicts], *self.partly_replaced]
        first_conflict = min(window.start for window in in_conflict)
        boundaries = (
            window
            for window in reversed(grid)
            if window.start <= first_conflict and self._is_boundary(window, covered)
        )
        boundary = next(boundaries, None)
        if (
            self.spec.appends
            or not self._is_start_chosen(boundary)
            or not self._is_boundary(self.windows[0], covered)
            or self.leaves_partly_replaced_rows()
        ):
            raise self._refuse(conflicts, boundary)
        first = self.windows[0]
        replaced = [
            window
            for window in [
                *self.progress.windows(*COMPUTED, runs.REPLACED),
                *self.outdated,
            ]
            if window.start >= first.start
        ]
        self.settled = [window for window in self.settled if window.start < first.start]
        watermark = first.start if self.schedule.start is None else None
        return self._change(self.windows, watermark, replaced=replaced)

    def _grid_of_stored_rows(self) -> list[Window]:
        """Return the windows of the new definition from before the first stored rows on."""
        earliest = min(rows.window.start for rows in self.stored_rows)
        upcoming = jobs_schedule.windows_after(
            self.schedule, times.shift_time(earliest, -_MICROSECOND)
        )
        return list(takewhile(lambda window: window.start <= self.horizon, upcoming))

    def _is_start_chosen(self, boundary: Window | None) -> bool:
        """Return whether the definition sets the time from which windows are recomputed."""
        if self.schedule.start is None or not self.windows:
            return False
        is_new = self.earlier is not None and self.earlier.schedule.start != self.schedule.start
        return is_new or self.windows[0] == boundary

    def _is_boundary(self, first: Window, covered: Coverage) -> bool:
        """Return whether the windows from ``first`` on replace stored rows completely or not at all.

        Rows on the bounds of windows remain if their windows are closed on the other side.
        """
        first_time = event_time_range(first, self.closed).start
        return all(
            (rows.window.end <= first.start and rows.event_times.end <= first_time)
            or (
                rows.window.start >= first.start
                and rows.closed == self.closed
                and rows.window in covered
            )
            for rows in self.stored_rows
        )

    def _find_dropped_windows(self) -> list[Window]:
        """Return the failed windows without rows that the new definition does not have."""
        return [
            window
            for window in self.progress.windows(runs.FAILED)
            if window not in self.outdated
            and (window.start < self.first or not is_scheduled(self.schedule, window))
        ]

    def _change(
        self,
        pending: Sequence[Window],
        watermark: datetime | None,
        *,
        replaced: Sequence[Window] = (),
    ) -> WindowChange:
        dropped = self._find_dropped_windows()
        outdated = [window for window in self.outdated if window not in replaced]
        due = [window for window in pending if window.end <= self.until]
        stays = [window for window in self.settled if window not in replaced]
        lines = [
            *_describe(stays, "computed", "stays as it is", "stay as they are"),
            *_describe(replaced, "computed", "is replaced", "are replaced by new windows"),
            *_describe(due, "", "is due", "are due"),
            *_describe(
                dropped, "failed", "was due in the earlier schedule, and now is not",
                "were due in the earlier schedule, and now are not",
            ),
            *self._describe_skipped(),
        ]  # fmt: skip
        return WindowChange(
            watermark, tuple(replaced), tuple(outdated), tuple(dropped), tuple(lines)
        )

    def _describe_skipped(self) -> list[str]:
        """Describe the time ranges that were due and begin before the new start."""
        if self.earlier is None or self.schedule.start is None:
            return []
        earlier_schedule = jobs_schedule.check_schedule(self.earlier.schedule)
        was_due = jobs_schedule.due_windows(
            earlier_schedule,
            watermark=self.progress.watermark,
            now=self.now,
            computed=Coverage(self.settled, earlier_schedule),
        )
        begin = self.windows[0].start if self.windows else self.schedule.start
        skipped = [window for window in was_due if window.start < begin]
        return _describe(
            skipped, "due", "is before start=, and is not computed",
            "are before start=, and are not computed",
        )  # fmt: skip

    def _refuse(
        self, conflicts: Sequence[tuple[Window, StoredRows]], boundary: Window | None
    ) -> InvalidJob:
        if conflicts:
            window, rows = conflicts[0]
            reason = (
                f"the window {_describe_range(window)} of the new definition contains rows of the "
                f"computed window {_describe_range(rows.window)}, and further time"
            )
        else:
            reason = (
                f"the rows of the computed window {_describe_range(min(self.partly_replaced))} were "
                "replaced only in part, since further windows failed"
            )
        if boundary is None:
            return self._refuse_new_group(reason)
        start = f"start={boundary.start.isoformat()!r}"
        consequence = f"{start} recomputes the windows from there on and replaces those rows."
        if self.spec.appends:
            consequence = "mode='append' would add their rows twice."
            start = f"mode='replace_window', {start}"
        return InvalidJob(f"Job {self.spec.name!r}: {reason}. {consequence}", hint=start)

    def _refuse_new_group(self, reason: str) -> InvalidJob:
        return InvalidJob(
            f"Job {self.spec.name!r}: {reason}, so rows of {self.spec.target!r} would be counted "
            "twice or lost.",
            hint=f"featuregroup='{self.spec.target}_2'",
        )


def _describe_range(window: Window) -> str:
    return f"{window.start.isoformat()} to {window.end.isoformat()}"


def _describe(windows: Iterable[Window], adjective: str, singular: str, plural: str) -> list[str]:
    """Describe windows in one line; return no line without windows."""
    ordered = sorted(windows)
    if not ordered:
        return []
    noun = "window" if len(ordered) == 1 else "windows"
    verb = singular if len(ordered) == 1 else plural
    time_range = Window(ordered[0].start, max(window.end for window in ordered))
    return [
        f"{len(ordered):,} {adjective} {noun} {verb}: {_describe_range(time_range)}".replace(
            "  ", " "
        )
    ]
