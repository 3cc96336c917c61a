"""Sources are registered, checked and read, without storing or showing secrets."""

from __future__ import annotations

import json
import sqlite3
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.errors import (
    ConfigurationError,
    FeatureStoreError,
    InvalidArgument,
    SourceChanged,
    SourceExists,
    SourceNotFound,
    SourceTableNotFound,
    SourceUnavailable,
    UnsupportedType,
)
from featurestore.model.names import parse_secret
from featurestore.model.source import SourceSpec, source_kind
from featurestore.registry import lineage
from featurestore.storage.grants import acting_source, resolve_secret
from featurestore.store import FeatureStore
from tests.registry.conftest import postgres_server, postgres_url  # noqa: F401  # fixtures

PASSWORD = "tr0ub4dor&3/%"


def orders(path: Path, *rows: tuple[Any, ...], columns: str = "id integer, total real") -> str:
    """Write a table of orders into a SQLite file and return its URI."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"create table orders ({columns})")
        for row in rows:
            marks = ", ".join("?" for _ in row)
            database.execute(f"insert into orders values ({marks})", row)
    return f"sqlite:///{path}"


@pytest.fixture
def shop(empty_store: FeatureStore, tmp_path: Path) -> FeatureStore:
    """A store with a source of two orders."""
    uri = orders(
        tmp_path / "shop.db",
        (1, 12.5, "2024-01-01 06:10:00"),
        (2, 99.0, "2024-01-01T07:20:00+01:00"),
        columns="id integer, total real, created_at timestamp",
    )
    empty_store.add_source("shop", uri, description="two orders")
    return empty_store


def test_source_is_registered_listed_and_removed(shop: FeatureStore) -> None:
    (spec,) = shop.get_sources()
    assert (spec.name, spec.kind, spec.description) == ("shop", "sqlite", "two orders")
    assert SourceSpec.from_text(json.dumps(spec.to_json())) == spec
    with pytest.raises(SourceExists, match="already registered"):
        shop.add_source("shop", "sqlite:////elsewhere.db")
    with pytest.raises(SourceNotFound, match="'shop'"):
        shop.read_source("shopp", table="orders")
    shop.remove_source("shop")
    assert shop.get_sources() == []


def test_check_source_lists_tables_and_sample_rows(shop: FeatureStore) -> None:
    report = shop.check_source("shop")
    assert (report.ok, report.sampled, len(report.sample)) == (True, "orders", 2)
    assert report.sample[1]["created_at"] == datetime(2024, 1, 1, 6, 20, tzinfo=UTC)
    Path(str(shop.location)).parent.joinpath("shop.db").unlink()
    report = shop.check_source("shop")
    assert not report.ok
    assert "does not exist" in report.problems[0]


def test_source_frames_serve_as_data_and_labels(store: FeatureStore, tmp_path: Path) -> None:
    uri = orders(tmp_path / "shop.db", (1, 12.5), (2, 99.0), (3, None))
    store.add_source("shop", uri)
    frame = store.read_source("shop", table="orders")
    group = store.create_featuregroup(frame, "orders", primary_key="id")
    assert group.read().count() == 3
    labels = store.read_source("shop", sql="select id, total > 50 as large from orders")
    joined = store.get_features(["orders.total"], labels=labels)
    assert joined.count() == 3
    few = frame.filter("total > 20").select("id").to_arrow()
    assert few.to_pylist() == [{"id": 2}]
    assert frame.to_arrow().num_rows == frame.count() == 3  # read anew each time


def test_insert_records_source_read_in_lineage(shop: FeatureStore) -> None:
    frame = shop.read_source("shop", table="orders")
    group = shop.create_featuregroup(frame, "orders", primary_key="id", event_time="created_at")
    plain = shop.create_featuregroup(frame.filter("total > 20"), "plain")
    for name, read, commit in (("orders", 2, group), ("plain", 2, plain)):
        (source_read,) = commit.history()[0].inputs.values()
        assert (source_read["source"], source_read["kind"], source_read["rows"]) == (
            "source:shop",
            "sqlite",
            read,
        )
        assert len(source_read["query"]) == 64
        assert source_read["snapshot"]
        with shop.session.registry.reading() as connection:
            (edge,) = lineage.sources(connection, "featuregroup", name, 1)
        assert edge.source == "source:shop"
        assert edge.detail == source_read
    commit = shop.insert_into_featuregroup(
        shop.read_source("shop", sql="select * from orders where id = 2"), "orders", mode="upsert"
    )
    (source_read,) = shop.get_featuregroup_history("orders")[0].inputs.values()
    assert (commit.delta_version, source_read["rows"]) == (2, 1)


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("postgresql://me@db/shop", "postgresql"),
        ("postgres://db/shop", "postgresql"),
        ("sqlite:///x.db", "sqlite"),
        ("delta+/data/x", "delta"),
        ("delta+file:///data/x", "delta"),
        ("delta+s3://lake/x", "delta"),
        ("s3a://lake/x", "file"),
        ("file:///data", "file"),
        ("./data=2024/x+y", "file"),
        ("/data", "file"),
    ],
)
def test_source_kind_is_derived_from_uri(uri: str, expected: str) -> None:
    assert source_kind(uri) == expected


@pytest.mark.parametrize(
    "uri",
    [
        f"postgresql://me:{PASSWORD[:6]}@db/shop",
        "postgresql://me@db/shop?password=tr0ub4",
        "postgresql://me@db/shop?sslpassword=tr0ub4",
        "oracle://me@db",
        "",
    ],
)
def test_add_source_refuses_passwords_and_unknown_kinds(
    empty_store: FeatureStore, uri: str
) -> None:
    with pytest.raises(InvalidArgument) as error:
        empty_store.add_source("shop", uri)
    assert "tr0ub4" not in str(error.value)
    assert empty_store.get_sources() == []


def test_add_source_accepts_secrets_by_reference_only(empty_store: FeatureStore) -> None:
    with pytest.raises(InvalidArgument) as error:
        empty_store.add_source("shop", "postgresql://me@db/shop", secret=PASSWORD)
    assert PASSWORD not in str(error.value)
    with pytest.raises(InvalidArgument, match="would be stored"):
        empty_store.add_source("shop", "/data", options={"api_key": PASSWORD})
    uri = "postgresql://me@127.0.0.1/shop"
    empty_store.add_source("shop", uri, secret="env:NOT_THERE")
    empty_store.add_source("shop", uri, secret="env:NOT_THERE")  # as on another machine
    with pytest.raises(SourceExists):
        empty_store.add_source("shop", uri, secret="env:ANOTHER")
    with pytest.raises(ConfigurationError, match="env:NOT_THERE"):
        empty_store.read_source("shop", table="orders")


def test_secret_grant_depends_on_options(
    empty_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    source_spec = empty_store.add_source(
        "files", str(tmp_path), secret="env:SHOP_PASSWORD", options={"format": "csv"}
    )

    def secret_of(spec: SourceSpec) -> str:
        return resolve_secret(
            parse_secret("env:SHOP_PASSWORD"), acting_source(empty_store.session.location, spec)
        )

    assert secret_of(source_spec) == PASSWORD
    with pytest.raises(ConfigurationError, match="differs from the one"):
        secret_of(replace(source_spec, options={"format": "parquet"}))


@pytest.mark.postgres
def test_secret_appears_nowhere_in_plain_text(
    empty_store: FeatureStore,
    postgres_url: str,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store, outputs = empty_store, []
    guarded = role_with_password(postgres_url)
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD)
    outputs.append(repr(store.add_source("shop", guarded, secret="env:SHOP_PASSWORD")))
    frame = store.read_source("shop", sql="select 1 as id, 2.5::float8 as total")
    group = store.create_featuregroup(frame, "orders", primary_key="id")
    outputs += [
        repr(store.get_sources()),
        repr(store.check_source("shop")),
        repr(frame),
        repr(group),
    ]
    outputs.append(repr([vars(commit) for commit in group.history()]))
    for query in ({"table": "nope"}, {"sql": "selec 1"}, {"sql": "select 1/0 as x"}):
        with pytest.raises(FeatureStoreError) as error:
            store.read_source("shop", **query).to_arrow()
        outputs += [str(error.value), repr(error.value.__cause__), repr(error.value.__context__)]
    # A wrong password, and an unreachable server.
    monkeypatch.setenv("SHOP_PASSWORD", PASSWORD[::-1])
    store.add_source("gone", "postgresql://me@127.0.0.1:1/shop", secret="env:SHOP_PASSWORD")
    for name in ("shop", "gone"):
        with pytest.raises(SourceUnavailable) as error:
            store.read_source(name, table="orders")
        outputs.append(str(error.value))
        outputs.append(repr(store.check_source(name)))
    everything = "\n".join([*outputs, caplog.text])
    location = Path(store.location)
    files = [path for path in location.rglob("*") if path.is_file()]
    for word in (PASSWORD, PASSWORD[::-1], "tr0ub4"):
        assert word not in everything
        assert [path for path in files if word.encode() in path.read_bytes()] == []
    assert any(b"env:SHOP_PASSWORD" in path.read_bytes() for path in files)


def role_with_password(url: str) -> str:
    """Return the URL of a user with password authentication."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as database:
        literal = PASSWORD.replace("'", "''")
        database.execute("drop role if exists careful")
        database.execute(f"create role careful login superuser password '{literal}'")
        (hba_file,) = database.execute("show hba_file").fetchone() or ("",)
        rule = "host all careful 127.0.0.1/32 scram-sha-256\n"
        hba = Path(hba_file)
        if rule not in hba.read_text():
            hba.write_text(rule + hba.read_text())
        database.execute("select pg_reload_conf()")
    return url.replace("store@", "careful@")


