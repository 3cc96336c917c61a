"""Jobs with one target: refused, or shared by definitions whose keys are disjoint."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

import featurestore
from featurestore.errors import InvalidJob, JobWarning
from featurestore.featuregroups.table import open_group
from featurestore.featuregroups.writers import GroupWriter, writers_of
from featurestore.jobs.recovery import restore_runs
from featurestore.jobs.shared_targets import Registration, check_targets
from featurestore.model.job import JobSpec
from featurestore.recovery.rebuild import rebuild
from featurestore.registry import jobs
from featurestore.store import FeatureStore
from tests.jobs.conftest import START, Clock, expected, python_job, rows, sql_job, trips

Define = Callable[..., Path]
ZONE_A = "select * from trips where zone = 'a'"
GROUP = 'featuregroup="demand", '


def writer_spec(name: str, writer: str, *, shared: bool) -> JobSpec:
    """Return the definition of a job that writes the group ``demand``."""
    if writer == "stream":
        return featurestore.stream_job(
            name,
            source="events",
            topic="events",
            schema={"zone": "string", "hour": "timestamp"},
            featuregroup="demand",
            primary_key=["zone"],
            event_time="hour",
            shared=shared,
        ).spec
    if writer == "window":
        return featurestore.window_job(
            name, "trips.fare|sum|1d", every="1h", featuregroup="demand", primary_key=["zone"],
            event_time="hour",
        ).spec  # fmt: skip
    return featurestore.sql_job(
        name,
        sql="select zone, left_at as hour from trips",
        featuregroup="demand",
        primary_key=["zone"],
        event_time="hour",
        schedule="0 * * * *",
        inputs={"trips": "trips"},
        mode=writer,  # type: ignore[arg-type]
        shared=shared,
    ).spec


# Whether jobs of this kind can share a group.
WRITERS = {
    "replace_window": (False,),
    "window": (False,),
    "append": (False, True),
    "upsert": (False, True),
    "stream": (False, True),
}


def register_pair(city: FeatureStore, first: JobSpec, second: JobSpec) -> str:
    """Return whether a second writer is "accepted", "warned" about or "refused"."""
    with city.session.registry.transaction() as connection:
        jobs.remove(connection, "first")
        jobs.register(connection, first, origin="first.py", watermark=None)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                check_targets(connection, city.session, Registration({"second": second}))
            except InvalidJob as error:
                return "refused" if "job 'first'" in error.message and error.hint else "unclear"
            return "warned" if caught else "accepted"


def test_second_writer_of_a_group_is_refused_unless_both_share_it(
    city: FeatureStore, subtests: pytest.Subtests
) -> None:
    cases = [(writer, shared) for writer, options in WRITERS.items() for shared in options]
    for first, second in product(cases, cases):
        with subtests.test(first=first, second=second):
            earlier = writer_spec("first", first[0], shared=first[1])
            spec = writer_spec("second", second[0], shared=second[1])
            expected_outcome = "refused"
            if first[1] and second[1]:
                expected_outcome = "accepted"
            elif "stream" in (first[0], second[0]):
                expected_outcome = "warned"
            assert register_pair(city, earlier, spec) == expected_outcome


def test_shared_is_refused_where_rows_of_other_jobs_would_be_deleted() -> None:
    with pytest.raises(InvalidJob, match="would delete rows of the other jobs"):
        writer_spec("first", "replace_window", shared=True)
    with pytest.raises(InvalidJob, match="delete_missing=True would delete"):
        featurestore.sql_job(
            "orders",
            sql="select * from orders",
            primary_key=["id"],
            event_time="at",
            schedule="0 * * * *",
            inputs={"orders": featurestore.source("shop", table="orders", time="at")},
            mode="upsert",
            delete_missing=True,
            shared=True,
        )


def test_shared_jobs_with_other_keys_are_refused(city: FeatureStore, define: Define) -> None:
    zone = sql_job("one", rules=GROUP + 'mode="append", shared=True')
    zone_and_x = zone.replace("one", "two").replace(
        'primary_key=["zone"]', 'primary_key=["zone", "x"]'
    )
    with pytest.raises(InvalidJob, match="primary_key is"):
        city.register_jobs(define(zone, zone_and_x))


def two_shared_jobs(mode: str) -> tuple[str, str]:
    """Return two jobs that write the rows of different zones into one group."""
    rules = GROUP + f'mode="{mode}", shared=True'
    source = sql_job("zone_a", rules=rules)
    condition = "where left_at"
    return (
        source.replace(condition, "where zone = 'a' and left_at"),
        source.replace("zone_a", "zone_b").replace(condition, "where zone = 'b' and left_at"),
    )


def test_shared_jobs_write_their_own_rows_and_recompute_only_them(
    city: FeatureStore, define: Define, subtests: pytest.Subtests
) -> None:
    for mode in ("append", "upsert"):
        with subtests.test(mode=mode):
            city.register_jobs(define(*two_shared_jobs(mode)))
            for name in ("zone_a", "zone_b"):
                city.run_job(name, due=True)
            assert rows(city) == expected()
            if mode == "upsert":
                city.run_job("zone_a", window=START)
                assert rows(city) == expected()
            for name in ("zone_a", "zone_b"):
                assert writers_of(open_group(city.session, "demand"))[name] == GroupWriter(
                    shared=True
                )
                city.remove_job(name)
            assert writers_of(open_group(city.session, "demand")) == {}
            city.delete_featuregroup("demand", version=1)


def lose_registry(city: FeatureStore) -> FeatureStore:
    """Delete the registry, rebuild it, and return the store."""
    location = Path(city.location)
    city.close()
    for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
        (location / name).unlink(missing_ok=True)
    rebuild(str(location), restore=restore_runs)
    return featurestore.connect(location, engine="duckdb")


def test_owner_survives_the_loss_of_the_registry(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job()))
    city.run_job("demand", due=True)
    with lose_registry(city) as store:
        second = define(sql_job("second", rules=GROUP), name="second.py")
        with pytest.raises(InvalidJob, match="job 'demand' both write feature group 'demand'"):
            store.register_jobs(second)
        # The registry does not know the job, but the table does.
        assert "feature group 'demand' with its rows" in str(store.remove_job("demand"))
        store.register_jobs(second)
        assert store.get_jobs()[0].due == 0
        assert writers_of(open_group(store.session, "demand")) == {"second": GroupWriter()}


def test_renamed_job_takes_over_its_group_and_windows(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    rules = GROUP + 'mode="append"'
    city.register_jobs(define(sql_job("first", rules=rules)))
    city.run_job("first", due=True)
    (job,) = city.register_jobs(define(sql_job("renamed", rules=rules)))
    assert "48 computed windows stay as they are" in job.changes[0]
    assert city.run_job("renamed", due=True) == []
    assert rows(city) == expected()
    assert writers_of(open_group(city.session, "demand")) == {"renamed": GroupWriter()}
    with pytest.raises(InvalidJob, match="'renamed' both write"):
        city.register_jobs(define(sql_job("first", rules=rules), name="copy.py"))


def test_insert_into_the_group_of_a_job_warns_and_names_it(
    city: FeatureStore, define: Define, recwarn: pytest.WarningsRecorder
) -> None:
    city.register_jobs(define(python_job()))
    city.run_job("demand", window=START)
    assert not recwarn.list
    frame = city.get_featuregroup("demand").to_arrow()
    with pytest.warns(JobWarning, match="Job 'demand' writes feature group 'demand'"):
        city.featuregroup("demand").insert(frame, mode="upsert")
    city.remove_job("demand")
    city.featuregroup("demand").insert(frame, mode="upsert")
    city.featuregroup("trips").insert(trips(1), mode="upsert")


def test_changed_target_releases_the_group(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job("first", rules=GROUP)))
    city.run_job("first", due=True)
    city.register_jobs(define(sql_job("first", rules='featuregroup="elsewhere", ')))
    assert city.get_jobs()[0].due == 48
    city.register_jobs(define(sql_job("second", rules=GROUP), name="second.py"))
    assert writers_of(open_group(city.session, "demand")) == {"second": GroupWriter()}
    city.run_job("first", due=True)
    assert rows(city, "elsewhere") == rows(city, "demand") == expected()
