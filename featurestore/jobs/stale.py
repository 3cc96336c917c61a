"""Late data: which computed windows saw inputs that have changed since.

A commit of an input after the one that a window saw changes the time range of the rows that it adds
and removes: the range that a job's commit states of itself, else that of the files' least and
greatest times. Commits that move rows and change none (compaction) do not count. Where the range is
not known, all windows count as changed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from featurestore.delta.log import commit_path, note_of, read_commit
from featurestore.delta.snapshot import read_snapshot
from featurestore.jobs.inputs import (
    PinnedInput,
    fingerprint,
    parquet_files,
    pin,
    seen_by,
    time_bounds,
)
from featurestore.jobs.target import rows_of_note
from featurestore.model.job import JobSpec
from featurestore.model.times import to_micros
from featurestore.model.window import Window
from featurestore.registry import runs
from featurestore.registry.runs import WindowState
from featurestore.session import Session
from featurestore.storage import files


@dataclass(frozen=True)
class Change:
    """A changed range of an input in microseconds, both ends inside."""

    low: int
    high: int


EVERYTHING = Change(-(2**63), 2**63 - 1)


def stale_windows(session: Session, spec: JobSpec) -> list[Window]:
    """Return the computed windows whose inputs changed, oldest first, and record them as stale."""
    with session.registry.reading() as connection:
        stale = runs.windows_of(connection, spec.name, states=[runs.STALE])
        done = runs.windows_of(connection, spec.name, states=[runs.DONE])
    if not done:
        return list(stale)
    changed = _changed(spec, done, pin(session, spec))
    with session.registry.transaction() as connection:
        runs.mark_stale(connection, spec.name, changed)
    return sorted([*stale, *changed])


def changes(given: PinnedInput, seen: Mapping[str, Any], *, since: datetime) -> list[Change]:
    """Return what changed in an input between what a run saw and now.

    Args:
        given: The input as it is now.
        seen: The input as the run recorded it.
        since: When the run ended.
    """
    if (given.source, given.version) != (seen.get("source"), seen.get("version")):
        return [EVERYTHING]
    if given.kind == "source":
        return []  # nobody tells what changed there: lookback= and upserts take late rows
    if given.kind == "parquet":
        if given.fingerprint == seen.get("fingerprint"):
            return []
        return list(_changes_of_files(given, seen, since))
    before, now = seen.get("delta_version"), given.delta_version
    if before is None or now is None or now < before:
        return [EVERYTHING]
    return list(_changes_of_table(given, before, now))


def _changed(
    spec: JobSpec, known: Mapping[Window, WindowState], inputs: Sequence[PinnedInput]
) -> list[Window]:
    """Return the windows in whose range some input changed after they saw it."""
    by_version: dict[tuple[str, str], list[Change]] = {}
    changed = []
    range_of = seen_by(spec)
    for window, state in known.items():
        low, high = range_of(window)
        seen = {each["input"]: each for each in state.inputs.get("inputs", ())}
        for given in inputs:
            key = (given.name, json.dumps(seen.get(given.name)))
            if key not in by_version:
                recorded = seen.get(given.name, {})
                by_version[key] = changes(given, recorded, since=state.updated)
            if any(change.low < high and change.high >= low for change in by_version[key]):
                changed.append(window)
                break
    return changed


def _changes_of_table(given: PinnedInput, before: int, now: int) -> Iterator[Change]:
    """Yield the ranges that the commits after one version, up to another, changed."""
    ranges: dict[str, Change] | None = None
    for version in range(before + 1, now + 1):
        file = commit_path(given.path, version)
        if not files.exists(file):
            yield EVERYTHING
            return
        actions = read_commit(file)
        changed_files = _changed_files(actions)
        if not changed_files:
            continue
        stated = _stated_range(given, actions)
        if stated is not None:
            yield stated
            continue
        if given.time is None:
            yield EVERYTHING
            return
        if ranges is None:
            ranges = _ranges_of_files(given, before, now)
        for path in changed_files:
            yield ranges.get(path, EVERYTHING)


def _changed_files(actions: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the files that a commit adds and removes, those left out that hold the same rows."""
    paths = []
    for action in actions:
        for kind in ("add", "remove"):
            file = action.get(kind)
            if file is not None and file.get("dataChange", True):
                paths.append(file["path"])
    return paths


def _stated_range(given: PinnedInput, actions: Sequence[Mapping[str, Any]]) -> Change | None:
    """Return the range that a job says it replaced, where it is one of the input's time column."""
    if given.spec is None or given.spec.event_time != given.time:
        return None
    for action in actions:
        if action.get("commitInfo") is None:
            continue
        told = rows_of_note(note_of([action]))
        if told is None:
            return None
        return Change(to_micros(told.start), to_micros(told.end))
    return None


def _ranges_of_files(given: PinnedInput, before: int, now: int) -> dict[str, Change]:
    """Return the range of every file that the table had at a version or got since, by its path."""
    state = read_snapshot(given.path, before)
    column = str(given.time)
    ranges = {}
    for file, times in zip(state.files, state.times(column) or [], strict=False):
        ranges[file.log_path] = _as_change(times)
    for version in range(before + 1, now + 1):
        for action in read_commit(commit_path(given.path, version)):
            added = action.get("add")
            if added is not None:
                ranges[added["path"]] = _as_change(state.times_of_added(added, column))
    return ranges


def _changes_of_files(
    given: PinnedInput, seen: Mapping[str, Any], since: datetime
) -> Iterator[Change]:
    """Yield the ranges of Parquet files that came after a run.

    Where files that the run saw are gone or were written anew, nobody knows what was in them.
    """
    old, new = [], []
    for file in parquet_files(given.path):
        written = files.status(file).modified_ns // 1000
        if written >= to_micros(since):
            new.append(file)
        else:
            old.append(file)
    if given.time is None or fingerprint(old) != seen.get("fingerprint"):
        yield EVERYTHING
        return
    for file in new:
        bounds = time_bounds(file, given.time)
        if bounds is None or bounds.nulls:
            yield EVERYTHING
        elif bounds.times is not None:
            yield _as_change(bounds.times)


def _as_change(times: tuple[int, int] | None) -> Change:
    return EVERYTHING if times is None else Change(*times)
