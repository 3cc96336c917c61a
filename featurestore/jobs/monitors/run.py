"""Monitor runs: compare the windows of a group with a baseline, record findings, raise alerts."""

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
from featurestore.external.groups import read_newest_event_time
from featurestore.featuregroups.quality import load_statistics
from featurestore.featuregroups.table import OpenGroup, open_group
from featurestore.jobs.inputs import PinnedInput, make_read_range
from featurestore.jobs.monitors.baselines import (
    Baselines,
    FixedBaseline,
    History,
    with_windows_before,
)
from featurestore.jobs.monitors.definitions import LABELS_INPUT, WATCHED_INPUT, build_quality
from featurestore.jobs.run import JobRun, RunOutput, run_recorded
from featurestore.jobs.schedule import check_schedule, latest_complete_window
from featurestore.jobs.stale_windows import find_changes
from featurestore.model import times
from featurestore.model.finding import Finding
from featurestore.model.job import JobSpec, MonitorWork
from featurestore.model.monitor import LABELLED, MonitorSpec
from featurestore.model.monitor_report import MonitorReport, sort_by_severity
from featurestore.model.times import Window, from_micros
from featurestore.monitoring import rules
from featurestore.monitoring.metrics import Quality
from featurestore.monitoring.profile import Profile, to_profile
from featurestore.monitoring.rules import RuleResult
from featurestore.monitoring.windows import Profiler
from featurestore.plugins import observers
from featurestore.registry import jobs, reports
from featurestore.registry.runs import Run
from featurestore.session import Session
from featurestore.training import catalog

_FAMILIES = ("drift", "nulls", "values", "anchor", "freshness", "volume", "schema", "metric")
_EVENT_TIME, _COMMIT = "event time", "last commit"


def run_monitor(run: JobRun, work: MonitorWork) -> Run:
    """Compare the windows of a run with the baseline, and record the findings."""
    return run_recorded(run, partial(_evaluate_and_record, work))


def _evaluate_and_record(work: MonitorWork, run: JobRun) -> RunOutput:
    """Evaluate the windows of a run; its output records reports and incidents."""
    observed = evaluate_windows(run.session, run.spec, work, run.windows, run.inputs)
    window_reports = observed.reports
    observed_run = observers.current()
    if observed_run is not None:
        observed_run.monitor_report = window_reports[-1]

    # Called in the transaction that ends the run, so that a crash loses neither reports nor alerts.
    def record(connection: Connection) -> None:
        reports.record_monitor_reports(connection, window_reports, run_id=run.run_id)
        _update_incidents(
            connection, run.spec, window_reports[-1], observed.back, confirm=work.watched.confirm
        )

    rows = sum(window_report.rows for window_report in window_reports)
    return RunOutput(rows, window_reports[-1].delta_version, None, record)


def _update_incidents(
    connection: Connection,
    spec: JobSpec,
    report: MonitorReport,
    back: Collection[str],
    *,
    confirm: int,
) -> None:
    """Update the incidents for the latest window; earlier windows raise no alerts.

    An incident ends only when its values are back within bounds (``back``), and not because there
    is nothing to compare them with.
    """
    if report.window != latest_complete_window(check_schedule(spec.schedule), times.utc_now()):
        return
    alarms_by_kind: dict[str, list[str]] = {}
    for finding in report.alarms:
        alarms_by_kind.setdefault(finding.kind, []).append(str(finding))
    evaluated = []
    lasting_by_kind = {}
    for family in _FAMILIES:
        if family in alarms_by_kind or family in back:
            evaluated.append(family)
        # Values within bounds in this window need no reminder, but may not be back for long enough.
        elif not _is_within(report.findings, family):
            suspects = [str(suspect) for suspect in report.suspects if suspect.kind == family]
            lasting_by_kind[family] = suspects or [f"{family} could not be evaluated"]
    incidents.update_incidents(
        connection,
        spec,
        alarms_by_kind,
        families=evaluated,
        lasting=lasting_by_kind,
        reason=f"the values have been back within bounds for {confirm} windows",
    )


@dataclass(frozen=True)
class ObservedWindows:
    """The window reports, oldest first, and the kinds of findings that are back within bounds."""

    reports: list[MonitorReport]
    back: frozenset[str]