def test_dropped_or_changed_column_writes_nothing(shop: FeatureStore, tmp_path: Path) -> None:
    dropped = shop.read_source("shop", table="orders")
    typed = shop.read_source("shop", sql="select id, total from orders")
    with closing(sqlite3.connect(tmp_path / "shop.db")) as database, database:
        database.execute("alter table orders drop column created_at")
        database.execute("update orders set total = 'much'")
    with pytest.raises(SourceTableNotFound, match="'created_at'"):
        shop.create_featuregroup(dropped, "orders")
    with pytest.raises((SourceChanged, UnsupportedType), match="'total'"):
        shop.create_featuregroup(typed, "orders")
    assert shop.get_featuregroups() == []


def test_mixed_types_in_sqlite_column_are_refused(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    uri = orders(
        tmp_path / "odd.db",
        (1, "late", 1, None, "2024-01-01"),
        (2, 3, 2.5, None, None),
        columns="id integer, mixed, number numeric, empty, day date",
    )
    empty_store.add_source("odd", uri)
    with pytest.raises(UnsupportedType, match=r"'mixed'.*'empty'") as error:
        empty_store.read_source("odd", table="orders")
    assert "typeof(\"mixed\") WHEN 'real'" in eval(
        str(error.value.hint).split("sql=")[1].split(" casts")[0]
    )
    frame = empty_store.read_source("odd", table="orders", columns=["id", "number", "day"])
    assert frame.schema.field("number").type == pa.float64()
    assert frame.to_arrow().column("day").to_pylist()[0].isoformat() == "2024-01-01"


def from_text(text: str | None, value: Any) -> Any:
    """Restore a value of SQLite from the text that the hint reads."""
    if text is None or isinstance(value, str):
        return text
    return bytes.fromhex(text[2:-1]) if isinstance(value, bytes) else type(value)(text)


@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.none()
        | st.floats(allow_nan=False)
        | st.integers(-(2**63), 2**63 - 1)
        | st.binary(max_size=4)
        | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=4),
        min_size=1,
    )
)
def test_sqlite_hint_keeps_mixed_values(
    empty_store: FeatureStore, tmp_path: Path, values: list[Any]
) -> None:
    values = [*values, 0.1 + 0.2, 1 / 3, 1e300, 5e-324, "text", 2**63 - 1]
    path = tmp_path / f"mixed_{uuid.uuid4().hex}.db"
    uri = orders(path, *enumerate(values), columns="id integer, mixed")
    empty_store.add_source(path.stem, uri)
    with pytest.raises(UnsupportedType) as error:
        empty_store.read_source(path.stem, table="orders")
    statement = eval(str(error.value.hint).split("sql=")[1].split(" casts")[0])
    sql = statement.replace(", ...", ", id from orders order by id")
    texts = empty_store.read_source(path.stem, sql=sql).to_arrow()["mixed"].to_pylist()
    assert list(map(from_text, texts, values)) == values


