"""Stream jobs publish views after each micro-batch; failed publications are made up for."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from featurestore.store import FeatureStore
from tests.streams.conftest import require_spark_reader
from tests.streams.topics import Broker, clicks, job

JobFile = Callable[[str], Path]


def alert_events(store: FeatureStore) -> list[tuple[str, tuple[str, ...]]]:
    return sorted((message.alert.event, message.alert.families) for message in store.get_alerts())


def test_stream_publishes_views_after_each_micro_batch(
    store: FeatureStore, engine_name: str, broker: Broker, job_file: JobFile, tmp_path: Path
) -> None:
    require_spark_reader(engine_name)
    topic = broker.topic(1)
    store.add_source("events", broker.uri)
    store.add_alert_channel("ops", "log")
    publish = {"users": None, "users@v1": "cache"}
    (registered,) = store.register_jobs(
        job_file(job(topic, batch_records=10, publish=publish, alert=["ops"]))
    )
    assert [str(publication) for publication in registered.spec.work.publishes] == [
        "users",
        "users@v1 to cache",
    ]
    # The first run creates the group: the view and the online store do not exist yet.
    broker.send(topic, clicks(0, 20))
    (run,) = store.run_job("clicks")
    assert (run.state, run.rows) == ("done", 20)
    assert run.log is not None
    log = Path(run.log).read_text()
    assert log.count("is behind, and is published after the next micro-batch") == 4
    assert alert_events(store) == [("begin", ("publication",))]
    view = store.create_feature_view("users", features=["clicks.user"])
    store.add_online_store("cache", f"sqlite:///{tmp_path}/cache/online.db")
    tmp_path.joinpath("cache").touch()  # instead of a folder: the online store is unavailable
    # A trigger without new records publishes what is missing.
    assert store.run_job("clicks") == []
    assert [lag.commits for lag in view.online_lag()] == [0]
    # One of the views is still behind.
    assert len(alert_events(store)) == 1
    broker.send(topic, clicks(20, 40))
    (run,) = store.run_job("clicks")
    assert (run.state, run.rows) == ("done", 20)
    assert run.log is not None
    log = Path(run.log).read_text()
    assert log.count("'embedded': incremental, 10 rows") == 2
    assert log.count("users@v1 to cache is behind") == 2
    tmp_path.joinpath("cache").unlink()
    assert store.run_job("clicks") == []
    assert alert_events(store)[1:] == [("end", ("publication",))]
    for online in ("embedded", "cache"):
        assert [lag.commits for lag in view.online_lag(online=online)] == [0]
        assert view.verify_online(online=online).ok
        server = view.server(online=online)
        assert server.get_vectors([{"id": 0}, {"id": 39}]) == [{"user": "u0"}, {"user": "u39"}]
    assert sorted(store.get_featuregroup("clicks").to_arrow()["id"].to_pylist()) == [*range(40)]
