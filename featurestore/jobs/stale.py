"""Late data: which computed windows saw inputs that have changed since.

A commit of an input after the one that a window saw changes the time range of the rows that it adds and removes: the
range that a job's commit states of itself, else that of the files' least and greatest times. Commits that move rows
and change none (compaction) do not count. Where the range is not known, all windows count as changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from featurestore.delta import deltalog
from featurestore.jobs.footers import parquet_files, time_bounds
from featurestore.jobs.inputs import PinnedInput, fingerprint, pin
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
        known = runs.windows_of(connection, spec.name, states=[runs.DONE, runs.STALE])
    found = [window for window, state in known.items() if state.state == runs.STALE]
    fresh = {window: state for window, state in known.items() if state.state == runs.DONE}
    if fresh:
        changed = list(_changed(spec, fresh, pin(session, spec)))
        with session.registry.transaction() as connection:
            runs.mark_stale(connection, spec.name, changed)
        found += changed
    return sorted(found)


def changes(given: PinnedInput, seen: Mapping[str, Any], *, since: datetime) -> list[Change]:
    """Return what changed in an input between what a run saw and now; ``since`` is when it ran."""
    if (given.source, given.version) != (seen.get("source"), seen.get("version")):
        return [EVERYTHING]
    if given.kind == "parquet":
        return (
            [] if given.fingerprint == seen.get("fingerprint") else list(_files(given, seen, since))
        )
    before, now = seen.get("delta_version"), given.delta_version
    if before is None or now is None or now < before:
        return [EVERYTHING]
    return list(_commits(given, before, now))


def _changed(
    spec: JobSpec, known: Mapping[Window, WindowState], inputs: Sequence[PinnedInput]
) -> Iterator[Window]:
    found: dict[tuple[str, str], list[Change]] = {}
    for window, state in known.items():
        seen = {each["input"]: each for each in state.inputs.get("inputs", ())}
        for given in inputs:
            key = (given.name, json.dumps(seen.get(given.name)))
            if key not in found:
                found[key] = changes(given, seen.get(given.name, {}), since=state.updated)
            low, high = to_micros(window.start - spec.lookback), to_micros(window.end)
            if any(change.low < high and change.high >= low for change in found[key]):
                yield window
                break


def _commits(given: PinnedInput, before: int, now: int) -> Iterator[Change]:
    bounds: dict[str, Change] | None = None
    for version in range(before + 1, now + 1):
        file = deltalog.commit_path(given.path, version)
        if not files.exists(file):
            yield EVERYTHING
            return
        actions = deltalog.read_commit(file)
        moved = [
            (kind, each[kind])
            for each in actions
            for kind in ("add", "remove")
            if each.get(kind) is not None and each[kind].get("dataChange", True)
        ]
        if not moved:
            continue
        stated = _stated(given, actions)
        if stated is not None:
            yield stated
            continue
        if given.time is None:
            yield EVERYTHING
            return
        if bounds is None:
            bounds = dict(_known_bounds(given, before, now))
        for _, action in moved:
            yield bounds.get(action["path"], EVERYTHING)


def _stated(given: PinnedInput, actions: Sequence[Mapping[str, Any]]) -> Change | None:
    """Return the window that a job says it replaced, where that is a range of the column that cuts the input."""
    info: Mapping[str, Any] = next(
        (each["commitInfo"] for each in actions if each.get("commitInfo")), {}
    )
    try:
        note = json.loads(info.get("userMetadata") or "{}")
    except ValueError:
        return None
    window = note.get("window") if isinstance(note, dict) else None
    if not isinstance(window, dict) or given.spec is None or given.spec.event_time != given.time:
        return None
    low, high = (to_micros(datetime.fromisoformat(window[side])) for side in ("start", "end"))
    return Change(low, high)


def _known_bounds(given: PinnedInput, before: int, now: int) -> Iterator[tuple[str, Change]]:
    """Yield the range of every file that the table had at a version or got since, by its path in the log."""
    state = deltalog.table_state(given.path, before)
    column = str(given.time)
    for file, times in zip(state.files, state.times(column) or [], strict=False):
        yield file.log_path, EVERYTHING if times is None else Change(*times)
    for version in range(before + 1, now + 1):
        for action in deltalog.read_commit(deltalog.commit_path(given.path, version)):
            added = action.get("add")
            if added is not None:
                times = state.times_of_added(added, column)
                yield added["path"], EVERYTHING if times is None else Change(*times)


def _files(given: PinnedInput, seen: Mapping[str, Any], since: datetime) -> Iterator[Change]:
    """Yield the ranges of Parquet files that came after a run, where all that it saw is there as it was."""
    found = list(parquet_files(given.path))
    newer = {file for file in found if os.stat(file).st_mtime_ns // 1000 >= to_micros(since)}
    if given.time is None or fingerprint(file for file in found if file not in newer) != seen.get(
        "fingerprint"
    ):
        yield EVERYTHING  # files are gone or were written anew: nobody knows what was in them
        return
    for file in newer:
        told = time_bounds(file, given.time)
        yield EVERYTHING if told is None or told.nulls else Change(told.low, told.high)
