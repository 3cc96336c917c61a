"""Speed from stored texts to codes and from stored images to pixels, compared with peers.

Medians of 5 interleaved rounds, rows a second into tf.data tensors of 1,024 rows (256 images).

    python benchmarks/categories_and_images.py [--quick] [--rows 200000] [--images 8000]

Peers read the same rows: petastorm's batch reader over its own files, and a pipeline of tf.data
written by hand over the same TFRecord files. Codes are made by lookup tables, images decoded by
TensorFlow in parallel calls; where OpenCV is installed, petastorm's row reader also decodes them by
its own codec. Sums over an epoch are compared. Beside the rows a second stands the
processor time of a row over all threads.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import os
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from report import Report

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")

import numpy as np
import pyarrow as pa

BATCH, IMAGES = 1024, 256
ROUNDS = 5
SIDE = 64
NAMES = [f"c{index}" for index in range(4)]
CATEGORIES = [f"category-{number:03d}" for number in range(100)]
REPORT = Report(
    "categories_and_images",
    "Four stored texts to codes with ten numbers, and images of 64 x 64 to pixels, as tf.data "
    "tensors, compared with petastorm 0.13.1 and tf.data by hand on the same files.",
)

# Makes a dataset of batches whose values are to be summed.
Start = Callable[[], Any]


def categories(rows: int) -> pa.Table:
    """Return four columns of texts with 100 values, ten numbers, a label and an id."""
    random = np.random.default_rng(0)
    arrays: dict[str, pa.Array] = {"id": pa.array(np.arange(rows))}
    for name in NAMES:
        arrays[name] = pa.array(np.array(CATEGORIES)[random.integers(0, 100, rows)])
    for index in range(10):
        arrays[f"n{index}"] = pa.array(random.integers(0, 1000, rows))
    arrays["y"] = pa.array(random.integers(0, 2, rows))
    return pa.table(arrays)


def pictures(rows: int) -> tuple[pa.Table, pa.Table]:
    """Return images of 64 x 64 as PNG files and as raw pixels: soft colors with some noise."""
    from PIL import Image

    random = np.random.default_rng(0)
    across = np.linspace(0, 3, SIDE)
    pixels = np.empty((rows, SIDE, SIDE, 3), np.uint8)
    cells = []
    for row in range(rows):
        phase = random.random((3, 2)) * 6
        for channel in range(3):
            wave = np.sin(across[:, None] + phase[channel, 0]) * np.cos(across + phase[channel, 1])
            pixels[row, :, :, channel] = 127 + 100 * wave + random.integers(0, 4, (SIDE, SIDE))
        file = io.BytesIO()
        Image.fromarray(pixels[row]).save(file, "PNG")
        cells.append(file.getvalue())
    columns = {"id": np.arange(rows), "y": random.integers(0, 10, rows)}
    raw = [image.tobytes() for image in pixels]
    return pa.table({**columns, "image": cells}), pa.table({**columns, "image": raw})


# -- contestants -----------------------------------------------------------------------------------------------------


def make(folder: Path, rows: pa.Table, name: str, **options: Any) -> Any:
    import featurestore

    store = featurestore.connect(folder / "store")
    return store.create_training_dataset(
        rows, name, label="y", key="id", progress=False, statistics=False, **options
    )


def ours(dataset: Any, batch: int, *, shuffle: bool, names: list[str]) -> Start:
    columns = [*names, "y"]
    reader = dataset.reader("train", global_batch_size=batch, shuffle=shuffle, columns=columns)
    return lambda: reader.tf_dataset().map(lambda features, label: (features, label))


def codes_of(features: Mapping[str, Any], table: Any) -> dict[str, Any]:
    result = dict(features)
    for name in NAMES:
        result[name] = table.lookup(features[name])
    return result


def lookup_table() -> Any:
    import tensorflow as tf

    # One table for all columns, so that codes differ from ours; sums are compared of a number.
    values = tf.range(2, 2 + len(CATEGORIES), dtype=tf.int64)
    return tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant(CATEGORIES), values), default_value=1
    )


def petastorm(dataset: Any, batch: int, names: list[str], finish: Callable[..., Any]) -> Start:
    from petastorm import make_batch_reader
    from petastorm.tf_utils import make_petastorm_dataset

    def start() -> Any:
        reader = make_batch_reader(
            dataset.url_of("train"), schema_fields=[*names, "y"], num_epochs=1, workers_count=2,
            shuffle_row_groups=False,
        )  # fmt: skip
        return finish(make_petastorm_dataset(reader).unbatch(), batch, names)

    return start


def petastorm_codes(rows: Any, batch: int, names: list[str]) -> Any:
    table = lookup_table()

    def split(row: Any) -> Any:
        features = {name: getattr(row, name) for name in names}
        return codes_of(features, table), row.y

    return rows.batch(batch, drop_remainder=True).map(split, num_parallel_calls=2).prefetch(2)


def petastorm_images(rows: Any, batch: int, names: list[str]) -> Any:
    import tensorflow as tf

    def decode(row: Any) -> Any:
        image = tf.io.decode_png(row.image, channels=3)
        image.set_shape((SIDE, SIDE, 3))
        return {"image": image}, row.y

    return rows.map(decode, num_parallel_calls=2).batch(batch, drop_remainder=True).prefetch(2)


def petastorm_raw(rows: Any, batch: int, names: list[str]) -> Any:
    import tensorflow as tf

    def decode(row: Any) -> Any:
        image = tf.reshape(tf.io.decode_raw(row.image, tf.uint8), (batch, SIDE, SIDE, 3))
        return {"image": image}, row.y

    return rows.batch(batch, drop_remainder=True).map(decode, num_parallel_calls=2).prefetch(2)


def petastorm_codec(dataset: Any, folder: Path, batch: int) -> Start:
    """Return petastorm's documented way for images: its row reader, which decodes by OpenCV."""
    import pickle
    import shutil

    import pyarrow.parquet as pq
    from petastorm import make_reader
    from petastorm.codecs import CompressedImageCodec
    from petastorm.etl.dataset_metadata import UNISCHEMA_KEY
    from petastorm.tf_utils import make_petastorm_dataset
    from petastorm.unischema import Unischema, UnischemaField

    codec_folder = folder / "codec"
    shutil.copytree(os.path.join(dataset.path, "train"), codec_folder)
    schema = pq.read_schema(codec_folder / "_common_metadata")
    fields = []
    for field in pickle.loads(schema.metadata[UNISCHEMA_KEY]).fields.values():
        if field.name == "image":
            codec = CompressedImageCodec("png")
            field = UnischemaField("image", np.uint8, (SIDE, SIDE, 3), codec, False)
        fields.append(field)
    noted = {
        **schema.metadata,
        UNISCHEMA_KEY: pickle.dumps(Unischema("images", fields), protocol=4),
    }
    pq.write_metadata(schema.with_metadata(noted), codec_folder / "_common_metadata")

    def start() -> Any:
        reader = make_reader(
            codec_folder.as_uri(), schema_fields=["image", "y"], num_epochs=1, workers_count=2,
            shuffle_row_groups=False,
        )  # fmt: skip
        rows = make_petastorm_dataset(reader).batch(batch, drop_remainder=True)
        return rows.map(lambda row: ({"image": row.image}, row.y)).prefetch(2)

    return start


