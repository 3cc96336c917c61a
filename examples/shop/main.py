"""A shop with Postgres and Kafka: orders and clicks in, a training dataset out.

Servers are started in a temporary folder and end with the program.

make shop    (or: python examples/shop/main.py [--customers 200])
"""

from __future__ import annotations

import argparse
import os
import tempfile
from pathlib import Path

import data
import servers

import featurestore

START, END = "2024-01-01T00:00Z", "2024-01-08T00:00Z"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--customers", type=int, default=200)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="featurestore-shop-") as place:
        folder = Path(place)
        with servers.postgres() as database, servers.kafka(folder) as brokers:
            data.fill_database(database, customers=arguments.customers)
            data.send_clicks(brokers, customers=arguments.customers)
            run(folder / "store", database, brokers)


def run(location: Path, database: str, brokers: str) -> None:
    """Register both sources, run both jobs, and make the dataset."""
    os.environ.setdefault("XDG_STATE_HOME", str(location.parent / "state"))
    store = featurestore.connect(location)
    store.add_source("shop", database, description="orders of the shop")
    store.add_source("events", f"kafka://{brokers}", description="what customers click")
    for name in ("shop", "events"):
        report = store.check_source(name)
        print(f"{name}: {report.server}, {'ok' if report.ok else report.problems}")

    store.register_jobs(Path(__file__).with_name("jobs.py"))
    store.backfill_job("orders", START, END)
    store.run_job("clicks")
    for status in store.get_jobs():
        lag = "" if status.stream is None else f", lag {status.stream.lag}"
        print(f"{status.name}: {status.last.rows if status.last else 0} rows{lag}")

    recent = featurestore.window("clicks.click", "count", over="1d", key="customer")
    features = store.get_features([recent], labels="orders")
    dataset = store.create_training_dataset(
        features, "buys_again", label="bought_again", splits={"train": 0.8, "test": 0.2}
    )
    print(f"{dataset.name}: {dataset.num_rows('train')} rows to train, {dataset.schema.names}")
    quarantined = store.get_featuregroup_quarantine("clicks").to_arrow()
    reason = quarantined.column("reasons")[0].as_py()[0]
    print(f"{quarantined.num_rows} clicks could not be read: {reason}")
    store.close()


if __name__ == "__main__":
    main()
