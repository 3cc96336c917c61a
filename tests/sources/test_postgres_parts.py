"""Partitions of a Postgres table contain every row once and are read in parallel by Spark."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

import featurestore
from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    InvalidArgument,
    UnsupportedType,
)
from featurestore.plugins.engine import TimeRange
from featurestore.plugins.source import SourceConfig, SourceQuery
from featurestore.store import FeatureStore
from featurestore_connectors.sources import postgres_partitions
from featurestore_connectors.sources.postgres import PostgresSnapshot, PostgresSource
from featurestore_connectors.sources.postgres_partitions import partition_rows
from tests.registry.conftest import postgres_server, postgres_url  # noqa: F401  # fixtures
from tests.streams import kafka_server

psycopg = pytest.importorskip("psycopg", reason="Postgres suite skipped: no psycopg")
pytestmark = pytest.mark.postgres
needs_driver = [
    pytest.mark.spark,
    pytest.mark.skipif(
        not kafka_server.spark_jars(kafka_server.JDBC_DRIVER),
        reason="JDBC suite skipped: python -m tests.fetch fetches the driver",
    ),
]
MAKE = """
    create table readings as select
        n as id, (n % 7)::int2 as small, n::int4 as whole, (n / 8.0)::float8 as level,
        (n * 0.1)::float4 as short, (n / 100.0)::numeric(12, 2) as price, n % 2 = 0 as flag,
        timestamptz '1500-01-01 00:00:00.000001+00' + n * interval '40 days' as at,
        timestamp '2024-01-01' + n * interval '1 microsecond' as local,
        date '1500-01-01' + n * 40 as day, 'o''neill "' || n || '" \u00fc' as name,
        n::text::char(6) as padded, decode(lpad(to_hex(n), 8, '0'), 'hex') as bytes,
        md5(n::text)::uuid as code, json_build_object('n', n) as told,
        array[n, null, 2] as numbers, array['a,"b', null, n::text] as words,
        array[n / 3.0, 'NaN', null]::float8[] as levels,
        case when n % 5 > 0 then n * 1000 end::bigint as gaps, null::timestamptz as nothing
    from generate_series(1, 3000) as n;
    insert into readings (id, level) values (9001, 'NaN'), (9002, 'Infinity'), (9003, null);
    create view seen as select * from readings
