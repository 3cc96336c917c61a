"""Job runs: exact windows, one effective commit, pinned inputs and stored errors."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

import deltalake
import pyarrow as pa
import pytest
from pyarrow import parquet

import featurestore
from featurestore.errors import InvalidArgument, InvalidJob, JobFailed, JobNotFound
from featurestore.featuregroups import definition
from featurestore.jobs import execution
from featurestore.jobs.recovery import revoke_transaction
from featurestore.jobs.run import JobRun
from featurestore.jobs.scheduler import Options
from featurestore.jobs.target import build_windows_metadata, parse_row_range, parse_windows
from featurestore.model.failure_action import parse_on_failure
from featurestore.model.group_options import GroupOptions
from featurestore.model.job import Alerts, JobSpec, Schedule, SqlWork
from featurestore.model.times import Window
from featurestore.registry import lineage, runs
from featurestore.store import FeatureStore
from tests.jobs.conftest import HOURS, START, Clock, expected, python_job, rows, sql_job, trips

pytestmark = pytest.mark.slow

Define = Callable[..., Path]
HOUR = timedelta(hours=1)


@pytest.mark.parametrize("source", [python_job(), sql_job()], ids=["python", "sql"])
def test_due_windows_are_computed_once(city: FeatureStore, define: Define, source: str) -> None:
    city.register_jobs(define(source))
    actual = city.run_job("demand", due=True)
    assert {run.state for run in actual} == {"done"}
    assert rows(city) == expected()
    assert city.run_job("demand", due=True) == []
    assert city.get_jobs()[0].job.watermark == START + HOURS * HOUR
    assert sum(run.windows for run in city.get_runs("demand")) == HOURS


TAGS = """
import featurestore, pyarrow as pa
@featurestore.job(
    featuregroup="tags", name="tags", primary_key=["zone"], event_time="hour",
    schedule="0 * * * *", start="2024-01-01T00:00Z", inputs={"trips": "trips"},
)
def tags(window, trips):
    row = {"zone": "a", "hour": window.end, "tags": [], "note": None, "parts": {"n": None}}
    if window.start.hour % 4 == 2:
        row = {**row, "tags": ["x"], "note": "y", "parts": {"n": 1}}
    return [row]
