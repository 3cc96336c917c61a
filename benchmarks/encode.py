"""Encoding and decoding of TFRecord alone, on one core.

Our format compared with tf.train.Example and parse_example.

Rows a second, medians of 5. Wall time is what counts on a quiet machine; processor time is printed
next to it, because it is what remains comparable on a busy one.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from report import Report

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pyarrow as pa

from featurestore.plugins.plain import rebatch
from featurestore.testing.format_cases import profiles
from featurestore_connectors.tfrecord import TFRecordFormat
from featurestore_connectors.tfrecord.fixed import Encoder
from featurestore_connectors.tfrecord.layout import read_layout

FORMAT = TFRecordFormat()
BLOCK = 1024
REPORT = Report(
    "encode",
    "TFRecord on one core; writes compared with `tf.train.Example` with `TFRecordWriter`, reads compared with "
    "`TFRecordDataset` with `parse_example`.",
)


def table(rows: int, columns: int, *, nulls: float = 0.0) -> pa.Table:
    """Return 10 int64, 12 float32, 2 float64 and a text of 8 bytes for every 25 columns.

    ``nulls`` is the share of nulls in each column.
    """
    random = np.random.default_rng(0)
    arrays: dict[str, pa.Array] = {}

    def mask() -> Any:
        return random.random(rows) < nulls if nulls else None

    for group in range(columns // 25):
        for index in range(10):
            arrays[f"int_{group}_{index}"] = pa.array(
                random.integers(0, 10 ** (index + 2), rows), mask=mask()
            )
        for index in range(12):
            arrays[f"float_{group}_{index}"] = pa.array(
                random.random(rows, np.float32), mask=mask()
            )
        for index in range(2):
            arrays[f"double_{group}_{index}"] = pa.array(random.random(rows), mask=mask())
        arrays[f"text_{group}"] = pa.array(
            [f"{number:08d}" for number in random.integers(0, 10**8, rows)], mask=mask()
        )
    return pa.table(arrays)


def measure(work: Callable[[], object], rows: int, *, repeats: int = 5) -> tuple[float, float]:
    """Return rows a second by wall and by processor time."""
    walls, processors = [], []
    for _ in range(repeats):
        wall, processor = time.perf_counter(), time.process_time()
        work()
        walls.append(time.perf_counter() - wall)
        processors.append(time.process_time() - processor)
    return rows / float(np.median(walls)), rows / float(np.median(processors))


def show(
    name: str,
    speed: tuple[float, float],
    base: tuple[float, float] | None = None,
    *,
    columns: int,
) -> tuple[float, float]:
    """Print and record a rate and its ratio to that of the peer."""
    ratios = "" if base is None else f"{speed[0] / base[0]:8.1f}x {speed[1] / base[1]:8.1f}x"
    print(f"  {name:46}{speed[0]:14,.0f}{speed[1]:14,.0f}{ratios}")
    if base is not None:
        row = f"{name}, {columns} columns"
        REPORT.compare(row, speed[0], base[0], "rows/s", processor=speed[1] / base[1])
    return speed


def write_examples(rows: pa.Table, path: str) -> None:
    """Write rows as everyone does: an Example for each, through TFRecordWriter."""
    import tensorflow as tf

    columns = {name: rows[name].to_pylist() for name in rows.schema.names}
    dtypes = {field.name: field.type for field in rows.schema}
    with tf.io.TFRecordWriter(path) as writer:
        for row in range(rows.num_rows):
            features = {}
            for name, values in columns.items():
                value = values[row]
                if value is None:
                    continue
                if pa.types.is_integer(dtypes[name]):
                    features[name] = tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))
                elif pa.types.is_floating(dtypes[name]):
                    features[name] = tf.train.Feature(float_list=tf.train.FloatList(value=[value]))
                else:
                    features[name] = tf.train.Feature(
                        bytes_list=tf.train.BytesList(value=[value.encode()])
                    )
            writer.write(
                tf.train.Example(features=tf.train.Features(feature=features)).SerializeToString()
            )


def encoding(rows: pa.Table, directory: Path, few: int) -> Any:
    layout = FORMAT.layout(rows.schema, profiles(rows), compression=None, block_rows=BLOCK)
    batches = rows.to_batches(max_chunksize=65_536)
    ready = read_layout(layout)

    def encode() -> None:
        encoder = Encoder(ready.template)
        for batch in rebatch(iter(batches), rows=encoder.block_rows):
            for _ in encoder.framed(batch):
                pass

    def write() -> None:
        FORMAT.write_shard(str(directory), "ours", iter(batches), layout=layout)

    start, width = rows.slice(0, few), rows.num_columns
    print(f"  records of {layout['record_bytes']} bytes")
    base = show(
        "tf.train.Example + TFRecordWriter",
        measure(lambda: write_examples(start, str(directory / "theirs")), few, repeats=3),
        columns=width,
    )
    show("records with checksums, in memory", measure(encode, rows.num_rows), base, columns=width)
    show("shard: file, fsync, SHA-256", measure(write, rows.num_rows), base, columns=width)
    return layout


def parsing_spec(layout: Any) -> dict[str, Any]:
    """Return dense features, zeros where there are nulls."""
    import tensorflow as tf

    types = {"int64": (tf.int64, 0), "float32": (tf.float32, 0.0), "bytes": (tf.string, "")}
    spec = {}
    for name, field_encoding in FORMAT.encodings(layout).items():
        dtype, default = types[field_encoding.tf_type]
        if field_encoding.null == "none":
            default = None
        spec[name] = tf.io.FixedLenFeature((), dtype, default_value=default)
    return spec


def decoding(rows: pa.Table, directory: Path, layout: Any) -> None:
    import tensorflow as tf

    path = str(directory / "ours")
    names = rows.schema.names
    numbers = [name for name in names if not name.startswith("text")]
    access = FORMAT.record_access(layout)
    assert access is not None
    spec = parsing_spec(layout)

    def drain(dataset: Any) -> None:
        for _ in dataset.prefetch(1):
            pass

    def parse(columns: list[str]) -> Any:
        column_spec = {name: spec[name] for name in columns}
        records = tf.data.TFRecordDataset(path, buffer_size=8 << 20).batch(
            BLOCK, drop_remainder=True
        )
        return records.map(lambda record: tf.io.parse_example(record, column_spec))

    def arrays(columns: list[str]) -> None:
        records = access.records(path)
        for start in range(0, len(records), BLOCK):
            access.decode(records[start : start + BLOCK], columns)

    def arrow(columns: list[str]) -> None:
        reader = FORMAT.open_shard(path, layout=layout)
        for start in range(0, reader.rows, 8 * BLOCK):
            reader.read(start, min(start + 8 * BLOCK, reader.rows), columns)
        reader.close()

    row_count, width = rows.num_rows // BLOCK * BLOCK, rows.num_columns
    for title, columns in (
        ("numbers", numbers),
        ("one column", numbers[:1]),
        ("with texts", names),
    ):
        parsed = parse(columns)
        base = show(
            f"{title}: TFRecordDataset + parse_example",
            measure(lambda d=parsed: drain(d), row_count),
            columns=width,
        )
        speed = measure(lambda c=columns: arrays(c), rows.num_rows)
        show(f"{title}: decode to numpy", speed, base, columns=width)
        speed = measure(lambda c=columns: arrow(c), rows.num_rows)
        show(f"{title}: read to Arrow", speed, base, columns=width)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the rows")
    parser.add_argument("--encode-only", action="store_true")
    parser.add_argument("--nulls", type=float, default=0.0, help="share of nulls in each column")
    arguments = parser.parse_args()
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    for columns, rows, few in ((25, 1_000_000, 20_000), (200, 100_000, 2_500)):
        scale = 10 if arguments.quick else 1
        data = table(rows // scale // BLOCK * BLOCK, columns, nulls=arguments.nulls)
        print(
            f"{columns} columns, {data.num_rows:,} rows, one core: rows a second by wall and by processor time"
        )
        with tempfile.TemporaryDirectory() as name:
            layout = encoding(data, Path(name), few // scale * 2)
            if not arguments.encode_only:
                decoding(data, Path(name), layout)
    REPORT.save(quick=arguments.quick or arguments.nulls > 0)


if __name__ == "__main__":
    main()
