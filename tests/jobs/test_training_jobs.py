"""Training jobs create a version only if inputs changed, and retire old versions."""

from __future__ import annotations

import signal
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest

from featurestore.errors import JobFailed
from featurestore.registry import jobs
from featurestore.store import FeatureStore
from tests.forked_processes import start
from tests.jobs import killed_jobs
from tests.jobs.conftest import HOURS, START, Clock, trips

pytestmark = [pytest.mark.services, pytest.mark.slow]

Define = Callable[..., Path]
DAY = timedelta(days=1)

SOURCE = """
import featurestore
@featurestore.training_job(
    training_dataset="fares", schedule="0 0 * * *", start="2024-01-01T00:00Z", {rules}
)
def make(store, window):
    frame = store.get_features(["trips.fare", "trips.zone"])
    return {{"data": frame, "label": "fare", "data_format": "csv"}}
"""


@pytest.mark.parametrize(
    "rules", ["keep=2", 'keep=2, inputs={"trips": "trips"}'], ids=["sources", "inputs"]
)
def test_training_job_changed_inputs_write_new_version(
    city: FeatureStore, define: Define, clock: Clock, rules: str
) -> None:
    city.register_jobs(define(SOURCE.format(rules=rules)))
    (run,) = city.run_job("make", due=True)  # two days were missed: one version is enough
    assert (run.windows, run.delta_version, run.rows) == (2, 1, len(trips()))
    clock.now += DAY
    (run,) = city.run_job("make", due=True)
    assert (run.delta_version, run.rows) == (1, 0)
    for version in (2, 3):
        city.delete_from_featuregroup("trips", f"id = {version}")
        clock.now += DAY
        (run,) = city.run_job("make", due=True)
        assert run.delta_version == version
    assert [dataset.version for dataset in city.get_training_datasets()] == [2, 3]


def test_training_job_checks_returned_value(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(SOURCE.format(rules="").replace('"data":', '"rows":')))
    with pytest.raises(JobFailed, match="without 'data'"):
        city.run_job("make", due=True)
    assert city.get_jobs()[0].due == 2


DEATHS = {
    "in the function": (),
    "before the shards": ("featurestore.training.create:export",),
    "before the manifest": ("featurestore.training.create:publish",),
    "before the registry": ("featurestore.registry.training_datasets:register",),
    "before old versions go": ("featurestore.jobs.training_jobs:_delete_old_versions",),
    "while an old version goes": ("featurestore.recovery.claims:release",),
    "before the watermark": ("featurestore.jobs.run:_end_run",),
}


@pytest.mark.parametrize("crash_point", DEATHS)
@pytest.mark.parametrize(
    "rules", ["keep=1", 'keep=1, inputs={"trips": "trips"}'], ids=["sources", "inputs"]
)
def test_training_job_killed_run_leaves_one_version(
    city: FeatureStore, define: Define, clock: Clock, rules: str, crash_point: str, tmp_path: Path
) -> None:
    switch = tmp_path / "switch"
    deadly = (
        f"import os, signal\n    if os.path.exists({str(switch)!r}): "
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    source = SOURCE.format(rules=rules).replace("    return", f"    {deadly}    return")
    city.register_jobs(define(source))
    city.run_job("make", due=True)
    city.delete_from_featuregroup("trips", "id = 2")
    clock.now += DAY
    if crash_point == "in the function":
        switch.touch()
    process = start(killed_jobs.run_due, city.location, "make", DEATHS[crash_point], clock.now)
    process.join()
    assert process.exitcode == -signal.SIGKILL
    switch.unlink(missing_ok=True)

    city.run_job("make", due=True)
    clock.now += DAY
    city.run_job("make", due=True)  # nothing changed since
    (dataset,) = city.get_training_datasets()
    assert dataset.version == 2
    assert dataset.num_rows("train") == len(trips()) - 1
    assert dataset.verify(recompute=True).ok
    assert [path.name for path in sorted(Path(dataset.path).parent.glob("v*"))] == ["v2"]
    assert not list(Path(city.location, "_staging").glob("*"))
    landed = crash_point in ("before the registry", "before old versions go", "while an old version goes",
                       "before the watermark")  # fmt: skip
    states = [run.state for run in city.get_runs("make")]
    assert states.count("failed") == (0 if landed else 1)
    assert sum(run.windows for run in city.get_runs("make") if run.state == "done") == 4
    with city.session.registry.reading() as connection:
        assert jobs.watermark(connection, "make") == START + HOURS * timedelta(hours=1) + 2 * DAY


def test_training_job_unknown_column_error_lists_columns(
    city: FeatureStore, define: Define
) -> None:
    source = """
import featurestore
@featurestore.training_job(training_dataset="set", schedule="0 * * * *", start="2024-01-01T00:00Z")
def made(store, window):
    return {"data": store.get_featuregroup("trips"), "lable": "fare"}
"""
    city.register_jobs(define(source))
    with pytest.raises(JobFailed, match=r"'lable'(.|\n)*'label'"):
        city.run_job("made")