"""


def test_windows_without_values_take_types_of_other_windows(
    city: FeatureStore, define: Define
) -> None:
    city.register_jobs(define(TAGS))
    windows = [START + number * HOUR for number in range(4)]
    with pytest.raises(JobFailed, match=r"'tags' \(list<item: null>\)[\s\S]*from_pylist"):
        city.run_job("tags", window=windows[0])
    city.backfill_job("tags", windows[0], windows[-1] + HOUR)
    table = city.get_featuregroup("tags").to_arrow().sort_by("hour")
    assert table["tags"].to_pylist() == [[], [], ["x"], []]
    assert table["parts"].to_pylist() == [{"n": None}, {"n": None}, {"n": 1}, {"n": None}]
    city.run_job("tags", window=windows[1])  # alone
    assert city.get_featuregroup("tags").to_arrow().sort_by("hour") == table


@pytest.mark.parametrize("mode", ["replace_window", "append", "upsert"])
def test_run_without_its_transaction_is_repeated(
    city: FeatureStore,
    clock: Clock,
    define: Define,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
) -> None:
    """Another host takes over an earlier run of the same windows, and is suspended meanwhile."""
    city.register_jobs(define(sql_job(rules=f"mode={mode!r}")))
    city.run_job("demand", window=START)
    revoked_windows = list[Window]()

    def check_lease(run: JobRun) -> None:
        if not revoked_windows:
            revoked_windows.append(run.window)
            with run.session.registry.reading() as connection:
                record = runs.get(connection, run.run_id)
            other_run = replace(record, run_id="job-1", owner="host.1.aaaaaaaa.00000001/1")
            assert revoke_transaction(run.session, run.spec, other_run)

    monkeypatch.setattr(execution, "check_lease", check_lease)
    with suppress(
        JobFailed
    ):  # an append is retried later, other chunks are computed again in halves
        city.run_job("demand", due=True)
    (failed_run,) = [run for run in city.get_runs("demand") if run.state == "failed"]
    assert failed_run.window == revoked_windows[0]
    assert "revoked its transaction" in str(failed_run.error)
    clock.now += timedelta(minutes=30)
    city.run_job("demand", due=True)
    assert rows(city) == expected()
    done = [run for run in city.get_runs("demand") if run.state == "done"]
    assert sum(run.windows for run in done) == HOURS


def test_rerun_window_gives_same_rows(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(python_job()))
    city.run_job("demand", due=True)
    for window in (START + 3 * HOUR, START + 4 * HOUR, None):
        city.run_job("demand", window=window)
        assert rows(city) == expected()


def test_run_records_inputs_and_outcome(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(python_job()))
    (run,) = city.run_job("demand", window=START)
    assert (run.rows, run.delta_version, run.windows, run.state) == (2, 1, 1, "done")
    identity = deltalake.DeltaTable(city.featuregroup("trips").path).metadata().id
    assert run.inputs["inputs"] == [
        {
            "input": "trips",
            "source": "trips",
            "version": 1,
            "delta_version": 1,
            "identity": identity,
        }
    ]
    assert run.memory is not None
    assert run.memory > 2**20
    assert run.seconds is not None
    assert run.log is not None
    assert "done: 2 rows" in Path(run.log).read_text()
    commit = city.featuregroup("demand").history()[0]
    assert commit.run_id == run.run_id
    assert commit.inputs["0"]["source"] == "trips"
    with city.session.registry.reading() as connection:
        (edge,) = lineage.results(connection, "trips")
    assert (edge.name, edge.delta_version, edge.job, edge.run_id) == (
        "demand",
        1,
        "demand",
        run.run_id,
    )
    assert (edge.source_version, edge.source_delta_version) == (1, 1)


def test_run_inputs_are_cut_to_window_and_lookback(city: FeatureStore, define: Define) -> None:
    body = "assert trips.aggregate('count(*)').fetchall() == [(6,)], 'cut'"
    city.register_jobs(define(python_job(rules='lookback="1h", closed="right"', body=body)))
    with pytest.raises(
        JobFailed, match="outside the window"
    ):  # the previous hour is visible but must not be written
        city.run_job("demand", window=START + HOUR)


def test_rows_outside_window_fail_run_without_writing(city: FeatureStore, define: Define) -> None:
    early = sql_job(
        sql="select zone, min(left_at) as hour, count(*) as trips from trips group by 1", rules=""
    )
    city.register_jobs(define(early.replace("min(left_at)", "min(left_at) - interval 1 hour")))
    with pytest.raises(JobFailed, match="outside the window"):
        city.run_job("demand", due=True)
    assert "demand" not in [group.name for group in city.get_featuregroups()]


def test_rows_without_time_column_get_window_end(city: FeatureStore, define: Define) -> None:
    city.register_jobs(
        define(
            sql_job(sql="select zone, count(*) as trips, sum(fare) as fares from trips group by 1")
        )
    )
    city.backfill_job("demand", START, START + 10 * HOUR)
    names = ("zone", "hour", "trips", "fares")
    assert [{name: row[name] for name in names} for row in rows(city)] == expected(10)


@pytest.mark.parametrize(
    "query",
    [
        "select zone, max(left_at) as hour, count(*) as trips from trips group by zone",
        "select zone, date_trunc('day', left_at) + interval 1 day as hour, count(*) as trips "
        "from trips group by 1, 2",
        "select zone, left_at as hour, row_number() over (order by left_at) as trips from trips",
        "select zone, left_at as hour, 1 as trips from trips order by left_at limit 1",
        "select a.zone, a.left_at as hour, count(*) as trips "
        "from trips a join trips b using (zone) group by 1, 2",
        "select zone, $window_end as hour, count(*) as trips from trips group by 1, 2",
        "select a.zone, date_trunc('hour', a.left_at) + interval 1 hour as hour, count(*) as trips "
        "from trips a join trips b using (zone) group by 1, 2",
    ],
)
def test_batched_query_windows_equal_single_windows(
    city: FeatureStore, define: Define, query: str, tmp_path: Path
) -> None:
    city.register_jobs(
        define(sql_job(sql=query), sql_job("single", sql=query, rules='mode="append"'))
    )
    errors = []
    for name in ("demand", "single"):
        try:
            city.backfill_job(name, START, START + 6 * HOUR)
        except JobFailed:
            errors.append(name)
    if errors:
        assert errors == ["demand", "single"]
    else:
        assert rows(city) == rows(city, "single")


def test_local_days_across_dst_have_23_and_25_hours(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    for month, day, name, hours in ((3, 31, "spring", 23), (10, 27, "autumn", 25)):
        zone = ZoneInfo("Europe/Stockholm")
        sunday = datetime(2024, month, day, tzinfo=zone).astimezone(UTC)
        minutes = [sunday - timedelta(days=1) + timedelta(minutes=30 * n) for n in range(3 * 48)]
        city.create_featuregroup(
            pa.table({"at": pa.array(minutes, pa.timestamp("us", tz="UTC"))}), name, event_time="at"
        )
        source = sql_job(
            f"days_{name}", sql="select count(*) as n from t", inputs=f'{{"t": "{name}"}}'
        )
        source = source.replace("0 * * * *", "0 0 * * *").replace('primary_key=["zone"], ', "")
        source = source.replace("2024-01-01T00:00Z", (sunday - timedelta(days=1)).isoformat())
        clock.now = sunday + timedelta(days=2)
        city.register_jobs(
            define(source.replace(", \n)", ', timezone="Europe/Stockholm")'), name=f"{name}.py")
        )
        city.run_job(f"days_{name}", due=True)
        actual_rows = city.get_featuregroup(f"days_{name}").to_arrow().sort_by("hour").to_pylist()
        assert [row["n"] for row in actual_rows[:2]] == [48, 2 * hours]
        assert actual_rows[1]["hour"] == sunday + timedelta(hours=hours)


def test_job_functions_return_any_dataframe_type(city: FeatureStore, define: Define) -> None:
    source = """
