"""Watches the weather of a model that was trained in summer, week by week, and finds the winter.

python watch.py [--out DIR] [--until 2014-01-01]
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc
from late_flights import raw

import featurestore
from featurestore import FeatureStore
from featurestore.model.monitor_report import MonitorReport

TRAINED = ("2013-06-01T00:00Z", "2013-09-01T00:00Z")
MONITORS = Path(__file__).parent / "late_flights" / "monitors.py"


def fill(store: FeatureStore, until: str) -> None:
    """Write the weather that the model knows, then what came after it, each as one commit."""
    weather = raw.weather()
    first, last, end = map(datetime.fromisoformat, (*TRAINED, until))
    time = weather["observed_at"]
    known = pc.and_(pc.greater_equal(time, first), pc.less(time, last))
    later = pc.and_(pc.greater_equal(time, last), pc.less(time, end))
    keys = {"primary_key": "origin", "event_time": "observed_at"}
    store.create_featuregroup(weather.filter(known), "weather", **keys)
    store.insert_into_featuregroup(weather.filter(later), "weather")


def watch(store: FeatureStore, until: str) -> list[MonitorReport]:
    """Look at every week after the training and return what was found, oldest first."""
    store.register_jobs(MONITORS)
    store.backfill_job("weather_watch", TRAINED[1], until)
    return store.get_monitor_history("weather_watch", limit=None)[::-1]


def draw(reports: Sequence[MonitorReport], path: Path) -> None:
    """Draw how far the temperature of each week is from the summer, with its bound."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import dates
    from matplotlib import pyplot as plt

    weeks, distances, bounds, colors = [], [], [], []
    for report in reports:
        found = report.finding("drift", "temp", "psi")
        if found is None or found.value is None:
            continue
        weeks.append(report.window.start)
        distances.append(found.value)
        bounds.append(found.high)
        colors.append("tab:red" if found.alarm else "tab:blue")
    figure, axes = plt.subplots(figsize=(8, 3.5), layout="constrained")
    axes.bar(weeks, distances, width=timedelta(days=5), color=colors)
    axes.step(weeks, bounds, where="mid", color="grey", linestyle="--", label="bound")
    axes.bar(weeks[:1], [0], color="tab:red", label="alarm")
    axes.xaxis.set_major_formatter(dates.DateFormatter("%b %d"))
    axes.set(
        ylabel="population stability index",
        title="Temperature of each week against June to August",
    )
    axes.legend(loc="upper left")
    figure.savefig(path, dpi=100)
    plt.close(figure)


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="watch-out", help="where the store and the pictures go")
    parser.add_argument("--until", default="2013-12-30T00:00Z", help="end of the weather")
    asked = parser.parse_args()
    place = Path(asked.out).resolve()
    place.mkdir(parents=True, exist_ok=True)
    store = featurestore.connect(place / "store")
    fill(store, asked.until)
    reports = watch(store, asked.until)
    alarms = [report for report in reports if not report.ok]
    print(f"{len(reports)} weeks, {len(alarms)} with an alarm")
    if alarms:
        print(f"the first: {alarms[0]}")
    draw(reports, place / "winter.png")
    store.visualize_monitor("weather_watch").save(place / "winter.html")


if __name__ == "__main__":
    main()
