"""store.sql: groups as pinned tables, used as data and as labels."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import FeatureGroupNotFound, FeatureStoreError, InvalidSql
from featurestore.store import FeatureStore
from featurestore.usersql.queries import REPEATABLE, SUMS, VARYING

START = datetime(2013, 1, 1, tzinfo=UTC)
ONE_ROW_EACH = (
    "select p.tail, w.origin, max(w.t) as asked, count(*) > 2 as late "
    "from planes p join weather w on w.origin = p.origin group by p.tail, w.origin"
)


def fill(store: FeatureStore) -> FeatureStore:
    """Create a group with times, and two versions of a group without times."""
    hours = range(6)
    weather = {
        "origin": ["JFK", "LGA"] * 3,
        "t": [START + timedelta(hours=hour) for hour in hours],
        "temp": [30.0 + hour for hour in hours],
    }
    planes = {"tail": ["N1", "N2"], "origin": ["JFK", "LGA"], "seats": [100, 200]}
    store.create_featuregroup(
        pa.table(weather),
        "weather",
        primary_key="origin",
        event_time="t",
        validation="off",
        statistics=False,
    )
    store.create_featuregroup(
        pa.table(planes), "planes", primary_key="tail", validation="off", statistics=False
    )
    narrower = {**planes, "seats": [90, 190]}
    store.create_featuregroup(
        pa.table(narrower), "planes", primary_key="tail", validation="off", statistics=False
    )
    return store


@pytest.fixture
def flights(empty_store: FeatureStore) -> FeatureStore:
    return fill(empty_store)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """A store that tests only read or add datasets to."""
    return fill(featurestore.connect(tmp_path_factory.mktemp("shared"), engine="duckdb"))


def rows(frame: Any) -> list[dict[str, Any]]:
    result: list[dict[str, Any]] = frame.to_arrow().to_pylist()
    return result


def test_sql_tables_are_groups_and_versions(store: FeatureStore) -> None:
    """The plain name is the latest version; others are quoted."""
    fill(store)
    text = (
        'select a.tail, a.seats as seats, b.seats as before from planes a join "planes@v1" b '
        "on a.tail = b.tail order by a.tail desc"
    )
    assert rows(store.sql(text)) == [
        {"tail": "N2", "seats": 190, "before": 200},
        {"tail": "N1", "seats": 90, "before": 100},
    ]
    labels = store.sql(ONE_ROW_EACH)
    frame = store.get_features(["weather.temp"], labels=labels, dataframe_type="python")
    assert sorted((row["tail"], row["late"], row["temp"]) for row in frame) == [
        ("N1", True, 34.0),
        ("N2", True, 35.0),
    ]
    sums = store.sql("select origin, sum(seats) as seats from planes group by origin")
    assert sums.schema.field("seats").type == pa.int64()
    with pytest.raises(InvalidSql):
        store.sql("select read_text('x') as t from planes")


def test_sql_is_lazy_and_reads_pinned_versions(flights: FeatureStore) -> None:
    frame = flights.sql("select count(*) as n, sum(seats) as seats from planes")
    row = [{"tail": "N3", "origin": "EWR", "seats": 300}]
    flights.insert_into_featuregroup(row, "planes")
    assert rows(frame) == [{"n": 2, "seats": 280}]
    assert rows(flights.sql("select count(*) as n from PLANES")) == [{"n": 3}]
    assert rows(flights.sql("select count(*) as n from planes", as_of={"planes": 1})) == [{"n": 2}]
    assert flights.sql("select tail from planes", dataframe_type="pandas").shape == (3, 1)
    pinned = [
        (source.spec.name, source.spec.version) for source in flights.sql(ONE_ROW_EACH).plan.sources
    ]
    assert pinned == [("planes", 2), ("weather", 1)]


def test_sql_frames_support_frame_operations(
    flights: FeatureStore,
) -> None:
    frame = flights.sql("select tail, origin, seats * 2 as double_seats from planes")
    assert rows(frame.filter("double_seats > 200").select("tail")) == [{"tail": "N2"}]
    assert frame.sample(fraction=1.0).count() == 2
    joined = flights.get_features(["planes@v1.seats"], labels=frame, join="inner")
    assert joined.dropped() == 0
    timed = flights.get_features("weather.temp", labels=flights.sql(ONE_ROW_EACH))
    assert flights.check_leakage(timed).ok
    text = str(timed.plan)
    assert "planes: planes@v2 at Delta version 1" in text
    assert "from planes p join weather w" in text


def test_training_dataset_of_query_is_reproducible(flights: FeatureStore) -> None:
    flights.create_featuregroup(flights.sql(ONE_ROW_EACH), "asked", primary_key="tail")
    frame = flights.get_features("weather.temp", labels=flights.sql(ONE_ROW_EACH))
    dataset = flights.create_training_dataset(frame, "late", label="late", key="tail")
    flights.delete_from_featuregroup("planes", "tail = 'N1'")
    flights.insert_into_featuregroup(
        [{"origin": "LGA", "t": START + timedelta(hours=5), "temp": -1.0}], "weather", mode="upsert"
    )
    assert dataset.manifest.reproducible
    report = dataset.verify(recompute=True)
    assert report.ok, report.problems
    read = {(source["featuregroup"], source["version"]) for source in dataset.manifest.sources}
    assert read == {("planes", 2), ("weather", 1)}
    derived = [edge.name for edge in flights.featuregroup("planes").derived()]
    assert derived == ["asked", "late"]


def test_nondeterministic_query_is_marked_in_manifest(
    shared: FeatureStore, subtests: pytest.Subtests
) -> None:
    for text, reason in (
        ("select tail, seats from planes limit 1", "a limit"),
        ("select origin, first(tail) as tail from planes group by origin", "first depends"),
        ("select origin, avg(temp) as temp from weather group by origin", "last bits of avg"),
        ("select tail, row_number() over (order by seats) as n from planes", "row_number"),
        ("select distinct on (origin) origin, temp from weather", "distinct on"),
        ("select sum(seats / 3) as s, min(tail) as tail from planes", "last bits of sum"),
        ("select tail, seats from planes using sample 1 rows", "a sample"),
    ):
        with subtests.test(reason):
            frame = shared.sql(text)
            dataset = shared.create_training_dataset(frame, "varying", key=frame.columns[0])
            assert not dataset.manifest.reproducible
            assert reason in (dataset.manifest.reproducible_reason or "")


def test_duckdb_aggregates_are_classified_as_repeatable() -> None:
    known_names = REPEATABLE | SUMS | VARYING
    query = (
        "select distinct function_name from duckdb_functions() where function_type = 'aggregate'"
    )
    from featurestore.usersql.functions import duckdb_functions

    allowed = duckdb_functions()
    aggregates = {name for (name,) in duckdb.execute(query).fetchall()} & allowed
    assert aggregates <= known_names
    assert not (REPEATABLE & VARYING) | (SUMS & VARYING)


ATTACKS = [
    "select * from read_text('FILE')",
    "select * from lateral read_text('FILE')",
    "select * from planes, lateral (select * from read_csv('FILE')) x",
    "select * from 'FILE'",
    'select * from "FILE"',
    'with a as (select * from "FILE"), "FILE" as (select 1 as x) select * from a',
    "select * from (with planes as (select 1 as x) from planes) a, hidden",
    "summarize planes",
    "summarize 'FILE'",
    "select * from (describe planes)",
    "attach 'FILE' as other",
    "copy planes to 'FILE'",
    "copy (select 1) to 'FILE'",
    "pragma database_list",
    "set memory_limit = '1GB'",
    "call pragma_version()",
    "export database 'FILE'",
    "create table x as select * from planes",
    "drop table planes",
    "select * from planes; select 1 as x",
    "select getenv('HOME') as home",
    "select current_setting('home_directory') as home",
    "select * from duckdb_settings()",
    "select * from information_schema.tables",
    "select * from featuregroups.planes",
    "select now() as n",
    "select random() as r from planes",
    "select $tail as tail",
    "select count(*) from planes",
    "select a.*, b.* from planes a join planes b using (tail)",
    "select nothing from planes",
    "from planes select",
    "",
]


def test_sql_other_than_select_is_refused(
    shared: FeatureStore, tmp_path: Path, subtests: pytest.Subtests
) -> None:
    secret = tmp_path / "secret.csv"
    for text in ATTACKS:
        with subtests.test(text=text):
            secret.write_text("word\nsecret\n")
            before = sorted(path.name for path in tmp_path.iterdir())
            with pytest.raises(FeatureStoreError) as refused:
                shared.sql(text.replace("FILE", str(secret)))
            assert isinstance(refused.value, InvalidSql | FeatureGroupNotFound)
            assert "secret\n" not in str(refused.value)
            assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_unknown_group_in_sql_suggests_nearest(flights: FeatureStore) -> None:
    with pytest.raises(FeatureGroupNotFound, match="did you mean 'weather'"):
        flights.sql("select * from wether")
    with pytest.raises(FeatureGroupNotFound, match="has no version 9"):
        flights.sql('select * from "planes@v9"')


def test_module_sql_uses_current_store(flights: FeatureStore) -> None:
    assert featurestore.sql("select count(*) as n from planes").count() == 1
