"""Take the screenshots of docs/how-to/server.md from a small store of real flights.

Usage: ``python scripts/server_pictures.py [--folder FOLDER]``. Takes light and dark screenshots in
desktop and phone sizes.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
from pathlib import Path

import featurestore
from featurestore.experiments import catalog
from featurestore.model.run_record import METRICS_FILE, RunDataset, RunRecord, format_metrics_line
from featurestore.server import ServerSettings
from featurestore.store import FeatureStore
from featurestore.training import TrainingDataset

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "docs" / "assets"
sys.path[:0] = [str(ROOT), str(ROOT / "examples" / "flights")]
WIDE, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 760}
RUNS = {"20130201-090000-a1b2c3": 0.1, "20130202-090000-d4e5f6": 0.02}
# Each day of January is compared with the seven days before it.
MONITORS = """
import featurestore

weather_watch = featurestore.monitor_job(
    "weather_watch", featuregroup="weather", schedule="0 5 * * *", window="1d",
    start="2013-01-01T05:00Z", baseline=featurestore.baseline(last="7d"),
    features=["temp", "visib"], volume=None,
)
"""
# Name, size, address.
PICTURES = [
    ("group", WIDE, "/groups/weather/1"),
    ("group-phone", PHONE, "/groups/weather/1"),
    ("lineage", WIDE, "/lineage?node=training_dataset:late_flights_tfrecord@1"),
    ("monitor", WIDE, "/monitors/weather_watch"),
    ("runs", WIDE, f"/experiments/compare?run={'&run='.join(RUNS)}"),
]


def main() -> None:
    """Take all screenshots."""
    from tests.server.browser import chromium, listening, tab

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", default=None, help="folder of the store, created if it does not exist"
    )
    folder = Path(parser.parse_args().folder or tempfile.mkdtemp())
    is_made = (folder / "store").exists()
    with featurestore.connect(folder / "store") as store:
        if not is_made:
            fill(store)
        with listening(store, ServerSettings()) as address, chromium() as browser:
            for scheme in ("light", "dark"):
                for name, size, path in PICTURES:
                    with tab(browser, address, color_scheme=scheme, viewport=size) as (page, _):
                        page.goto(path)
                        page.locator("footer").evaluate("footer => footer.remove()")  # a local path
                        page.screenshot(path=str(ASSETS / f"server-{name}-{scheme}.png"))


def fill(store: FeatureStore) -> None:
    """Create the groups of January's flights, a dataset, and two runs with synthetic losses."""
    from late_flights import datasets, features

    features.write_groups(store, until="2013-02-01")
    frame = store.get_features(features.FEATURES, labels="questions")
    path = Path(store.location).parent / "monitors.py"
    path.write_text(MONITORS)
    store.register_jobs(path)
    store.backfill_job("weather_watch", "2013-01-01T05:00Z", "2013-02-01T05:00Z")
    dataset = datasets.make(store, frame, "tfrecord", until="2013-02-01")
    for number, (run_id, rate) in enumerate(RUNS.items(), 1):
        add_run(store, dataset, run_id, rate, day=number)


def add_run(
    store: FeatureStore, dataset: TrainingDataset, run_id: str, rate: float, *, day: int
) -> None:
    """Write the record of a run and its metrics."""
    losses = {}
    for step in range(0, 600, 10):
        losses[step] = 0.42 + 0.3 * math.exp(-rate * step / 8) + 0.012 * math.sin(step * (1 + rate))
    record = RunRecord(
        id=run_id,
        name="late",
        kind="launch",
        state="finished",
        created=f"2013-02-0{day}T09:00:00+00:00",
        started=f"2013-02-0{day}T09:00:02+00:00",
        ended=f"2013-02-0{day}T09:02:30+00:00",
        params={"rate": rate, "optimizer": "adam"},
        metrics={"loss": round(losses[590], 4)},
        dataset=RunDataset(
            dataset.name, dataset.version, dataset.manifest.content_hash, dataset.path
        ),
    )
    catalog.save(store.session, record)
    lines = []
    for step, loss in losses.items():
        metrics = {"loss": loss, "val_loss": loss + 0.03 + 0.00005 * step}
        lines.append(format_metrics_line(step, metrics, time=1.7e9 + step, begins=False))
    path = os.path.join(catalog.run_directory(store.session, record), METRICS_FILE)
    Path(path).write_text("".join(lines))


if __name__ == "__main__":
    main()