def by_hand(dataset: Any, batch: int, finish: Callable[..., Any], names: list[str]) -> Start:
    import tensorflow as tf

    spec = {name: dataset.tf_feature_spec()[name] for name in [*names, "y"]}
    paths = [
        os.path.join(dataset.path, shard.path) for shard in dataset.manifest.split("train").shards
    ]

    def start() -> Any:
        records = tf.data.TFRecordDataset(paths, num_parallel_reads=2, buffer_size=8 << 20)
        batches = records.batch(batch, drop_remainder=True)
        return finish(batches, spec).prefetch(2)

    return start


def codes_by_hand(batches: Any, spec: Any) -> Any:
    import tensorflow as tf

    table = lookup_table()

    def parse(records: Any) -> Any:
        features = tf.io.parse_example(records, spec)
        label = features.pop("y")
        return codes_of(features, table), label

    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


def images_by_hand(batches: Any, spec: Any) -> Any:
    import tensorflow as tf

    def decode(cell: Any) -> Any:
        return tf.ensure_shape(tf.io.decode_png(cell, channels=3), (SIDE, SIDE, 3))

    def parse(records: Any) -> Any:
        features = tf.io.parse_example(records, spec)
        label = features.pop("y")
        image = tf.map_fn(
            decode, features["image"], fn_output_signature=tf.uint8, parallel_iterations=16
        )
        return {"image": image}, label

    return batches.map(parse, num_parallel_calls=tf.data.AUTOTUNE)


