"""Programs that write to a store at a URI in a process of their own, to be raced or killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from featurestore.store import FeatureStore

WRITER = """
import sys
import pandas as pd
import featurestore
location, registry, number = sys.argv[1:]
with featurestore.connect(location, registry=registry) as store:
    print("ready", flush=True)
    sys.stdin.readline()
    for turn in range(4):
        ids = range(1000 * (int(number) + 1) + 10 * turn, 1000 * (int(number) + 1) + 10 * turn + 10)
        store.insert_into_featuregroup(pd.DataFrame({"id": ids}), "g")
        print(turn, flush=True)
"""

EXPORT = """
import sys
import featurestore
location, registry = sys.argv[1:]
with featurestore.connect(location, registry=registry) as store:
    frame = store.get_featuregroup("weather").select("id", "x", "late")
    print("ready", flush=True)
    while True:
        store.create_training_dataset(frame, "d", label="late", key="id", shards=40)
        print("done", flush=True)
"""


def start(store: FeatureStore, registry: Path, options: dict[str, str], number: int) -> Any:
    environment = {**os.environ, **{key.upper(): value for key, value in options.items()}}
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, store.location, f"sqlite:///{registry}", str(number)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
        text=True,
    )
