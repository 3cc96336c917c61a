"""Recovery of experiment runs from their directories ``<name>/<id>/run.json``."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sqlalchemy.engine import Connection

from featurestore.errors import FeatureStoreError, RunDamaged, RunNotFound
from featurestore.model.json_object import MalformedJson
from featurestore.model.names import check_name
from featurestore.model.paths import StorePaths
from featurestore.model.run_record import RUN_FILE, RunRecord, check_run_id
from featurestore.registry import experiments
from featurestore.storage import files


def run_directory(paths: StorePaths, name: str, run_id: str) -> str:
    """Return the directory of a run, after checking its name and id."""
    return os.path.join(paths.experiment(name), check_run_id(run_id))


def read(directory: str) -> RunRecord:
    """Return the record of a run.

    Raises:
        RunNotFound: The directory has no ``run.json``.
        RunDamaged: The record is damaged, or belongs to another directory.
    """
    path = os.path.join(directory, RUN_FILE)
    if not files.is_file(path):
        raise RunNotFound(f"{directory!r} is not the directory of a run: it has no {RUN_FILE}.")
    try:
        record = RunRecord.from_bytes(files.read_bytes(path))
    except (MalformedJson, FeatureStoreError) as error:
        raise RunDamaged(
            f"The record {path!r} of a run is damaged: {error}",
            hint="restore the file from a copy; other runs are not affected",
        ) from error
    if record.id != os.path.basename(directory):
        raise RunDamaged(f"The record {path!r} belongs to another run, {record.id!r}.")
    if record.name != os.path.basename(os.path.dirname(directory)):
        raise RunDamaged(f"The record {path!r} belongs to another experiment, {record.name!r}.")
    return record


def write(directory: str, record: RunRecord) -> None:
    """Write the record of a run atomically."""
    files.write_atomically(os.path.join(directory, RUN_FILE), record.to_bytes())


def every(paths: StorePaths) -> Iterator[tuple[str, str]]:
    """Yield the experiment and directory of all runs, ordered by name and id."""
    for name in files.list_directory(paths.experiments):
        try:
            folder = paths.experiment(check_name(name, noun="experiment"))
        except FeatureStoreError:
            continue
        for run_id in files.list_directory(folder):
            directory = os.path.join(folder, run_id)
            if files.is_file(os.path.join(directory, RUN_FILE)):
                yield name, directory


def register_from_files(connection: Connection, name: str, directory: str) -> str:
    """Register the run of a directory, and return its id."""
    record = read(directory)
    if record.name != name:
        raise RunDamaged(f"The run in {directory!r} belongs to experiment {record.name!r}.")
    experiments.put(connection, record)
    return record.id