# -- measuring -------------------------------------------------------------------------------------------------------


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def read(start: Start, name: str) -> tuple[int, int, float, float]:
    """Return rows and the sum of a feature over an epoch, seconds and processor seconds."""
    import tensorflow as tf

    processor, begin = processor_seconds(), time.perf_counter()

    def count(state: Any, batch: Any) -> Any:
        features, label = batch
        values = features[name]
        if len(values.shape) > 1:
            values = values[:, ::8, ::8]  # what is measured is reading
        total = tf.reduce_sum(tf.cast(values, tf.int64))
        return state[0] + tf.shape(label, tf.int64)[0], state[1] + total, tf.timestamp()

    zero = (np.int64(0), np.int64(0), np.float64(0))
    dataset = start().map(lambda features, label: ((features, label),))
    rows, total, end = dataset.reduce(zero, lambda state, batch: count(state, batch[0]))
    seconds = float(end) - time.time() + time.perf_counter() - begin
    return int(rows), int(total), seconds, processor_seconds() - processor


def race(contestants: Mapping[str, Start], name: str, *, rounds: int) -> dict[str, Any]:
    speeds: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    costs: dict[str, list[float]] = {contestant: [] for contestant in contestants}
    for number in range(rounds + 1):
        sums = {}
        for contestant, start in contestants.items():
            rows, sums[contestant], seconds, used = read(start, name)
            if number:  # the first round warms up
                speeds[contestant].append(rows / seconds)
                costs[contestant].append(used / rows * 1e9)
        assert len(set(sums.values())) == 1, f"an epoch is not the same values: {sums}"
    result = {}
    for contestant in contestants:
        speed, cost = statistics.median(speeds[contestant]), statistics.median(costs[contestant])
        result[contestant] = {"rows/s": speed, "ns/row": cost}
    return result


def show(
    title: str, figures: Mapping[str, Any], ratios: Mapping[str, tuple[str, str, float]]
) -> None:
    print(f"\n{title}")
    for name, figure in figures.items():
        print(
            f"  {name:44}{figure['rows/s']:12,.0f} rows/s {figure['ns/row']:9,.0f} ns of processor"
        )

    for text, (our, peer, target) in ratios.items():
        if peer not in figures:
            continue
        speed = figures[our]["rows/s"] / figures[peer]["rows/s"]
        cost = figures[peer]["ns/row"] / figures[our]["ns/row"]
        verdict = "reached" if speed >= target else "missed"
        print(f"  {text}: {speed:.1f}x rows/s, {cost:.1f}x by processor; {target}x: {verdict}")
        rates = figures[our]["rows/s"], figures[peer]["rows/s"]
        REPORT.compare(f"{title}: {text}", *rates, "rows/s", processor=cost, at_least=target)