"""

JOB = """
import featurestore
daily = featurestore.sql_job(
    "daily", sql="select id, level, local from given", primary_key="id", event_time="local",
    schedule="0 0 * * *", start="2024-01-01T00:00Z",
    inputs={"given": featurestore.source("plant", table="readings", time="local")},
)
"""


@pytest.fixture
def filled(postgres_url: str) -> str:  # noqa: F811
    with psycopg.connect(postgres_url, autocommit=True) as database:
        database.execute(MAKE)
    return postgres_url


@contextmanager
def snapshot_of(url: str, **options: str) -> Iterator[PostgresSnapshot]:
    snapshot = PostgresSource(SourceConfig("plant", url, options)).snapshot()
    try:
        yield snapshot
    finally:
        snapshot.close()


@pytest.mark.parametrize(
    ("column", "table"),
    [
        (None, "readings"),
        ("id", "readings"),
        ("small", "seen"),
        ("level", "readings"),
        ("price", "readings"),
        ("at", "readings"),
        ("local", "readings"),
        ("day", "readings"),
        ("gaps", "readings"),
        ("nothing", "readings"),
        ("elsewhere", "seen"),
    ],
)
def test_partitions_contain_every_row_once(filled: str, column: str | None, table: str) -> None:
    query = SourceQuery(table=table)
    with snapshot_of(filled) as snapshot:
        actual = partition_rows(
            query,
            snapshot._columns(query),
            partition_count=6,
            column=column,
            source=table,
            rows=lambda text: snapshot._run_query(snapshot._open[0], text),
        )
        is_cut = column not in ("nothing", "elsewhere")
        assert len(actual.conditions) == (6 if is_cut else 1)
        source = f"(select {actual.key or 'null'} as part from {table}) as rows"
        counts = []
        for condition in actual.conditions:
            message = f"select count(*) from {source} where {condition}"
            counts += snapshot._run_query(snapshot._open[0], message)[0]
    assert sum(counts) == 3003
    assert column not in (None, "at", "local", "day") or max(counts) < 1500


def test_partition_scan_reads_only_its_pages(filled: str) -> None:
    query = SourceQuery(table="readings")
    with snapshot_of(filled) as snapshot:
        actual = partition_rows(
            query,
            [],
            partition_count=4,
            column=None,
            source="readings",
            rows=lambda text: snapshot._run_query(snapshot._open[0], text),
        )
    source = "(select id as c0, ctid as part from readings) as rows"
    with psycopg.connect(filled) as database:
        message = f"explain select c0 from {source} where {actual.conditions[1]}"
        plan = database.execute(message).fetchall()
    assert "Tid Range Scan" in str(plan)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"partition": "4"}, "partitions"),
        ({"partitions": "0"}, "from 1 to"),
        ({"partitions": "all"}, "from 1 to"),
        ({"partition_column": "id"}, "the number of partitions"),
    ],
)
def test_invalid_partition_options_are_refused(
    empty_store: FeatureStore, options: dict[str, str], words: str
) -> None:
    with pytest.raises(InvalidArgument, match=words):
        empty_store.add_source("plant", "postgresql://reader@plant-db/plant", options=options)


class TestOnSpark:
    pytestmark = needs_driver

    @pytest.fixture
    def spark_store(self, spark: object, tmp_path: Path) -> FeatureStore:
        return featurestore.connect(tmp_path / "store", engine="spark")

    @pytest.mark.parametrize("column", [None, pytest.param("id", marks=pytest.mark.soak), "at"])
    def test_partitioned_read_equals_stream_of_snapshot(
        self, filled: str, spark_store: FeatureStore, tmp_path: Path, column: str | None
    ) -> None:
        options = {"partitions": "3"}
        if column is not None:
            options["partition_column"] = column
        window = TimeRange("at", datetime(1510, 1, 1, tzinfo=UTC), datetime(1800, 1, 1, tzinfo=UTC))
        with snapshot_of(filled, **options) as snapshot:
            with psycopg.connect(filled, autocommit=True) as writer:
                writer.execute("insert into readings select * from readings; delete from readings")
            engine = spark_store.session.engine
            for number, query in enumerate(
                [SourceQuery(table="readings"), SourceQuery(table="readings", window=window)]
            ):
                expected = snapshot.read(query).read_all().sort_by("id")
                staged = snapshot.stage(query, engine, str(tmp_path / f"rows-{number}"))
                actual = engine.stream(staged).read_all().sort_by("id")
                assert actual.schema == expected.schema == snapshot.schema(query)
                for name in expected.schema.names:
                    assert str(actual[name].to_pylist()) == str(expected[name].to_pylist()), name
        files = list((tmp_path / "rows-0").glob("*.parquet"))
        assert len(files) >= 2  # a part without rows leaves none

    def test_frames_jobs_and_groups_use_partitioned_reads(
        self, filled: str, spark_store: FeatureStore, tmp_path: Path
    ) -> None:
        store = spark_store
        store.add_source("plant", filled, options={"partitions": "2"})
        frame = store.read_source("plant", sql="select id, level, at from readings where id < 3000")
        group = store.create_featuregroup(frame.select("id", "level"), "levels", primary_key="id")
        (source_read,) = group.history()[0].inputs.values()
        assert (group.read().count(), source_read["rows"]) == (2999, 2999)
        store.create_external_featuregroup(
            "live", source="plant", table="readings", primary_key=["id"]
        )
        labels = pa.table({"id": pa.array([1, 2, 3], pa.int32()), "y": [0, 1, 0]})
        rows = store.get_features(["live.price"], labels=labels).to_arrow().sort_by("id")
        assert list(map(str, rows["price"].to_pylist())) == ["0.01", "0.02", "0.03"]
        (tmp_path / "plant_jobs.py").write_text(JOB)
        store.register_jobs(tmp_path / "plant_jobs.py")
        store.backfill_job("daily", "2024-01-01T00:00Z", "2024-01-02T00:00Z")
        (source_read,) = store.get_featuregroup_history("daily")[0].inputs.values()
        assert (source_read["rows"], source_read["high_water_mark"]) == (
            3000,
            "2024-01-01T00:00:00.003000+00:00",
        )

    @pytest.mark.parametrize(
        ("value", "words"),
        [
            ("at) values ('infinity'", "'at'.*infinite"),
            pytest.param("day) values ('-infinity'", "'day'.*infinite", marks=pytest.mark.soak),
            ("numbers) values (array[[1, 2], [3, 4]]", "'numbers'.*several axes"),
        ],
    )
    def test_invalid_values_are_refused_by_column(
        self, filled: str, spark_store: FeatureStore, tmp_path: Path, value: str, words: str
    ) -> None:
        with psycopg.connect(filled, autocommit=True) as database:
            database.execute(f"insert into readings ({value})")
        query, engine = SourceQuery(table="readings"), spark_store.session.engine
        with (
            snapshot_of(filled, partitions="2") as snapshot,
            pytest.raises(UnsupportedType, match=words),
        ):
            snapshot.stage(query, engine, str(tmp_path / "rows"))

    def test_missing_jdbc_driver_has_install_hint(
        self, filled: str, spark_store: FeatureStore, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_partitions, "_DRIVER", "org.postgresql.NoDriver")
        spark_store.add_source("plant", filled, options={"partitions": "2"})
        frame = spark_store.read_source("plant", table="readings")
        with pytest.raises(ConfigurationError, match=r"NoDriver") as caught:
            spark_store.create_featuregroup(frame, "levels", primary_key="id")
        assert "spark.jars.packages=org.postgresql:postgresql" in str(caught.value)
        with pytest.raises(FeatureStoreError):
            spark_store.get_featuregroup("levels")
