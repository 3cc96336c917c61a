"""Records of Kafka into a feature group, compared with a consumer that only reads and parses them.

A broker of its own is started in a temporary folder. Both read the same topic in one run, in turns;
what they read is compared. The ratio is of records a second of processor time, and the limit 0.5;
the least is 50,000 records a second a core. ``--batches`` adds many small micro-batches, and reads
the group compared with a copy in one file (limit 2).

python benchmarks/streams.py [--quick] [--records 500000] [--batches 1000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from report import COMPARISONS, Report

import featurestore

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from tests.streams.kafka_server import running
from tests.streams.topics import Broker, click

PARTITIONS = 4
LEAST, RATIO, READ_LIMIT = 50_000, 0.5, 2.0
REPORT = Report(
    "streams",
    "One topic of four partitions, JSON of three columns, 100,000 records per micro-batch.",
)
STRUCTURE = '{"id":"BIGINT","user":"VARCHAR","at":"TIMESTAMPTZ"}'
JOB = """
import featurestore
featurestore.stream_job(
    "{name}", source="events", topic="{topic}", primary_key="id", event_time="at",
    schema={{"id": "int64", "user": "string", "at": "timestamp"}}, batch_records={batch},
)
"""


def measured(work: Callable[[], int]) -> tuple[int, float, float]:
    """Return what some work gives, its seconds and its processor time."""
    start, spent = time.perf_counter(), time.process_time()
    result = work()
    return result, time.perf_counter() - start, time.process_time() - spent


def parsed(address: str, topic: str, records: int, batch: int) -> int:
    """Read a topic with the bare consumer, parse it with the same parser; return the sum of ids."""
    from confluent_kafka import Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "bare",
            "enable.auto.commit": False,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, number, 0) for number in range(PARTITIONS)])
    connection = duckdb.connect(config={"threads": 1})
    total, record_count = 0, 0
    while record_count < records:
        values: list[bytes] = []
        while len(values) < batch and record_count < records:
            for message in consumer.consume(min(10_000, batch - len(values)), timeout=0.05):
                values.append(message.value())
                record_count += 1
        batch_rows = pa.table({"value": pa.array(values, pa.binary()).cast(pa.string())})
        connection.register("batch_rows", batch_rows)
        rows = connection.sql(f"select unnest(from_json(value, '{STRUCTURE}')) from batch_rows")
        total += int(pc.sum(rows.to_arrow_table().column("id")).as_py())
    consumer.close()
    return total


def ingested(store: featurestore.FeatureStore, name: str) -> int:
    """Run a stream job and return the rows that it brought."""
    (run,) = store.run_job(name)
    return int(run.rows or 0)


def throughput(
    store: featurestore.FeatureStore, broker: Broker, folder: Path, args: argparse.Namespace
) -> None:
    topic = broker.topic(PARTITIONS)
    broker.send(topic, (click(number) for number in range(args.records)))
    expected = args.records * (args.records - 1) // 2
    bare, ours = [], []
    for trial in range(args.trials):
        total, seconds, processor = measured(
            lambda: parsed(broker.address, topic, args.records, args.batch)
        )
        assert total == expected
        bare.append((args.records / seconds, args.records / processor))
        name = f"clicks_{trial}"
        file = folder / f"{name}.py"
        file.write_text(JOB.format(name=name, topic=topic, batch=args.batch))
        store.register_jobs(file)
        rows, seconds, processor = measured(lambda name=name: ingested(store, name))  # type: ignore[misc]
        assert rows == args.records
        result = store.sql(f"select sum(id)::bigint as total from {name}").to_arrow()
        assert result.column("total")[0].as_py() == expected
        ours.append((args.records / seconds, args.records / processor))
    for label, position in (("seconds", 0), ("processor time", 1)):
        bare_median = statistics.median(rates[position] for rates in bare)
        our_median = statistics.median(rates[position] for rates in ours)
        print(
            f"{label}: bare {bare_median:,.0f} records/s, stream {our_median:,.0f}, "
            f"ratio {our_median / bare_median:.2f} (limit {RATIO})"
        )
    (bare_rate, bare_by_processor), (our_rate, our_by_processor) = (
        map(statistics.median, zip(*rates, strict=True)) for rates in (bare, ours)
    )
    row = f"stream of {args.records:,} records, vs a consumer that parses them"
    ratio = our_by_processor / bare_by_processor
    REPORT.compare(row, our_rate, bare_rate, "records/s", processor=ratio, at_least=RATIO)
    print(f"the stream's least is {LEAST:,} records/s of processor time")


def small_batches(
    store: featurestore.FeatureStore, broker: Broker, folder: Path, batches: int
) -> None:
    """Commit many micro-batches, and read what they leave compared with a group of one commit."""
    batch_size = 50
    topic = broker.topic(PARTITIONS)
    broker.send(topic, (click(number) for number in range(batches * batch_size)))
    file = folder / "small.py"
    file.write_text(JOB.format(name="small", topic=topic, batch=batch_size))
    store.register_jobs(file)
    rows, seconds, processor = measured(lambda: ingested(store, "small"))
    print(
        f"{batches:,} micro-batches: {seconds:.1f} s, {processor / batches * 1000:.0f} ms of processor time each"
    )
    assert rows == batches * batch_size
    group = store.featuregroup("small")
    store.create_featuregroup(group.read().to_arrow(), "whole", primary_key="id", event_time="at")
    store.compact_featuregroup("whole")
    times = {}
    for name in ("small", "whole"):
        durations = []
        for _ in range(9):
            start = time.perf_counter()
            store.get_featuregroup(name).to_arrow()
            durations.append(time.perf_counter() - start)
        times[name] = statistics.median(durations)
    print(
        f"read of the group {times['small'] * 1000:.1f} ms, compacted {times['whole'] * 1000:.1f} ms, "
        f"ratio {times['small'] / times['whole']:.2f} (limit {READ_LIMIT})"
    )
    REPORT.add(
        COMPARISONS, f"{batches:,} micro-batches of {batch_size} records", "ours", seconds, "s"
    )
    row = f"read after {batches:,} micro-batches, vs a compacted copy"
    small_ms, whole_ms = (1000 * times[name] for name in ("small", "whole"))
    REPORT.compare(row, small_ms, whole_ms, "ms", at_most=READ_LIMIT)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--records", type=int, default=500_000)
    parser.add_argument("--batch", type=int, default=100_000)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--batches", type=int, default=1000)
    args = parser.parse_args()
    if args.quick:
        args.records, args.trials, args.batches = 100_000, 1, 50
    warnings.simplefilter("ignore")
    os.environ.setdefault("FEATURESTORE_DURABILITY", "fast")
    with tempfile.TemporaryDirectory(prefix="featurestore-bench-") as directory:
        folder = Path(directory)
        os.environ["XDG_STATE_HOME"] = directory
        (folder / "kafka").mkdir()
        with running(folder / "kafka") as address:
            broker = Broker(address)
            store = featurestore.connect(folder / "store", engine="duckdb")
            store.add_source("events", broker.uri)
            throughput(store, broker, folder, args)
            small_batches(store, broker, folder, args.batches)
            store.close()
    REPORT.save(quick=args.quick)


if __name__ == "__main__":
    main()
