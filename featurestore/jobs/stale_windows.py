"""Stale windows: computed windows whose inputs late data has changed since.

A computed window is stale if late data has changed an input since. A commit to an input changes the
time range of the rows that it adds and removes. The range is recorded in the commit metadata if a
job wrote it, otherwise it is the minimum and maximum time of the files. Commits that move rows
without changing them (compaction) are ignored. If the range is unknown, all windows are stale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from featurestore.delta.log import commit_path, parse_user_metadata, read_commit
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidArgument, JobWarning
from featurestore.jobs import inputs as jobs_inputs
from featurestore.jobs.inputs import PinnedInput
from featurestore.jobs.schedule import check_schedule
from featurestore.jobs.target import parse_row_range
from featurestore.jobs.windows import is_scheduled
from featurestore.model.arguments import warn_caller
from featurestore.model.job import JobSpec
from featurestore.model.times import Window, to_micros
from featurestore.registry import runs
from featurestore.registry.jobs import RegisteredJob
from featurestore.registry.runs import WindowState
from featurestore.session import Session
from featurestore.storage import storage_for


def find_all_stale(session: Session, job: RegisteredJob) -> list[Window]:
    """Return the windows of a job whose inputs have changed.

    Raises:
        InvalidArgument: The job appends, so its windows cannot be computed again.
    """
    if job.spec.appends:
        raise InvalidArgument(
            f"Job {job.spec.name!r} appends, so its windows cannot be computed again.",
            hint="mode='replace_window' replaces the rows of a window",
        )
    schedule = check_schedule(job.spec.schedule)
    stale = refresh_stale_windows(session, job.spec)
    scheduled = [window for window in stale if is_scheduled(schedule, window)]
    if len(scheduled) < len(stale):
        first = min({*stale} - {*scheduled})
        warn_caller(
            f"Job {job.spec.name!r}: {len(stale) - len(scheduled):,} stale windows of an earlier "
            f"schedule are not computed again, the first from {first.start.isoformat()} to "
            f"{first.end.isoformat()}. backfill_job(..., resume=False) computes the windows of a "
            "range again.",
            JobWarning,
        )
    return scheduled


def refresh_stale_windows(session: Session, spec: JobSpec) -> list[Window]:
    """Mark computed windows with changed inputs as stale, and return all stale windows."""
    with session.registry.reading() as connection:
        stale = runs.window_states(connection, spec.name, states=[runs.STALE])
        computed = runs.window_states(connection, spec.name, states=[runs.DONE])
    if not computed:
        return list(stale)
    # The logs of the inputs are read outside of a transaction, which would lock the registry.
    changed = _changed_windows(spec, computed, jobs_inputs.pin_inputs(session, spec))
    with session.registry.transaction() as connection:
        runs.mark_stale(connection, spec.name, changed)
    return sorted([*stale, *changed])


@dataclass(frozen=True)
class InputChange:
    """A changed time range of an input in microseconds, both ends inclusive."""

    low: int
    high: int


_EVERYTHING = InputChange(-(2**63), 2**63 - 1)


def find_changes(
    pinned: PinnedInput, recorded: Mapping[str, Any], *, since: datetime
) -> list[InputChange]:
    """Return the changes of an input from the version that a run read to the current version.

    Args:
        pinned: The current input.
        recorded: The input as the run recorded it.
        since: When the run ended.
    """
    names = ("source", "version", "identity")
    if any(getattr(pinned, name) != recorded.get(name) for name in names):
        return [_EVERYTHING]
    if pinned.source_type == "source":
        return []  # sources report no changes: lookback= and upserts handle late rows
    if pinned.source_type == "parquet":
        if pinned.fingerprint == recorded.get("fingerprint"):
            return []
        return list(_find_file_changes(pinned, recorded, since))
    before, now = recorded.get("delta_version"), pinned.delta_version
    # A lower version than before means that the table was replaced.
    if before is None or now is None or now < before:
        return [_EVERYTHING]
    return list(_find_table_changes(pinned, before, now))


def _changed_windows(
    spec: JobSpec, computed: Mapping[Window, WindowState], inputs: Sequence[PinnedInput]
) -> list[Window]:
    """Return the windows whose range overlaps a later change of any input."""
    by_version: dict[tuple[str, str], list[InputChange]] = {}
    changed = []
    range_of = jobs_inputs.make_read_range(spec)
    for window, state in computed.items():
        low, high = range_of(window)
        recorded_inputs = {record["input"]: record for record in state.inputs.get("inputs", ())}
        for pinned in inputs:
            # The windows of a run have the same recorded inputs, so their changes are searched only
            # once.
            key = (pinned.name, json.dumps(recorded_inputs.get(pinned.name)))
            if key not in by_version:
                recorded = recorded_inputs.get(pinned.name, {})
                by_version[key] = find_changes(pinned, recorded, since=state.updated)
            if any(change.low < high and change.high >= low for change in by_version[key]):
                changed.append(window)
                break
    return changed


def _find_table_changes(pinned: PinnedInput, before: int, now: int) -> Iterator[InputChange]:
    """Yield the time ranges that the commits between two versions changed."""
    ranges: dict[str, InputChange] | None = None
    for version in range(before + 1, now + 1):
        file = commit_path(pinned.path, version)
        # Delta removes old commit files after the log retention, so their changes are unknown.
        if not storage_for(file).exists(file):
            yield _EVERYTHING
            return
        actions = read_commit(file)
        changed_files = _changed_files(actions)
        if not changed_files:
            continue
        replaced_range = _replaced_range(pinned, actions)
        if replaced_range is not None:
            yield replaced_range
            continue
        if pinned.time is None:
            yield _EVERYTHING
            return
        if ranges is None:
            ranges = _file_time_ranges(pinned, before, now)
        for path in changed_files:
            yield ranges.get(path, _EVERYTHING)


def _changed_files(actions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the files that a commit adds and removes, except rewrites of the same rows."""
    actions_of_files = [
        action[name] for action in actions for name in ("add", "remove") if action.get(name)
    ]
    # Compactions have dataChange=false: by the Delta protocol, they only rearrange existing rows.
    return [file["path"] for file in actions_of_files if file.get("dataChange", True)]