import featurestore, pyarrow as pa
@featurestore.job(featuregroup="sizes", primary_key=["kind"], event_time="at", schedule="0 * * * *",
                  start="2024-01-01T00:00Z", inputs={"trips": "trips"})
def sizes(window, trips):
    hour = (window.start.hour) % 4
    count = trips.count("*").fetchall()[0][0]
    if hour == 0:
        return [{"kind": "x", "n": float(count)}]
    if hour == 1:
        return pa.table({"kind": ["x"], "n": [count + 0.5]})
    if hour == 2:
        return []
    import pandas as pd
    return pd.DataFrame({"kind": ["x"], "n": [None]})
"""
    city.register_jobs(define(source))
    city.run_job("sizes", due=True)
    actual_rows = (
        city.get_featuregroup("sizes").to_arrow().sort_by("at").slice(0, 5)["n"].to_pylist()
    )
    assert actual_rows == [3.0, 3.5, None, 0.0, 3.5]


def test_late_data_makes_windows_stale_but_compaction_does_not(
    city: FeatureStore, define: Define
) -> None:
    city.register_jobs(define(sql_job()))
    city.run_job("demand", due=True)
    assert city.run_job("demand", stale=True) == []
    late = (
        trips(1, start=START + 7 * HOUR)
        .slice(0, 1)
        .set_column(0, "id", pa.array([9_999], pa.int64()))
    )
    city.insert_into_featuregroup(late, "trips")
    (run,) = city.run_job("demand", stale=True)
    assert run.window.start == START + 7 * HOUR
    assert run.windows == 1
    assert [row["trips"] for row in rows(city) if row["hour"] == START + 8 * HOUR] == [3, 1]
    city.compact_featuregroup("trips")
    assert city.run_job("demand", stale=True) == []


def test_recomputed_window_makes_downstream_windows_stale(
    city: FeatureStore, define: Define
) -> None:
    above = sql_job(
        "busy", sql="select zone, hour + interval 1 hour as hour, trips > 1 as busy from demand",
        inputs='{"demand": "demand"}',
    )  # fmt: skip
    city.register_jobs(define(sql_job(), above))
    city.run_job("demand", due=True)
    city.run_job("busy", due=True)
    city.run_job("demand", window=START + 20 * HOUR)
    actual = city.run_job("busy", stale=True)
    assert 1 <= sum(run.windows for run in actual) <= 2


def test_parquet_folder_as_job_input(city: FeatureStore, define: Define, tmp_path: Path) -> None:
    folder = tmp_path / "raw"
    (folder / "deeper").mkdir(parents=True)
    parquet.write_table(trips(), folder / "a.parquet")
    os.utime(folder / "a.parquet", (START.timestamp(), START.timestamp()))
    source = sql_job(inputs=f'{{"trips": "{folder}"}}', rules='input_times={"trips": "left_at"}')
    city.register_jobs(define(source))
    city.run_job("demand", due=True)
    assert rows(city) == expected()
    assert city.run_job("demand", stale=True) == []
    parquet.write_table(trips(1, start=START + 47 * HOUR), folder / "deeper" / "b.parquet")
    (run,) = city.run_job("demand", stale=True)
    assert (run.window.start, run.windows) == (START + 47 * HOUR, 1)
    assert [row["trips"] for row in rows(city) if row["hour"] == START + 48 * HOUR] == [4, 2]
    (folder / "a.parquet").unlink()  # its content is lost
    assert sum(run.windows for run in city.run_job("demand", stale=True)) == HOURS


def with_map(rows: pa.Table) -> pa.Table:
    """Return rows with a column that no feature group can store and no job here reads."""
    map_type = pa.map_(pa.string(), pa.int64())
    return rows.append_column("extras", pa.array([[("tip", 1)]] * rows.num_rows, map_type))


def test_foreign_delta_table_as_job_input(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    path = str(tmp_path / "raw")
    deltalake.write_deltalake(path, with_map(trips()))
    source = sql_job(inputs=f'{{"trips": "{path}"}}', rules='input_times={"trips": "left_at"}')
    city.register_jobs(define(source))
    city.run_job("demand", due=True)
    assert rows(city) == expected()
    assert city.get_runs("demand")[0].inputs["inputs"][0]["delta_version"] == 0
    assert city.plan_job("demand", window=(START, START + 24 * HOUR)).rows == pytest.approx(
        57, abs=3
    )
    later = with_map(trips(1, start=START + 7 * HOUR))
    deltalake.write_deltalake(path, later, mode="append")
    (run,) = city.run_job("demand", stale=True)
    assert (run.window.start, run.windows) == (START + 7 * HOUR, 1)
    assert [row["trips"] for row in rows(city) if row["hour"] == START + 8 * HOUR] == [4, 2]


def test_run_reads_recorded_input_versions_despite_later_writes(
    city: FeatureStore, define: Define
) -> None:
    meanwhile = (
        f"import pyarrow as pa\n    with featurestore.connect({city.location!r}) as other:\n"
        "        if other.featuregroup('trips').delta_version == 1:\n"
        "            other.delete_from_featuregroup('trips', \"zone = 'b'\")"
    )
    city.register_jobs(define(python_job(body=meanwhile)))
    (run,) = city.run_job("demand", window=START)
    assert run.inputs["inputs"][0]["delta_version"] == 1
    assert city.featuregroup("trips").delta_version == 2
    assert rows(city) == expected(1)
    (again,) = city.run_job("demand", stale=True)
    assert again.inputs["inputs"][0]["delta_version"] == 2
    assert rows(city) == [row for row in expected(1) if row["zone"] == "a"]


def test_upsert_and_append_jobs_write_windows_once(city: FeatureStore, define: Define) -> None:
    city.register_jobs(
        define(*(sql_job(mode, rules=f'mode="{mode}"') for mode in ("upsert", "append")))
    )
    for mode in ("upsert", "append"):
        city.backfill_job(mode, START, START + 6 * HOUR)
        assert rows(city, mode) == expected(6)
    city.run_job("upsert", window=START)
    assert rows(city, "upsert") == expected(6)


def test_appended_window_is_not_appended_again(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    clock.now = START + 8 * HOUR
    city.register_jobs(define(sql_job(rules='mode="append"')))
    city.backfill_job("demand", START, START + 4 * HOUR)
    with pytest.raises(InvalidArgument, match=r"appends(.|\n)*replace_window"):
        city.run_job("demand", window=START)
    with pytest.raises(InvalidArgument, match="duplicated"):
        city.backfill_job("demand", START, START + 6 * HOUR, resume=False)
    city.delete_from_featuregroup("trips", "zone = 'b'")
    with pytest.raises(InvalidArgument, match="appends"):
        city.run_job("demand", stale=True)
    city.scheduler(Options(stale=True)).run_due()
    only_a = [row for row in expected(8, first=4) if row["zone"] == "a"]
    assert rows(city) == [*expected(4), *only_a]
    with pytest.raises(InvalidArgument, match="appends"):
        city.run_job("demand")  # the latest complete window, which the scheduler took


def test_append_recorded_as_failed_lands_once(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    clock.now = START + 4 * HOUR
    city.register_jobs(define(sql_job(rules='mode="append"')))
    (run,) = city.run_job("demand", window=START)
    with city.session.registry.transaction() as connection:
        runs.end(connection, run.run_id, runs.FAILED, error="after the commit")
        runs.record_failed_windows(connection, "demand", [run.window], run_id=run.run_id)
    city.run_job("demand", due=True)
    assert rows(city) == expected(4)


def test_failing_window_stays_due_while_others_run(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    switch = tmp_path / "broken"
    switch.touch()
    body = (
        f"import os\n    if window.start.hour == 6 and os.path.exists({str(switch)!r}): "
        "raise ValueError('bad hour')"
    )
    city.register_jobs(define(python_job(body=body)))
    with pytest.raises(JobFailed, match="bad hour"):
        city.run_job("demand", due=True)
    hours = {START + 7 * HOUR, START + 31 * HOUR}
    assert rows(city) == [row for row in expected() if row["hour"] not in hours]
    status = city.get_jobs()[0]
    assert (status.failed, status.due, status.job.watermark) == (2, 2, START + 6 * HOUR)
    failed = [run for run in city.get_runs("demand") if run.state == "failed"]
    assert failed[-1].error == "ValueError: bad hour"
    assert "Traceback" in Path(str(failed[-1].log)).read_text()
    switch.unlink()
    city.run_job("demand", due=True)
    assert rows(city) == expected()
    assert city.get_jobs()[0].job.watermark == START + HOURS * HOUR


def test_later_windows_wait_for_failed_window_if_configured(
    city: FeatureStore, define: Define
) -> None:
    body = "if window.start.hour == 6: raise ValueError('bad hour')"
    city.register_jobs(define(python_job(body=body, rules='on_error="wait"')))
    with pytest.raises(JobFailed):
        city.run_job("demand", due=True)
    assert rows(city) == expected(6)
    assert city.get_jobs()[0].due == HOURS - 6


def test_window_failing_expectations_writes_nothing(city: FeatureStore, define: Define) -> None:
    limits = {"column": "trips", "max_value": 2}
    low = f"expectations={[{'type': 'expect_column_max_to_be_between', 'kwargs': limits}]!r}"
    extra = (
        trips(1, start=START + 7 * HOUR)
        .slice(0, 1)
        .set_column(0, "id", pa.array([9_999], pa.int64()))
    )
    city.insert_into_featuregroup(extra, "trips")
    city.register_jobs(define(sql_job(rules=low)))
    with pytest.raises(JobFailed, match="expect"):
        city.run_job("demand", due=True)
    assert rows(city) == [row for row in expected() if row["hour"] != START + 8 * HOUR]
    assert city.get_jobs()[0].failed == 1


def test_runs_into_an_existing_group_normalize_no_expectations(
    city: FeatureStore, define: Define, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"column": "trips", "max_value": 2}
    rule = {"type": "expect_column_max_to_be_between", "kwargs": limits}
    city.register_jobs(define(sql_job(rules=f"expectations={[rule]!r}, validation='off'")))
    city.run_job("demand", window=START)

    def refuse(*_: object) -> None:
        raise AssertionError("the validator takes seconds to import")

    monkeypatch.setattr(definition, "find_validator", refuse)
    (run,) = city.run_job("demand", window=START + HOUR)
    assert run.state == "done"


def test_missing_input_fails_one_run_and_windows_stay_due(
    city: FeatureStore, define: Define
) -> None:
    city.register_jobs(define(sql_job(inputs='{"trips": "no_such_group"}')))
    with pytest.raises(JobFailed, match="no_such_group"):
        city.run_job("demand", due=True)
    assert len(city.get_runs("demand")) == 1
    assert city.get_jobs()[0].due == HOURS


def test_on_failure_command_runs_after_last_retry(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    actual = tmp_path / "told"
    command = ["sh", "-c", f"echo $FEATURESTORE_JOB $FEATURESTORE_ERROR >> {actual}"]
    rules = f"retries=1, on_failure={command!r}"
    city.register_jobs(define(python_job(rules=rules, body="raise ValueError('no')")))
    for _ in range(3):
        with pytest.raises(JobFailed):
            city.run_job("demand", window=START)
    assert actual.read_text() == "demand ValueError: no\n"


def test_on_failure_arguments_reach_no_shell(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    mark, words = tmp_path / "executed", tmp_path / "words"
    program = tmp_path / "notify"
    program.write_text(f'#!/bin/sh\nprintf "%s|" "$@" > {words}\n')
    program.chmod(0o755)
    command = [str(program), f"; touch {mark}", f"$(touch {mark})"]
    rules = f"retries=0, on_failure={command!r}"
    city.register_jobs(define(python_job(rules=rules, body="raise ValueError('no')")))
    with pytest.raises(JobFailed):
        city.run_job("demand", window=START)
    assert words.read_text() == f"; touch {mark}|$(touch {mark})|"
    assert not mark.exists()


def test_on_failure_function_gets_failed_run(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    actual = tmp_path / "told"
    text = "f'{run.job} {run.error}'"
    notify = f"import pathlib\ndef notify(run): pathlib.Path({str(actual)!r}).write_text({text})"
    rules = "retries=0, on_failure=notify"
    city.register_jobs(define(notify, python_job(rules=rules, body="raise ValueError('no')")))
    with pytest.raises(JobFailed):
        city.run_job("demand", window=START)
    assert actual.read_text() == "demand ValueError: no"


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        ("notify --team rides", "on_failure=['notify', '--team', 'rides']"),
        ("curl $HOOK | sh", "on_failure=['sh', '-c', 'curl $HOOK | sh']"),
        ("", "on_failure=['sh', '-c', '']"),
        ([], "on_failure=['/usr/local/bin/notify', '--team', 'rides']"),
        (["notify", 5], "on_failure=['/usr/local/bin/notify', '--team', 'rides']"),
        (lambda run: None, "def notify(run): ... in the file of the job, then on_failure=notify"),
    ],
)
def test_on_failure_is_arguments_or_function(value: object, hint: str) -> None:
    with pytest.raises(InvalidJob, match="on_failure=") as refused:
        parse_on_failure(value, job="demand")
    assert refused.value.hint == hint


def test_paused_job_runs_only_named_windows(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job()))
    city.pause_job("demand")
    assert city.run_job("demand", due=True) == []
    assert len(city.run_job("demand", window=START)) == 1
    city.unpause_job("demand")
    assert sum(run.windows for run in city.run_job("demand", due=True)) == HOURS - 1


def test_catchup_limit_takes_oldest_windows_first(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job(rules="catchup=10")))
    city.run_job("demand", due=True)
    assert rows(city) == expected(10)


def test_job_without_start_begins_at_current_window(
    city: FeatureStore, define: Define, clock: Clock
) -> None:
    city.register_jobs(define(sql_job().replace('start="2024-01-01T00:00Z", ', "")))
    assert city.run_job("demand", due=True) == []
    clock.now += HOUR
    (run,) = city.run_job("demand", due=True)
    assert run.window.start == START + HOURS * HOUR


def test_changed_code_requires_registration_and_keeps_watermark(
    city: FeatureStore, define: Define
) -> None:
    file = define(python_job())
    city.register_jobs(file)
    city.backfill_job("demand", START, START + 5 * HOUR)
    define(python_job(body="trips = trips.filter('true')"))
    with pytest.raises(InvalidJob, match="register"):
        city.run_job("demand", due=True)
    (job,) = city.register_jobs(file)
    assert (job.version, job.watermark) == (2, START + 5 * HOUR)
    city.run_job("demand", due=True)
    assert rows(city) == expected()


def test_changed_key_creates_version_filled_by_backfill(city: FeatureStore, define: Define) -> None:
    file = define(sql_job())
    city.register_jobs(file)
    city.run_job("demand", due=True)
    define(sql_job().replace('primary_key=["zone"]', 'primary_key=["zone", "trips"]'))
    city.register_jobs(file)
    city.backfill_job("demand", START, START + HOURS * HOUR)
    assert city.get_latest_featuregroup_version("demand") == 2
    assert rows(city) == expected()


def test_lost_registry_restores_runs_and_watermark_from_table(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    from featurestore.jobs.recovery import restore_runs
    from featurestore.recovery.rebuild import rebuild

    file = define(sql_job())
    city.register_jobs(file)
    city.backfill_job("demand", START, START + 30 * HOUR)
    before = city.get_runs("demand")
    city.close()
    for name in ("registry.db", "registry.db-wal", "registry.db-shm"):
        (tmp_path / "store" / name).unlink(missing_ok=True)
    rebuild(str(tmp_path / "store"), restore=restore_runs)
    store = featurestore.connect(tmp_path / "store")
    store.register_jobs(file)
    assert [run.run_id for run in store.get_runs("demand")] == [run.run_id for run in before]
    assert store.get_jobs()[0].job.watermark == START + 30 * HOUR
    store.run_job("demand", due=True)
    assert rows(store) == expected()


def test_plan_job_counts_windows_and_volume(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job()))
    plan = city.plan_job("demand", window=(START, START + 24 * HOUR))
    assert len(plan.windows) == 24
    assert plan.seconds is None
    assert plan.rows == pytest.approx(len(trips()) / 2, rel=0.1)
    size = sum(
        file.stat().st_size for file in Path(city.featuregroup("trips").path).glob("*.parquet")
    )
    assert plan.bytes == pytest.approx(size / 2, rel=0.1)
    city.run_job("demand", due=True)
    assert city.plan_job("demand").windows == ()
    assert city.plan_job("demand", window=(START, START + HOUR)).seconds is not None


def test_plan_job_counts_volume_of_file_folders(
    city: FeatureStore, define: Define, tmp_path: Path
) -> None:
    folder = tmp_path / "raw"
    folder.mkdir()
    for day in range(2):
        parquet.write_table(trips(24, start=START + day * 24 * HOUR), folder / f"{day}.parquet")
    inputs = f'{{"trips": "{folder}"}}'
    timed = sql_job(inputs=inputs, rules='input_times={"trips": "left_at"}')
    city.register_jobs(define(timed, sql_job("uncut", inputs=inputs)))
    sizes = [file.stat().st_size for file in sorted(folder.iterdir())]
    plan = city.plan_job("demand", window=(START, START + 24 * HOUR))
    assert (plan.rows, plan.bytes) == (len(trips(24)), sizes[0])
    half = city.plan_job("demand", window=(START, START + 12 * HOUR))
    assert half.rows == pytest.approx(len(trips(24)) / 2, rel=0.1)
    full_plan = city.plan_job("uncut", window=(START, START + HOUR))
    assert (full_plan.rows, full_plan.bytes) == (2 * len(trips(24)), sum(sizes))
    assert f"{full_plan.rows:,} rows, {full_plan.bytes:,} bytes" in str(full_plan)


def test_invalid_run_and_backfill_arguments_raise(city: FeatureStore, define: Define) -> None:
    city.register_jobs(define(sql_job()))
    with pytest.raises(JobNotFound, match="'demand'"):
        city.run_job("demnad")
    with pytest.raises(InvalidArgument, match="exclude"):
        city.run_job("demand", due=True, stale=True)
    with pytest.raises(InvalidArgument):
        city.backfill_job("demand", START + HOUR, START)
    with pytest.raises(InvalidJob, match="begins at"):
        city.run_job("demand", window=START + timedelta(minutes=5))


@pytest.mark.parametrize(
    "window",
    [
        None,
        "2024",
        {},
        {"job": "demand", "start": "2024-01-01T00:00:00+00:00", "end": 7, "count": 1},
        {"job": "demand", "start": "x", "end": "y", "count": 1},
        {"job": "demand", "start": "2024-01-01", "end": "2024-01-02", "count": 1},
        {"job": ["demand"], "start": "", "end": "", "count": 1},
        {"start": "2024-01-02T00:00:00+00:00", "end": "2024-01-01T00:00:00+00:00", "count": 1},
    ],
)
def test_parse_windows_malformed_metadata_returns_none(window: object) -> None:
    assert parse_windows({"window": window}) is None
    assert parse_row_range({"window": window}) is None


def test_parse_windows_reads_windows_metadata() -> None:
    work = SqlWork(
        target="demand",
        options=GroupOptions(event_time="at"),
        inputs={},
        code="",
        mode="upsert",
        lookback=HOUR,
    )
    spec = JobSpec("demand", Schedule("0 * * * *"), Alerts(), work)
    captured = replace(work, sources={"trips": featurestore.source("city", time="at")})
    window = Window(START, START + HOUR)
    for each, first in ((work, START), (captured, START - HOUR)):
        note = {"window": build_windows_metadata(spec, each, window, 1)}
        assert parse_windows(note) == ("demand", window, 1)
        assert parse_row_range(note) == Window(first, window.end)
    for damaged in ("", 3, (START + HOUR).isoformat()):
        assert parse_row_range({"window": {**note["window"], "rows_from": damaged}}) is None