def evaluate_windows(
    session: Session,
    spec: JobSpec,
    work: MonitorWork,
    windows: Sequence[Window],
    inputs: Sequence[PinnedInput],
) -> ObservedWindows:
    """Return the window reports, oldest first; only the last report has shares to plot."""
    observation = MonitorEvaluation(session, spec, work.watched, inputs)
    # An alarm requires consecutive windows, so the windows before each window are evaluated, too.
    chains = with_windows_before(
        check_schedule(spec.schedule), windows, observation.watched.confirm - 1
    )
    observation.prepare(window for chain in chains for window in chain)
    window_reports = [observation.report(chain) for chain in chains]
    for index in range(len(window_reports) - 1):
        window_reports[index] = replace(window_reports[index], shares=())
    return ObservedWindows(
        window_reports, observation.back_within_bounds(chains[-1], window_reports[-1])
    )


class MonitorEvaluation:
    """The profiles of a monitor's windows, and the results of its rules for them."""

    def __init__(
        self, session: Session, spec: JobSpec, watched: MonitorSpec, inputs: Sequence[PinnedInput]
    ) -> None:
        self._session = session
        self._spec = spec
        self._inputs = {pinned.name: pinned for pinned in inputs}
        self.watched = watched
        self._group = self._open_group(WATCHED_INPUT)
        self._profiler = Profiler(
            session, self._group, self.watched, self._is_current, self._quality()
        )
        self._changed: dict[tuple[str, int | None], list[tuple[int, int]]] = {}
        self._profiles: dict[Window, Profile] = {}
        self._results: dict[Window, RuleResult] = {}
        self._chains: dict[Window, Sequence[Window]] = {}

    def prepare(self, windows: Iterable[Window]) -> None:
        """Profile windows and their baseline windows, in as few passes as possible."""
        needed: set[Window] = set()
        for window in windows:
            needed |= {
                window,
                *self._drop_early_windows(self._baselines.comparison_windows(window)),
            }
        self._profiles |= self._profiler.profiles(sorted(needed))

    def report(self, chain: Sequence[Window]) -> MonitorReport:
        """Return the report of the last of several consecutive windows."""
        results = [self._evaluate(window) for window in chain]
        window, result = chain[-1], results[-1]
        profile = self._profiles[window]
        findings = rules.confirm_findings(
            results, self.watched.confirm, are_disjoint=self._are_disjoint(chain)
        )
        # Later windows of the same run must exclude this window from their baselines.
        self._baselines.history.record(window, findings)
        notes = []
        if result.learning:
            notes.append("too few earlier windows to evaluate all rules")
        if self._has_future_rows(window):
            notes.append(f"rows have event times in the future, up to {self._latest_event_time}")
        if self.watched.model is not None and profile.rows and not profile.metrics.get(LABELLED):
            notes.append("no label of these predictions was known when the window was complete")
        return MonitorReport(
            monitor=self._spec.name,
            featuregroup=self._group.spec.name,
            version=self._group.spec.version,
            delta_version=self._group.delta_version,
            window=window,
            rows=profile.rows,
            findings=sort_by_severity(findings),
            learning=result.learning,
            notes=tuple(notes),
            shares=result.shares,
        )

    def back_within_bounds(self, chain: Sequence[Window], report: MonitorReport) -> frozenset[str]:
        """Return the kinds of findings that are within bounds in every window of a chain.

        A kind that could not be evaluated in one of the windows is not back within bounds.
        Freshness and schema are evaluated in the latest window only, because they raise alarms at
        once.
        """
        back = {"freshness", "schema"} - {
            finding.kind for finding in report.findings if finding.out
        }
        by_window = [self._results[window].findings for window in chain[:-1]]
        by_window.append(report.findings)
        for family in set(_FAMILIES) - {"freshness", "schema"}:
            if all(_is_within(findings, family) for findings in by_window):
                back.add(family)
        return frozenset(back)

    def _are_disjoint(self, chain: Sequence[Window]) -> bool:
        """Return whether no row is in two windows; without event time, each window is the table."""
        if self._group.spec.event_time is None:
            return False
        return all(before.end <= after.start for before, after in pairwise(chain))

    def _evaluate(self, window: Window) -> RuleResult:
        """Evaluate the rules for a window once; confirmation follows in ``report``."""
        if window not in self._results:
            profile = self._profiles[window]
            result = rules.evaluate_rules(self.watched, profile, self._baselines.for_window(window))
            other_findings = [*self._freshness(window), *self._compare_versions(window)]
            result = replace(result, findings=(*result.findings, *other_findings))
            self._results[window] = result
            # A recorded report has confirmed alarms, which the unconfirmed findings must not
            # replace.
            if not self._baselines.history.has(window):
                self._baselines.history.record(window, result.findings)
        return self._results[window]

    # -- baselines of a window ------------------------------------------------------------------

    @cached_property
    def _baselines(self) -> Baselines:
        with self._session.registry.reading() as connection:
            past_reports = reports.monitor_reports_out_of_bounds(connection, self._spec.name)
            acceptances = reports.acceptances(connection, self._spec.name)
            registered = jobs.registration_time(connection, self._spec.name)
        history = History(self._confirming_windows, acceptances)
        for report in past_reports:
            history.record(report.window, report.findings)
        return Baselines(
            baseline=self.watched.baseline,
            fixed=self._fixed_baseline,
            history=history,
            load=self._load_profiles,
            first=self._first_event_time,
            registered=registered,
        )

    def _confirming_windows(self, window: Window) -> Sequence[Window]:
        """Return the scheduled windows that must confirm a finding of a window."""
        if window not in self._chains:
            count = self.watched.confirm - 1
            (chain,) = with_windows_before(check_schedule(self._spec.schedule), [window], count)
            self._chains[window] = chain[:-1]
        return self._chains[window]

    def _load_profiles(self, windows: Iterable[Window]) -> list[Profile]:
        """Return the profiles of windows, except windows that end before the first row."""
        existing = self._drop_early_windows(windows)
        missing = sorted({window for window in existing if window not in self._profiles})
        if missing:
            self._profiles |= self._profiler.profiles(missing)
        return [self._profiles[window] for window in existing]

    def _drop_early_windows(self, windows: Iterable[Window]) -> list[Window]:
        """Return the windows that do not end before the first row."""
        first = self._first_event_time
        return [window for window in windows if first is None or window.end > first]

    @cached_property
    def _fixed_baseline(self) -> FixedBaseline | None:
        """The fixed baseline of the monitor, or None."""
        baseline, spec = self.watched.baseline, self._group.spec
        if baseline.is_moving:
            return None
        if baseline.training_dataset is not None:
            return self._dataset_baseline(baseline.training_dataset)
        group = open_group(
            self._session, spec.name, baseline.version or spec.version, as_of=baseline.as_of
        )
        statistics = load_statistics(
            self._session,
            spec.name,
            version=group.spec.version,
            delta_version=group.delta_version,
        )
        profile = to_profile(statistics, time=spec.event_time, types=_column_types(group))
        return FixedBaseline(profile, profile.newest)

    def _dataset_baseline(self, name: str) -> FixedBaseline:
        """Build a fixed baseline from the statistics of a training dataset."""
        baseline = self.watched.baseline
        dataset = catalog.get(self._session, name, baseline.version)
        statistics = dataset.statistics(str(baseline.split))
        types, until = {}, None
        for source in dataset.manifest.sources:
            if source.get("featuregroup") == self._group.spec.name:
                group = open_group(
                    self._session,
                    self._group.spec.name,
                    source.get("version"),
                    as_of=source.get("delta_version"),
                )
                types = _column_types(group)
                until = _event_time_bound(group, newest=True)
        # Without a common feature, the monitor would never find a drift.
        profile = to_profile(statistics, types=types)
        common = set(profile.columns) & set(self._profiler.features)
        if not common or not statistics.rows:
            raise StatisticsNotFound(
                f"Monitor {self._spec.name!r}: {baseline} has no rows with features of "
                f"{self._group.spec.name!r}.",
                hint="columns of a training dataset are matched with features by name",
            )
        return FixedBaseline(profile, until)

    def _is_current(self, profile: Profile) -> bool:
        """Return whether no commit after the profile was computed has touched its window."""
        if profile.window is None:
            return profile.delta_version == self._group.delta_version
        low, high = make_read_range(self._spec)(profile.window)
        versions: dict[str, int | None] = {WATCHED_INPUT: profile.delta_version}
        if LABELS_INPUT in self._inputs:
            versions[LABELS_INPUT] = profile.labels_version
        for name, version in versions.items():
            for first, last in self._changed_ranges(name, version):
                if first < high and last >= low:
                    return False
        return True

    def _changed_ranges(self, name: str, version: int | None) -> list[tuple[int, int]]:
        """Return the time ranges of an input that changed after a version of its table."""
        pinned = self._inputs[name]
        if version == pinned.delta_version:
            return []
        if (name, version) not in self._changed:
            # A profile records only the version of its table; all other fields are those of the
            # current input.
            recorded = {**pinned.to_json(), "delta_version": version}
            changed_ranges = find_changes(pinned, recorded, since=times.utc_now())
            self._changed[name, version] = [
                (changed_range.low, changed_range.high) for changed_range in changed_ranges
            ]
        return self._changed[name, version]

    def _open_group(self, name: str) -> OpenGroup:
        pinned = self._inputs[name]
        if pinned.spec is None or pinned.delta_version is None:
            raise InvalidJob(f"{self._spec.name!r} is not a monitor of a feature group.")
        return OpenGroup(pinned.spec, pinned.path, read_snapshot(pinned.path, pinned.delta_version))

    def _quality(self) -> Quality | None:
        """Return the quality measure of the predictions, if the monitor watches a model."""
        if self.watched.model is None:
            return None
        return build_quality(
            self._session,
            self.watched.model,
            predictions=self._group,
            labels=self._open_group(LABELS_INPUT),
            wait=self._spec.schedule.allowed_lateness,
        )

    # -- time and versions --------------------------------------------------------------------

    @cached_property
    def _latest_window(self) -> Window | None:
        """The latest complete window, which is evaluated as of now."""
        return latest_complete_window(check_schedule(self._spec.schedule), times.utc_now())

    @cached_property
    def _first_event_time(self) -> datetime | None:
        return _event_time_bound(self._group, newest=False)

    @cached_property
    def _latest_event_time(self) -> datetime | None:
        if self._group.spec.external is not None:
            return read_newest_event_time(self._session, self._group.spec)
        return _event_time_bound(self._group, newest=True)

    def _has_future_rows(self, window: Window) -> bool:
        # The latest event time of the table is only relevant for the latest window.
        if window != self._latest_window or self._latest_event_time is None:
            return False
        return self._latest_event_time > times.utc_now() + timedelta(minutes=5)

    def _freshness(self, window: Window) -> list[Finding]:
        """Compare the ages of the latest event time and the last commit with their limits."""
        findings = []
        watched, live = self.watched, window == self._latest_window
        # The age of a past window is its age at the end of the window, so that a backfill gives the
        # findings that the monitor would have given.
        timestamp = times.utc_now() if live else window.end
        # A source has only its present rows, so the age at an earlier time is unknown.
        has_age = live or self._group.spec.external is None
        if watched.freshness is not None and self._group.spec.event_time is not None and has_age:
            age = rules.newest_age(
                [
                    self._profiles[window],
                    *self._load_profiles(self._baselines.comparison_windows(window)),
                ],
                timestamp,
            )
            if live and self._latest_event_time is not None:
                age = timestamp - self._latest_event_time
            findings.append(rules.check_freshness(watched.freshness, age, subject=_EVENT_TIME))
        if watched.commit_freshness is not None and live:
            # Compactions and changes of tags commit versions, too, but no new data.
            last_version = commits.latest_data_version(self._group.path, self._group.delta_version)
            # Delta records commit times in milliseconds.
            committed = from_micros(commit_time(self._group.path, last_version) * 1000)
            findings.append(
                rules.check_freshness(
                    watched.commit_freshness, timestamp - committed, subject=_COMMIT
                )
            )
        return findings

    def _compare_versions(self, window: Window) -> list[Finding]:
        """Compare the schema of a new group version with the previous window's version."""
        if not self.watched.schema or window != self._latest_window:
            return []
        with self._session.registry.reading() as connection:
            last_report = reports.newest_monitor_report(connection, self._spec.name)
        spec = self._group.spec
        if (
            last_report is None
            or last_report.version == spec.version
            or last_report.window >= window
        ):
            return []
        previous_group = open_group(self._session, spec.name, last_report.version)
        finding = rules.schema(_column_types(previous_group), self._profiler.types)
        text = f"version {spec.version} follows version {last_report.version}"
        if finding.out:
            text = f"{text}; {finding.text}"
        return [replace(finding, subject=f"version {spec.version}", text=text)]


def _is_within(findings: Sequence[Finding], family: str) -> bool:
    """Return whether findings of a kind exist, and all of them are within bounds."""
    evaluated = [
        finding for finding in findings if finding.kind == family and finding.value is not None
    ]
    return bool(evaluated) and not any(finding.out for finding in evaluated)


def _column_types(group: OpenGroup) -> dict[str, str]:
    return {field.name: str(field.type) for field in group.spec.schema}


def _event_time_bound(group: OpenGroup, *, newest: bool) -> datetime | None:
    """Return the first or latest event time of a group, or None if its log lacks statistics."""
    if group.spec.event_time is None:
        return None
    file_times = group.state.times(group.spec.event_time) or []
    bounds = [pair for pair in file_times if pair is not None]
    # A file without statistics could contain an earlier or a later time.
    if not bounds or len(bounds) < len(file_times):
        return None
    if newest:
        return from_micros(max(high for _, high in bounds))
    return from_micros(min(low for low, _ in bounds))