def _replaced_range(
    pinned: PinnedInput, actions: Sequence[Mapping[str, Any]]
) -> InputChange | None:
    """Return the range that a job's commit replaced, if it refers to the input's time column."""
    # The recorded range is a range of event times, so it does not apply to another time column.
    if pinned.spec is None or pinned.spec.event_time != pinned.time:
        return None
    for action in actions:
        if action.get("commitInfo") is None:
            continue
        replaced = parse_row_range(parse_user_metadata([action]))
        if replaced is None:
            return None
        return InputChange(to_micros(replaced.start), to_micros(replaced.end))
    return None


def _file_time_ranges(pinned: PinnedInput, before: int, now: int) -> dict[str, InputChange]:
    """Return the time range of each file in a version and its successors, by path."""
    state = read_snapshot(pinned.path, before)
    column = str(pinned.time)
    ranges = {}
    for file, bounds in zip(state.files, state.times(column) or [], strict=False):
        ranges[file.log_path] = _to_change(bounds)
    for version in range(before + 1, now + 1):
        for action in read_commit(commit_path(pinned.path, version)):
            added = action.get("add")
            if added is not None:
                ranges[added["path"]] = _to_change(state.times_of_added(added, column))
    return ranges


def _find_file_changes(
    pinned: PinnedInput, recorded: Mapping[str, Any], since: datetime
) -> Iterator[InputChange]:
    """Yield the time ranges of the Parquet files that were added after a run.

    If files that the run read were removed or rewritten, the entire time range has changed.
    """
    old, new = [], []
    for file in jobs_inputs.parquet_files(pinned.path):
        modified = storage_for(file).status(file).modified_ns // 1000
        if modified >= to_micros(since):
            new.append(file)
        else:
            old.append(file)
    # If the old files are those that the run read, only the new files have changed rows.
    if pinned.time is None or jobs_inputs.fingerprint_files(old) != recorded.get("fingerprint"):
        yield _EVERYTHING
        return
    for file in new:
        bounds = jobs_inputs.read_time_bounds(file, pinned.time)
        if bounds is None or bounds.nulls:
            yield _EVERYTHING
        elif bounds.times is not None:
            yield _to_change(bounds.times)


def _to_change(times: tuple[int, int] | None) -> InputChange:
    return _EVERYTHING if times is None else InputChange(*times)
