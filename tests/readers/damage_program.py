"""Damages shards at random before or during a read, and prints what the reader does.

The outcome of each case is a line of JSON. A signal ends the program.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from featurestore import connect
from featurestore.errors import FeatureStoreError
from featurestore.training.dataset import TrainingDataset

# With small batches, the reader is not far ahead of the batch that is processed.
ROWS, SHARDS, BATCH = 40_000, 2, 64
NUMBERS = ["id", "x", "y"]
# The options of an export, and the columns to read.
FORMATS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "fixed": ({}, NUMBERS),
    "variable": ({}, [*NUMBERS, "text"]),
    "parquet": ({"data_format": "parquet"}, [*NUMBERS, "text"]),
    "csv": ({"data_format": "csv"}, [*NUMBERS, "text"]),
}


def create(location: str, name: str) -> TrainingDataset:
    options, columns = FORMATS[name]
    numbers = np.arange(ROWS)
    rows: dict[str, Any] = {"id": numbers, "x": numbers * 0.5, "y": numbers % 2}
    if "text" in columns:
        rows["text"] = [f"{number:05d}" * (number % 23) for number in range(ROWS)]
    return connect(location, progress=False).create_training_dataset(
        pa.table(rows), name, label="y", key="id", shards=SHARDS, statistics=False, **options
    )


@dataclass(frozen=True)
class Target:
    """The file to damage, and the same file of the other shard."""

    path: str
    other_path: str
    size: int


def flip(target: Target, draw: random.Random) -> None:
    """Change one byte in place."""
    with open(target.path, "r+b") as file:
        position = draw.randrange(target.size)
        file.seek(position)
        byte = file.read(1)[0]
        file.seek(position)
        file.write(bytes([byte ^ draw.randrange(1, 256)]))


def truncate(target: Target, draw: random.Random) -> None:
    os.truncate(target.path, draw.choice([0, target.size - 1, draw.randrange(target.size)]))


def replace(target: Target, draw: random.Random) -> None:
    """Replace a file by one of the same size: that of the other shard, or random bytes."""
    data = Path(target.other_path).read_bytes()
    if draw.random() < 0.5 or len(data) != target.size:
        data = draw.randbytes(target.size)
    new = Path(f"{target.path}.new")
    new.write_bytes(data)
    new.replace(target.path)


DAMAGES: dict[str, Callable[[Target, random.Random], None]] = {
    "flip": flip,
    "truncate": truncate,
    "replace": replace,
}


def read(
    dataset: TrainingDataset, case: dict[str, Any], damage: Callable[[], None]
) -> Iterator[Any]:
    if case["before"]:
        damage()
    reader = dataset.reader(
        "train",
        global_batch_size=BATCH,
        shuffle=case["shuffle"],
        columns=FORMATS[case["format"]][1],
        verify=case["verify"],
    )
    for step, batch in enumerate(reader.batches()):
        yield {name: values.tolist() for name, values in batch.items()}
        if step == case["after"] and not case["before"]:
            damage()


def run(dataset: TrainingDataset, originals: list[Any], case: dict[str, Any]) -> dict[str, Any]:
    """Damage a copy of a dataset and read it."""
    draw = random.Random(case["seed"])
    copy = tempfile.mkdtemp(dir=os.path.dirname(dataset.path))
    try:
        shutil.copytree(dataset.path, copy, dirs_exist_ok=True)
        shards = list(dataset.manifest.split("train").shards)
        draw.shuffle(shards)
        number = draw.randrange(len(shards[0].files))
        paths = [os.path.join(copy, shard.files[number].path) for shard in shards]
        target = Target(paths[0], paths[1], shards[0].files[number].bytes)
        case |= {"after": draw.randrange(8), "shard": os.path.join(copy, shards[0].path)}
        damage = partial(DAMAGES[case["damage"]], target, draw)
        outcome: dict[str, Any] = {"error": None, "equal": False}
        try:
            batches = read(TrainingDataset.open(copy), case, damage)
            outcome["equal"] = list(batches) == originals
        except FeatureStoreError as error:
            outcome["error"] = f"{type(error).__name__}: {error}"
    finally:
        shutil.rmtree(copy)
    return {**case, **outcome}


def main(location: str, seed: int, repetitions: int) -> None:
    draw = random.Random(seed)
    for name in FORMATS:
        dataset = create(location, name)
        for shuffle in (False, True):
            plain = {"format": name, "shuffle": shuffle, "verify": False, "before": False}
            originals = list(read(dataset, {**plain, "after": -1}, lambda: None))
            for damage in DAMAGES:
                for verify in (False, True):
                    for _ in range(repetitions):
                        case: dict[str, Any] = {**plain, "verify": verify, "damage": damage}
                        case |= {"before": draw.random() < 0.5, "seed": draw.randrange(2**32)}
                        print(json.dumps(run(dataset, originals, case)), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