def texts_to_codes(folder: Path, rows: int, rounds: int) -> None:
    from featurestore import transform as t

    table = categories(rows // BATCH * BATCH)
    names = [*NAMES, *(f"n{index}" for index in range(10))]
    chains = {name: t.vocabulary() for name in NAMES}
    records = make(folder, table, "codes", transformations=chains)
    files = make(folder, table, "codes_petastorm", data_format="petastorm")
    contestants = {
        "ours": ours(records, BATCH, shuffle=False, names=names),
        "ours, shuffled": ours(records, BATCH, shuffle=True, names=names),
        "petastorm": petastorm(files, BATCH, names, petastorm_codes),
        "tf.data by hand": by_hand(records, BATCH, codes_by_hand, names),
    }
    figures = race(contestants, "n0", rounds=rounds)
    ratios = {
        "in order, vs petastorm": ("ours", "petastorm", 3.0),
        "shuffled, vs petastorm in order": ("ours, shuffled", "petastorm", 3.0),
        "in order, vs tf.data": ("ours", "tf.data by hand", 1.0),
    }
    show(f"{table.num_rows:,} rows, texts to codes", figures, ratios)


def images(folder: Path, rows: int, rounds: int) -> None:
    from featurestore import transform as t

    encoded, pixels = pictures(rows // IMAGES * IMAGES)
    chains = {"image": t.decode_image(SIDE)}
    records = make(folder, encoded, "png", transformations=chains)
    raw = {"image": t.decode_image(SIDE, encoding="raw")}
    raw_records = make(folder, pixels, "raw", transformations=raw)
    raw_files = make(folder, pixels, "raw_petastorm", data_format="petastorm")
    files = make(folder, encoded, "png_petastorm", data_format="petastorm")
    contestants = {
        "ours, raw": ours(raw_records, IMAGES, shuffle=False, names=["image"]),
        "ours, raw, shuffled": ours(raw_records, IMAGES, shuffle=True, names=["image"]),
        "ours, PNG": ours(records, IMAGES, shuffle=False, names=["image"]),
        "petastorm, PNG": petastorm(files, IMAGES, ["image"], petastorm_images),
        "petastorm, raw": petastorm(raw_files, IMAGES, ["image"], petastorm_raw),
        "tf.data by hand, PNG": by_hand(records, IMAGES, images_by_hand, ["image"]),
    }
    if importlib.util.find_spec("cv2") is not None:
        contestants["petastorm, its PNG codec"] = petastorm_codec(files, folder, IMAGES)
    figures = race(contestants, "image", rounds=rounds)
    ratios = {
        "raw, vs petastorm with PNG": ("ours, raw", "petastorm, PNG", 3.0),
        "raw, vs petastorm with raw": ("ours, raw", "petastorm, raw", 3.0),
        "PNG, vs petastorm": ("ours, PNG", "petastorm, PNG", 3.0),
        "PNG, vs petastorm's PNG codec": ("ours, PNG", "petastorm, its PNG codec", 3.0),
        "raw, vs petastorm's PNG codec": ("ours, raw", "petastorm, its PNG codec", 3.0),
        "PNG, vs tf.data": ("ours, PNG", "tf.data by hand, PNG", 1.0),
    }
    decoder = "imagecodecs" if importlib.util.find_spec("imagecodecs") else "Pillow"
    show(f"{encoded.num_rows:,} images ({decoder})", figures, ratios)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--rows", type=int)
    parser.add_argument("--images", type=int)

    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")  # petastorm uses what pyarrow has deprecated
    rounds = 1 if arguments.quick else ROUNDS
    rows = arguments.rows or (20_000 if arguments.quick else 200_000)
    count = arguments.images or (1_000 if arguments.quick else 8_000)
    with tempfile.TemporaryDirectory() as folder:
        texts_to_codes(Path(folder), rows, rounds)
        images(Path(folder), count, rounds)
    REPORT.save(quick=arguments.quick)


if __name__ == "__main__":
    main()
