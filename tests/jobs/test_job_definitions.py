"""Validation of job definitions.

Read from modules, files and folders, checked when they are made, the same after the registry.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import jsonschema
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import featurestore
import featurestore_schemas
from featurestore.errors import (
    DefinitionsRefused,
    FeatureStoreError,
    InvalidExpectation,
    InvalidJob,
    InvalidName,
    InvalidSql,
    JobFailed,
    RegistryError,
)
from featurestore.jobs.registration import load_jobs
from featurestore.model.job import JobSpec
from featurestore.model.plan import canonical_hash
from featurestore.registry.tables import job_definitions
from featurestore.store import FeatureStore
from tests.jobs.conftest import SQL, python_job, sql_job

Define = Callable[..., Path]
SCHEMA = json.loads((Path(featurestore_schemas.__file__).parent / "job.schema.json").read_text())
ROOT = Path(__file__).parents[2]


def build_spec(**rules: object) -> JobSpec:
    inputs = {"sql": SQL, "primary_key": ["zone"], "event_time": "hour", "schedule": "0 * * * *"}
    inputs["inputs"] = {"trips": "trips"}  # type: ignore[assignment]
    return featurestore.sql_job("demand", **{**inputs, **rules}).spec  # type: ignore[arg-type]


def test_job_spec_json_roundtrip_matches_schema() -> None:
    spec = build_spec(
        lookback="2h",
        ttl="3h",
        start="2024-01-01T00:00Z",
        tags={"a": "b"},
        expectations=[{"type": "x"}],
    )
    data = json.loads(json.dumps(spec.to_json()))
    jsonschema.validate(data, SCHEMA)
    assert JobSpec.from_json(data) == spec
    assert JobSpec.from_json(data).hash == spec.hash != build_spec().hash


def test_job_spec_truthy_flags_are_stored_as_booleans() -> None:
    inputs = {"orders": featurestore.source("shop", table="orders", time="updated_at")}
    rules = {"sql": "select * from orders", "mode": "upsert", "inputs": inputs}
    spec = build_spec(**rules, delete_missing=1)
    assert spec.hash == build_spec(**rules, delete_missing=True).hash
    assert spec.hash != build_spec(**rules, delete_missing=None).hash
    assert JobSpec.from_json(json.loads(json.dumps(spec.to_json()))) == spec
    assert build_spec(mode="upsert", shared=1).to_json()["shared"] is True


def test_job_spec_stored_value_of_wrong_type_is_named_once() -> None:
    for name, value in (("retries", "many"), ("description", 3), ("code", None)):
        with pytest.raises(InvalidJob) as caught:
            JobSpec.from_json({**build_spec().to_json(), name: value})
        reason = f"A stored job definition cannot be read: {name} is {value!r}."
        assert caught.value.message == reason
    with pytest.raises(InvalidName, match="'No Name' is not a valid job name"):
        JobSpec.from_json({**build_spec().to_json(), "name": "No Name"})


def test_publish_job_stored_without_target_is_refused() -> None:
    stored = featurestore.publish_job("cache", view="riders", schedule="@daily").spec.to_json()
    with pytest.raises(InvalidJob, match="cannot be read"):
        JobSpec.from_json({**stored, "publishes": []})
    with pytest.raises(InvalidName, match="is not a valid feature group name"):
        JobSpec.from_json({**stored, "target": "No Name"})


def test_job_with_invalid_name_names_the_job() -> None:
    with pytest.raises(InvalidName, match="is not a valid job name"):
        featurestore.sql_job("No Name", sql=SQL, schedule="@daily", event_time="hour")
    with pytest.raises(InvalidName, match="is not a valid job name"):
        featurestore.stream_job(
            "No Name", source="kafka", topic="clicks", event_time="at", schema={"at": "timestamp"}
        )


def test_window_job_with_empty_key_uses_key_of_groups() -> None:
    job = featurestore.window_job(
        "demand", "trips.fare|sum|7d", every="1d", featuregroup="demand", primary_key=""
    )
    assert job.spec.to_json()["primary_key"] == []


def test_job_hash_is_that_of_its_json() -> None:
    spec = build_spec()
    assert spec == build_spec(on_error="continue")
    document = spec.to_json()
    jsonschema.validate(document, SCHEMA)
    assert JobSpec.from_json(document) == spec
    assert spec.hash == canonical_hash(document)


WRONG_DEFINITIONS: list[dict[str, object]] = [
    {"schedule": "sometimes"},
    {"event_time": None},
    {"inputs": {}},
    {"inputs": {"window": "trips"}},
    {"mode": "replace"},
    {"mode": "upsert", "primary_key": ()},
    {"closed": "both"},
    {"validation": "maybe"},
    {"on_error": "go_on"},
    {"window": "3h"},
    {"window": "an hour"},
    {"timezone": "Nowhere"},
    {"input_times": {"tripz": "left_at"}},
    {"sql": "delete from trips"},
    {"sql": "select * from other_table"},
    {"sql": "select * from read_csv('/etc/passwd')"},
    {"sql": "select * from trips where left_at > $since"},
    {"sql": "selekt"},
    {"featuregroup": "Demand"},
]


def test_job_spec_invalid_definitions_raise(subtests: pytest.Subtests) -> None:
    for wrong in WRONG_DEFINITIONS:
        with subtests.test(**wrong), pytest.raises(FeatureStoreError):
            build_spec(**wrong)


def test_invalid_expectations_are_refused_at_registration(
    city: FeatureStore, define: Define, subtests: pytest.Subtests
) -> None:
    for expectations in (
        "5",
        "'expect_column_to_exist'",
        "['expect_column_to_exist']",
        "{'type': 'expect_column_to_exist', 'kwargs': {'column': 'zone'}}",
        "[{'column': 'zone'}]",
        "[{'type': 'expect_nothing', 'kwargs': {}}]",
        "[{'type': 'expect_column_values_to_not_be_null'}]",
    ):
        with subtests.test(expectations=expectations):
            for text in (sql_job, python_job):
                with pytest.raises(InvalidExpectation, match=r"\{'type': 'expect_|have names like"):
                    city.register_jobs(define(text(rules=f"expectations={expectations}")))
            assert not city.get_jobs()


MAXIMUM = """
select zone, $window_end as hour, max(steps) as top from journeys
where left_at >= $window_start and left_at < $window_end group by zone
"""


def test_queries_are_refused_by_types_as_soon_as_inputs_exist(
    city: FeatureStore, define: Define, subtests: pytest.Subtests
) -> None:
    inputs = '{"journeys": "journeys"}'
    file = define(sql_job("early", sql=MAXIMUM, inputs=inputs))
    city.register_jobs(file)
    trips = city.get_featuregroup("trips").to_arrow()
    journeys = trips.append_column("steps", pa.array([[1, 2]] * len(trips)))
    city.create_featuregroup(journeys, "journeys", primary_key="id", event_time="left_at")
    with pytest.raises(JobFailed, match="differs between engines"):
        city.run_job("early")
    for query, is_refused in (
        (MAXIMUM, True),
        (MAXIMUM.replace("(steps)", "(length(steps))"), False),
        # A later version of the group may have the column.
        (MAXIMUM.replace("steps", "distance"), False),
    ):
        with subtests.test(query=query):
            file = define(sql_job("late", sql=query, inputs=inputs), name="late.py")
            if is_refused:
                with pytest.raises(InvalidSql, match=r"Job 'late'.* differs between engines"):
                    city.register_jobs(file)
                with pytest.raises(DefinitionsRefused, match="differs between engines"):
                    city.plan(file.parent, project="city")
            assert len(city.get_jobs()) == 1
            if not is_refused:
                city.register_jobs(file)
                city.remove_job("late")


def test_window_wider_than_schedule_interval_allowed_for_append() -> None:
    assert build_spec(window="3h", mode="append").schedule.width is not None


def test_job_function_parameters_must_match_window_and_inputs(define: Define) -> None:
    with pytest.raises(InvalidJob, match="def demand"):
        load_jobs(define(python_job().replace("demand(window, trips)", "demand(window, journeys)")))


def test_load_jobs_from_modules_files_and_folders(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    import types

    file = define(sql_job("one"))
    define(sql_job("two"), name="more.py")
    define("raise RuntimeError", name="_helpers.py")
    assert [job.spec.name for job in city.register_jobs(file)] == ["one"]
    assert [job.spec.name for job in city.register_jobs(file.parent)] == ["one", "two"]
    module = types.ModuleType("jobs_of_a_test")
    module.demand = featurestore.sql_job(  # type: ignore[attr-defined]
        "demand",
        sql=SQL,
        primary_key=["zone"],
        event_time="hour",
        schedule="0 * * * *",
        inputs={"trips": "trips"},
    )
    assert list(load_jobs(module)) == ["demand"]
    for wrong in ("no.such.module", str(tmp_path / "none.py")):
        with pytest.raises(InvalidJob):
            load_jobs(wrong)
    define("x = 1", name="empty.py")
    with pytest.raises(InvalidJob, match="defines no jobs"):
        load_jobs(file.parent / "empty.py")
    define(sql_job("one", rules="retries=9"), name="twice.py")
    with pytest.raises(InvalidJob, match="defined twice"):
        load_jobs(file.parent)


def test_job_without_module_variable_is_registered_and_runs(
    city: FeatureStore, define: Define
) -> None:
    unnamed = sql_job().replace("demand = featurestore.sql_job", "featurestore.sql_job")
    assert unnamed != sql_job()
    for file in (define(unnamed), define(unnamed, sql_job("other"), name="two.py")):
        assert "demand" in [job.spec.name for job in city.register_jobs(file)]
        [run] = city.run_job("demand", window="2024-01-01T00:00Z")
        assert (run.state, run.rows) == ("done", city.get_featuregroup("demand").count())


def test_register_jobs_changed_definition_creates_version(
    city: FeatureStore, define: Define
) -> None:
    file = define(sql_job())
    assert [job.version for job in city.register_jobs(file) + city.register_jobs(file)] == [1, 1]
    define(sql_job(rules="retries=5"))
    assert city.register_jobs(file)[0].version == 2
    assert [status.name for status in city.get_jobs()] == ["demand"]


def test_sql_job_invalid_sql_raises_sql_errors() -> None:
    with pytest.raises(InvalidSql, match="unknown table"):
        build_spec(sql="select * from nowhere")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=4,
)


@given(field=st.sampled_from(sorted(build_spec().to_json())), value=JSON)
def test_job_spec_random_stored_json_parses_or_raises(field: str, value: object) -> None:
    data = {**build_spec(lookback="2h", start="2024-01-01T00:00Z").to_json(), field: value}
    try:
        spec = JobSpec.from_text(json.dumps(data))
    except FeatureStoreError:
        return
    assert isinstance(spec.hash, str)


@given(JSON | st.text())
def test_job_spec_from_text_without_definition_raises(value: object) -> None:
    for text in (json.dumps(value), str(value)):
        with pytest.raises(InvalidJob):
            JobSpec.from_text(text)


def test_damaged_job_definition_hides_no_other_job(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job("one"), sql_job("two")))
    with city.session.registry.transaction() as connection:
        damaged = job_definitions.c.name == "one"
        connection.execute(job_definitions.update().where(damaged).values(spec='{"name": 7}'))
    with pytest.warns(UserWarning, match="'one' is skipped"):
        assert [status.name for status in city.get_jobs()] == ["two"]
    with pytest.raises(RegistryError, match="'one' cannot be read"):
        city.run_job("one")
