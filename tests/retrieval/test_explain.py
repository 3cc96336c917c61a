"""Explanations of single values.

Which row gave it, since when the table holds it, and why the others lost.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from typer.testing import CliRunner

from featurestore.arrow.types import TIMESTAMP
from featurestore.errors import InvalidArgument, KeyRequired

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

T0 = datetime(2024, 1, 1, tzinfo=UTC)


def to_time(hours: float) -> datetime:
    return T0 + timedelta(hours=hours)


def rows(
    keys: list[int], event_hours: list[float], known_hours: list[float], values: list[float | None]
) -> pa.Table:
    dtype = pa.timestamp("us", tz="UTC")
    return pa.table(
        {
            "k": keys,
            "event": pa.array(map(to_time, event_hours), dtype),
            "known": pa.array(map(to_time, known_hours), dtype),
            "x": pa.array(values, pa.float64()),
        }
    )


@pytest.fixture
def corrected(store: FeatureStore) -> FeatureStore:
    store.create_featuregroup(
        rows([1, 1, 2], [0, 2, 0], [0, 2, 0], [0.0, 2.0, 20.0]), "g",
        primary_key=["k"], event_time="event", created_time="known", ttl="10h",
        validation="off", statistics=False,
    )  # fmt: skip
    store.insert_into_featuregroup(rows([1], [2], [5], [2.5]), "g", validation="off")
    store.insert_into_featuregroup(rows([1, 1], [2, 4], [9, 4], [2.75, 4.0]), "g", validation="off")
    return store


def test_explain_shows_winner_origin_and_losers(
    corrected: FeatureStore,
) -> None:
    actual = corrected.featuregroup("g").explain(key={"k": 1}, at=to_time(3))
    assert actual.row is not None
    assert (actual.row.values["x"], actual.row.event_time, actual.row.created_time) == (
        2.0,
        to_time(2),
        to_time(2),
    )
    assert (actual.row.delta_version, actual.delta_version, actual.lost_rows) == (1, 3, 4)
    details = {row.values["x"]: (row.reason, row.delta_version) for row in actual.lost}
    assert details == {
        0.0: ("an older event", 1),
        2.5: ("not known yet", 2),
        2.75: ("not known yet", 3),
        4.0: ("in the future", 3),
    }


@pytest.fixture
def small(empty_store: FeatureStore) -> FeatureStore:
    empty_store.create_featuregroup(
        rows([1, 1, 1, 1], [0, 2, 2, 2], [0, 2, 5, 5], [0.0, 2.0, 2.5, 2.75]), "g",
        primary_key=["k"], event_time="event", created_time="known", ttl="10h", validation="off",
    )  # fmt: skip
    return empty_store


def test_explain_gives_reasons_of_losers(small: FeatureStore) -> None:
    actual = small.featuregroup("g").explain(key=1, at=to_time(6))
    frame = small.get_features(
        "g.x",
        labels=pa.table({"k": [1], "at": pa.array([to_time(6)], pa.timestamp("us", tz="UTC"))}),
    )
    assert actual.row is not None
    assert actual.row.values["x"] == frame.to_arrow()["x"][0].as_py()
    assert {row.reason for row in actual.lost} == {
        "equal times, smaller row hash", "corrected by a row created later", "an older event",
    }  # fmt: skip
    text = str(actual)
    assert "g@v1 at Delta version 1" in text
    assert "from event 2024-01-01 02:00:00, created 2024-01-01 05:00:00, Delta version 1" in text


def test_explain_treats_expired_value_as_missing(small: FeatureStore) -> None:
    actual = small.featuregroup("g").explain(key=1, at=to_time(13))
    assert actual.row is None
    assert actual.lost[0].reason == "the latest row, but older than the ttl of 10h"
    assert "No row matches: every feature is null." in str(actual)


def test_explain_unknown_key_has_no_rows(small: FeatureStore) -> None:
    actual = small.featuregroup("g").explain(key=77, at=to_time(13))
    assert (actual.row, actual.lost_rows) == (None, 0)


def test_explain_keeps_origin_after_rewrite(small: FeatureStore) -> None:
    small.insert_into_featuregroup(rows([2], [0], [0], [1.0]), "g")
    small.compact_featuregroup("g")
    actual = small.featuregroup("g").explain(key=2, at=to_time(1))
    assert actual.row is not None
    assert actual.row.delta_version == 2


@pytest.mark.parametrize("key", [{"nothing": 1}, {"k": "a text"}, {"k": 1, "x": 2}, (1, 2)])
def test_explain_refuses_invalid_key(small: FeatureStore, key: object) -> None:
    with pytest.raises(InvalidArgument):
        small.featuregroup("g").explain(key=key, at=to_time(1))


def test_explain_refuses_group_without_key(empty_store: FeatureStore) -> None:
    empty_store.create_featuregroup(pa.table({"x": [1.0]}), "matrix")
    with pytest.raises(KeyRequired):
        empty_store.featuregroup("matrix").explain(key=1)


# -- the command line ---------------------------------------------------------------------------


def run(store: FeatureStore, *words: str) -> str:
    from featurestore.cli import app

    result = CliRunner().invoke(app, ["--location", store.location, *words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_cli_fg_explain_prints_explanation(small: FeatureStore) -> None:
    text = run(small, "fg", "explain", "g", "--key", "k=1", "--at", to_time(3).isoformat())
    assert "in the future" not in text
    assert "not known yet" in text
    document = json.loads(
        run(
            small,
            "fg",
            "explain",
            "g",
            "--key",
            "k=1",
            "--at",
            to_time(3).isoformat(),
            "--output",
            "json",
        )
    )
    assert document["row"]["values"]["x"] == 2.0


def test_cli_features_search_and_get(small: FeatureStore, tmp_path: Path) -> None:
    assert "g.x" in run(small, "features", "search", "x")
    assert run(small, "features", "get", "g.x", "-n", "1").count("\n") == 6
    labels = tmp_path / "labels.parquet"
    times = pa.array([to_time(1), to_time(3)], pa.timestamp("us", tz="UTC"))
    parquet.write_table(pa.table({"key": [1, 1], "at": times}), labels)
    words = ["features", "get", "g.x", "--labels", str(labels), "--join-key", "key=k"]
    assert [row["x"] for row in json.loads(run(small, *words, "--output", "json"))] == [0.0, 2.0]
    assert "g@v1 at Delta version 1" in run(small, *words, "--explain")
    for name in ("rows.parquet", "rows.csv"):
        out = tmp_path / name
        assert "rows  2" in run(small, *words, "--out", str(out))
        assert out.stat().st_size > 0
    assert parquet.read_table(tmp_path / "rows.parquet")["x"].to_pylist() == [0.0, 2.0]
    csv = tmp_path / "labels.csv"
    csv.write_text("k,at\n1,2024-01-01T03:00:00Z\n")
    assert (
        json.loads(run(small, "features", "get", "g.x", "--labels", str(csv), "--output", "json"))[
            0
        ]["x"]
        == 2.0
    )


def test_explain_keys_accept_what_columns_accept(
    empty_store: FeatureStore, subtests: pytest.Subtests
) -> None:
    """The same key finds the row as a Python value and as text; values that are cut find none."""
    columns: list[tuple[pa.DataType, Any, list[Any], str, list[Any], list[str]]] = [
        (pa.int8(), 1, [1.0, Decimal("1.0"), np.int64(1)], "1", [1.7, True, 257, "1"], ["1.7", "257"]),
        (pa.decimal128(5, 2), Decimal("1.50"), [Decimal("1.5")], "1.5", [Decimal("1.501"), "1.5"],
         ["1.501"]),
        (pa.date32(), date(2024, 1, 31), [np.datetime64("2024-01-31")], "2024-01-31",
         [datetime(2024, 1, 31, 12), 19753], ["2024-01-32"]),
        (TIMESTAMP, datetime(2024, 1, 31, 12, tzinfo=UTC),
         ["2024-01-31T12:00Z", "2024-01-31T13:00+01:00", np.datetime64("2024-01-31T12:00")],
         "2024-01-31T12:00Z", [1706702400, date(2024, 1, 31)], ["noon"]),
        (pa.binary(), b"\x00\xff", [np.bytes_(b"\x00\xff")], "AP8=", ["AP8=", 1], ["\x00"]),
        (pa.string(), "a", [np.str_("a")], "a", [1, b"a"], []),
    ]  # fmt: skip
    for number, (kind, key, equal, text, unfit, unfit_texts) in enumerate(columns):
        name = f"g{number}"
        rows = pa.table({"k": pa.array([key], kind), "t": [to_time(0)], "x": [1.0]})
        group = empty_store.create_featuregroup(rows, name, primary_key="k", event_time="t")
        aggregate = f"{name}.x|sum|1d"
        for value in [key, *equal]:
            with subtests.test(f"{value!r} as {kind}"):
                assert group.explain(key=value, at=to_time(1)).row is not None
                assert group.explain_window(aggregate, key=value, at=to_time(1)).value == 1.0
        for value in unfit:
            with subtests.test(f"{value!r} does not fit {kind}"):
                with pytest.raises(InvalidArgument):
                    group.explain(key=value, at=to_time(1))
                with pytest.raises(InvalidArgument):
                    group.explain_window(aggregate, key={"k": value}, at=to_time(1))
        words = ["fg", "explain", name, "--at", to_time(1).isoformat(), "--key"]
        with subtests.test(f"--key k={text} as {kind}"):
            assert "Delta version" in run(empty_store, *words, f"k={text}")
        for text in unfit_texts:
            does_not_fit = pytest.raises(InvalidArgument, match="--key")
            with subtests.test(f"--key k={text!r} does not fit {kind}"), does_not_fit:
                run(empty_store, *words, f"k={text}")
