"""Window profiles, computed in few passes over the rows of a group, and their cache.

``<table>_statistics/windows/`` contains a file per window, set of columns and set of custom
metrics. The files are a cache: they can be recomputed from the table.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from featurestore.arrow.batches import select_rows
from featurestore.arrow.types import TIMESTAMP
from featurestore.delta import commits
from featurestore.delta.history import read_history
from featurestore.errors import FeatureNotFound, FormatTooNew, StorageError, listing
from featurestore.featuregroups.quality import load_statistics
from featurestore.featuregroups.table import OpenGroup
from featurestore.model.json_object import MalformedJson
from featurestore.model.monitor import MonitorSpec
from featurestore.model.times import Window, to_micros
from featurestore.monitoring.metrics import Quality, compute_metrics
from featurestore.monitoring.profile import Profile, to_profile
from featurestore.plugins.engine import Accumulator, TimeRange
from featurestore.session import Session
from featurestore.statistics import (
    StatisticsAccumulator,
    StatisticsState,
    finish,
    merge,
    statistics_accumulator,
)

_log = logging.getLogger("featurestore.monitoring")
_FORMAT = 1
# Number of sampled rows for a window's distributions, and of values in memory in one pass.
_SAMPLE_ROWS = 20_000
_MAX_VALUES_IN_MEMORY = 40_000_000
States = dict[int, StatisticsState]
IsCurrent = Callable[[Profile], bool]


@dataclass(frozen=True)
class WindowsAccumulator(Accumulator[States, States]):
    """Accumulates statistics for many time windows ``[start, end)`` in one pass."""

    time: str
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    accumulator: StatisticsAccumulator

    def start(self) -> States:
        """Return the initial states."""
        return {}

    def update(self, state: States, batch: pa.RecordBatch) -> States:
        """Add the rows of a batch to the windows that contain them."""
        column = batch.column(batch.schema.get_field_index(self.time))
        present = pc.indices_nonzero(pc.is_valid(column))
        micros = pc.cast(pc.cast(column.take(present), TIMESTAMP), pa.int64()).to_numpy()
        # One sort per batch finds the rows of all windows, instead of one filter per window.
        order = np.argsort(micros, kind="stable")
        times = micros[order]
        rows = present.to_numpy()[order]
        first = np.searchsorted(times, self.starts)
        last = np.searchsorted(times, self.ends)
        for index in np.flatnonzero(last > first):
            inside = select_rows(batch, pa.array(rows[first[index] : last[index]]))
            number = int(index)
            state[number] = self.accumulator.update(
                state.get(number) or self.accumulator.start(), inside
            )
        return state

    def merge(self, states: States, more_states: States) -> States:
        """Merge the states of two accumulators."""
        for index, state in more_states.items():
            if index in states:
                states[index] = merge(states[index], state)
            else:
                states[index] = state
        return states

    def finish(self, state: States) -> States:
        """Return the states of all windows."""
        return state


@dataclass(frozen=True)
class Profiler:
    """Computes and caches a monitor's window profiles for one version of a group.

    ``is_current`` returns False if a later commit has changed the window of a stored profile.
    ``quality`` measures the predictions of a model.
    """

    session: Session
    group: OpenGroup
    watched: MonitorSpec
    is_current: IsCurrent
    quality: Quality | None = None

    def profiles(self, windows: Sequence[Window]) -> dict[Window, Profile]:
        """Return the profile of each window; compute and store missing profiles."""
        by_window = {}
        missing = []
        for window in windows:
            stored_profile = self._load(window)
            if stored_profile is None:
                missing.append(window)
            else:
                by_window[window] = stored_profile
        for profile in self._compute(missing):
            if profile.window is not None:
                by_window[profile.window] = profile
                self._store(profile)
        return by_window

    @cached_property
    def features(self) -> list[str]:
        """The profiled columns: the configured features, or else all except keys and times.

        Raises:
            FeatureNotFound: The group has no such feature.
        """
        spec = self.group.spec
        non_features = {*spec.primary_key, spec.event_time, spec.created_time}
        feature_names = [name for name in spec.schema.names if name not in non_features]
        if self.watched.features is None:
            return feature_names
        unknown = [name for name in self.watched.features if name not in spec.schema.names]
        if unknown:
            raise FeatureNotFound(
                f"{spec.name!r} version {spec.version} has no features {listing(unknown)}. "
                f"Available: {listing(feature_names)}.",
                hint="features=None monitors all features",
            )
        return [name for name in feature_names if name in self.watched.features]

    @property
    def types(self) -> dict[str, str]:
        """The column types of the group."""
        return {field.name: str(field.type) for field in self.group.spec.schema}

    # -- computation --------------------------------------------------------------------------

    def _compute(self, windows: Sequence[Window]) -> Iterator[Profile]:
        """Yield the profiles of windows, in passes of limited memory."""
        if not windows:
            return
        if self.group.spec.event_time is None:
            yield from self._profile_by_commits(windows)
            return
        ordered = sorted(windows)
        columns = len(self.features) + 1
        # Wide tables are profiled with fewer windows per pass. Samples are smaller only for more
        # than 2,000 columns.
        limit = max(min(_SAMPLE_ROWS, _MAX_VALUES_IN_MEMORY // columns), 1)
        at_once = max(_MAX_VALUES_IN_MEMORY // (limit * columns), 1)
        for first in range(0, len(ordered), at_once):
            yield from self._compute_in_one_pass(ordered[first : first + at_once], limit)

    def _compute_in_one_pass(self, windows: Sequence[Window], limit: int) -> Iterator[Profile]:
        """Yield the profiles of several windows from one pass over the table."""
        spec, engine = self.group.spec, self.session.engine
        time = str(spec.event_time)
        columns = [time, *self.features]
        schema = pa.schema([spec.schema.field(name) for name in columns])
        # With the role "key", the statistics skip correlations.
        statistics = statistics_accumulator(
            schema, limit=limit, roles=dict.fromkeys(columns, "key")
        )
        relation = engine.read_table(
            self.group.path,
            version=self.group.delta_version,
            schema=spec.schema,
            columns=self._select_columns(columns),
        )
        relation = engine.within(
            relation, TimeRange(time, windows[0].start, max(bounds.end for bounds in windows))
        )
        starts = tuple(to_micros(bounds.start) for bounds in windows)
        ends = tuple(to_micros(bounds.end) for bounds in windows)
        accumulator = WindowsAccumulator(
            time,
            starts,
            ends,
            statistics,
        )
        narrow = engine.select(relation, {name: name for name in columns})
        states = engine.aggregate(narrow, accumulator)
        for index, window in enumerate(windows):
            state = states.get(index) or statistics.start()
            inside = engine.within(relation, TimeRange(time, window.start, window.end))
            metrics = compute_metrics(engine, inside, self.watched.metrics)
            labels_version = None
            if self.quality is not None:
                metrics |= self.quality.measure(window)
                labels_version = self.quality.labels.delta_version
            yield to_profile(
                finish(state),
                window=window,
                version=spec.version,
                delta_version=self.group.delta_version,
                time=time,
                types=self.types,
                roles=False,
                metrics=metrics.values,
                estimates=metrics.estimates,
                labels_version=labels_version,
            )

    def _select_columns(self, columns: Sequence[str]) -> list[str]:
        """Return the columns to read: all of them if custom metrics may use any column."""
        if self.watched.metrics:
            return list(self.group.spec.schema.names)
        return list(columns)

    def _profile_by_commits(self, windows: Sequence[Window]) -> Iterator[Profile]:
        """Yield the profiles of a group without event time: the table at the end of each window.

        The row count of a window is the number of rows that its commits added.
        """
        history = read_history(self.group.path)
        for window in windows:
            inside = [commit for commit in history if window.start <= commit.time < window.end]
            before = [commit.version for commit in history if commit.time < window.end]
            rows = sum(commit.rows_in for commit in inside)
            newest = max((commit.time for commit in inside), default=None)
            yield self._compute_table_profile(
                max(before, default=0), window=window, rows=rows, newest=newest
            )

    def _compute_table_profile(
        self, delta_version: int, *, window: Window, rows: int, newest: datetime | None
    ) -> Profile:
        """Return the profile of an entire table version, from its stored statistics."""
        spec, engine = self.group.spec, self.session.engine
        if delta_version < 1:
            return Profile(window, rows, spec.version, 0, {}, self.types, newest)
        # Statistics exist for versions that changed rows.
        data_version = commits.latest_data_version(self.group.path, delta_version)
        statistics = load_statistics(
            self.session, spec.name, version=spec.version, delta_version=data_version
        )
        relation = engine.read_table(self.group.path, version=data_version, schema=spec.schema)
        metrics = compute_metrics(engine, relation, self.watched.metrics)
        return to_profile(
            statistics,
            window=window,
            version=spec.version,
            delta_version=self.group.delta_version,
            types=self.types,
            features=self.features,
            rows=rows,
            newest=newest,
            metrics=metrics.values,
            estimates=metrics.estimates,
        )

    # -- cache --------------------------------------------------------------------------------

    def _load(self, window: Window) -> Profile | None:
        """Load the stored profile of a window; None if it is missing, damaged or outdated."""
        path = self._path(window)
        if not self.session.storage.exists(path):
            return None
        try:
            data = json.loads(zlib.decompress(self.session.storage.read_bytes(path)))
            profile = Profile.from_json(data)
        except (FormatTooNew, MalformedJson, StorageError, ValueError, zlib.error):
            _log.warning("%s is damaged; recomputing the profile", path)
            return None
        is_same_window = profile.window == window and profile.version == self.group.spec.version
        return profile if is_same_window and self.is_current(profile) else None

    def _store(self, profile: Profile) -> None:
        if profile.window is None:
            return
        data = json.dumps(profile.to_json(), separators=(",", ":"), ensure_ascii=False)
        path = self._path(profile.window)
        try:
            self.session.storage.make_directory(os.path.dirname(path))
            self.session.storage.write_atomically(path, zlib.compress(data.encode(), 1))
        except (OSError, StorageError) as error:  # read-only stores can be monitored, too
            _log.info("could not store the profile of a window: %s", error)

    def _path(self, window: Window) -> str:
        # The name depends only on settings that change the profile, so that monitors with different
        # baselines and thresholds share the files.
        settings: dict[str, Any] = {"format": _FORMAT, "features": self.features}
        settings["metrics"] = dict(self.watched.metrics)
        if self.quality is not None:
            settings["quality"] = self.quality.to_json()
        key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:16]
        spec = self.group.spec
        folder = self.session.paths.statistics(spec.name, spec.version)
        name = f"{to_micros(window.start)}-{to_micros(window.end)}.{key}.json.z"
        return os.path.join(folder, "windows", name)
