"""The join in memory equals the rule, row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import featurestore
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta import sorted_merge
from featurestore_connectors.duckdb_delta.engine import DuckDBEngine
from featurestore_connectors.duckdb_delta.session import Database
from featurestore_connectors.duckdb_delta.sorted_merge import encode_keys, match_rows

_START = 1_700_000_000_000_000
# Values whose differences do not fit into one code with others.
_NUMBERS = st.sampled_from([-(2**63), -(2**40), -1, 0, 1, 2, 3, 2**40, 2**63 - 1])
_WIDE_NUMBERS = st.sampled_from([None, 0, 1, 8, 16, 2**61])
_TIMES = st.sampled_from([-62_135_596_800_000_000, 0, 1, 2, 3, 253_402_300_799_999_999])
_ROWS = st.lists(
    st.tuples(
        st.none() | _NUMBERS | _WIDE_NUMBERS,
        st.sampled_from([None, "", "a", "b"]),
        _WIDE_NUMBERS,
        st.none() | _TIMES,
    ),
    max_size=12,
    unique=True,
)
_Rows = list[tuple[int | None, str | None, int | None, int | None]]
# Keys of small and of large size, whose combined codes do not fit into 64 bits.
_MANY: _Rows = [(number, "a", wide, 0) for number in range(9) for wide in (0, 8, 2**61)]


@settings(max_examples=300, deadline=None)
@given(rows=_ROWS, labels=_ROWS)
@example(rows=_MANY, labels=_MANY)
def test_match_rows_equals_a_loop_over_all_rows(rows: _Rows, labels: _Rows) -> None:
    def column(side: _Rows, index: int) -> pa.ChunkedArray:
        kind = pa.string() if index == 1 else pa.int64()
        return pa.chunked_array([pa.array([row[index] for row in side], kind)])

    keys = [encode_keys(column(labels, index), column(rows, index)) for index in range(3)]
    times = [column(side, 3).fill_null(0).to_numpy() for side in (labels, rows)]
    is_valid = [np.array([None not in row for row in side], dtype=bool) for side in (labels, rows)]
    positions = match_rows(
        keys, (times[0], times[1]), is_label_valid=is_valid[0], is_row_valid=is_valid[1]
    )
    for label, position in zip(labels, positions.tolist(), strict=True):
        candidates = [
            (row[3], number)
            for number, row in enumerate(rows)
            if None not in (*row, *label) and row[:3] == label[:3] and row[3] <= label[3]  # type: ignore[operator]
        ]
        assert position == (max(candidates)[1] if candidates else -1)


def test_retrieval_of_few_rows_is_joined_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    joined: list[str] = []
    retrieve = sorted_merge.retrieve

    def count(engine: DuckDBEngine, plan: object, labels: Relation | None) -> Relation:
        joined.append("in memory")
        return retrieve(engine, plan, labels)  # type: ignore[arg-type]

    monkeypatch.setattr(sorted_merge, "retrieve", count)
    store = featurestore.connect(tmp_path / "store")
    times = pa.array([_START, _START + 3_600_000_000], pa.timestamp("us", "UTC"))
    rows = pa.table({"key": ["a", "a"], "at": times, "value": [1.0, 2.0]})
    store.create_featuregroup(rows, "group", primary_key="key", event_time="at", ttl="30min")
    instants = [_START + micros for micros in (4_000_000_000, 0, 10, -1)]
    labels = pa.table({"key": ["a", "b", "a", "a"], "time": pa.array(instants, times.type)})
    frames = {}
    for is_merged in (True, False):
        monkeypatch.setattr(sorted_merge, "_MAX_LABELS", 10 if is_merged else -1)
        frames[is_merged] = store.get_features(
            ["group.value"], labels=labels, label_time="time", dataframe_type="arrow"
        )
    store.close()
    assert joined == ["in memory"]
    assert frames[True].equals(frames[False])
    assert frames[True]["value"].to_pylist() == [2.0, None, 1.0, None]


def test_repeated_small_retrievals_bind_no_query_and_see_other_writers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, reader = (featurestore.connect(tmp_path / "store") for _ in range(2))
    random = np.random.default_rng(5)
    row_count, label_count = 30_000, 1_000

    def make_rows(count: int, keys: int) -> dict[str, object]:
        times = _START + random.integers(0, 1 << 40, count)
        return {
            "key": random.integers(0, keys, count),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }

    rows = pa.table({**make_rows(row_count, 300), "value": random.random(row_count)})
    writer.create_featuregroup(rows, "group", primary_key="key", event_time="at")
    labels = pa.table(make_rows(label_count, 320))
    bound: list[str] = []
    bind = Database.bind

    def count_binds(database: Database, query: str, *arguments: object) -> object:
        bound.append(query)
        return bind(database, query, *arguments)  # type: ignore[arg-type]

    def retrieve() -> pa.Table:
        return reader.get_features("group.value", labels=labels, dataframe_type="arrow")

    with monkeypatch.context() as patch:
        patch.setattr(Database, "bind", count_binds)
        before = [retrieve(), retrieve()]
        assert bound == []
        # A row at the time of each label is the latest one.
        update = labels.append_column("value", pa.array(random.random(label_count)))
        writer.insert_into_featuregroup(update, "group", mode="upsert")
        bound.clear()
        after = retrieve()
        assert bound == []
    with monkeypatch.context() as patch:
        patch.setattr(sorted_merge, "_MAX_ROWS_OF_LOOKUP", -1)
        by_query = retrieve()
    assert before[0].equals(before[1])
    assert after["value"].equals(update["value"])
    assert after.equals(by_query)
    writer.close()
    reader.close()