def test_path_outside_source_folder_is_refused(empty_store: FeatureStore, tmp_path: Path) -> None:
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "a.csv").write_text("id\n1\n")
    (tmp_path / "lake" / "b.jsonl").write_text('{"id": 1}\n')
    (tmp_path / "secret.csv").write_text("id\n1\n")
    (tmp_path / "lake" / "out").symlink_to(tmp_path)
    empty_store.add_source("lake", str(tmp_path / "lake"))
    for path in ("../secret.csv", "out/secret.csv", str(tmp_path / "secret.csv")):
        with pytest.raises(InvalidArgument, match="is outside of the source"):
            empty_store.read_source("lake", path=path)
    with pytest.raises(InvalidArgument, match="several formats"):
        empty_store.read_source("lake")
    with pytest.raises(SourceTableNotFound, match=r"a\.csv"):
        empty_store.read_source("lake", path="c.csv")
    assert empty_store.read_source("lake", path="b.jsonl").count() == 1


def test_duckdb_source_sql_cannot_read_other_files(
    empty_store: FeatureStore, tmp_path: Path
) -> None:
    import duckdb

    (tmp_path / "secret.csv").write_text("id\n1\n")
    with duckdb.connect(str(tmp_path / "a.duckdb")) as database:
        database.execute(f"create view secrets as select * from '{tmp_path}/secret.csv'")
    empty_store.add_source("a", f"duckdb:///{tmp_path}/a.duckdb")
    for rows in ({"sql": f"select * from '{tmp_path}/secret.csv'"}, {"table": "secrets"}):
        with pytest.raises(FeatureStoreError, match="reads the tables of its own file only"):
            empty_store.read_source("a", **rows)


def test_cli_source_commands_add_check_list_read(
    shop: FeatureStore, command_line: Callable[..., Any], tmp_path: Path
) -> None:
    options = ("--location", shop.location)
    document = json.loads(command_line("source", "list", *options, "--output", "json").out)
    assert document[0]["name"] == "shop"
    (tmp_path / "lake").mkdir()
    (tmp_path / "lake" / "a.txt").write_text("id\n1\n")
    (tmp_path / "lake" / "b.data").write_text("id\n1\n")
    added = ("source", "add", "lake", str(tmp_path / "lake"), "--option", "format=csv")
    assert "format" in command_line(*added, *options).out
    assert "orders" in command_line("source", "check", "shop", *options).out
    command_line("source", "check", "lake", *options, code=1)
    shown = command_line("source", "read", "shop", "--table", "orders", "-n", "1", *options).out
    assert "12.5" in shown
    assert "99" not in shown


def test_module_functions_use_current_store(shop: FeatureStore) -> None:
    del shop
    assert [source.name for source in featurestore.get_sources()] == ["shop"]
    assert featurestore.read_source("shop", table="orders").columns[0] == "id"
