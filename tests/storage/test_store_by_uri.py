"""The story of a store on each server: it equals a store in a local directory."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LinearRegression

import featurestore
from featurestore import experiments
from featurestore.errors import (
    DatasetDamaged,
    FeatureGroupNotFound,
    TrainingDatasetNotFound,
    UnsupportedLocation,
)
from featurestore.experiments.context import Context
from featurestore.storage import storage_for
from featurestore.storage.connections import object_store_for
from featurestore.store import FeatureStore
from featurestore.training.dataset import TrainingDataset
from tests.storage.stores import (
    StoreLocation,
    export,
    history_of_a_group,
    labeled,
    names_below,
    on_servers,
    rows,
)
from tests.storage.trip_jobs import filled
from tests.storage.two_machines import check_machines

pytest.importorskip("cronsim")

pytestmark = pytest.mark.slow
DATA_FORMATS = ("tfrecord", "parquet", "csv")
JOB_RANGE = ("2024-01-01T00:00Z", "2024-01-01T03:00Z")
_HREF = re.compile(r'href="(/[^"#]*)"')


@dataclass(frozen=True)
class LocalResults:
    """What the steps of the story result in on a local disk."""

    history: list[Any]
    datasets: Mapping[str, TrainingDataset]
    job_rows: list[Any]


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalResults]:
    """The results in local directories, computed once for all servers."""
    folder = tmp_path_factory.mktemp("local")
    with (
        featurestore.connect(folder / "groups") as groups,
        featurestore.connect(folder / "datasets") as datasets,
        featurestore.connect(folder / "jobs") as jobs,
    ):
        datasets.create_featuregroup(labeled(5_000), "weather", primary_key="id", event_time="at")
        exported = {name: export_as(datasets, name) for name in DATA_FORMATS}
        yield LocalResults(history_of_a_group(groups), exported, run_jobs(jobs, folder))


def export_as(store: FeatureStore, data_format: str) -> TrainingDataset:
    return export(store, data_format, data_format=data_format, transformations=None)


def batches_of(dataset: TrainingDataset, **options: Any) -> list[Any]:
    reader = dataset.reader("train", global_batch_size=640, window_rows=1024, seed=3)
    result = []
    for batch in reader.batches(1, **options):
        result.append([(name, values.tolist()) for name, values in sorted(batch.items())])
    return result


def run_jobs(store: FeatureStore, folder: Path) -> list[Any]:
    """Run two jobs, one of them twice, and return the rows that they wrote."""
    filled(store, folder / "job-files")
    for name in ("demand", "tips", "demand"):
        store.backfill_job(name, *JOB_RANGE)
    frames = [store.get_featuregroup(name).to_pandas() for name in ("demand", "tips")]
    return [sorted(map(tuple, frame.itertuples(index=False))) for frame in frames]


@on_servers("s3", "hdfs", "gs", "az")
def test_store_by_uri_equals_local_store(
    store_location: StoreLocation,
    local: LocalResults,
    subtests: pytest.Subtests,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.DEBUG)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    with subtests.test("groups"):
        check_groups(store_location.connect(store="groups"), local)
    datasets = store_location.connect("datasets", store="datasets")
    datasets.create_featuregroup(labeled(5_000), "weather", primary_key="id", event_time="at")
    for data_format in DATA_FORMATS:
        with subtests.test(f"{data_format} dataset"):
            remote = export_as(datasets, data_format)
            check_dataset(remote, local.datasets[data_format], tmp_path / data_format)
            with monkeypatch.context() as environment:
                # Without the copies of undamaged shards.
                environment.setenv("XDG_CACHE_HOME", str(tmp_path / f"caches of {data_format}"))
                check_damage(remote)
            check_removal(datasets, remote)
    with subtests.test("machines"):
        check_machines(store_location, tmp_path)
    jobs = store_location.connect("jobs", store="jobs")
    with subtests.test("jobs"):
        check_jobs(jobs, local, tmp_path)
    # On the other object stores workers read their settings from the environment as on S3.
    if store_location.scheme in ("s3", "hdfs"):
        with subtests.test("run"), monkeypatch.context() as environment:
            for name, value in store_location.environment.items():
                environment.setenv(name, value)
            check_run(jobs, tmp_path / "runs")
    with subtests.test("pages"):
        pytest.importorskip("fastapi")
        check_pages(jobs)
    with subtests.test("secrets"):
        texts = [caplog.text, repr(jobs), repr(jobs.session), repr(jobs.featuregroup("trips"))]
        check_secrets(store_location, texts, tmp_path)


def check_groups(store: FeatureStore, local: LocalResults) -> None:
    assert history_of_a_group(store) == local.history
    groups = f"{store.location}/featuregroups"
    assert not [name for name in names_below(groups) if name.endswith(".tmp")]
    # The history ends with the deletion of version 1.
    assert [name for name in names_below(f"{groups}/weather") if name.startswith("v1")] == [
        "v1.deleted"
    ]
    with pytest.raises(FeatureGroupNotFound):
        store.get_featuregroup("weather", version=1)
    store.create_featuregroup(rows(0, 4), "weather", version=1)
    assert store.get_featuregroup("weather", version=1).count() == 4


def check_dataset(remote: TrainingDataset, local: TrainingDataset, directory: Path) -> None:
    """Compare a dataset with a local one: manifest, files, rows, batches, and a downloaded copy."""
    assert remote.manifest.content_hash == local.manifest.content_hash
    local_files = [path for path in Path(local.path).rglob("*") if path.is_file()]
    assert names_below(remote.path) == sorted(
        str(path.relative_to(local.path)) for path in local_files
    )
    expected = batches_of(local)
    assert batches_of(remote) == expected
    assert batches_of(remote, start_step=4) == expected[4:]
    assert remote.read("test").to_pandas().equals(local.read("test").to_pandas())
    assert remote.statistics("train").columns == local.statistics("train").columns
    assert "the same rows" in str(local.diff(remote))
    assert remote.verify(recompute=True).problems == ()
    assert remote.url_of("train") == remote.path + "/train"
    opened = TrainingDataset.open(remote.path)
    assert opened.manifest == remote.manifest
    state = remote.reader("train", global_batch_size=32, seed=3).state(1, 5)
    assert opened.resume(state)[1:] == (1, 5)
    with pytest.raises(UnsupportedLocation, match="download"):
        remote.petastorm_reader("train")
    copy = remote.download(directory)
    assert copy.verify().ok
    assert batches_of(copy) == expected


def check_damage(dataset: TrainingDataset) -> None:
    """Change, truncate and add a file; the verification and the reader name them."""
    storage, folder = object_store_for(dataset.path)
    changed, truncated = (shard.path for shard in dataset.manifest.split("train").shards[:2])
    data = bytearray(storage.read(f"{folder}/{changed}"))
    data[100] ^= 1
    storage.put(f"{folder}/{changed}", bytes(data))
    storage.put(f"{folder}/{truncated}", storage.read(f"{folder}/{truncated}")[:-1])
    storage.put(f"{folder}/train/more", b"")
    problems = {problem.file: problem.message for problem in dataset.verify().problems}
    assert "SHA-256" in problems[changed]
    assert "in the manifest" in problems[truncated]
    assert problems["train/more"] == "is not in the manifest"
    with pytest.raises(DatasetDamaged, match=os.path.basename(truncated)):
        dataset.reader("train", global_batch_size=32)


def check_removal(store: FeatureStore, dataset: TrainingDataset) -> None:
    store.delete_training_dataset(dataset.name, version=1)
    assert names_below(os.path.dirname(dataset.path)) == []
    with pytest.raises(TrainingDatasetNotFound):
        TrainingDataset.open(dataset.path)


def check_jobs(store: FeatureStore, local: LocalResults, tmp_path: Path) -> None:
    assert run_jobs(store, tmp_path) == local.job_rows
    runs = store.get_runs("tips")
    assert {run.state for run in runs} == {"done"}
    for run in runs:
        assert run.log is not None
        assert run.log.startswith(f"{store.location}/_logs/tips/")
        assert "tips, 1 windows" in storage_for(run.log).read_text(run.log)


def train(context: Context) -> dict[str, float]:
    total = 0.0
    for batch in context.reader("train", global_batch_size=50).batches(0):
        total += float(batch["x"].sum())
    context.save(LinearRegression().fit([[0.0], [1.0]], [0.0, total]), "line")
    return {"metric": total}


def check_run(store: FeatureStore, directory: Path) -> None:
    """Train in another process on a dataset of the store; runs are stored in a local directory."""
    frame = pd.DataFrame({"x": np.arange(300.0), "y": np.arange(300) % 2})
    dataset = store.create_training_dataset(frame, "d", label="y", transformations=None)
    before = names_below(store.location)
    with pytest.raises(UnsupportedLocation, match="require a store in a directory") as refused:
        experiments.launch(train, name="some", dataset=dataset)
    assert "store=featurestore.connect(" in str(refused.value.hint)
    with pytest.raises(UnsupportedLocation, match=r"in a directory.*\nHint: store=featurestore"):
        experiments.get_runs("some", store=store)
    with featurestore.connect(directory) as runs:
        run = experiments.launch(train, name="some", dataset=dataset, store=runs)
        assert run.state == "finished"
        assert run.metrics["metric"] == frame["x"].sum()
        (stored_run,) = experiments.get_runs("some", store=runs)
        assert stored_run.dataset is not None
        assert stored_run.dataset.path == dataset.path
        assert (
            set(stored_run.record.files) == {"artifacts/line.joblib"} == set(stored_run.artifacts)
        )
    assert names_below(store.location) == before


def check_pages(store: FeatureStore) -> None:
    from starlette.testclient import TestClient

    from featurestore.server import create_app

    store.create_training_dataset(store.get_features(["trips.tip"]), "tip_values")
    waiting, visited_pages = ["/"], set()
    with TestClient(create_app(store), base_url="http://localhost") as client:
        while waiting:
            page = waiting.pop()
            if page in visited_pages or "?" in page:
                continue
            visited_pages.add(page)
            response = client.get(page)
            assert response.status_code == 200, page
            if "text/html" in response.headers["content-type"]:
                waiting.extend(_HREF.findall(response.text))
        log = client.get(f"/jobs/tips/runs/{store.get_runs('tips')[0].run_id}/log")
        assert "tips, 1 windows" in log.text
        assert client.get("/metrics").status_code == 200
    names = {name for page in visited_pages for name in page.split("/")}
    assert {"trips", "tips", "tip_values"} <= names


def check_secrets(store_location: StoreLocation, texts: list[str], directory: Path) -> None:
    """No secret is in these texts, in objects, in files of the test, or in the user's state."""
    storage, folder = object_store_for(store_location.folder)
    contents = [storage.read(entry.name) for entry in storage.list(folder)]
    for local_folder in (directory, Path(os.environ["XDG_STATE_HOME"])):
        contents += [file.read_bytes() for file in local_folder.rglob("*") if file.is_file()]
    assert len(contents) > 50
    for secret in store_location.secrets:
        assert not [text[:200] for text in texts if secret in text]
        assert not [content[:200] for content in contents if secret.encode() in content]
