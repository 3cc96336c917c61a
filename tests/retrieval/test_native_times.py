"""Native DuckDB and Spark frames must have times in the years 1 to 9999."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import duckdb
import pyarrow as pa
import pytest

from featurestore.errors import OutOfRange
from tests.on_spark import on_engines

if TYPE_CHECKING:
    from featurestore.store import FeatureStore

# SQL of a time or date, and a pattern of the error.
OUTSIDE = {
    "duckdb": {
        "timestamp after": ("TIMESTAMPTZ '12000-01-31 00:00:00+00'", "12000-01-31"),
        "timestamp before": ("TIMESTAMPTZ '0002-01-31 (BC) 00:00:00+00'", "-001-01-31"),
        "infinity": ("TIMESTAMPTZ 'infinity'", "since 1970|294247"),
        "date after": ("DATE '12000-01-31'", "12000-01-31"),
        "in a list": ("[DATE '2024-01-31', DATE '12000-01-31']", "12000-01-31"),
        "in a struct": ("{'a': 1, 'b': DATE '12000-01-31'}", "12000-01-31"),
    },
    "spark": {
        "timestamp after": ("timestamp_seconds(316516204800L)", "12000-01-01"),
        "timestamp before": ("timestamp_seconds(-62198755200L)", "-001-01-01"),
        "date after": ("date_from_unix_date(3663382)", "12000-01-01"),
        "in a list": ("array(date_from_unix_date(3663382))", "12000-01-01"),
        "in a struct": ("named_struct('b', date_from_unix_date(3663382))", "12000-01-01"),
    },
}
KINDS = sorted(set(OUTSIDE["duckdb"]) | set(OUTSIDE["spark"]))
INSIDE = {
    "duckdb": "TIMESTAMPTZ '0001-01-01 00:00:00+00' AS t, DATE '9999-12-31' AS d, [DATE '9999-12-31'] AS l, "
    "NULL::TIMESTAMPTZ AS n",
    "spark": "TIMESTAMP '0001-01-01 00:00:00+00:00' AS t, DATE '9999-12-31' AS d, "
    "array(DATE '9999-12-31') AS l, CAST(NULL AS TIMESTAMP) AS n",
}


def native(engine_name: str, columns: str) -> Any:
    """Return 1,000 native rows of the engine; only the last has values in the columns."""
    if engine_name == "duckdb":
        return duckdb.connect().sql(columns.replace("ROWS", "range(1000) AS t(id)"))
    from pyspark.sql import SparkSession

    session = SparkSession.getActiveSession()
    assert session is not None
    return session.sql(columns.replace("ROWS", "range(1000)"))


@on_engines("case", KINDS, spark=["in a struct", "timestamp before"])
def test_native_rows_with_times_outside_are_refused(
    store: FeatureStore, engine_name: str, case: str
) -> None:
    if case not in OUTSIDE[engine_name]:
        pytest.skip("the engine has no such time")
    sql, shown = OUTSIDE[engine_name][case]
    store.create_featuregroup(pa.table({"id": [1], "x": [1.0]}), "g", primary_key="id")
    df = native(engine_name, f"SELECT id, CASE WHEN id = 999 THEN {sql} END AS t FROM ROWS")
    refused = rf"A row has .*({shown}).* in 't', outside of the years 1 to 9999"
    with pytest.raises(OutOfRange, match=refused):
        store.get_features(["g.x"], labels=df)
    with pytest.raises(OutOfRange, match=refused):
        store.create_training_dataset(df.select("id", "t"), "made")


def test_native_rows_at_time_limits_are_accepted(store: FeatureStore, engine_name: str) -> None:
    store.create_featuregroup(pa.table({"id": [1], "x": [1.0]}), "g", primary_key="id")
    df = native(engine_name, f"SELECT id, {INSIDE[engine_name]} FROM ROWS WHERE id < 3")
    assert store.get_features(["g.x"], labels=df).count() == 3
    data = native(engine_name, f"SELECT id, {INSIDE[engine_name]} FROM ROWS WHERE id < 3")
    dataset = store.create_training_dataset(
        data.select("id", "t", "d"), "made", data_format="parquet"
    )
    assert dataset.num_rows("train") == 3
