"""The join in memory equals the rule, row by row."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import featurestore
from featurestore.delta.log import FileState
from featurestore.plugins.engine import Relation
from featurestore_connectors.duckdb_delta import row_matching, sorted_merge
from featurestore_connectors.duckdb_delta.engine import DuckDBEngine
from featurestore_connectors.duckdb_delta.row_matching import RowTimes, encode_keys, match_rows
from featurestore_connectors.duckdb_delta.session import Database

_START = 1_700_000_000_000_000
# Values whose differences do not fit into one code with others.
_NUMBERS = st.sampled_from([-(2**63), -(2**40), -1, 0, 1, 2, 3, 2**40, 2**63 - 1])
_WIDE_NUMBERS = st.sampled_from([None, 0, 1, 8, 16, 2**61])
_TIMES = st.sampled_from([-62_135_596_800_000_000, 0, 1, 2, 3, 253_402_300_799_999_999])
_CREATED = st.none() | st.sampled_from([-1, 0, 1, 2, 4, 253_402_300_799_999_999])
_ROWS = st.lists(
    st.tuples(
        st.none() | _NUMBERS | _WIDE_NUMBERS,
        st.sampled_from([None, "", "a", "b"]),
        _WIDE_NUMBERS,
        st.none() | _TIMES,
        _CREATED,
    ),
    max_size=12,
)
_Row = tuple[int | None, str | None, int | None, int | None, int | None]
_Rows = list[_Row]
# Keys of small and of large size, whose combined codes do not fit into 64 bits.
_MANY: _Rows = [(number, "a", wide, 0, 0) for number in range(9) for wide in (0, 8, 2**61)]
# Corrections of one event, which are known in another order.
_LATE: _Rows = [(0, "a", 0, event, created) for event in (2, 1) for created in (4, 2, 4, 1)]


@settings(max_examples=600, deadline=None)
@given(
    rows=_ROWS,
    labels=_ROWS,
    has_created=st.booleans(),
    code_bits=st.sampled_from([63, 12, 6]),
    max_undecided=st.sampled_from([0.0, 1.0]),
)
@example(rows=_MANY, labels=_MANY, has_created=True, code_bits=63, max_undecided=1.0)
@example(rows=_LATE, labels=_LATE, has_created=True, code_bits=63, max_undecided=1.0)
@example(rows=_LATE, labels=_LATE, has_created=False, code_bits=6, max_undecided=1.0)
def test_match_rows_equals_a_loop_over_all_rows(
    rows: _Rows, labels: _Rows, has_created: bool, code_bits: int, max_undecided: float
) -> None:
    def column(side: _Rows, index: int) -> pa.ChunkedArray:
        dtype = pa.string() if index == 1 else pa.int64()
        return pa.chunked_array([pa.array([row[index] for row in side], dtype)])

    def micros(side: _Rows, index: int) -> np.ndarray:
        return column(side, index).fill_null(0).to_numpy()

    def is_valid(row: _Row, columns: int) -> bool:
        return None not in row[:columns]

    columns = 5 if has_created else 4
    # Any order of the hashes, the same in each run.
    hashes = np.array([(number * 7 + 3) % 13 for number in range(len(rows))], dtype=np.int64)
    hashed: list[int] = []

    def tie_hashes(positions: np.ndarray) -> np.ndarray:
        hashed.extend(positions.tolist())
        return hashes[positions]

    with pytest.MonkeyPatch.context() as patch:
        # Fewer bits leave more codes with equal leading bits.
        patch.setattr(row_matching, "_CODE_BITS", code_bits)
        patch.setattr(row_matching, "_MAX_UNDECIDED", max_undecided)
        positions = match_rows(
            [encode_keys(column(labels, index), column(rows, index)) for index in range(3)],
            micros(labels, 3),
            RowTimes(micros(rows, 3), micros(rows, 4) if has_created else None),
            is_label_valid=np.array([is_valid(label, 4) for label in labels], dtype=bool),
            is_row_valid=np.array([is_valid(row, columns) for row in rows], dtype=bool),
            tie_hashes=tie_hashes,
        )
    for label, position in zip(labels, positions.tolist(), strict=True):
        candidates = []
        for number, row in enumerate(rows):
            if not is_valid(label, 4) or not is_valid(row, columns) or row[:3] != label[:3]:
                continue
            if max(row[3:columns]) <= label[3]:  # type: ignore[type-var,operator]
                candidates.append((row[3:columns], hashes[number], number))
        assert position == (max(candidates)[2] if candidates else -1)
    # Only rows that tie are hashed.
    assert all([row[:columns] for row in rows].count(rows[n][:columns]) > 1 for n in hashed)


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


def test_replaced_files_are_read_again(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    names = ("number",)

    def write(numbers: list[int]) -> tuple[int, int]:
        path.unlink(missing_ok=True)
        table = pa.table({"number": numbers})
        parquet.write_table(table, path, compression="none", write_statistics=False)
        state = FileState.from_path(str(path))
        return state.size, state.modified

    def read() -> list[int]:
        file = sorted_merge._open_cached(FileState.from_path(str(path)))
        return sorted_merge._read_cached((file,), names)["number"].to_pylist()

    first = write([1, 2])
    assert read() == [1, 2]
    hits = sorted_merge._read_cached.cache_info().hits
    assert read() == [1, 2]
    assert sorted_merge._read_cached.cache_info().hits == hits + 1
    second = write([2, 1])
    # Only the time and the inode differ.
    assert first[0] == second[0]
    assert read() == [2, 1]
