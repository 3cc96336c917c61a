"""Runs of monitors: compare windows of a group with a baseline, record findings, raise alerts."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import cached_property, partial
from itertools import pairwise

from sqlalchemy.engine import Connection

from featurestore.alerts import incidents
from featurestore.delta import commits
from featurestore.delta.history import commit_time
from featurestore.delta.snapshot import read_snapshot
from featurestore.errors import InvalidJob, StatisticsNotFound
from featurestore.featuregroups.statistics import statistics_of
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.jobs.inputs import PinnedInput, seen_by
from featurestore.jobs.monitors.baselines import Baselines, FixedBaseline, History
from featurestore.jobs.monitors.definitions import LABELS_INPUT, WATCHED_INPUT
from featurestore.jobs.monitors.models import quality_of
from featurestore.jobs.monitors.windows import with_windows_before
from featurestore.jobs.run import Attempt, Recording, Written, recorded
from featurestore.jobs.schedule import latest_complete
from featurestore.jobs.specs import schedule_of
from featurestore.jobs.stale import changes
from featurestore.model import times
from featurestore.model.job import JobSpec
from featurestore.model.monitor import Watched
from featurestore.model.monitor_report import Finding, MonitorReport, worst_first
from featurestore.model.times import from_micros
from featurestore.model.watched_model import LABELLED
from featurestore.model.window import Window
from featurestore.monitoring import rules
from featurestore.monitoring.profile import Profile, profile_of
from featurestore.monitoring.quality import Quality
from featurestore.monitoring.rules import RuleResult
from featurestore.monitoring.windows import Profiler
from featurestore.plugins import observers
from featurestore.registry import jobs, monitors
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.training import catalog

_FAMILIES = ("drift", "nulls", "values", "anchor", "freshness", "volume", "schema", "metric")
_EVENT_TIME, _COMMIT = "event time", "last commit"


def run_monitor(session: Session, attempt: Attempt) -> Run:
    """Compare the windows of an attempt with the baseline, and record what was found."""
    return recorded(session, attempt, partial(_observe, session, attempt))


def _observe(session: Session, attempt: Attempt, recording: Recording) -> Written:
    spec = attempt.spec
    observed = observe(session, spec, attempt.windows, recording.inputs)
    reports = observed.reports
    work = observers.current()
    if work is not None:
        work.found = reports[-1]

    def record(connection: Connection) -> None:
        monitors.record(connection, reports, run_id=recording.run.run_id)
        _alert(connection, spec, reports[-1], observed.back)

    rows = sum(each.rows for each in reports)
    return Written(rows, reports[-1].delta_version, None, record)


def _alert(
    connection: Connection, spec: JobSpec, report: MonitorReport, back: Collection[str]
) -> None:
    """Send what begins, lasts and ends in the latest window; earlier windows raise no alerts.

    An incident ends when its values are back within bounds (``back``), and never because there is
    nothing to judge them by.
    """
    if report.window != latest_complete(schedule_of(spec), times.utc_now()):
        return
    present: dict[str, list[str]] = {}
    for finding in report.alarms:
        present.setdefault(finding.kind, []).append(str(finding))
    lasting = {}
    for family in _FAMILIES:
        if family not in present and family not in back:
            suspects = [str(each) for each in report.suspects if each.kind == family]
            lasting[family] = suspects or ["not back within bounds for long enough"]
    confirm = 1 if spec.watched is None else spec.watched.confirm
    incidents.update(
        connection,
        spec,
        present,
        families=_FAMILIES,
        lasting=lasting,
        reason=f"the values are back within bounds for {confirm} windows",
    )


@dataclass(frozen=True)
class Observed:
    """Reports of windows, oldest first, and the kinds of findings that are back within bounds."""

    reports: list[MonitorReport]
    back: frozenset[str]


def observe(
    session: Session, spec: JobSpec, windows: Sequence[Window], inputs: Sequence[PinnedInput]
) -> Observed:
    """Return the report of each window, oldest first; the shares of the last one can be drawn."""
    observation = Observation(session, spec, inputs)
    chains = with_windows_before(schedule_of(spec), windows, observation.watched.confirm - 1)
    observation.prepare(window for chain in chains for window in chain)
    reports = [observation.report(chain) for chain in chains]
    for index in range(len(reports) - 1):
        reports[index] = replace(reports[index], shares=())
    return Observed(reports, observation.back_within_bounds(chains[-1], reports[-1]))


class Observation:
    """One look of a monitor at its group: profiles of windows, and what the rules say of them."""

    def __init__(self, session: Session, spec: JobSpec, inputs: Sequence[PinnedInput]) -> None:
        if spec.watched is None:
            raise InvalidJob(f"{spec.name!r} is no monitor of a feature group.")
        self._session = session
        self._spec = spec
        self._inputs = {given.name: given for given in inputs}
        self.watched: Watched = spec.watched
        self._group = self._open(WATCHED_INPUT)
        self._profiler = Profiler(
            session, self._group, self.watched, self._is_current, self._quality()
        )
        self._changed: dict[tuple[str, int | None], list[tuple[int, int]]] = {}
        self._profiles: dict[Window, Profile] = {}
        self._judged: dict[Window, RuleResult] = {}
        self._chains: dict[Window, Sequence[Window]] = {}

    def prepare(self, windows: Iterable[Window]) -> None:
        """Profile windows, and those that they are compared with, in as few passes as possible."""
        wanted: set[Window] = set()
        for window in windows:
            wanted |= {window, *self._existing(self._baselines.around(window))}
        self._profiles |= self._profiler.profiles(sorted(wanted))

    def report(self, chain: Sequence[Window]) -> MonitorReport:
        """Return the report of the last of neighbouring windows."""
        judged = [self._judge(window) for window in chain]
        window, last = chain[-1], judged[-1]
        now = self._profiles[window]
        findings = rules.confirm_findings(
            judged, self.watched.confirm, are_disjoint=self._are_apart(chain)
        )
        self._baselines.history.record(window, findings)
        notes = []
        if last.learning:
            notes.append("there is too little before this window to compare all of it with")
        if self._is_ahead(window):
            notes.append(f"rows are dated ahead of the clock, up to {self._newest}")
        if self.watched.model is not None and now.rows and not now.metrics.get(LABELLED):
            notes.append("no label of these predictions was known when the window was complete")
        return MonitorReport(
            monitor=self._spec.name,
            featuregroup=self._group.spec.name,
            version=self._group.spec.version,
            delta_version=self._group.delta_version,
            window=window,
            rows=now.rows,
            findings=worst_first(findings),
            learning=last.learning,
            notes=tuple(notes),
            shares=last.shares,
        )

    def back_within_bounds(self, chain: Sequence[Window], report: MonitorReport) -> frozenset[str]:
        """Return the kinds of findings that every window of a chain has within bounds.

        A kind that could not be judged in one of the windows is not back. Ages and columns are
        judged by the newest window alone, as they alarm at once.
        """
        back = {"freshness", "schema"} - {each.kind for each in report.findings if each.out}
        by_window = [self._judged[window].findings for window in chain[:-1]]
        by_window.append(report.findings)
        for family in set(_FAMILIES) - {"freshness", "schema"}:
            if all(_is_within(findings, family) for findings in by_window):
                back.add(family)
        return frozenset(back)

    def _are_apart(self, chain: Sequence[Window]) -> bool:
        """Return whether no row is in two windows; those of commits hold the whole table."""
        if self._group.spec.event_time is None:
            return False
        return all(before.end <= after.start for before, after in pairwise(chain))

    def _judge(self, window: Window) -> RuleResult:
        if window not in self._judged:
            now = self._profiles[window]
            judged = rules.evaluate_rules(self.watched, now, self._baselines.of(window))
            more = [*self._freshness(window), *self._new_version(window)]
            judged = replace(judged, findings=(*judged.findings, *more))
            self._judged[window] = judged
            if not self._baselines.history.has(window):
                self._baselines.history.record(window, judged.findings)
        return self._judged[window]

    # -- what a window is compared with -------------------------------------------------------

    @cached_property
    def _baselines(self) -> Baselines:
        with self._session.registry.reading() as connection:
            reports = monitors.out_of_bounds(connection, self._spec.name)
            acceptances = monitors.acceptances(connection, self._spec.name)
            registered = jobs.registered_at(connection, self._spec.name)
        history = History(self._before, acceptances)
        for report in reports:
            history.record(report.window, report.findings)
        return Baselines(
            baseline=self.watched.baseline,
            fixed=self._fixed,
            history=history,
            load=self._known,
            first=self._first,
            registered=registered,
        )

    def _before(self, window: Window) -> Sequence[Window]:
        """Return the windows of the schedule that confirm a window."""
        if window not in self._chains:
            count = self.watched.confirm - 1
            (chain,) = with_windows_before(schedule_of(self._spec), [window], count)
            self._chains[window] = chain[:-1]
        return self._chains[window]

    def _known(self, windows: Iterable[Window]) -> list[Profile]:
        """Return the profiles of windows that do not end before the first row."""
        existing = self._existing(windows)
        missing = sorted({each for each in existing if each not in self._profiles})
        if missing:
            self._profiles |= self._profiler.profiles(missing)
        return [self._profiles[each] for each in existing]

    def _existing(self, windows: Iterable[Window]) -> list[Window]:
        """Return the windows that do not end before the first row."""
        first = self._first
        return [each for each in windows if first is None or each.end > first]

    @cached_property
    def _fixed(self) -> FixedBaseline | None:
        """The baseline, where it does not move."""
        baseline, spec = self.watched.baseline, self._group.spec
        if baseline.rolls:
            return None
        if baseline.training_dataset is not None:
            return self._of_dataset(baseline.training_dataset)
        group = open_group(
            self._session, spec.name, baseline.version or spec.version, as_of=baseline.as_of
        )
        found = statistics_of(
            self._session,
            spec.name,
            version=group.spec.version,
            delta_version=group.delta_version,
        )
        profile = profile_of(found, time=spec.event_time, types=_types(group))
        return FixedBaseline(profile, profile.newest)

    def _of_dataset(self, name: str) -> FixedBaseline:
        baseline = self.watched.baseline
        dataset = catalog.get(self._session, name, baseline.version)
        found = dataset.statistics(str(baseline.split))
        types, until = {}, None
        for source in dataset.manifest.sources:
            if source.get("featuregroup") == self._group.spec.name:
                group = open_group(
                    self._session,
                    self._group.spec.name,
                    source.get("version"),
                    as_of=source.get("delta_version"),
                )
                types = _types(group)
                until = _bound_of_times(group, newest=True)
        profile = profile_of(found, types=types)
        shared = set(profile.columns) & set(self._profiler.features)
        if not shared or not found.rows:
            raise StatisticsNotFound(
                f"Monitor {self._spec.name!r}: {baseline} has no feature of "
                f"{self._group.spec.name!r} to compare with.",
                hint="the columns of a training dataset are compared by their names",
            )
        return FixedBaseline(profile, until)

    def _is_current(self, profile: Profile) -> bool:
        """Return whether no commit since a profile was made touches its window."""
        if profile.window is None:
            return profile.delta_version == self._group.delta_version
        low, high = seen_by(self._spec)(profile.window)
        seen: dict[str, int | None] = {WATCHED_INPUT: profile.delta_version}
        if LABELS_INPUT in self._inputs:
            seen[LABELS_INPUT] = profile.labels_version
        for name, version in seen.items():
            for first, last in self._changes(name, version):
                if first < high and last >= low:
                    return False
        return True

    def _changes(self, name: str, version: int | None) -> list[tuple[int, int]]:
        """Return the ranges of times that an input changed after a version of its table."""
        given = self._inputs[name]
        if version == given.delta_version:
            return []
        if (name, version) not in self._changed:
            seen = {**given.to_json(), "delta_version": version}
            found = changes(given, seen, since=times.utc_now())
            self._changed[name, version] = [(each.low, each.high) for each in found]
        return self._changed[name, version]

    def _open(self, name: str) -> OpenGroup:
        given = self._inputs[name]
        if given.spec is None or given.delta_version is None:
            raise InvalidJob(f"{self._spec.name!r} is no monitor of a feature group.")
        return OpenGroup(given.spec, given.path, read_snapshot(given.path, given.delta_version))

    def _quality(self) -> Quality | None:
        """Return what measures the predictions, where a model is watched."""
        if self.watched.model is None:
            return None
        return quality_of(
            self._session,
            self.watched.model,
            predictions=self._group,
            labels=self._open(LABELS_INPUT),
            wait=self._spec.allowed_lateness,
        )

    # -- time and versions --------------------------------------------------------------------

    @cached_property
    def _live(self) -> Window | None:
        """The latest complete window: what is asked of it is asked of the present."""
        return latest_complete(schedule_of(self._spec), times.utc_now())

    @cached_property
    def _first(self) -> datetime | None:
        return _bound_of_times(self._group, newest=False)

    @cached_property
    def _newest(self) -> datetime | None:
        return _bound_of_times(self._group, newest=True)

    def _is_ahead(self, window: Window) -> bool:
        if window != self._live or self._newest is None:
            return False
        return self._newest > times.utc_now() + timedelta(minutes=5)

    def _freshness(self, window: Window) -> list[Finding]:
        found = []
        watched, live = self.watched, window == self._live
        at = times.utc_now() if live else window.end
        if watched.freshness is not None and self._group.spec.event_time is not None:
            age = rules.newest_age(
                [self._profiles[window], *self._known(self._baselines.around(window))], at
            )
            if live and self._newest is not None:
                age = at - self._newest
            found.append(rules.freshness(watched.freshness, age, subject=_EVENT_TIME))
        if watched.commit_freshness is not None and live:
            last = commits.latest_data_version(self._group.path, self._group.delta_version)
            committed = from_micros(commit_time(self._group.path, last) * 1000)
            found.append(rules.freshness(watched.commit_freshness, at - committed, subject=_COMMIT))
        return found

    def _new_version(self, window: Window) -> list[Finding]:
        """Return what a new version of the group changed since the window before this one."""
        if not self.watched.schema or window != self._live:
            return []
        with self._session.registry.reading() as connection:
            last = monitors.newest(connection, self._spec.name)
        now = self._group.spec
        if last is None or last.version == now.version or last.window >= window:
            return []
        before = open_group(self._session, now.name, last.version)
        finding = rules.schema(_types(before), self._profiler.types)
        text = f"version {now.version} came after version {last.version}"
        if finding.out:
            text = f"{text}; {finding.text}"
        return [replace(finding, subject=f"version {now.version}", text=text)]


def _is_within(findings: Sequence[Finding], family: str) -> bool:
    """Return whether there are findings of a kind, and all of them are within bounds."""
    judged = [each for each in findings if each.kind == family and each.value is not None]
    return bool(judged) and not any(each.out for each in judged)


def _types(group: OpenGroup) -> dict[str, str]:
    return {field.name: str(field.type) for field in group.spec.schema}


def _bound_of_times(group: OpenGroup, *, newest: bool) -> datetime | None:
    """Return the first or the newest event time of a group, where its log tells."""
    if group.spec.event_time is None:
        return None
    found = group.state.times(group.spec.event_time) or []
    bounds = [pair for pair in found if pair is not None]
    if not bounds or len(bounds) < len(found):
        return None
    if newest:
        return from_micros(max(high for _, high in bounds))
    return from_micros(min(low for low, _ in bounds))
