"""Publication of feature views: published values equal the retrieval at every instant."""

import warnings
from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
import time_machine
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from featurestore.errors import InvalidArgument
from tests.serving.online_reads import read_values, retrieve_values
from tests.store_copies import Connect

NOON = datetime(2024, 6, 1, 12, tzinfo=UTC)
TIME = pa.timestamp("us", tz="UTC")
KEYS = ["a", "b", "c"]
INSTANTS = [NOON + timedelta(seconds=seconds) for seconds in (0, 59, 60, 61, 119, 120, 300, 4000)]


def rows_of(records, start=0):
    """Return rows of the group; offsets are minutes from noon."""
    return pa.table(
        {
            "key": pa.array([key for key, _, _, _ in records], pa.string()),
            "at": pa.array([NOON + timedelta(minutes=event) for _, event, _, _ in records], TIME),
            "known": pa.array(
                [NOON + timedelta(minutes=minutes) for _, _, minutes, _ in records], TIME
            ),
            "value": pa.array([value for *_, value in records], pa.int64()),
            "number": pa.array(range(start, start + len(records)), pa.int64()),
        }
    )


RECORDS = st.lists(
    st.tuples(
        st.sampled_from(KEYS),
        st.integers(-3, 2),
        st.integers(-3, 2),
        st.one_of(st.none(), st.integers(0, 3)),
    ),
    min_size=1,
    max_size=8,
)


def assert_published(store, view, instants=INSTANTS):
    keys = [(key,) for key in KEYS]
    assert read_values(store, view, keys, instants) == retrieve_values(
        view, keys, ["key"], instants
    )


CHANGES = st.one_of(
    st.tuples(st.just("append"), RECORDS),
    st.tuples(st.just("upsert"), RECORDS),
    st.tuples(st.just("delete"), st.sampled_from([f"key = '{key}'" for key in KEYS])),
    st.tuples(st.just("delete"), st.sampled_from(["value = 1", "number % 2 = 0", "true"])),
    st.tuples(st.just("compact"), st.none()),
)


def apply_change(store, change, argument, start, *, key_length):
    """Change the group; the first values of a record are its key, for example key and time."""
    if change == "delete":
        store.delete_from_featuregroup("g", where=argument)
    elif change == "compact":
        store.compact_featuregroup("g")
    else:
        rows = rows_of(argument, start)
        if change == "upsert":
            # One row of each key: an upsert refuses others.
            last = {record[:key_length]: row for row, record in enumerate(argument)}
            rows = rows.take(pa.array(list(last.values())))
        store.insert_into_featuregroup(rows, "g", mode=change)


@pytest.mark.hypothesis
def test_published_values_equal_retrieval_after_each_change(
    connect: Connect, engine_name: str, tmp_path_factory: pytest.TempPathFactory
) -> None:

    @settings(max_examples={"duckdb": 6, "spark": 2}[engine_name], phases=[Phase.generate])
    @given(
        records=RECORDS,
        changes=st.lists(CHANGES, max_size=4),
        times=st.sampled_from(
            [{}, {"event_time": "at"}, {"event_time": "at", "created_time": "known"}]
        ),
        ttl=st.sampled_from([None, "90s", "exact"]),
    )
    def check(records, changes, times, ttl):
        with (
            warnings.catch_warnings(),
            time_machine.travel(NOON, tick=False),
            connect(tmp_path_factory.mktemp("store")) as store,
        ):
            warnings.simplefilter("ignore")
            check_changes(store, records, changes, times, ttl)

    check()


def check_changes(store, records, changes, times, ttl):
    store.create_featuregroup(
        rows_of(records),
        "g",
        primary_key="key",
        **times,
        ttl=ttl if times else None,
        statistics=False,
        validation="off",
    )
    view = store.create_feature_view("v", features=["g.value", "g.number"])
    assert dict(store.publish(view).delta_versions) == {"g@v1": 1}
    assert_published(store, view)
    for step, (change, argument) in enumerate(changes, 1):
        apply_change(store, change, argument, 100 * step, key_length=2 if times else 1)
        assert store.publish(view).mode == "incremental"
        assert_published(store, view)


def test_publish_refuses_windows_with_the_job_to_define(store):
    store.create_featuregroup(rows_of([("a", 0, 0, 1)]), "g", primary_key="key", event_time="at")
    view = store.create_feature_view("v", features=["g.value|sum|1h as total"])
    with pytest.raises(InvalidArgument, match=r"(?s)sum\|1h.*window_job\("):
        store.publish(view)


def test_publish_refuses_groups_without_primary_key(store):
    store.create_featuregroup(rows_of([("a", 0, 0, 1)]), "g", event_time="at")
    view = store.create_feature_view("v", features=["g.value"])
    with pytest.raises(InvalidArgument, match="'g@v1' has no primary key"):
        store.publish(view)
